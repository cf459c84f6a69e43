//! Hellos made by hand: whole, cut, spread over records, and broken.

use super::*;

const LIMIT_BYTES: usize = 64 << 10;

fn by_short(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("short");
    [&length.to_be_bytes()[..], content].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &by_short(content)].concat()
}

fn name_extension(name: &[u8]) -> Vec<u8> {
    let entry = [&[HOST_NAME][..], &by_short(name)].concat();
    extension(SERVER_NAME, &by_short(&entry))
}

fn alpn_extension(names: &[&[u8]]) -> Vec<u8> {
    let list: Vec<u8> = names
        .iter()
        .flat_map(|name| [&[name.len() as u8][..], name].concat())
        .collect();
    extension(ALPN, &by_short(&list))
}

fn versions_extension(versions: &[u16]) -> Vec<u8> {
    let list: Vec<u8> = versions.iter().flat_map(|it| it.to_be_bytes()).collect();
    extension(
        SUPPORTED_VERSIONS,
        &[&[list.len() as u8][..], &list].concat(),
    )
}

fn message_with(extensions: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 2, 0x13, 1, 1, 0]);
    if !extensions.is_empty() {
        body.extend(by_short(&extensions.concat()));
    }
    let length = (body.len() as u32).to_be_bytes();
    [&[CLIENT_HELLO][..], &length[1..], &body].concat()
}

/// `message` in records of at most `most` bytes.
fn in_records(message: &[u8], most: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[HANDSHAKE, MAJOR_VERSION, 1][..], &by_short(part)].concat();
    message.chunks(most).flat_map(record).collect()
}

fn read(bytes: &[u8]) -> Progress<ClientHello> {
    ClientHelloReader::new(LIMIT_BYTES)
        .read(bytes)
        .map(Clone::clone)
}

/// Reads what comes byte by byte, and checks that every answer before the last one was to wait.
fn read_slowly(bytes: &[u8]) -> Progress<ClientHello> {
    let mut reader = ClientHelloReader::new(LIMIT_BYTES);
    for end in 0..bytes.len() {
        let answer = reader.read(&bytes[..end]).map(Clone::clone);
        if answer != Progress::More {
            return answer;
        }
    }
    reader.read(bytes).map(Clone::clone)
}

#[test]
fn a_hello_is_read_however_it_is_cut() {
    let message = message_with(&[
        extension(0x0a0a, &[]),
        name_extension(b"WWW.Example.org"),
        alpn_extension(&[b"h2", b"http/1.1"]),
        versions_extension(&[0x7a7a, 0x0304, 0x0303]),
    ]);
    for most in [1, 2, 3, 4, 5, 100, 16_384] {
        let bytes = in_records(&message, most);
        let Progress::Complete(hello) = read_slowly(&bytes) else {
            panic!("in records of {most}: {:?}", read_slowly(&bytes));
        };
        assert_eq!(hello.server_name(), Some("www.example.org"));
        assert_eq!(hello.alpn().collect::<Vec<_>>(), [&b"h2"[..], b"http/1.1"]);
        assert_eq!(hello.newest_version(), TlsVersion::Tls13);
        assert_eq!(read(&bytes), Progress::Complete(hello.clone()));
        // What comes behind does not matter.
        assert_eq!(
            read(&[&bytes[..], b"\x17\x03\x03\0\x01x"].concat()),
            Progress::Complete(hello)
        );
    }
}

#[test]
fn a_hello_without_extensions_says_little() {
    let Progress::Complete(hello) = read(&in_records(&message_with(&[]), 99)) else {
        panic!("it is complete");
    };
    assert_eq!(hello.server_name(), None);
    assert_eq!(hello.alpn().count(), 0);
    assert_eq!(hello.newest_version(), TlsVersion::Tls12);
}

#[test]
fn other_protocols_are_told_by_their_first_bytes() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"SSH-2.0-x",
        b"\x80\x2e\x01\0\x02",
        b"\x16\x02",
        b"\0",
    ] {
        assert_eq!(read_slowly(bytes), Progress::Other, "{bytes:?}");
    }
    assert_eq!(read(b""), Progress::More);
    assert_eq!(read(b"\x16"), Progress::More);
}

