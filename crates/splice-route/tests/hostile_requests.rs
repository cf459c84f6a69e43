//! PROXY headers, SOCKS and CONNECT made of right and wrong pieces: the readers neither panic nor depend
//! on how the bytes are cut, take no more than has come, and what they hand out is fit for use.

use std::fmt::Debug;
use std::net::SocketAddr;

use proptest::prelude::*;
use proptest::sample::select;
use splice_route::proxy_protocol::{Endpoints, HeaderReader, OutTlvs, header_v1, header_v2};
use splice_route::socks::{Negotiation, Step};
use splice_route::{Destination, DestinationRule, Host, Progress, connect, permits};

/// What has come up to the message's end, and the message.
type Taken = Option<(usize, Option<Destination>)>;

/// Pieces of messages, right and wrong.
const PIECES: [&[u8]; 48] = [
    b"PROXY ",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2",
    b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.1 65535 0",
    b"PROXY UNKNOWN",
    b"TCP4 ",
    b"1.2.3.4 ",
    b"::1 ",
    b" 65536",
    b" 0",
    b"\r\n\r\n\0\r\nQUIT\n",
    b"\x21\x11\0\x0c",
    b"\x21\x11\0\x13",
    b"\x21\x21\0\x24",
    b"\x20\0\0\0",
    b"\x20\0\xff\xff",
    b"\x21\x31\x00\xd8",
    b"\x21\x12\0\x0c",
    b"\x21\x12\0\x11",
    b"\x21\x22\0\x24",
    b"\x21\x00\0\x05",
    b"\xc0\0\x02\x01\xc0\0\x02\x02\0\x01\0\x02",
    b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01",
    b"\x03\0\x04",
    b"\x05\0\x02id",
    b"\x04\0\0",
    b"\x04\x01\0\x50",
    b"\0\0\0\x01",
    b"\x05\x01\0",
    b"\x05\x02\x02\0",
    b"\x05\x01\0\x01",
    b"\x05\x01\0\x03\x0bexample.org",
    b"\x05\x01\0\x04",
    b"\x05\x03\0\x01",
    b"\0\x50",
    b"example.org",
    b"127.0.0.1",
    b"CONNECT example.org:443 HTTP/1.1\r\n",
    b"CONNECT [::1]:443 HTTP/1.0\r\n",
    b"CONNECT ",
    b"Host: example.org:443\r\n",
    b"Host: [::1]\r\n",
    b"Content-Length: 1\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\0",
    b"\xff",
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        9 => select(&PIECES[..]).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    prop::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat())
}

fn address() -> impl Strategy<Value = SocketAddr> {
    any::<SocketAddr>()
}

/// The first answer that is not "more", and what the same reader answers when all has come.
fn feed<T: Debug + PartialEq>(
    bytes: &[u8],
    cuts: impl IntoIterator<Item = usize>,
    mut read: impl FnMut(&[u8]) -> Option<T>,
) -> Option<T> {
    let mut first = None;
    for cut in cuts.into_iter().chain([bytes.len()]) {
        let answer = read(&bytes[..cut]);
        if first.is_some() {
            assert_eq!(answer, first, "an answer has changed");
        }
        first = answer;
    }
    first
}

/// Asserts that every cut makes the same, and tells what.
fn check<T, R>(bytes: &[u8], new: impl Fn() -> R) -> Option<T>
where
    T: Debug + PartialEq,
    R: FnMut(&[u8]) -> Option<T>,
{
    let whole = feed(bytes, [], new());
    for cut in 0..bytes.len() {
        assert_eq!(feed(bytes, [cut], new()), whole, "cut at {cut}");
    }
    assert_eq!(feed(bytes, 0..bytes.len(), new()), whole, "byte by byte");
    whole
}

fn settled<T>(progress: Progress<T>) -> Option<Progress<T>> {
    (!matches!(progress, Progress::More)).then_some(progress)
}

