//! Every width, offset and byte order, and frames that are cut anywhere.

use std::io::Write;

use proptest::prelude::*;
use splice::EngineName;
use splice::mesh::{Bounds, Code, Field, Framing, Length, Mesh};

use crate::stage::{Stage, framing, of};

by_each_engine!(
    every_width_and_byte_order_is_read,
    a_frame_may_be_cut_at_every_byte,
    a_delimiter_ends_a_frame,
    a_frame_without_delimiter_ends_the_member,
);

fn every_width_and_byte_order_is_read(engine: EngineName) {
    for (length, destination) in [
        ("u8@0", "u8@1"),
        ("u8@3+0", "u16le@0"),
        ("u16be@2", "u16be@0"),
        ("u16le@0+2", "u64le@2"),
        ("u32be@8+0", "u64be@0"),
        ("u32le@4", "u32le@0"),
        ("u64be@0", "u32be@20"),
        ("u64le@9+9", "u8@0"),
        ("u24be@1", "u40le@4"),
        ("u48le@0+0", "u24be@6"),
        ("u56be@2+2", "u16le@0"),
        ("u40be@0", "u56le@5"),
    ] {
        let stage = Stage::new(engine, of(length, destination), Bounds::default());
        let (mut a, mut b) = (stage.member(), stage.member());
        for bytes in [0, 1, 100, 200] {
            let body: Vec<u8> = (0..bytes).collect();
            a.send(b.id, &body);
            assert_eq!(b.receive(), (b.id, body), "{length} {destination}");
        }
    }
}

fn a_frame_may_be_cut_at_every_byte(engine: EngineName) {
    let stage = Stage::new(engine, framing(), Bounds::default());
    let (mut a, mut b) = (stage.member(), stage.member());
    a.stream.set_nodelay(true).expect("set");
    let frames: Vec<u8> = [&b"one"[..], b"", b"three"]
        .iter()
        .flat_map(|body| framing().frame(b.id, body).expect("a frame"))
        .collect();
    for cut in 1..frames.len() {
        for part in [&frames[..cut], &frames[cut..]] {
            a.stream.write_all(part).expect("sent");
        }
        for body in [&b"one"[..], b"", b"three"] {
            assert_eq!(b.receive().1, body, "cut at {cut}");
        }
    }
    for byte in &frames {
        a.stream.write_all(&[*byte]).expect("sent");
    }
    for body in [&b"one"[..], b"", b"three"] {
        assert_eq!(b.receive().1, body, "byte by byte");
    }
}

/// The longest frame with a delimiter here: its bounds are those of a default mesh.
const MOST_LINE_BYTES: u32 = 600;

fn lines() -> Framing {
    let destination = "u16be@1".parse().expect("a field");
    Framing::delimited(b'\n', destination, MOST_LINE_BYTES).expect("a framing")
}

fn a_delimiter_ends_a_frame(engine: EngineName) {
    let stage = Stage::new(engine, lines(), Bounds::default());
    let mut a = stage.member();
    // Its id is a newline, which ends no frame within the header.
    let mut others: Vec<_> = (0..9).map(|_| stage.member()).collect();
    let b = others.last_mut().expect("nine");
    assert_eq!(b.id, u64::from(b'\n'));
    a.stream.set_nodelay(true).expect("set");
    let longest = vec![b'x'; MOST_LINE_BYTES as usize - 4];
    let bodies = [&b"one"[..], b"", b"three", &longest, b"\0\r"];
    let frames: Vec<u8> = (bodies.iter())
        .flat_map(|body| lines().frame(b.id, body).expect("a frame"))
        .collect();
    for cut in 1..frames.len() {
        for part in [&frames[..cut], &frames[cut..]] {
            a.stream.write_all(part).expect("sent");
        }
        for body in bodies {
            assert_eq!(b.receive(), (b.id, body.to_vec()), "cut at {cut}");
        }
    }
    for byte in &frames {
        a.stream.write_all(&[*byte]).expect("sent");
    }
    for body in bodies {
        assert_eq!(b.receive().1, body, "byte by byte");
    }
    a.send(999, b"to nobody");
    let notice = a.notice();
    assert_eq!((notice.code, notice.destination), (Code::Unknown, 999));
}

