use super::*;
use crate::conditions::TlsVersion::{Tls10, Tls11, Tls12, Tls13};

const LIMIT_BYTES: usize = 64 << 10;

fn behind_length_of_two(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    [&length.to_be_bytes(), content].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &behind_length_of_two(content)].concat()
}

fn named(name: &[u8]) -> Vec<u8> {
    let entry = [&[HOST_NAME][..], &behind_length_of_two(name)].concat();
    extension(SERVER_NAME, &behind_length_of_two(&entry))
}

/// What follows the version and the random bytes.
const MIDDLE: &[u8] = &[0, 0, 2, 0x13, 1, 1, 0];

fn message(version: [u8; 2], behind_random: &[u8]) -> Vec<u8> {
    let body = [&version[..], &[7; 32], behind_random].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[CLIENT_HELLO], &length[1..], &body].concat()
}

fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
    let extensions = behind_length_of_two(&extensions.concat());
    message([3, 3], &[MIDDLE, &extensions].concat())
}

fn records(message: &[u8], longest: usize) -> Vec<u8> {
    let record = |payload: &[u8]| [&[22, 3, 1][..], &behind_length_of_two(payload)].concat();
    message.chunks(longest).flat_map(record).collect()
}

fn read(bytes: &[u8]) -> Progress<ClientHello> {
    read_within(bytes, LIMIT_BYTES)
}

/// Reads at once and byte by byte: the answers are the same.
fn read_within(bytes: &[u8], limit_bytes: usize) -> Progress<ClientHello> {
    let whole = ClientHelloReader::new(limit_bytes)
        .read(bytes)
        .map(Clone::clone);
    let mut reader = ClientHelloReader::new(limit_bytes);
    let answers = (0..=bytes.len()).map(|end| reader.read(&bytes[..end]).map(Clone::clone));
    let shown = bytes.escape_ascii();
    let mut closed = answers.skip_while(|answer| *answer == Progress::More);
    assert!(closed.all(|answer| answer == whole), "{shown}");
    whole
}

#[test]
fn a_hello_says_where_it_wants_to_go() {
    let alpn = extension(ALPN, b"\0\x0c\x02h2\x08http/1.1");
    let versions = extension(SUPPORTED_VERSIONS, &[6, 0x8a, 0x8a, 3, 4, 3, 3]);
    let message = hello(&[named(b"WWW.example.org"), alpn, versions]);
    for longest in [1, 2, 3, 5, 7, 100, 16384] {
        let Progress::Complete(hello) = read(&records(&message, longest)) else {
            panic!("records of {longest}");
        };
        assert_eq!(hello.server_name(), Some("www.example.org"));
        assert_eq!(hello.alpn().collect::<Vec<_>>(), [&b"h2"[..], b"http/1.1"]);
        assert_eq!(hello.newest_version(), Tls13);
    }
}

#[test]
fn the_newest_version_is_that_of_the_extension() {
    let with = |list: &[u8]| {
        let content = [&[u8::try_from(list.len()).unwrap()], list].concat();
        read(&records(
            &hello(&[extension(SUPPORTED_VERSIONS, &content)]),
            16384,
        ))
    };
    let legacy = |version| read(&records(&message(version, MIDDLE), 16384));
    for (answer, expected) in [
        (with(&[3, 3, 3, 4]), Some(Tls13)),
        (with(&[3, 5]), Some(Tls13)),
        (with(&[3, 2, 3, 1]), Some(Tls11)),
        (with(&[3, 3, 0xfa, 0xfa, 0x7f, 0x17]), Some(Tls12)),
        (with(&[0x1a, 0x1a]), None),
        (legacy([3, 0]), Some(Tls10)),
        (legacy([3, 1]), Some(Tls10)),
        (legacy([3, 2]), Some(Tls11)),
        (legacy([3, 3]), Some(Tls12)),
        (legacy([3, 4]), Some(Tls12)),
        (legacy([2, 0]), None),
    ] {
        let expected = expected.map_or(Progress::Broken(VERSION), Progress::Complete);
        assert_eq!(answer.map(|hello| hello.newest_version()), expected);
    }
}

#[test]
fn what_is_not_tls_is_told_by_its_first_two_bytes() {
    for bytes in [
        &b"GET"[..],
        b"\x80\x2e\x01\x03",
        b"\x16\x02",
        b"\x15\x03\x01",
        b"\0",
    ] {
        assert_eq!(read(bytes), Progress::Other);
    }
    for bytes in [
        &b""[..],
        b"\x16",
        b"\x16\x03",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03",
    ] {
        assert_eq!(read(bytes), Progress::More);
    }
}