fn is_fit(destination: &Destination) -> bool {
    match &destination.host {
        Host::Address(_) => true,
        Host::Name(name) => {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !name.is_empty()
                && name.len() <= 253
                && name.bytes().all(plain)
                && !name.bytes().any(|byte| byte.is_ascii_uppercase())
        }
    }
}

fn header(bytes: &[u8]) -> Taken {
    let new = || {
        let mut reader = HeaderReader::new();
        move |come: &[u8]| settled(reader.read(come))
    };
    match check(bytes, new)? {
        Progress::Complete(header) => {
            assert_eq!(header.tlvs().iter().count(), header.tlvs().iter().count());
            Some((header.length_bytes(), None))
        }
        Progress::Broken(_) => None,
        other => panic!("a header that is required is {other:?}"),
    }
}

fn negotiation(bytes: &[u8]) -> Taken {
    let new = || {
        let mut negotiation = Negotiation::new();
        move |come: &[u8]| {
            loop {
                match negotiation.step(come) {
                    Step::More => return None,
                    Step::Reply(_) => {}
                    step => return Some(step),
                }
            }
        }
    };
    match check(bytes, new)? {
        Step::Connect {
            destination,
            length_bytes,
        } => Some((length_bytes, Some(destination))),
        _ => None,
    }
}

fn connect_request(bytes: &[u8]) -> Taken {
    let new = || {
        let mut reader = connect::RequestReader::new(200);
        move |come: &[u8]| settled(reader.read(come))
    };
    match check(bytes, new)? {
        Progress::Complete(request) => Some((request.length_bytes, Some(request.destination))),
        _ => None,
    }
}

/// More if `PROPTEST_CASES` asks for more.
fn at_least(cases: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig {
        cases: asked.cases.max(cases),
        failure_persistence: None,
        ..asked
    }
}

