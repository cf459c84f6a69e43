//! Hellos that no client sends. Those of real clients are under `tests/hellos`.

use proptest::prelude::*;

use super::{ClientHello, ClientHelloReader};
use crate::conditions::{Conditions, ServerName, TlsVersion};
use crate::progress::Progress;

const LIMIT_BYTES: usize = 64 << 10;

/// A hello of which a test spoils a part.
#[derive(Clone)]
struct Draft {
    version: u16,
    session_id: Vec<u8>,
    cipher_suites: Vec<u8>,
    compression: Vec<u8>,
    /// `None`: the hello ends before them.
    extensions: Option<Vec<(u16, Vec<u8>)>>,
}

impl Draft {
    fn with(extensions: &[(u16, Vec<u8>)]) -> Self {
        Self {
            version: 0x0303,
            session_id: vec![7; 32],
            cipher_suites: vec![0x13, 0x01],
            compression: vec![0],
            extensions: Some(extensions.to_vec()),
        }
    }

    fn body(&self) -> Vec<u8> {
        let mut body = self.version.to_be_bytes().to_vec();
        body.extend([9; 32]);
        body.extend(vector8(&self.session_id));
        body.extend(vector16(&self.cipher_suites));
        body.extend(vector8(&self.compression));
        if let Some(extensions) = &self.extensions {
            let each = extensions.iter().flat_map(|(number, content)| {
                [number.to_be_bytes().to_vec(), vector16(content)].concat()
            });
            body.extend(vector16(&each.collect::<Vec<u8>>()));
        }
        body
    }

    fn stream(&self) -> Vec<u8> {
        record(&message(&self.body()))
    }
}

fn vector8(content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("short");
    [&[length], content].concat()
}

fn vector16(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("short");
    [&length.to_be_bytes(), content].concat()
}

fn message(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    [&[1, length[1], length[2], length[3]], body].concat()
}

fn record(fragment: &[u8]) -> Vec<u8> {
    [&[22, 3, 1], &*vector16(fragment)].concat()
}

/// `message` in records of `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(record).collect()
}

fn host(name: &[u8]) -> (u16, Vec<u8>) {
    (0, vector16(&[&[0], &*vector16(name)].concat()))
}

fn protocols(names: &[&[u8]]) -> (u16, Vec<u8>) {
    let list: Vec<u8> = names.iter().flat_map(|name| vector8(name)).collect();
    (16, vector16(&list))
}

fn versions(numbers: &[u16]) -> (u16, Vec<u8>) {
    let list: Vec<u8> = numbers.iter().flat_map(|it| it.to_be_bytes()).collect();
    (43, vector8(&list))
}

/// What the reader says of `stream` as a whole, if it says the same of it byte by byte.
fn read(stream: &[u8]) -> Progress<ClientHello> {
    read_within(LIMIT_BYTES, stream)
}

fn read_within(limit_bytes: usize, stream: &[u8]) -> Progress<ClientHello> {
    let whole = ClientHelloReader::new(limit_bytes)
        .read(stream)
        .map(Clone::clone);
    let mut reader = ClientHelloReader::new(limit_bytes);
    let mut last = Progress::More;
    for come in 0..=stream.len() {
        let progress = reader.read(&stream[..come]).map(Clone::clone);
        assert!(last == Progress::More || last == progress, "it changed");
        last = progress;
    }
    assert_eq!(last, whole, "it depends on the cuts");
    whole
}

