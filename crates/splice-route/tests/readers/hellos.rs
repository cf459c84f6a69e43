//! Hellos of real clients, as they came and spread over other records.

use splice_route::TlsVersion::{self, Tls10, Tls11, Tls12, Tls13};
use splice_route::{ClientHello, ClientHelloReader, Progress};

use super::random::Random;
use super::{LIMIT_BYTES, directory, files};

type Expected = (&'static str, Option<&'static str>, &'static str, TlsVersion);

const H2: &str = "h2,http/1.1";
const HTTP11: &str = "http/1.1";
const ORG: Option<&str> = Some("example.org");

/// The file, the server name, the protocols and the newest version.
const HELLOS: [Expected; 29] = [
    ("chromium", ORG, H2, Tls13),
    ("curl", ORG, H2, Tls13),
    ("curl-address", None, H2, Tls13),
    ("curl-http11", ORG, HTTP11, Tls13),
    ("curl-no-alpn", ORG, "", Tls13),
    ("curl-tls12", ORG, H2, Tls12),
    ("firefox", ORG, H2, Tls13),
    ("gnutls", ORG, "", Tls13),
    ("gnutls-alpn", ORG, H2, Tls13),
    ("gnutls-nameless", None, "", Tls13),
    ("gnutls-tls10", ORG, "", Tls10),
    ("gnutls-tls12", ORG, "", Tls12),
    ("go", ORG, "", Tls13),
    ("go-address", None, "", Tls13),
    ("go-alpn", ORG, H2, Tls13),
    ("go-tls12", ORG, "", Tls12),
    ("openssl", ORG, "", Tls13),
    ("openssl-alpn", Some("www.example.org"), H2, Tls13),
    ("openssl-nameless", None, "", Tls13),
    ("openssl-records", ORG, MANY, Tls13),
    ("openssl-tls10", ORG, "", Tls10),
    ("openssl-tls11", ORG, "", Tls11),
    ("openssl-tls12", ORG, "", Tls12),
    ("psql", Some("localhost"), "", Tls13),
    ("python", ORG, "", Tls13),
    ("python-alpn", ORG, HTTP11, Tls13),
    ("python-nameless", None, "", Tls13),
    ("python-tls12", ORG, "", Tls12),
    ("wget", Some("localhost"), "", Tls13),
];

/// As `capture` asks for.
const MANY: &str = "protocol-0,protocol-1,protocol-2,protocol-3,protocol-4,protocol-5,\
    protocol-6,protocol-7,protocol-8,protocol-9,protocol-10,protocol-11,\
    protocol-12,protocol-13,protocol-14,protocol-15,protocol-16,protocol-17,\
    protocol-18,protocol-19,protocol-20,protocol-21,protocol-22,protocol-23,\
    protocol-24,protocol-25,protocol-26,protocol-27,protocol-28,protocol-29,\
    protocol-30,protocol-31,protocol-32,protocol-33,protocol-34,protocol-35,\
    protocol-36,protocol-37,protocol-38,protocol-39,protocol-40,protocol-41,\
    protocol-42,protocol-43,protocol-44,protocol-45,protocol-46,protocol-47,\
    protocol-48,protocol-49,protocol-50,protocol-51,protocol-52,protocol-53,\
    protocol-54,protocol-55,protocol-56,protocol-57,protocol-58,protocol-59";

/// What the records of a hello hold.
pub(crate) fn message(records: &[u8]) -> Vec<u8> {
    let mut rest = records;
    let mut message = Vec::new();
    while let [22, 3, _, high, low, behind @ ..] = rest {
        let (payload, next) = behind.split_at(u16::from_be_bytes([*high, *low]).into());
        message.extend(payload);
        rest = next;
    }
    assert!(rest.is_empty());
    message
}

/// A message in records, each as long as `next_length` says.
pub(crate) fn records(mut message: &[u8], mut next_length: impl FnMut() -> usize) -> Vec<u8> {
    let mut records = Vec::new();
    while !message.is_empty() {
        let (payload, rest) = message.split_at(next_length().min(message.len()));
        records.extend([22, 3, 1]);
        records.extend(u16::try_from(payload.len()).expect("16 bits").to_be_bytes());
        records.extend(payload);
        message = rest;
    }
    records
}

pub(crate) fn read(bytes: &[u8]) -> Progress<ClientHello> {
    ClientHelloReader::new(LIMIT_BYTES)
        .read(bytes)
        .map(Clone::clone)
}

#[test]
fn hellos_of_clients_are_read_however_they_come() {
    let files = files(&directory("hellos"));
    let names: Vec<_> = files.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, HELLOS.map(|(name, ..)| name));
    let mut random = Random::new(1);
    for ((_, bytes), (client, name, protocols, version)) in files.iter().zip(HELLOS) {
        let Progress::Complete(hello) = read(bytes) else {
            panic!("{client}: {:?}", read(bytes));
        };
        let offered: Vec<_> = hello.alpn().map(|it| str::from_utf8(it).unwrap()).collect();
        assert_eq!(hello.server_name(), name, "{client}");
        assert_eq!(offered.join(","), protocols, "{client}");
        assert_eq!(hello.newest_version(), version, "{client}");

        let expected = Progress::Complete(hello);
        for cut in 0..bytes.len() {
            let mut reader = ClientHelloReader::new(LIMIT_BYTES);
            assert_eq!(reader.read(&bytes[..cut]), Progress::More, "{client}");
            let answer = reader.read(bytes).map(Clone::clone);
            assert_eq!(answer, expected, "{client} cut at {cut}");
        }
        let message = message(bytes);
        for length in [1, 2, 7, 100] {
            let bytes = records(&message, || length);
            assert_eq!(read(&bytes), expected, "{client} in records of {length}");
        }
        for _ in 0..50 {
            let bytes = records(&message, || 1 + random.below(300));
            let mut reader = ClientHelloReader::new(LIMIT_BYTES);
            let mut end = 0;
            while end < bytes.len() {
                assert_eq!(reader.read(&bytes[..end]), Progress::More, "{client}");
                end += 1 + random.below(300);
            }
            let answer = reader.read(&bytes).map(Clone::clone);
            assert_eq!(answer, expected, "{client}");
        }
    }
}

#[test]
fn the_hellos_are_as_different_as_they_should_be() {
    let bytes = |client: &str| {
        std::fs::read(directory("hellos").join(client).with_extension("bin")).unwrap()
    };
    let extensions = |client: &str| extensions(&message(&bytes(client)));
    // Longer than a segment of 1460 bytes, by their post-quantum keys.
    for client in ["chromium", "firefox", "go"] {
        assert!(bytes(client).len() > 1460, "{client}");
    }
    // Encrypted Client Hello, if only as GREASE (RFC 9849).
    for client in ["chromium", "firefox"] {
        assert!(extensions(client).contains(&0xfe0d), "{client}");
    }
    // Values to be ignored (RFC 8701).
    assert!(
        extensions("chromium")
            .iter()
            .any(|it| it & 0x0f0f == 0x0a0a)
    );
    assert!(bytes("openssl-records").len() > 2 * 512);
}

fn extensions(message: &[u8]) -> Vec<u16> {
    let short = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    // The header, the version and the random bytes.
    let mut at = 4 + 2 + 32;
    at += 1 + usize::from(message[at]);
    at += 2 + usize::from(short(at));
    at += 1 + usize::from(message[at]) + 2;
    let mut kinds = Vec::new();
    while at < message.len() {
        kinds.push(short(at));
        at += 4 + usize::from(short(at + 2));
    }
    kinds
}