proptest! {
    #![proptest_config(at_least(500))]

    #[test]
    fn readers_take_anything(bytes in bytes()) {
        for reader in [header, negotiation, connect_request] {
            let Some((length_bytes, destination)) = reader(&bytes) else {
                continue;
            };
            prop_assert!(length_bytes <= bytes.len());
            prop_assert!(destination.as_ref().is_none_or(is_fit), "{destination:?}");
            // What comes behind a message is no part of it.
            let alone = reader(&bytes[..length_bytes]);
            prop_assert_eq!(alone, Some((length_bytes, destination)));
        }
    }

    #[test]
    fn headers_are_read_as_written(
        source in address(),
        destination in address(),
        authority in prop::option::of(prop::collection::vec(any::<u8>(), 0..300)),
        unique_id in prop::option::of(prop::collection::vec(any::<u8>(), 0..=128)),
        checksum: bool,
    ) {
        let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
        let expected = Endpoints {
            source: canonical(source),
            destination: canonical(destination),
        };
        let tlvs = OutTlvs {
            authority: authority.as_deref(),
            unique_id: unique_id.as_deref(),
            checksum,
            ..OutTlvs::default()
        };
        let (source, destination) = (Some(source), Some(destination));
        let binary = header_v2(source, destination, &tlvs).expect("a short header");
        for written in [header_v1(source, destination), binary.clone()] {
            let Progress::Complete(header) = HeaderReader::new().read(&written) else {
                panic!("{}", written.escape_ascii());
            };
            prop_assert_eq!(header.length_bytes(), written.len());
            // A sender on this host may claim anything but groups and unspecified addresses.
            if let Ok(endpoints) = header.endpoints(None, |_| Some(false)) {
                prop_assert_eq!(endpoints, Some(expected));
            }
        }
        let Progress::Complete(header) = HeaderReader::new().read(&binary) else {
            panic!("{}", binary.escape_ascii());
        };
        prop_assert_eq!(header.tlvs().get(2), authority.as_deref());
        prop_assert_eq!(header.tlvs().get(5), unique_id.as_deref());
    }

    #[test]
    fn fields_are_passed_on(
        fields in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..128)), 0..40),
        source in address(),
        own_id in prop::option::of(prop::collection::vec(any::<u8>(), 1..=128)),
        checksum: bool,
    ) {
        // Those that are about one header only, and those that have to be of a form.
        let is_plain = |kind| ![1, 2, 3, 4].contains(&kind);
        let fields: Vec<_> = fields.into_iter().filter(|field| is_plain(field.0)).collect();
        let addresses = [192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2];
        let mut came = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
        let bytes: Vec<u8> = fields
            .iter()
            .flat_map(|(kind, value)| [&[*kind, 0, value.len() as u8], &**value].concat())
            .collect();
        prop_assume!(bytes.len() <= 4080 - addresses.len());
        came.extend(((addresses.len() + bytes.len()) as u16).to_be_bytes());
        came.extend(addresses);
        came.extend(&bytes);
        let Progress::Complete(header) = HeaderReader::new().read(&came) else {
            panic!("{}", came.escape_ascii());
        };
        let tlvs = OutTlvs {
            unique_id: own_id.as_deref(),
            received: Some(header.tlvs()),
            checksum,
            ..OutTlvs::default()
        };
        let written = header_v2(Some(source), Some(source), &tlvs).expect("room for what is ours");
        prop_assert!(written.len() <= 4096);
        let Progress::Complete(read) = HeaderReader::new().read(&written) else {
            panic!("{}", written.escape_ascii());
        };
        let id_came = fields.iter().find(|field| field.0 == 5 && !field.1.is_empty());
        let id = id_came.map(|field| &*field.1).or(own_id.as_deref());
        prop_assert_eq!(read.tlvs().get(5), id);
        // With room for all of them, each is there, in its order.
        if bytes.len() <= 3800 {
            for wanted in 0..=255 {
                let came = fields.iter().filter(|field| field.0 == wanted);
                let came: Vec<_> = came
                    .map(|field| &*field.1)
                    .filter(|value| wanted != 5 || !value.is_empty())
                    .collect();
                let read = read.tlvs().iter().filter(|tlv| tlv.0 == wanted);
                let read: Vec<_> = read.map(|tlv| tlv.1).collect();
                if !came.is_empty() || ![3, 5].contains(&wanted) {
                    prop_assert_eq!(read, came);
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_behind_the_start_is_noticed_by_the_checksum(
        source in address(),
        destination in address(),
        at: prop::sample::Index,
        flip in 1..=255_u8,
    ) {
        let tlvs = OutTlvs { checksum: true, ..OutTlvs::default() };
        let mut written = header_v2(Some(source), Some(destination), &tlvs).expect("a short header");
        let addresses = 16..written.len() - 7;
        let at = addresses.start + at.index(addresses.len());
        written[at] ^= flip;
        let progress = HeaderReader::new().read(&written);
        prop_assert!(matches!(progress, Progress::Broken(_)), "{progress:?}");
    }

    #[test]
    fn rules_take_any_text(text in "[a-z0-9:./*\\[\\]-]{0,20}(:[0-9*-]{1,5})?") {
        if let Ok(rule) = text.parse::<DestinationRule>() {
            prop_assert!(rule.ports.0 > 0 && rule.ports.0 <= rule.ports.1, "{text}");
        }
    }

    #[test]
    fn public_addresses_have_no_purpose_of_their_own(address in address()) {
        let rules = ["public:*", "0.0.0.0/0:*", "[::]/0:*"].map(|it| it.parse().expect(it));
        let ip = address.ip();
        let asked = Destination { host: Host::Address(ip), port: 1 };
        if permits(&rules, &asked, ip, |_| Some(false)).is_ok() {
            let canonical = ip.to_canonical();
            prop_assert!(!canonical.is_loopback() && !canonical.is_multicast());
            prop_assert!(!canonical.is_unspecified());
            for answer in [Some(true), None] {
                let is_own = |it| if it == canonical { answer } else { Some(false) };
                let own = permits(&rules, &asked, ip, is_own);
                prop_assert!(own.is_err() || matches!(ip, std::net::IpAddr::V6(_)));
            }
        }
    }
}