#[track_caller]
fn complete(stream: &[u8]) -> ClientHello {
    match read(stream) {
        Progress::Complete(hello) => hello,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_broken(stream: &[u8], why: &str) {
    match read(stream) {
        Progress::Broken(fault) => assert_eq!(fault.0, why),
        other => panic!("{other:?} instead of: {why}"),
    }
}

#[test]
fn a_hello_says_its_name_protocols_and_version() {
    let hello = complete(
        &Draft::with(&[
            host(b"WWW.Example.org"),
            protocols(&[b"\x0a\x0a", b"h2"]),
            versions(&[0x7a7a, 0x0304, 0x0303]),
            (0xfe0d, vec![0]),
        ])
        .stream(),
    );
    assert_eq!(hello.server_name(), Some("www.example.org"));
    assert_eq!(hello.alpn().collect::<Vec<_>>(), [&b"\x0a\x0a"[..], b"h2"]);
    assert_eq!(hello.newest_version(), TlsVersion::Tls13);
    assert!(hello.has_ech());

    let bare = complete(&Draft::with(&[]).stream());
    assert_eq!(bare.server_name(), None);
    assert_eq!(bare.alpn().count(), 0);
    assert!(!bare.has_ech());
}

#[test]
fn the_newest_version_is_of_the_list_or_else_the_hellos() {
    use TlsVersion::{Tls10, Tls11, Tls12, Tls13};
    for (legacy, list, newest) in [
        (0x0300, None, Tls10),
        (0x0301, None, Tls10),
        (0x0302, None, Tls11),
        (0x0303, None, Tls12),
        (0x0304, None, Tls12),
        (0x0403, None, Tls12),
        (0x0303, Some(vec![0x0304]), Tls13),
        (0x0303, Some(vec![0x0305, 0x0303]), Tls13),
        (0x0303, Some(vec![0x0302, 0x0301]), Tls11),
        (0x0303, Some(vec![0xfafa, 0x7f1c, 0x0303]), Tls12),
    ] {
        let list = list.map(|numbers: Vec<u16>| versions(&numbers));
        let mut draft = Draft::with(&Vec::from_iter(list));
        draft.version = legacy;
        let hello = complete(&draft.stream());
        assert_eq!(hello.newest_version(), newest, "{legacy:x}");
    }
    let mut old = Draft::with(&[]);
    old.extensions = None;
    assert_eq!(complete(&old.stream()).newest_version(), Tls12);
}

#[test]
fn a_server_name_is_a_host_or_nothing() {
    let long = [b"a".repeat(63).as_slice(); 4].join(&b'.');
    for (name, kept) in [
        (&b"example.org."[..], Some("example.org")),
        (b"_a.xn--4ca-9.org", Some("_a.xn--4ca-9.org")),
        (b"localhost", Some("localhost")),
        (b"192.0.2.7", Some("192.0.2.7")),
        (b"2001:DB8::7", Some("2001:db8::7")),
        (
            &long[..253],
            Some(std::str::from_utf8(&long[..253]).expect("ASCII")),
        ),
        (&long, None),
        (&b"a".repeat(64), None),
        (b"", None),
        (b".", None),
        (b"example.org..", None),
        (b".example.org", None),
        (b"*.example.org", None),
        (b"example.org\0", None),
        (b"example.org\n", None),
        (b"example.org:443", None),
        (b"a b", None),
        ("\u{e4}.org".as_bytes(), None),
        (b"\xff", None),
    ] {
        let stream = Draft::with(&[host(name)]).stream();
        match kept {
            Some(kept) => assert_eq!(complete(&stream).server_name(), Some(kept)),
            None => assert_broken(&stream, "the TLS hello has an invalid server name"),
        }
    }
}

#[test]
fn what_is_no_tls_shows_at_once() {
    for (stream, after) in [
        (&b"GET / HTTP/1.1\r\n"[..], 1),
        (b"\x15\x03\x01\0\x02\x01\0", 1),
        // SSL 2.0.
        (b"\x80\x2e\x01\x03\x01\0\x15", 1),
        (b"\x16\x02", 2),
        (b"\x16\x16\x16", 2),
    ] {
        let mut reader = ClientHelloReader::default();
        assert_eq!(reader.read(&stream[..after - 1]), Progress::More);
        assert_eq!(reader.read(&stream[..after]), Progress::Other);
        assert_eq!(read(stream), Progress::Other);
        // Even where there is hardly a limit.
        assert_eq!(read_within(1, stream), Progress::Other);
    }
}

#[test]
fn a_hello_that_breaks_a_rule_is_broken() {
    let lengths = "the TLS hello has lengths that do not add up";
    let extension = |number, content: &[u8]| Draft::with(&[(number, content.to_vec())]);
    let spoilt = |spoil: fn(&mut Draft)| {
        let mut draft = Draft::with(&[host(b"a.org")]);
        spoil(&mut draft);
        draft
    };
    for (draft, why) in [
        (
            Draft::with(&[host(b"a.org"), host(b"a.org")]),
            "the TLS hello has the same extension twice",
        ),
        (
            Draft::with(&[(7, vec![]), (8, vec![]), (7, vec![])]),
            "the TLS hello has the same extension twice",
        ),
        (
            extension(0, b"\0\x08\0\0\x01a\0\0\x01b"),
            "the TLS hello has two server names",
        ),
        (
            extension(0, b"\0\x08\0\0\x01a\x01\0\x01b"),
            "the TLS hello has two server names",
        ),
        (
            extension(0, b"\0\x04\x01\0\x01a"),
            "the TLS hello has a server name that is no host name",
        ),
        (extension(0, b""), lengths),
        (extension(0, b"\0\0"), lengths),
        (extension(0, b"\0\x04\0\0\x02a"), lengths),
        (extension(0, b"\0\x04\0\0\x01ab"), lengths),
        (extension(16, b""), lengths),
        (extension(16, b"\0\0"), lengths),
        (extension(16, b"\0\x03\x03h2"), lengths),
        (extension(16, b"\0\x03\x02h2\0"), lengths),
        (
            protocols_only(&[b""]),
            "the TLS hello has an empty ALPN name",
        ),
        (
            protocols_only(&[b"h2", b"", b"h2"]),
            "the TLS hello has an empty ALPN name",
        ),
        (
            extension(43, b"\0"),
            "the TLS hello has a malformed list of versions",
        ),
        (
            extension(43, b"\x03\x03\x04\x03"),
            "the TLS hello has a malformed list of versions",
        ),
        (extension(43, b"\x02\x03\x04\x03"), lengths),
        (
            Draft::with(&[versions(&[0x1a1a])]),
            "the TLS hello offers no known version",
        ),
        (
            spoilt(|draft| draft.version = 0x0200),
            "the TLS hello has a version before SSL 3.0",
        ),
        (
            spoilt(|draft| draft.session_id = vec![0; 33]),
            "the TLS hello has a session id beyond 32 bytes",
        ),
        (
            spoilt(|draft| draft.cipher_suites.clear()),
            "the TLS hello has a malformed list of cipher suites",
        ),
        (
            spoilt(|draft| draft.cipher_suites.truncate(1)),
            "the TLS hello has a malformed list of cipher suites",
        ),
        (
            spoilt(|draft| draft.compression.clear()),
            "the TLS hello has no compression method",
        ),
    ] {
        assert_broken(&draft.stream(), why);
    }
    // Every hello that ends too early or too late for the lengths in it.
    let body = Draft::with(&[host(b"a.org"), protocols(&[b"h2"])]).body();
    let mut old = Draft::with(&[]);
    old.extensions = None;
    for length in 0..body.len() {
        if body[..length] != old.body() {
            assert_broken(&record(&message(&body[..length])), lengths);
        }
    }
    for behind in [&b"\0"[..], b"\0\0", b"\0\0\0\0"] {
        let stream = record(&message(&[&*body, behind].concat()));
        assert_broken(&stream, lengths);
    }
}

fn protocols_only(names: &[&[u8]]) -> Draft {
    Draft::with(&[protocols(names)])
}

#[test]
fn records_that_break_a_rule_are_broken() {
    let hello = message(&Draft::with(&[host(b"a.org")]).body());
    let (head, tail) = hello.split_at(20);
    for (stream, why) in [
        (record(b""), "the TLS hello has an empty record"),
        (
            [record(head), record(b""), record(tail)].concat(),
            "the TLS hello has an empty record",
        ),
        (
            b"\x16\x03\x01\x40\x01".to_vec(),
            "the TLS hello has a record beyond 16 KiB",
        ),
        (
            [record(head), b"\x14\x03\x03\0\x01\x01".to_vec()].concat(),
            "the TLS hello is interrupted by another record",
        ),
        (
            [record(head), b"\x16\x02".to_vec()].concat(),
            "the TLS hello is interrupted by another record",
        ),
        (
            b"\x16\x03\x01\0\x04\x02".to_vec(),
            "the first TLS message is no hello of a client",
        ),
        (
            record(&[&*hello, b"\0"].concat()),
            "the TLS hello is followed by more in its record",
        ),
        (
            [record(head), record(&[tail, b"\x0b\0\0\0"].concat())].concat(),
            "the TLS hello is followed by more in its record",
        ),
        (
            record(&message(b"")),
            "the TLS hello has lengths that do not add up",
        ),
    ] {
        assert_broken(&stream, why);
    }
    // What comes in records of its own, such as early data, is the server's.
    complete(&[record(&hello), b"\x17\x03\x03\0\x01\x01".to_vec()].concat());
    // The version of a record is ignored (RFC 8446, section 5.1).
    let mut odd = record(&hello);
    odd[2] = 0xff;
    complete(&odd);
}

#[test]
fn a_hello_beyond_the_limit_is_broken_at_its_length() {
    let hello = message(&Draft::with(&[(21, vec![0; 900])]).body());
    let split = records(&hello, 100);
    let whole = record(&hello);
    for (stream, limit_bytes, told_after) in [
        (&whole, whole.len() - 1, Some(9)),
        (&whole, whole.len(), None),
        (&split, whole.len() - 1, Some(9)),
        // No room for the header of the second record.
        (&split, whole.len(), Some(105 + 5)),
        // Nor of the last.
        (&split, split.len() - 1, Some(9 * 105 + 5)),
        (&split, split.len(), None),
    ] {
        let verdict = read_within(limit_bytes, stream);
        let Some(told_after) = told_after else {
            assert!(matches!(verdict, Progress::Complete(_)), "{limit_bytes}");
            continue;
        };
        assert!(matches!(verdict, Progress::Broken(_)), "{limit_bytes}");
        let before = read_within(limit_bytes, &stream[..told_after - 1]);
        assert_eq!(before, Progress::More, "{limit_bytes}");
        assert_eq!(read_within(limit_bytes, &stream[..told_after]), verdict);
    }

    // What follows the hello does not count.
    let longer = [&*whole, &*record(&vec![0; 5000])].concat();
    let verdict = read_within(whole.len(), &longer);
    assert!(matches!(verdict, Progress::Complete(_)));

    // A length that would need 16 MiB.
    assert_broken(
        b"\x16\x03\x01\0\x04\x01\xff\xff\xff",
        "the TLS hello is too long",
    );
    // A hello that never gets on.
    let trickle = records(&message(&vec![0; 40_000]), 1);
    assert_broken(&trickle, "the TLS hello is too long");
}

#[test]
fn a_hello_byte_by_byte_costs_linear_time_and_no_memory() {
    let big = message(&Draft::with(&[host(b"a.org"), (21, vec![0; 60_000])]).body());
    for size in [1 << 14, 1000, 7] {
        let stream = records(&big, size);
        let mut reader = ClientHelloReader::new(stream.len());
        // It has no pointer to more before the end: `Position` is all that it keeps.
        assert!(size_of_val(&reader) <= 128);
        for come in 0..stream.len() {
            assert_eq!(reader.read(&stream[..come]), Progress::More);
        }
        assert!(matches!(reader.read(&stream), Progress::Complete(_)));
        // The header of the current record at every call, and the whole once at its end.
        assert!(
            reader.looked_at <= 12 * stream.len(),
            "{} of {}",
            reader.looked_at,
            stream.len()
        );
    }
}

#[test]
fn a_hello_meets_conditions() {
    let none = Conditions::default();
    let matching = |text: &str| ServerName::Matching(text.parse().expect("a pattern"));
    let sni = |rules: &[ServerName]| Conditions {
        sni: Some(rules.to_vec()),
        ..Conditions::default()
    };
    let alpn = |names: &[&str]| Conditions {
        alpn: Some(names.iter().map(|name| name.as_bytes().to_vec()).collect()),
        ..Conditions::default()
    };
    let version = |versions: &[TlsVersion]| Conditions {
        tls_versions: Some(versions.to_vec()),
        ..Conditions::default()
    };
    let bare = complete(&Draft::with(&[]).stream());
    let named = complete(
        &Draft::with(&[
            host(b"WWW.example.org"),
            protocols(&[b"h2", b"http/1.1"]),
            versions(&[0x0304]),
        ])
        .stream(),
    );
    for (conditions, bare_meets, named_meets) in [
        (none, true, true),
        (sni(&[]), false, false),
        (sni(&[ServerName::None]), true, false),
        (sni(&[matching("*.example.org")]), false, true),
        (sni(&[matching("example.org")]), false, false),
        (
            sni(&[matching("example.net"), ServerName::None]),
            true,
            false,
        ),
        (
            sni(&[matching("www.example.org"), ServerName::None]),
            true,
            true,
        ),
        (alpn(&["http/1.1"]), false, true),
        (alpn(&["h3", "h2"]), false, true),
        (alpn(&["H2"]), false, false),
        (alpn(&["h"]), false, false),
        (version(&[TlsVersion::Tls13]), false, true),
        (
            version(&[TlsVersion::Tls10, TlsVersion::Tls12]),
            true,
            false,
        ),
        (
            Conditions {
                alpn: alpn(&["h3"]).alpn,
                ..sni(&[matching("www.example.org")])
            },
            false,
            false,
        ),
        (
            Conditions {
                alpn: alpn(&["h2"]).alpn,
                ..sni(&[matching("www.example.org")])
            },
            false,
            true,
        ),
    ] {
        assert_eq!(bare.meets(&conditions), bare_meets, "{conditions:?}");
        assert_eq!(named.meets(&conditions), named_meets, "{conditions:?}");
    }
    assert!(!Conditions::default().ask_for_hello());
    assert!(sni(&[]).ask_for_hello() && alpn(&[]).ask_for_hello() && version(&[]).ask_for_hello());
}

proptest! {
    #[test]
    fn any_bytes_behind_a_record_header_are_read_alike_in_any_pieces(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        size in 1_usize..50,
    ) {
        read(&records(&message(&bytes), size));
        read(&[b"\x16\x03\x01\0", &*bytes].concat());
    }
}
