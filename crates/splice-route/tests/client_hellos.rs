//! Hellos of real clients (`hellos/made-by.tsv` says whose), however they are cut, and rustls as a
//! second opinion.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use rustls::server::Acceptor;
use splice_route::TlsVersion::{Tls10, Tls11, Tls12, Tls13};
use splice_route::{ClientHelloReader, Progress, TlsVersion};

const NAME: Option<&str> = Some("www.example.org");
const BOTH: &[&str] = &["h2", "http/1.1"];
const LIMIT_BYTES: usize = 64 << 10;

/// File, server name, ALPN, newest version, ECH.
type Hello = (
    &'static str,
    Option<&'static str>,
    &'static [&'static str],
    TlsVersion,
    bool,
);

#[rustfmt::skip]
const HELLOS: &[Hello] = &[
    ("chromium", NAME, BOTH, Tls13, true),
    ("curl", NAME, BOTH, Tls13, false),
    ("curl-http1", NAME, &["http/1.1"], Tls13, false),
    ("firefox", NAME, BOTH, Tls13, true),
    ("gnutls", NAME, &[], Tls13, false),
    ("gnutls-alpn", NAME, &["h2", "http/1.1", "imap"], Tls13, false),
    ("gnutls-no-name", None, &[], Tls13, false),
    ("gnutls-tls12", NAME, &[], Tls12, false),
    ("go", NAME, &[], Tls13, false),
    ("go-alpn", NAME, &["h2", "http/1.1", "grpc-exp"], Tls13, false),
    // What it asks for inside is secret.example.org.
    ("go-ech", Some("public.example.org"), &["h2"], Tls13, true),
    ("go-no-name", None, &[], Tls13, false),
    ("java", NAME, BOTH, Tls13, false),
    ("node", NAME, BOTH, Tls13, false),
    ("openssl", NAME, &[], Tls13, false),
    ("openssl-early-data", NAME, &[], Tls13, false),
    ("openssl-many-alpn", NAME, &[], Tls13, false),
    ("openssl-no-name", None, &[], Tls13, false),
    ("openssl-ticket", NAME, &[], Tls13, false),
    ("openssl-tls10", NAME, &[], Tls10, false),
    ("openssl-tls11", NAME, &[], Tls11, false),
    ("openssl-tls12", NAME, BOTH, Tls12, false),
    ("python", NAME, &["http/1.1"], Tls13, false),
    ("python-address", None, &[], Tls13, false),
    ("rustls", NAME, &["h2", "http/1.1", "acme-tls/1"], Tls13, false),
];

/// What a hello says, in a form that both readers can give.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    server_name: Option<String>,
    alpn: Vec<String>,
    newest_version: TlsVersion,
    has_ech: bool,
}

fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hellos")
}

/// Each hello in one record, without what the client has sent behind it, and what it says.
fn hellos() -> Vec<(&'static str, Vec<u8>, Answer)> {
    let each = HELLOS
        .iter()
        .map(|(name, server_name, alpn, version, ech)| {
            let mut stream = std::fs::read(directory().join(format!("{name}.bin"))).expect(name);
            let length = u16::from_be_bytes([stream[3], stream[4]]);
            stream.truncate(5 + usize::from(length));
            let mut alpn: Vec<String> = alpn.iter().map(|name| (*name).into()).collect();
            if *name == "openssl-many-alpn" {
                alpn = (0..200).map(|at| format!("protocol-{at}")).collect();
            }
            let answer = Answer {
                server_name: server_name.map(Into::into),
                alpn,
                newest_version: *version,
                has_ech: *ech,
            };
            (*name, stream, answer)
        });
    each.collect()
}

fn read(reader: &mut ClientHelloReader, come: &[u8]) -> Progress<Answer> {
    reader.read(come).map(|hello| Answer {
        server_name: hello.server_name().map(Into::into),
        alpn: hello.alpn().map(text).collect(),
        newest_version: hello.newest_version(),
        has_ech: hello.has_ech(),
    })
}

/// Reads prefixes of `stream` that grow by one byte each.
#[track_caller]
fn assert_complete_at_the_end(name: &str, stream: &[u8], answer: &Answer) {
    let mut reader = ClientHelloReader::new(LIMIT_BYTES);
    for come in 0..stream.len() {
        assert_eq!(
            reader.read(&stream[..come]),
            Progress::More,
            "{name} {come}"
        );
    }
    let complete = Progress::Complete(answer.clone());
    assert_eq!(read(&mut reader, stream), complete, "{name}");
    let longer = [stream, b"\x17\x03\x03\0\x01"].concat();
    assert_eq!(read(&mut reader, &longer), complete, "{name}");
}

/// The hello of `stream`, a single record, in records of the sizes given, the last of which repeats.
fn in_records(stream: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut rest = &stream[5..];
    let mut records = Vec::new();
    for at in 0.. {
        let size = sizes[at.min(sizes.len() - 1)].min(rest.len());
        let (fragment, next) = rest.split_at(size);
        let length = u16::try_from(size).expect("a record");
        records.extend([&stream[..3], &length.to_be_bytes(), fragment].concat());
        rest = next;
        if rest.is_empty() {
            break;
        }
    }
    records
}

