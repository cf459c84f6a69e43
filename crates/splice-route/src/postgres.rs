//! The first message of a PostgreSQL client.

use crate::progress::Progress;

/// The server refuses longer ones (MAX_STARTUP_PACKET_LENGTH in its pqcomm.h).
const LONGEST_STARTUP_BYTES: u32 = 10_000;

/// The length and the code of a message.
pub(crate) const REQUEST_BYTES: usize = 8;

/// The message by which a client of PostgreSQL asks for TLS. The server answers one byte: `S` for yes.
pub const POSTGRES_SSL_REQUEST: [u8; REQUEST_BYTES] = [0, 0, 0, 8, 4, 210, 22, 47];

/// `SSLRequest` and its kin differ in their last byte.
const CANCEL_REQUEST: [u8; 4] = 80_877_102_u32.to_be_bytes();
const SSL_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
const GSSENC_REQUEST: [u8; 4] = 80_877_104_u32.to_be_bytes();

/// Major version 3, any minor version.
const VERSION_3: [u8; 2] = [0, 3];

/// What a client begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstMessage {
    /// It wants TLS, and waits for an answer.
    SslRequest,
    /// It wants encryption by GSSAPI, and waits for an answer.
    GssEncRequest,
    /// It starts a session or cancels a query, without encryption.
    Plain,
}

/// Tells the message by its first 8 bytes.
pub(crate) fn read(bytes: &[u8]) -> Progress<FirstMessage> {
    let could_begin_with = |code: &[u8], rest: &[u8]| {
        let common = code.len().min(rest.len());
        code[..common] == rest[..common]
    };
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        // A length of at most 10000 starts with two zeroes.
        return if bytes.iter().take(2).all(|byte| *byte == 0) {
            Progress::More
        } else {
            Progress::Other
        };
    };
    let length = u32::from_be_bytes(*length);
    let codes: [(&[u8], bool, FirstMessage); 4] = [
        (&SSL_REQUEST, length == 8, FirstMessage::SslRequest),
        (&GSSENC_REQUEST, length == 8, FirstMessage::GssEncRequest),
        // 16 until version 3.2 made keys longer.
        (&CANCEL_REQUEST, length >= 16, FirstMessage::Plain),
        (&VERSION_3, length > 8, FirstMessage::Plain),
    ];
    if length > LONGEST_STARTUP_BYTES {
        return Progress::Other;
    }
    let found = codes
        .into_iter()
        .find(|(code, fits, _)| *fits && could_begin_with(code, rest));
    match found {
        None => Progress::Other,
        Some(_) if rest.len() < 4 => Progress::More,
        Some((_, _, message)) => Progress::Complete(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FirstMessage::{GssEncRequest, Plain, SslRequest};
    use Progress::{Complete, More, Other};

    #[test]
    fn first_messages() {
        for (bytes, expected) in [
            (&POSTGRES_SSL_REQUEST[..], Complete(SslRequest)),
            (b"\0\0\0\x08\x04\xd2\x16\x30", Complete(GssEncRequest)),
            (
                b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02",
                Complete(Plain),
            ),
            (b"\0\0\0\x29\0\x03\0\0user\0a\0", Complete(Plain)),
            (b"\0\0\0\x29\0\x03\0\x02user\0a\0", Complete(Plain)),
            (b"\0\0\0\x29\0\x03\0", More),
            (b"", More),
            (b"\0", More),
            (b"\0\0\x27\x10\0\x03\0\0", Complete(Plain)),
            (b"\0\0\x27\x11\0\x03\0\0", Other),
            (b"\0\x01", Other),
            (b"\x16\x03", Other),
            (b"\0\0\0\x29\0\x02", Other),
            (b"\0\0\0\x08\0", Other),
            (b"\0\0\0\x09\x04\xd2\x16\x2f", Other),
            (b"\0\0\0\x08\x04\xd2\x16\x2e", Other),
            (b"\0\0\0\x04\x04", Other),
            (b"\0\0\0\x08\x04\xd2\x17", Other),
        ] {
            let shown = bytes.escape_ascii();
            assert_eq!(read(bytes), expected, "{shown}");
            let answers = (0..=bytes.len()).map(|end| read(&bytes[..end]));
            let closed: Vec<_> = answers.skip_while(|answer| *answer == More).collect();
            assert!(closed.iter().all(|answer| *answer == expected), "{shown}");
        }
    }
}
