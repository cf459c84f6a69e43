//! What the bytes of a terminal mean.
//!
//! The reader of crossterm 0.29 is not used: it reads for ever from a terminal that is gone (`try_read` of
//! `event/source/unix/mio.rs` ignores EOF and EIO).

/// A key, as far as one means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// With the Control key.
    Control(char),
    Function(u8),
    Up,
    Down,
    Left,
    Right,
    Home,
    End,
    PageUp,
    PageDown,
    Enter,
    Escape,
    Tab,
    BackTab,
    Backspace,
    /// It means nothing.
    Other,
}

const ESCAPE: u8 = 0x1b;

/// The last byte of a control sequence is from @ to ~ (ECMA-48, 5.4).
const FINAL_LEAST: u8 = 0x40;
const FINAL_MOST: u8 = 0x7e;

/// No terminal sends more for a key.
const SEQUENCE_MOST_BYTES: usize = 32;

/// Bytes of which the keys are not yet known.
#[derive(Debug, Default)]
pub(super) struct Decoder(Vec<u8>);

impl Decoder {
    /// Adds bytes, and takes the keys that are whole.
    pub(super) fn keys(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.0.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut rest = &self.0[..];
        while let Some((key, length)) = first(rest) {
            keys.push(key);
            rest = &rest[length..];
        }
        self.0 = rest.to_vec();
        keys
    }

    /// Whether more bytes may belong to the last ones.
    pub(super) fn waits(&self) -> bool {
        !self.0.is_empty()
    }

    /// No more bytes belong to the last ones.
    pub(super) fn give_up(&mut self) -> Option<Key> {
        let bytes = std::mem::take(&mut self.0);
        match &bytes[..] {
            [] => None,
            [ESCAPE] => Some(Key::Escape),
            _ => Some(Key::Other),
        }
    }
}

/// The first key and the number of its bytes; `None` if there may be more of them.
fn first(bytes: &[u8]) -> Option<(Key, usize)> {
    match bytes {
        [] | [ESCAPE] => None,
        // As the Linux console sends function keys: ESC [ [ A.
        [ESCAPE, b'[', b'[', letter @ FINAL_LEAST..=FINAL_MOST, ..] => {
            let number = letter.wrapping_sub(b'A').wrapping_add(1);
            Some((function(number), 4))
        }
        [ESCAPE, b'[', b'['] => None,
        [ESCAPE, b'[', rest @ ..] => sequence(rest),
        [ESCAPE, b'O', letter @ FINAL_LEAST..=FINAL_MOST, ..] => Some((control(&[], *letter), 3)),
        [ESCAPE, b'O'] => None,
        // A key at once after Escape.
        [ESCAPE, ESCAPE, ..] => Some((Key::Escape, 1)),
        // With the Alt key.
        [ESCAPE, _, ..] => Some((Key::Other, 2)),
        [b'\r' | b'\n', ..] => Some((Key::Enter, 1)),
        [b'\t', ..] => Some((Key::Tab, 1)),
        [0x7f | 0x08, ..] => Some((Key::Backspace, 1)),
        [byte @ 1..=26, ..] => Some((Key::Control(char::from(byte - 1 + b'a')), 1)),
        [0..0x20, ..] => Some((Key::Other, 1)),
        _ => text(bytes),
    }
}

/// A control sequence after ESC [, as in ECMA-48: parameters, and a final byte. Another byte breaks it off, and is not
/// of it.
fn sequence(rest: &[u8]) -> Option<(Key, usize)> {
    let parameters = rest.iter().take(SEQUENCE_MOST_BYTES - 2);
    let length = parameters
        .take_while(|byte| matches!(byte, 0x20..=0x3f))
        .count();
    match rest.get(length) {
        // Nobody knows where it ends, and what follows may be another key.
        _ if length == SEQUENCE_MOST_BYTES - 2 => Some((Key::Other, SEQUENCE_MOST_BYTES)),
        None => None,
        Some(last @ FINAL_LEAST..=FINAL_MOST) => {
            Some((control(&rest[..length], *last), length + 3))
        }
        Some(_) => Some((Key::Other, length + 2)),
    }
}

/// The first character of UTF-8.
fn text(bytes: &[u8]) -> Option<(Key, usize)> {
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(error) => return error.error_len().map(|length| (Key::Other, length)),
    };
    let first = valid.chars().next()?;
    let key = match first.is_control() {
        true => Key::Other,
        false => Key::Char(first),
    };
    Some((key, first.len_utf8()))
}

/// What a control sequence stands for, with a Shift, Alt or Control key or without.
fn control(parameters: &[u8], last: u8) -> Key {
    let number = parameters.split(|byte| *byte == b';').next();
    let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
    match (last, number) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', Some(1 | 7)) => Key::Home,
        (b'F', _) | (b'~', Some(4 | 8)) => Key::End,
        (b'~', Some(5)) => Key::PageUp,
        (b'~', Some(6)) => Key::PageDown,
        (b'Z', _) => Key::BackTab,
        (b'M', None) if parameters.is_empty() => Key::Enter,
        (b'P'..=b'S', _) => function(last - b'P' + 1),
        (b'~', Some(number @ 11..=15)) => function(number - 10),
        (b'~', Some(number @ 17..=21)) => function(number - 11),
        _ => Key::Other,
    }
}