#[test]
fn a_hello_says_the_same_whole_and_byte_by_byte() {
    for (name, stream, answer) in hellos() {
        let mut reader = ClientHelloReader::default();
        let complete = Progress::Complete(answer.clone());
        assert_eq!(read(&mut reader, &stream), complete, "{name}");
        assert_complete_at_the_end(name, &stream, &answer);
    }
}

#[test]
fn a_hello_in_two_segments_says_the_same_wherever_it_is_cut() {
    for (name, stream, answer) in hellos() {
        for cut in 0..stream.len() {
            let mut reader = ClientHelloReader::default();
            assert_eq!(reader.read(&stream[..cut]), Progress::More, "{name} {cut}");
            let complete = Progress::Complete(answer.clone());
            assert_eq!(read(&mut reader, &stream), complete, "{name} {cut}");
        }
    }
}

#[test]
fn a_hello_in_many_records_says_the_same() {
    for (name, stream, answer) in hellos() {
        for size in [1, 2, 7, 100] {
            assert_complete_at_the_end(name, &in_records(&stream, &[size]), &answer);
        }
    }
}

#[test]
fn a_hello_in_two_records_says_the_same_wherever_it_is_cut() {
    for (name, stream, answer) in hellos() {
        for cut in 1..stream.len() - 5 {
            let records = in_records(&stream, &[cut, usize::MAX]);
            let mut reader = ClientHelloReader::default();
            let complete = Progress::Complete(answer.clone());
            assert_eq!(read(&mut reader, &records), complete, "{name} {cut}");
        }
    }
}

#[test]
fn every_hello_is_in_the_table_and_says_who_made_it() {
    let entries = std::fs::read_dir(directory()).expect("hellos");
    let files: BTreeSet<String> = entries
        .filter_map(|entry| {
            let name = entry.expect("a file").file_name();
            Some(name.to_str()?.strip_suffix(".bin")?.to_owned())
        })
        .collect();
    let made_by = std::fs::read_to_string(directory().join("made-by.tsv")).expect("made-by.tsv");
    let made: BTreeSet<String> = made_by
        .lines()
        .filter_map(|line| Some(line.split_once('\t')?.0.to_owned()))
        .collect();
    let tested: BTreeSet<String> = HELLOS.iter().map(|hello| hello.0.to_owned()).collect();
    assert_eq!(files, tested);
    assert_eq!(made, tested);
}

/// The hellos that rustls takes: it has no TLS before 1.2.
fn hellos_for_rustls() -> Vec<(&'static str, Vec<u8>, Answer)> {
    let mut hellos = hellos();
    hellos.retain(|(_, _, answer)| answer.newest_version >= Tls12);
    hellos
}

/// What rustls makes of a hello: its server name and ALPN, or `None` if it does not take it.
fn rustls_says(stream: &[u8]) -> Option<(Option<String>, Vec<String>)> {
    let mut acceptor = Acceptor::default();
    let mut rest = stream;
    while !rest.is_empty() {
        acceptor.read_tls(&mut rest).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            let hello = accepted.client_hello();
            let alpn = hello.alpn().into_iter().flatten().map(text).collect();
            return Some((hello.server_name().map(str::to_ascii_lowercase), alpn));
        }
    }
    None
}

fn we_say(stream: &[u8]) -> Option<(Option<String>, Vec<String>)> {
    match read(&mut ClientHelloReader::default(), stream) {
        Progress::Complete(answer) => Some((answer.server_name, answer.alpn)),
        _ => None,
    }
}

#[test]
fn rustls_says_the_same() {
    for (name, stream, _) in hellos_for_rustls() {
        for sizes in [&[usize::MAX][..], &[1], &[2], &[7], &[100], &[3, 1, 200]] {
            let records = in_records(&stream, sizes);
            let rustls = rustls_says(&records);
            assert!(rustls.is_some(), "{name} {sizes:?}");
            assert_eq!(we_say(&records), rustls, "{name} {sizes:?}");
        }
    }
}

/// What the fuzzer has found: where both take it, they see the same in it.
#[test]
fn rustls_sees_the_same_in_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/client-hello");
    let mut taken_by_both = 0;
    for entry in std::fs::read_dir(corpus).expect("a corpus") {
        let path = entry.expect("an input").path();
        let input = std::fs::read(&path).expect("an input");
        if let (Some(ours), Some(theirs)) = (we_say(&input), rustls_says(&input)) {
            assert_eq!(ours, theirs, "{path:?}");
            taken_by_both += 1;
        }
    }
    assert!(taken_by_both > 0);
}

proptest! {
    #[test]
    fn a_hello_in_any_records_says_the_same_to_both(
        hello in prop::sample::select(hellos_for_rustls()),
        sizes in proptest::collection::vec(1_usize..600, 1..20),
    ) {
        let (name, stream, answer) = hello;
        let records = in_records(&stream, &sizes);
        assert_complete_at_the_end(name, &records, &answer);
        prop_assert_eq!(rustls_says(&records), we_say(&records));
    }

    /// Where both take a spoilt hello, they see the same name in it.
    #[test]
    fn a_spoilt_hello_has_no_other_name_for_rustls(
        hello in prop::sample::select(hellos_for_rustls()),
        spoilt in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (_, mut stream, _) = hello;
        for (index, byte) in spoilt {
            let index = index.index(stream.len());
            stream[index] = byte;
        }
        if let (Some(ours), Some(theirs)) = (we_say(&stream), rustls_says(&stream)) {
            prop_assert_eq!(ours, theirs);
        }
    }
}