#[test]
fn what_breaks_the_rules_is_never_a_hello_without_name() {
    let whole = |message: &[u8]| records(message, 16384);
    let with = |extensions: &[Vec<u8>]| whole(&hello(extensions));
    let list = |content: &[u8]| with(&[extension(SERVER_NAME, content)]);
    let name = |name: &[u8]| with(&[named(name)]);
    let alpn = |content: &[u8]| with(&[extension(ALPN, content)]);
    let versions = |content: &[u8]| with(&[extension(SUPPORTED_VERSIONS, content)]);
    let good = hello(&[named(b"a")]);
    let behind_first = |next: &[u8]| [&records(&good[..10], 10), next].concat();
    let behind_random = |bytes: &[u8]| whole(&message([3, 3], bytes));
    let shorter = |by: usize| {
        let mut message = good.clone();
        message[3] -= u8::try_from(by).unwrap();
        whole(&message)
    };
    for (bytes, fault) in [
        (behind_first(b"\x15"), INTERRUPTED),
        (behind_first(b"\x17\x03\x03\0\x01\0"), INTERRUPTED),
        (behind_first(b"\x16\x02"), INTERRUPTED),
        (behind_first(b"\x16\x03\x01\0\0"), EMPTY_RECORD),
        (b"\x16\x03\x01\0\0".to_vec(), EMPTY_RECORD),
        (b"\x16\x03\x01\x40\x01".to_vec(), LONG_RECORD),
        (b"\x16\x03\x01\0\x05\x02".to_vec(), OTHER_MESSAGE),
        (b"\x16\x03\x01\0\x05\0".to_vec(), OTHER_MESSAGE),
        (b"\x16\x03\x01\0\x04\x01\0\0\0".to_vec(), LENGTHS),
        (shorter(1), MORE_IN_RECORD),
        (records(&[&good[..], b"\0"].concat(), 16384), MORE_IN_RECORD),
        (
            records(&[&good[..], b"\0"].concat(), good.len() - 1),
            MORE_IN_RECORD,
        ),
        (records(&shorter(1)[5..], good.len() - 1), LENGTHS),
        (behind_random(&[]), LENGTHS),
        (
            behind_random(&[&[33][..], &[0; 33], &MIDDLE[1..]].concat()),
            LENGTHS,
        ),
        (behind_random(&[0, 0, 0, 1, 0]), LENGTHS),
        (behind_random(&[0, 0, 3, 1, 2, 3, 1, 0]), LENGTHS),
        (behind_random(&[0, 0, 2, 1, 2, 0]), LENGTHS),
        (behind_random(&[MIDDLE, &[0]].concat()), LENGTHS),
        (behind_random(&[MIDDLE, &[0, 0, 0]].concat()), LENGTHS),
        (behind_random(&[MIDDLE, &[0, 3, 0, 0, 0]].concat()), LENGTHS),
        (
            behind_random(&[MIDDLE, &[0, 4, 0, 9, 0, 1]].concat()),
            LENGTHS,
        ),
        (with(&[extension(9, b""), extension(9, b"")]), DUPLICATE),
        (
            with(&[named(b"a"), extension(9, b""), named(b"a")]),
            DUPLICATE,
        ),
        (list(b""), LENGTHS),
        (list(b"\0\0"), LENGTHS),
        (list(b"\0\x04\0\0\x01"), LENGTHS),
        (list(b"\0\x04\0\0\x02a"), LENGTHS),
        (list(b"\0\x04\0\0\x01a\0"), LENGTHS),
        (list(b"\0\x08\0\0\x01a\0\0\x01b"), TWO_NAMES),
        (list(b"\0\x08\0\0\x01a\x01\0\x01b"), TWO_NAMES),
        (list(b"\0\x04\x01\0\x01a"), NAME_TYPE),
        (name(b""), NAME),
        (name(b"."), NAME),
        (name(b"a\0b"), NAME),
        (name(b"a b"), NAME),
        (name(b"b\xc3\xbccher.example"), NAME),
        (name(b"\xff"), NAME),
        (name(b"192.0.2.1"), NAME),
        (name(b"2001:db8::1"), NAME),
        (name(&b"a.".repeat(128)), NAME),
        (alpn(b""), LENGTHS),
        (alpn(b"\0\0"), LENGTHS),
        (alpn(b"\0\x03\x02h2\0"), LENGTHS),
        (alpn(b"\0\x03\x03h2"), LENGTHS),
        (alpn(b"\0\x04\x02h2\0"), EMPTY_ALPN),
        (versions(b""), LENGTHS),
        (versions(b"\0"), LENGTHS),
        (versions(b"\x03\x03\x04\x03"), LENGTHS),
        (versions(b"\x02\x03\x04\x03"), LENGTHS),
    ] {
        assert_eq!(
            read(&bytes),
            Progress::Broken(fault),
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn the_length_says_that_a_hello_is_too_long() {
    let bytes = records(&hello(&[named(b"example.org")]), 16384);
    let length = bytes.len();
    assert!(matches!(read_within(&bytes, length), Progress::Complete(_)));
    for (limit, expected) in [
        (length, Progress::More),
        (length - 1, Progress::Broken(TOO_LONG)),
    ] {
        assert_eq!(read_within(&bytes[..5], limit), expected);
    }
    // The first record is short, but the message is not.
    let split = records(&hello(&[named(b"example.org")]), 4);
    assert_eq!(read_within(&split[..9], length), Progress::More);
    assert_eq!(
        read_within(&split[..9], length - 1),
        Progress::Broken(TOO_LONG)
    );
    // The headers of the records make it longer than its message says.
    assert!(matches!(
        read_within(&split, split.len()),
        Progress::Complete(_)
    ));
    assert_eq!(
        read_within(&split, split.len() - 1),
        Progress::Broken(TOO_LONG)
    );
    assert_eq!(read_within(b"\x16", 1), Progress::Broken(TOO_LONG));
    assert_eq!(
        read(b"\x16\x03\x01\x40\0\x01\xff\xff\xff"),
        Progress::Broken(TOO_LONG)
    );
}

#[test]
fn a_hello_that_comes_byte_by_byte_costs_linear_time() {
    for longest in [1, 100, 16384] {
        // The headers of records leave so much for the message, and the rest of it fits into 100 bytes.
        let message_bytes = LIMIT_BYTES * longest / (longest + RECORD_HEADER_BYTES);
        let padding = extension(21, &vec![0; message_bytes - 100]);
        let bytes = records(&hello(&[padding, named(b"a")]), longest);
        assert!(bytes.len() > LIMIT_BYTES * 9 / 10);
        let mut reader = ClientHelloReader::new(LIMIT_BYTES);
        for end in 0..bytes.len() {
            assert_eq!(reader.read(&bytes[..end]), Progress::More);
        }
        assert!(matches!(reader.read(&bytes), Progress::Complete(_)));
        assert!(
            reader.looks <= 3 * bytes.len(),
            "{} looks for {}",
            reader.looks,
            bytes.len()
        );
    }
}

#[test]
fn conditions_on_a_hello_are_held_against_it() {
    let read = |extensions: &[Vec<u8>]| match read(&records(&hello(extensions), 99)) {
        Progress::Complete(hello) => hello,
        other => panic!("{other:?}"),
    };
    let named = read(&[
        named(b"a.example.org"),
        extension(ALPN, b"\0\x0c\x02h2\x08http/1.1"),
        extension(SUPPORTED_VERSIONS, &[4, 3, 4, 3, 3]),
    ]);
    let nameless = read(&[]);
    let sni = |names: &[ServerName]| Conditions {
        sni: Some(names.to_vec()),
        ..Conditions::default()
    };
    let pattern = |text: &str| ServerName::Matching(text.parse().expect(text));
    let alpn = |names: &[&[u8]]| Conditions {
        alpn: Some(names.iter().map(|name| name.to_vec()).collect()),
        ..Conditions::default()
    };
    let version = |version| Conditions {
        tls_versions: Some(vec![version]),
        ..Conditions::default()
    };
    let both = Conditions {
        alpn: alpn(&[b"h2"]).alpn,
        ..sni(&[pattern("example.org")])
    };
    for (conditions, meets, nameless_meets) in [
        (Conditions::default(), true, true),
        (
            sni(&[pattern("x.org"), pattern("*.example.org")]),
            true,
            false,
        ),
        (sni(&[pattern("example.org")]), false, false),
        (sni(&[ServerName::None]), false, true),
        (
            sni(&[ServerName::None, pattern("a.example.org")]),
            true,
            true,
        ),
        (alpn(&[b"spdy", b"http/1.1"]), true, false),
        (alpn(&[b"h"]), false, false),
        (version(Tls13), true, false),
        (version(Tls12), false, true),
        (both, false, false),
    ] {
        assert_eq!(named.meets(&conditions), meets, "{conditions:?}");
        assert_eq!(
            nameless.meets(&conditions),
            nameless_meets,
            "{conditions:?}"
        );
    }
}