fn function(number: u8) -> Key {
    match number {
        1..=12 => Key::Function(number),
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::*;

    #[test]
    fn keys_of_usual_terminals_are_known() {
        for (bytes, key) in [
            ("a", Key::Char('a')),
            ("ä", Key::Char('ä')),
            ("/", Key::Char('/')),
            ("\r", Key::Enter),
            ("\t", Key::Tab),
            ("\x1b[Z", Key::BackTab),
            ("\x7f", Key::Backspace),
            ("\x03", Key::Control('c')),
            ("\x0c", Key::Control('l')),
            ("\x1a", Key::Control('z')),
            ("\x1b[A", Key::Up),
            ("\x1bOB", Key::Down),
            ("\x1b[1;5C", Key::Right),
            ("\x1b[H", Key::Home),
            ("\x1b[1~", Key::Home),
            ("\x1bOF", Key::End),
            ("\x1b[8~", Key::End),
            ("\x1b[5~", Key::PageUp),
            ("\x1b[6;2~", Key::PageDown),
            ("\x1bOP", Key::Function(1)),
            ("\x1b[13~", Key::Function(3)),
            ("\x1b[[D", Key::Function(4)),
            ("\x1b[17~", Key::Function(6)),
            ("\x1b[20~", Key::Function(9)),
            ("\x1b[21~", Key::Function(10)),
            ("\x1b[3~", Key::Other),
            ("\x1b[<0;1;1M", Key::Other),
            ("\x1bx", Key::Other),
            ("\x1c", Key::Other),
        ] {
            assert_eq!(
                Decoder::default().keys(bytes.as_bytes()),
                [key],
                "{bytes:?}"
            );
            // However they arrive.
            let mut decoder = Decoder::default();
            let parts = bytes.bytes().flat_map(|byte| decoder.keys(&[byte]));
            let keys: Vec<_> = parts.collect();
            assert_eq!(keys, [key], "{bytes:?} byte by byte");
            assert!(!decoder.waits());
        }
    }

    #[test]
    fn escape_is_known_once_nothing_follows() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.keys(b"q\x1b"), [Key::Char('q')]);
        assert!(decoder.waits());
        assert_eq!(decoder.give_up(), Some(Key::Escape));
        assert_eq!(decoder.give_up(), None);
        assert_eq!(decoder.keys(b"\x1b\x1b[A"), [Key::Escape, Key::Up]);
        assert_eq!(decoder.keys(b"\x1b["), []);
        assert_eq!(decoder.give_up(), Some(Key::Other));
    }

    #[test]
    fn what_follows_a_sequence_that_is_broken_off_is_a_key() {
        for (bytes, keys) in [
            ("\x1b[\x1b[A", &[Key::Other, Key::Up][..]),
            ("\x1b[1;\x03", &[Key::Other, Key::Control('c')]),
            ("\x1b[[\x03", &[Key::Other, Key::Control('c')]),
            ("\x1bO\x03", &[Key::Other, Key::Control('c')]),
            ("\x1b[5ä", &[Key::Other, Key::Char('ä')]),
        ] {
            assert_eq!(Decoder::default().keys(bytes.as_bytes()), keys, "{bytes:?}");
        }
        let long = format!("\x1b[{}~q", "1".repeat(SEQUENCE_MOST_BYTES - 2));
        let keys = [Key::Other, Key::Char('~'), Key::Char('q')];
        assert_eq!(Decoder::default().keys(long.as_bytes()), keys);
    }

    #[test]
    fn a_character_may_come_in_parts() {
        let mut decoder = Decoder::default();
        assert_eq!(
            decoder.keys(b"\xff\xc3q"),
            [Key::Other, Key::Other, Key::Char('q')]
        );
        assert_eq!(decoder.keys(b"\xe2\x82"), []);
        assert_eq!(decoder.keys(b"\xac"), [Key::Char('€')]);
    }

    /// Pieces of what terminals send, right and wrong.
    const PIECES: [&[u8]; 20] = [
        b"\x1b",
        b"\x1b[",
        b"\x1bO",
        b"[",
        b"O",
        b"A",
        b"~",
        b"1",
        b"20",
        b";5",
        b"M",
        b"<0;1;1",
        b"q",
        b"\r",
        b"\x03",
        b"\x7f",
        b"\xc3",
        b"\xa4",
        b"\xf0\x9f\x98",
        b"\xff",
    ];

    fn typed() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            6 => select(&PIECES[..]).prop_map(<[u8]>::to_vec),
            1 => any::<Vec<u8>>(),
            1 => (select(&PIECES[..]), 0..100usize).prop_map(|(piece, times)| piece.repeat(times)),
        ];
        prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    /// All keys of bytes that come in parts, the last one once nothing follows.
    fn decoded<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<Key> {
        let mut decoder = Decoder::default();
        let mut keys = Vec::new();
        for part in parts {
            keys.extend(decoder.keys(part));
            assert!(decoder.0.len() < SEQUENCE_MOST_BYTES, "{:?}", decoder.0);
            assert!(decoder.0.capacity() <= 2 * SEQUENCE_MOST_BYTES);
        }
        keys.extend(decoder.give_up());
        assert!(!decoder.waits());
        keys
    }

    proptest! {
        #[test]
        fn keys_do_not_depend_on_how_bytes_are_cut(
            bytes in typed(),
            cuts in prop::collection::vec(any::<Index>(), 0..20),
        ) {
            let whole = decoded([&*bytes]);
            prop_assert!(whole.len() <= bytes.len());
            prop_assert_eq!(&decoded(bytes.chunks(1)), &whole, "byte by byte");
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let begins = once(0).chain(cuts.iter().copied());
            let ends = cuts.iter().copied().chain(once(bytes.len()));
            let parts = begins.zip(ends).map(|(begin, end)| &bytes[begin..end]);
            prop_assert_eq!(&decoded(parts), &whole, "cut at {:?}", cuts);
        }
    }
}
