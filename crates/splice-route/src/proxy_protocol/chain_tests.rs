//! What a proxy passes on of the header that the proxy before it has sent.

use super::tests::{IPV4, address, complete, version2, with};
use super::*;

/// The fields of a header that was made with `tlvs` where one with `fields` has come in.
fn passed_on(fields: &[u8], tlvs: &OutTlvs<'_>) -> Vec<(u8, Vec<u8>)> {
    let received = complete(&version2(0x21, 0x11, &with(IPV4, fields)));
    let tlvs = OutTlvs {
        received: Some(received.tlvs()),
        ..*tlvs
    };
    let some = Some(address("192.0.2.1:1"));
    let written = header_v2(some, some, &tlvs).expect("a short header");
    let header = complete(&written);
    let owned = |(kind, value): (u8, &[u8])| (kind, value.to_vec());
    header.tlvs().iter().map(owned).collect()
}

#[test]
fn what_has_come_in_is_passed_on_and_not_made_again() {
    let own = OutTlvs {
        authority: Some(b"own.example"),
        alpn: Some(b"h2"),
        unique_id: Some(b"own"),
        ..OutTlvs::default()
    };
    let nothing = OutTlvs::default();
    let kinds = |fields: &[u8], tlvs| {
        let fields = passed_on(fields, tlvs);
        fields.iter().map(|field| field.0).collect::<Vec<_>>()
    };
    assert_eq!(kinds(b"", &own), [1, 2, 5]);
    assert_eq!(kinds(b"", &nothing), []);
    // Each of its own kind: ALPN, name, identity, TLS, namespace, and those of others.
    let all = b"\x01\0\x02h3\x02\0\x01a\x05\0\x02id\x20\0\x05\x01\0\0\0\0\x30\0\x02ns\
        \xe0\0\x01g\xea\0\x01v\xf0\0\0\xff\0\x01f";
    for tlvs in [&own, &nothing] {
        assert_eq!(
            kinds(all, tlvs),
            [5, 1, 2, 0x20, 0x30, 0xe0, 0xea, 0xf0, 0xff]
        );
        let fields = passed_on(all, tlvs);
        for (kind, value) in [(1, "h3"), (2, "a"), (5, "id"), (0x30, "ns"), (0xff, "f")] {
            assert!(fields.contains(&(kind, value.into())), "{kind} {fields:?}");
        }
    }
    // Two of a kind, in their order.
    let two = b"\x05\0\x01a\xe0\0\x01b\x05\0\x01c";
    assert_eq!(
        passed_on(two, &own)[2..],
        [
            (5, b"a".to_vec()),
            (5, b"c".to_vec()),
            (0xe0, b"b".to_vec())
        ]
    );
    // An empty one says nothing.
    assert_eq!(
        passed_on(b"\x05\0\0\x02\0\0\x01\0\0", &own),
        [
            (1, b"h2".to_vec()),
            (2, b"own.example".to_vec()),
            (5, b"own".to_vec())
        ]
    );
    assert_eq!(kinds(b"\x05\0\0", &nothing), []);
    for (fields, id) in [
        (&b""[..], None),
        (b"\x05\0\0", None),
        (b"\x05\0\x01a\x05\0\x01b", Some(&b"a"[..])),
        (b"\x05\0\0\x05\0\x01b", Some(b"b")),
    ] {
        let header = complete(&version2(0x21, 0x11, &with(IPV4, fields)));
        assert_eq!(header.tlvs().unique_id(), id);
    }
}

#[test]
fn what_was_about_the_header_that_came_in_is_not_passed_on() {
    let nothing = OutTlvs::default();
    let padded = b"\x04\0\x03\0\0\0\x05\0\x02id\x04\0\0";
    assert_eq!(passed_on(padded, &nothing), [(5, b"id".to_vec())]);
    // A checksum is made anew where one came. The reader holds it against the header.
    let mut summed = version2(0x21, 0x11, &with(IPV4, b"\x03\0\x04\0\0\0\0\x05\0\x02id"));
    let sum = version2::checksum(&summed, 31).to_be_bytes();
    summed[31..35].copy_from_slice(&sum);
    let received = complete(&summed);
    let tlvs = OutTlvs {
        received: Some(received.tlvs()),
        ..nothing
    };
    let some = Some(address("192.0.2.9:1"));
    let header = complete(&header_v2(some, some, &tlvs).expect("a short header"));
    assert_eq!(header.tlvs().get(5), Some(&b"id"[..]));
    let made = header.tlvs().get(3).expect("a checksum");
    assert_ne!(made, sum);
}

#[test]
fn a_header_that_is_passed_on_is_as_long_as_the_limit_at_most() {
    const LONGEST_BYTES: usize = 4096;
    let own = OutTlvs {
        authority: Some(b"own.example"),
        unique_id: Some(b"own"),
        ..OutTlvs::default()
    };
    let some = Some(address("[2001:db8::1]:1"));
    let field = |kind: u8, length: u16| {
        let value = vec![kind; length.into()];
        [&[kind], &length.to_be_bytes()[..], &value].concat()
    };
    // What filled a header without addresses has less room behind addresses, a name and a checksum.
    for (fields, kept) in [
        // The identity comes last, and stays.
        (
            [field(0xe0, 4015), field(0xe1, 46), field(5, 10)],
            vec![2, 5, 0xe1],
        ),
        (
            [field(0xe1, 61), field(0xe0, 3800), field(5, 110)],
            vec![2, 5, 0xe1, 0xe0],
        ),
        (
            [field(5, 128), field(5, 128), field(0xe0, 3815)],
            vec![2, 5, 5],
        ),
    ] {
        let fields = fields.concat();
        let received = complete(&version2(0x21, 0x00, &fields));
        for checksum in [false, true] {
            let tlvs = OutTlvs {
                received: Some(received.tlvs()),
                checksum,
                ..own
            };
            let written = header_v2(some, some, &tlvs).expect("room for it");
            assert!(written.len() <= LONGEST_BYTES, "{}", written.len());
            let header = complete(&written);
            let kinds: Vec<_> = header.tlvs().iter().map(|tlv| tlv.0).collect();
            let expected = [&kept[..], &vec![3; usize::from(checksum)]].concat();
            assert_eq!(kinds, expected);
        }
    }
}

#[test]
fn a_field_is_left_out_only_if_it_has_no_room() {
    let some = Some(address("192.0.2.1:1"));
    // Behind the fixed bytes, the addresses and the head of the field.
    let room = 4096 - 16 - 12 - 3;
    for (checksum, room) in [(false, room), (true, room - 7)] {
        for (length, fits) in [(room - 1, true), (room, true), (room + 1, false)] {
            let value = vec![b'v'; length];
            let head = [&[0xe0], &(length as u16).to_be_bytes()[..]].concat();
            let received = complete(&version2(0x21, 0x00, &with(&head, &value)));
            let tlvs = OutTlvs {
                received: Some(received.tlvs()),
                checksum,
                ..OutTlvs::default()
            };
            let written = header_v2(some, some, &tlvs).expect("room for what is ours");
            let passed_on = complete(&written).tlvs().get(0xe0) == Some(&value);
            assert_eq!(passed_on, fits, "{length} {checksum}");
            if length == room {
                assert_eq!(written.len(), 4096);
            }
        }
    }
}