fn a_frame_without_delimiter_ends_the_member(engine: EngineName) {
    let stage = Stage::new(engine, lines(), Bounds::default());
    // At once, and in single bytes.
    for piece in [MOST_LINE_BYTES as usize, 1] {
        let mut a = stage.member();
        a.stream.set_nodelay(true).expect("set");
        let long = vec![b'x'; MOST_LINE_BYTES as usize];
        for piece in long.chunks(piece) {
            a.stream.write_all(piece).expect("sent");
        }
        let notice = a.notice();
        assert_eq!(
            (notice.code, notice.destination),
            (Code::TooLong, MOST_LINE_BYTES.into())
        );
        assert_eq!(a.frame(), None, "the mesh closes it");
    }
}

#[test]
fn delimiters_that_cannot_work_are_refused_in_words() {
    let destination: Field = "u16be@1".parse().expect("a field");
    for (delimiter, most, part) in [
        (b'a', 600, "digit 'a'"),
        (b'\n', 51, "raise it"),
        (b'\n', 70_000, "too long for the kernel"),
    ] {
        let error = Framing::delimited(delimiter, destination, most).expect_err("impossible");
        assert!(error.to_string().contains(part), "{error}");
    }
    // Each of its bytes may come in a packet of its own, which the kernel's parser keeps.
    let long = Framing::delimited(b'\n', destination, 60_000).expect("a framing");
    let error = Mesh::create(long, Bounds::default()).expect_err("no room");
    assert!(error.to_string().contains("allow 92220000"), "{error}");
    assert_eq!(lines().frame(1, b"a\nb"), None);
}

fn fields() -> impl Strategy<Value = (Field, Field)> {
    let field = (1u32..=8, any::<bool>(), 0u32..24);
    let field = field.prop_map(|(width_bytes, little_endian, offset_bytes)| Field {
        width_bytes,
        little_endian: little_endian && width_bytes > 1,
        offset_bytes,
    });
    (field.clone(), field)
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_a_field_reads_its_own_text(
        (length, destination) in fields(),
        added in prop::option::of(0u32..40),
        bytes in 0usize..200,
        to in 1u64..250,
    ) {
        let text = match added {
            Some(added) => format!("{length}+{added}"),
            None => length.to_string(),
        };
        let length = Length { field: length, added_bytes: added };
        prop_assert_eq!(text.parse::<Length>().ok(), Some(length));
        let Ok(framing) = Framing::new(length, destination, 60_000) else {
            return Ok(());
        };
        let Some(frame) = framing.frame(to, &vec![1; bytes]) else {
            return Ok(());
        };
        prop_assert_eq!(framing.length_of(&frame), Ok(Some(frame.len())));
        prop_assert_eq!(framing.destination_of(&frame), Some(to));
        for cut in 0..framing.header_bytes() as usize {
            prop_assert_eq!(framing.length_of(&frame[..cut]), Ok(None));
        }
    }
}

#[test]
fn framings_that_cannot_work_are_refused_in_words() {
    for (length, destination, most, part) in [
        ("u32be@0", "u32be@2", 1000, "overlap"),
        ("u32be@0", "u32be@4", 70_000, "too long for the kernel"),
        ("u32be@0", "u32be@4", 20, "raise it"),
        ("u32be@0+99", "u32be@4", 1000, "leaves out 99 bytes"),
        ("u8@0+0", "u8@250", 1000, "too narrow"),
    ] {
        let length = length.parse().expect("a length");
        let destination = destination.parse().expect("a field");
        let error = Framing::new(length, destination, most).expect_err("impossible");
        assert!(error.to_string().contains(part), "{error}");
    }
    for (width_bytes, offset_bytes) in [(0, 8), (9, 8), (u32::MAX, 8), (4, 1025), (4, u32::MAX)] {
        let odd = Field {
            width_bytes,
            little_endian: false,
            offset_bytes,
        };
        let length = Length {
            field: odd,
            added_bytes: None,
        };
        let usual = "u32be@0".parse().expect("a field");
        for error in [
            Framing::new(length, usual, 1000),
            Framing::new("u32be@0".parse().expect("a length"), odd, 1000),
        ] {
            let error = error.expect_err("impossible").to_string();
            assert!(error.contains("is not possible"), "{error}");
        }
    }
    for text in [
        "",
        "u32be",
        "u12be@0",
        "u0be@0",
        "u72be@0",
        "u08@0",
        "u+16be@0",
        "u24@0",
        "u32be@x",
        "u32be@-1",
        "u32@0",
        "u8be@0",
        "u32be@9999",
    ] {
        let error = text.parse::<Field>().expect_err("no field");
        assert!(
            error
                .to_string()
                .contains("write width, byte order and offset"),
            "{error}"
        );
    }
}
