//! The hellos as rustls reads them.

use std::sync::Arc;

use rustls::server::Acceptor;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use splice_route::{ClientHello, Progress, TlsVersion};

use super::hellos::{message, read, records};
use super::random::Random;
use super::{directory, files};

/// A server name in lower case, and protocols.
type Wishes = (Option<String>, Vec<Vec<u8>>);

/// What rustls makes of whole hellos. `None` if it refuses them or needs more.
fn wishes_by_rustls(mut bytes: &[u8]) -> Option<Wishes> {
    let mut acceptor = Acceptor::default();
    while !bytes.is_empty() {
        acceptor.read_tls(&mut bytes).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            let hello = accepted.client_hello();
            let name = hello.server_name().map(str::to_ascii_lowercase);
            let protocols = hello.alpn().into_iter().flatten();
            return Some((name, protocols.map(<[u8]>::to_vec).collect()));
        }
    }
    None
}

fn wishes(hello: &ClientHello) -> Wishes {
    let protocols = hello.alpn().map(<[u8]>::to_vec);
    (hello.server_name().map(str::to_owned), protocols.collect())
}

#[test]
fn rustls_reads_the_same_from_hellos_of_clients() {
    for (client, bytes) in files(&directory("hellos")) {
        let Progress::Complete(hello) = read(&bytes) else {
            panic!("{client}");
        };
        if hello.newest_version() < TlsVersion::Tls12 {
            continue;
        }
        for length in [1, 7, 100, 16384] {
            let bytes = records(&message(&bytes), || length);
            assert_eq!(wishes_by_rustls(&bytes), Some(wishes(&hello)), "{client}");
        }
    }
}

/// rustls as a client, with records as short as it makes them.
#[test]
fn hellos_of_rustls_are_read() {
    let suites = rustls::crypto::ring::default_provider();
    for (version, expected) in [
        (&rustls::version::TLS12, TlsVersion::Tls12),
        (&rustls::version::TLS13, TlsVersion::Tls13),
    ] {
        let mut config = ClientConfig::builder_with_provider(Arc::new(suites.clone()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        for longest in [None, Some(64)] {
            config.max_fragment_size = longest;
            let name = "example.org".try_into().unwrap();
            let mut client = ClientConnection::new(Arc::new(config.clone()), name).unwrap();
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            let Progress::Complete(hello) = read(&bytes) else {
                panic!("{:?}", read(&bytes));
            };
            let expected_wishes = (Some("example.org".to_owned()), vec![b"h2".to_vec()]);
            assert_eq!(wishes(&hello), expected_wishes);
            assert_eq!(hello.newest_version(), expected);
        }
    }
}

/// A hello that both read has to say the same to both: else a client could get through a route that is
/// not for it to a server that reads like rustls.
fn agree_on_mutations(rounds: usize, seed: u64) {
    let mut random = Random::new(seed);
    let hellos: Vec<_> = files(&directory("hellos"))
        .iter()
        .map(|(_, bytes)| message(bytes))
        .collect();
    let mut read_by_both = 0;
    for _ in 0..rounds {
        let mut message = hellos[random.below(hellos.len())].clone();
        let other = &hellos[random.below(hellos.len())];
        random.mutate(&mut message, other);
        // Else a wrong length would be all that they see.
        if message.len() >= 4 && random.below(4) > 0 {
            let length = (message.len() - 4).to_be_bytes();
            message[1..4].copy_from_slice(&length[length.len() - 3..]);
        }
        let bytes = records(&message, || 16384);
        if let (Progress::Complete(hello), Some(expected)) =
            (read(&bytes), wishes_by_rustls(&bytes))
        {
            read_by_both += 1;
            let shown = bytes.escape_ascii();
            assert_eq!(wishes(&hello), expected, "seed {seed}: b\"{shown}\"");
        }
    }
    assert!(read_by_both > rounds / 20, "{read_by_both} of {rounds}");
}

#[test]
fn rustls_reads_the_same_from_some_mutations() {
    agree_on_mutations(2000, 1);
}

#[test]
#[ignore = "soak: a hundred times as many mutations as the test above, others each time"]
fn rustls_reads_the_same_from_many_mutations() {
    agree_on_mutations(200_000, Random::any_seed());
}