#[test]
fn a_broken_hello_is_never_one_without_a_name() {
    let broken = |extensions: &[Vec<u8>]| in_records(&message_with(extensions), 16_384);
    let mut longer = message_with(&[]);
    longer.push(0);
    let mut server_hello = message_with(&[]);
    server_hello[0] = 2;
    let mut cut = message_with(&[name_extension(b"example.org")]);
    let last = cut.len() - 13;
    // A length within the name extension.
    cut[last] = 99;
    let two_names = {
        let entry = [&[HOST_NAME][..], &by_short(b"a")].concat();
        extension(SERVER_NAME, &by_short(&[&entry[..], &entry].concat()))
    };
    for (bytes, fault) in [
        (b"\x16\x03\x01\0\0".to_vec(), BAD_RECORD),
        (b"\x16\x03\x01\x40\x01".to_vec(), BAD_RECORD),
        (b"\x16\x03\x01\0\x01\x01\x17".to_vec(), NOT_A_HANDSHAKE),
        (b"\x16\x03\x01\0\x01\x01\x16\x02".to_vec(), NOT_A_HANDSHAKE),
        (in_records(&server_hello, 16_384), NOT_A_HELLO),
        (in_records(&longer, 16_384), TRAILING),
        (b"\x16\x03\x01\x40\0\x01\x01\0\0".to_vec(), TOO_LONG),
        (in_records(&cut, 16_384), BAD_LENGTH),
        (broken(&[extension(5, &[]), extension(5, &[])]), TWICE),
        (broken(&[name_extension(b"")]), BAD_NAME),
        (broken(&[name_extension(b".")]), BAD_NAME),
        (broken(&[name_extension(b"a\0b")]), BAD_NAME),
        (broken(&[name_extension(b"a b")]), BAD_NAME),
        (broken(&[name_extension(&[b'a'; 256])]), BAD_NAME),
        (broken(&[two_names]), BAD_NAME),
        (broken(&[extension(SERVER_NAME, &[])]), BAD_LENGTH),
        (broken(&[extension(SERVER_NAME, &[0, 0])]), BAD_LENGTH),
        (broken(&[alpn_extension(&[])]), BAD_ALPN),
        (broken(&[alpn_extension(&[b"h2", b""])]), BAD_ALPN),
        (broken(&[versions_extension(&[0x7a7a])]), BAD_VERSIONS),
        (
            broken(&[extension(SUPPORTED_VERSIONS, &[3, 3, 4, 3])]),
            BAD_LENGTH,
        ),
    ] {
        assert_eq!(read_slowly(&bytes), Progress::Broken(fault), "{bytes:02x?}");
        assert_eq!(read(&bytes), Progress::Broken(fault), "{bytes:02x?}");
    }
}

#[test]
fn a_hello_of_64_kib_byte_by_byte_costs_linear_time() {
    let padding: Vec<_> = (0..4)
        .map(|kind| extension(100 + kind, &[0; 16_000]))
        .collect();
    let bytes = in_records(&message_with(&padding), 16_000);
    let mut reader = ClientHelloReader::new(LIMIT_BYTES);
    for end in 0..bytes.len() {
        assert_eq!(reader.read(&bytes[..end]), Progress::More);
    }
    assert!(matches!(reader.read(&bytes), Progress::Complete(_)));
    // A look at each byte, and one more for each of the five records.
    assert!(bytes.len() > 64_000);
    assert!(reader.looks <= bytes.len() + 10, "{}", reader.looks);
}

#[test]
fn conditions_on_a_hello_are_held_against_it() {
    let hello = |extensions: &[Vec<u8>]| match read(&in_records(&message_with(extensions), 99)) {
        Progress::Complete(hello) => hello,
        other => panic!("{other:?}"),
    };
    let named = hello(&[
        name_extension(b"a.example.org"),
        alpn_extension(&[b"h2"]),
        versions_extension(&[0x0304]),
    ]);
    let nameless = hello(&[]);
    let sni = |names: &[ServerName]| Conditions {
        sni: Some(names.to_vec()),
        ..Conditions::default()
    };
    let pattern = |text: &str| ServerName::Matching(text.parse().expect(text));
    assert!(named.meets(&sni(&[pattern("x.org"), pattern("*.example.org")])));
    assert!(!named.meets(&sni(&[pattern("example.org")])));
    assert!(!named.meets(&sni(&[ServerName::None])));
    assert!(nameless.meets(&sni(&[ServerName::None])));
    assert!(!nameless.meets(&sni(&[pattern("*.example.org")])));
    let alpn = |names: &[&[u8]]| Conditions {
        alpn: Some(names.iter().map(|name| name.to_vec()).collect()),
        ..Conditions::default()
    };
    assert!(named.meets(&alpn(&[b"http/1.1", b"h2"])));
    assert!(!named.meets(&alpn(&[b"http/1.1"])));
    assert!(!nameless.meets(&alpn(&[b"h2"])));
    let version = |version| Conditions {
        tls_versions: Some(vec![version]),
        ..Conditions::default()
    };
    assert!(named.meets(&version(TlsVersion::Tls13)));
    assert!(!named.meets(&version(TlsVersion::Tls12)));
    assert!(nameless.meets(&version(TlsVersion::Tls12)));
}
