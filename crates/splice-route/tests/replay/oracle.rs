//! Spoilt hellos as rustls reads them.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use rustls::server::Acceptor;
use splice_route::{ClientHelloReader, Progress};

use crate::random::Random;

/// A server name in lower case, and protocols.
type Wishes = (Option<String>, Vec<Vec<u8>>);

/// What rustls makes of whole hellos. `None` if it refuses them.
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

fn wishes(bytes: &[u8]) -> Option<Wishes> {
    let Progress::Complete(hello) = ClientHelloReader::default().read(bytes).map(Clone::clone)
    else {
        return None;
    };
    let protocols = hello.alpn().map(<[u8]>::to_vec);
    // rustls takes an address for no name.
    let name = hello
        .server_name()
        .filter(|name| name.parse::<IpAddr>().is_err());
    Some((name.map(str::to_owned), protocols.collect()))
}

/// The messages of real clients. In order: else a seed would not repeat them.
fn hellos() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hellos");
    let mut hellos: Vec<_> = fs::read_dir(directory)
        .expect("hellos")
        .map(|entry| entry.expect("a hello").path())
        .filter(|path| path.extension().is_some_and(|it| it == "bin"))
        .map(|path| message(&fs::read(path).expect("a hello")))
        .collect();
    hellos.sort();
    hellos
}

/// What the first records hold that are part of a handshake.
fn message(records: &[u8]) -> Vec<u8> {
    let mut rest = records;
    let mut message = Vec::new();
    while let [22, 3, _, high, low, behind @ ..] = rest {
        let (payload, next) = behind.split_at(u16::from_be_bytes([*high, *low]).into());
        message.extend(payload);
        rest = next;
    }
    message
}

/// A message in records of random lengths.
fn records(mut message: &[u8], random: &mut Random) -> Vec<u8> {
    let longest = [16384, 1000, 30][random.below(3)];
    let mut records = Vec::new();
    while !message.is_empty() {
        let length = message.len().min(longest);
        let (payload, rest) = message.split_at(length - random.below(length / 2));
        let length = u16::try_from(payload.len()).expect("16 bits");
        records.extend([&[22, 3, 1], &length.to_be_bytes()[..], payload].concat());
        message = rest;
    }
    records
}

/// A hello that both read has to say the same to both: else a client could get through a route that is
/// not for it to a server that reads like rustls.
fn agree(rounds: usize, seed: u64) {
    let mut random = Random::new(seed);
    let hellos = hellos();
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
        let bytes = records(&message, &mut random);
        if let (Some(ours), Some(theirs)) = (wishes(&bytes), wishes_by_rustls(&bytes)) {
            read_by_both += 1;
            let shown = bytes.escape_ascii();
            assert_eq!(ours, theirs, "seed {seed}: b\"{shown}\"");
        }
    }
    // A mutator that spoils every hello would prove nothing.
    assert!(read_by_both > rounds / 20, "{read_by_both} of {rounds}");
}

#[test]
fn rustls_reads_the_same_from_some_mutations() {
    agree(2000, 1);
}

#[test]
#[ignore = "soak: a hundred times as many mutations as the test above, others each time"]
fn rustls_reads_the_same_from_many_mutations() {
    agree(200_000, Random::any_seed());
}
