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
        [ESCAPE, b'[', b'[', letter, ..] => {
            let number = letter.wrapping_sub(b'A').wrapping_add(1);
            Some((function(number), 4))
        }
        [ESCAPE, b'[', b'['] => None,
        [ESCAPE, b'[', rest @ ..] => {
            // ECMA-48: parameters, and a final byte from @ to ~.
            let length = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
            match length {
                Some(length) => Some((control(&rest[..length], rest[length]), length + 3)),
                None if bytes.len() > SEQUENCE_MOST_BYTES => Some((Key::Other, bytes.len())),
                None => None,
            }
        }
        [ESCAPE, b'O', letter, ..] => Some((control(&[], *letter), 3)),
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
    fn any_bytes_are_taken() {
        let mut decoder = Decoder::default();
        for number in 0..=u16::MAX {
            decoder.keys(&number.to_be_bytes());
            assert!(decoder.0.len() <= SEQUENCE_MOST_BYTES + 1);
        }
        let mut decoder = Decoder::default();
        assert_eq!(
            decoder.keys(b"\xff\xc3q"),
            [Key::Other, Key::Other, Key::Char('q')]
        );
        assert_eq!(decoder.keys(b"\xe2\x82"), []);
        assert_eq!(decoder.keys(b"\xac"), [Key::Char('€')]);
    }
}
