//! Protocols that their first few bytes give away.

use crate::conditions::Protocol;
use crate::progress::Progress;
use crate::request_head::{HTTP2_PREFACE, MOST_BLANK_BYTES, is_blank, is_whitespace};

/// RFC 4253, section 4.2, and version 1 before it.
const SSH_VERSIONS: [&[u8]; 2] = [b"SSH-2.0-", b"SSH-1."];

/// The method of a request for a destination (RFC 9110, section 9.3.6).
const CONNECT: &[u8] = b"CONNECT";

/// Whether a connection begins with `protocol`. `None` if that takes more than a few bytes to tell.
pub(crate) fn read(protocol: Protocol, bytes: &[u8]) -> Option<Progress<()>> {
    Some(match protocol {
        // What follows, such as the authority of the first request, is not looked at: clients of gRPC wait for
        // the server's SETTINGS before they send it.
        Protocol::Http2 => begins_with(bytes, &[HTTP2_PREFACE]),
        Protocol::Ssh => begins_with(bytes, &SSH_VERSIONS),
        Protocol::Connect => connect(bytes),
        Protocol::Socks => socks(bytes),
        Protocol::Rdp => rdp(bytes),
        Protocol::Tls | Protocol::Http1 | Protocol::Postgres => return None,
    })
}

/// Whether `bytes` begin with one of `patterns`, as soon as that is sure.
pub(crate) fn begins_with(bytes: &[u8], patterns: &[impl AsRef<[u8]>]) -> Progress<()> {
    let mut patterns = patterns.iter().map(AsRef::as_ref);
    if patterns.clone().any(|pattern| bytes.starts_with(pattern)) {
        Progress::Complete(())
    } else if patterns.any(|pattern| pattern.starts_with(bytes)) {
        Progress::More
    } else {
        Progress::Other
    }
}

/// Right or wrong: who has read the whole head tells the client what is wrong with it. That is also the answer
/// to more blank bytes than a request may have before it, whatever follows.
fn connect(bytes: &[u8]) -> Progress<()> {
    let mut start = bytes.iter().take(MOST_BLANK_BYTES + 1);
    let Some(start) = start.position(|byte| !is_blank(*byte)) else {
        return match bytes.len() > MOST_BLANK_BYTES {
            true => Progress::Complete(()),
            false => Progress::More,
        };
    };
    match bytes[start..].strip_prefix(CONNECT) {
        None => begins_with(&bytes[start..], &[CONNECT]),
        Some([] | [b'\r']) => Progress::More,
        // A command of another protocol, such as STOMP.
        Some([b'\r', b'\n', ..]) => Progress::Other,
        Some([byte, ..]) if is_whitespace(*byte) => Progress::Complete(()),
        Some(_) => Progress::Other,
    }
}

/// Version 4 with a command, CONNECT or BIND; version 5 with the number of methods (RFC 1928).
fn socks(bytes: &[u8]) -> Progress<()> {
    match bytes {
        [] | [4 | 5] => Progress::More,
        [4, 1 | 2, ..] | [5, 1..=255, ..] => Progress::Complete(()),
        _ => Progress::Other,
    }
}

/// A connection request of X.224 class 0 in a TPKT (MS-RDPBCGR, section 2.2.1.1; RFC 1006).
fn rdp(bytes: &[u8]) -> Progress<()> {
    /// Of the TPKT header.
    const HEADER_BYTES: u16 = 4;
    /// What X.224 counts of a connection request without variable part.
    const SHORTEST_REQUEST_BYTES: u8 = 6;
    let at = |index: usize| bytes.get(index).copied();
    let length = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    let fits = |index: usize, fits: &dyn Fn(u8) -> bool| at(index).is_none_or(fits);
    let fits = fits(0, &|version| version == 3)
        && fits(1, &|reserved| reserved == 0)
        && fits(2, &|high| high <= 1)
        // 255 is reserved as the length of X.224.
        && fits(4, &|indicator| {
            (SHORTEST_REQUEST_BYTES..255).contains(&indicator)
                && length(bytes[2], bytes[3]) == HEADER_BYTES + 1 + u16::from(indicator)
        })
        && fits(5, &|code| code == 0xe0)
        && fits(6, &|destination| destination == 0)
        && fits(7, &|destination| destination == 0)
        && fits(10, &|class| class == 0);
    match (fits, bytes.len()) {
        (false, _) => Progress::Other,
        (true, 11..) => Progress::Complete(()),
        (true, _) => Progress::More,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Progress::{Complete, More, Other};

    const MSTSC: &[u8] =
        b"\x03\0\0\x2c\x27\xe0\0\0\0\0\0Cookie: mstshash=admin\r\n\x01\0\x08\0\x0b\0\0\0";

    #[test]
    fn signatures() {
        for (protocol, bytes, expected) in [
            (Protocol::Http2, HTTP2_PREFACE, Complete(())),
            (
                Protocol::Http2,
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0",
                Complete(()),
            ),
            (Protocol::Http2, b"PRI * HTTP/2.0\r\n\r\n", More),
            (Protocol::Http2, b"PRI * HTTP/2.0\r\n\r\nTM", Other),
            (Protocol::Http2, b"POST", Other),
            (
                Protocol::Ssh,
                b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
                Complete(()),
            ),
            (Protocol::Ssh, b"SSH-1.5-x", Complete(())),
            (Protocol::Ssh, b"SSH-1.99-x", Complete(())),
            (Protocol::Ssh, b"SSH-", More),
            (Protocol::Ssh, b"SSH-3.0-", Other),
            (Protocol::Ssh, b"ssh-2.0-", Other),
            (
                Protocol::Connect,
                b"CONNECT example.org:443 HTTP/1.1",
                Complete(()),
            ),
            (Protocol::Connect, b"CONNECT", More),
            (Protocol::Connect, b"\r\n\r\nCONNECT a:1", Complete(())),
            (Protocol::Connect, b"\r\n\r", More),
            (Protocol::Connect, b"\r\rCONNECT a:1", Complete(())),
            (Protocol::Connect, b"\nCONNECT a:1", Complete(())),
            (Protocol::Connect, b"CONNECT\ta:1", Complete(())),
            (Protocol::Connect, b"CONNECT\r", More),
            (Protocol::Connect, b"CONNECT\r\n", Other),
            (Protocol::Connect, b"CONNECT\n", Other),
            (Protocol::Connect, b"CONNECT\ra:1", Complete(())),
            (Protocol::Connect, b"CONNECT\x0ba:1", Complete(())),
            (Protocol::Connect, b"CONNECT\xa0a:1", Complete(())),
            (Protocol::Connect, b" CONNECT a:1", Complete(())),
            (Protocol::Connect, b"connect a:1", Other),
            (Protocol::Connect, b" {", Other),
            (Protocol::Connect, b"\nGET ", Other),
            (Protocol::Connect, &[b'\r', b'\n'].repeat(8), More),
            (
                Protocol::Connect,
                b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\0",
                Other,
            ),
            // More than a request may have, whatever follows.
            (
                Protocol::Connect,
                b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r",
                Complete(()),
            ),
            (Protocol::Connect, &[b'\n'; 1000], Complete(())),
            (Protocol::Connect, b"CONNECTED ", Other),
            (Protocol::Socks, b"\x05\x01\0", Complete(())),
            (Protocol::Socks, b"\x05\xff", Complete(())),
            (Protocol::Socks, b"\x05\0", Other),
            (Protocol::Socks, b"\x04\x01\0\x50", Complete(())),
            (Protocol::Socks, b"\x04\x03", Other),
            (Protocol::Socks, b"\x06\x01", Other),
            (Protocol::Rdp, MSTSC, Complete(())),
            (
                Protocol::Rdp,
                b"\x03\0\0\x0b\x06\xe0\0\0\0\0\0",
                Complete(()),
            ),
            (
                Protocol::Rdp,
                b"\x03\0\0\x13\x0e\xe0\0\0\0\0\0",
                Complete(()),
            ),
            (Protocol::Rdp, b"\x03\0\0\x13\x0e\xe0\0\0", More),
            (Protocol::Rdp, b"\x03\0\0\x13\x0f", Other),
            (Protocol::Rdp, b"\x03\0\0\x0a\x05", Other),
            (Protocol::Rdp, b"\x03\x01", Other),
            (Protocol::Rdp, b"\x03\0\x02", Other),
            (Protocol::Rdp, b"\x03\0\0\x13\x0e\xd0", Other),
            (Protocol::Rdp, b"\x03\0\0\x13\x0e\xe0\0\x01", Other),
            (Protocol::Rdp, b"\x03\0\0\x13\x0e\xe0\0\0\0\0\x20", Other),
            (Protocol::Rdp, b"\x03\0\x01\x04\xff", Other),
        ] {
            let shown = bytes.escape_ascii();
            assert_eq!(
                read(protocol, bytes),
                Some(expected),
                "{protocol:?} {shown}"
            );
            // Bytes change an answer only as long as it is open.
            let answers = (0..=bytes.len()).filter_map(|end| read(protocol, &bytes[..end]));
            let closed: Vec<_> = answers.skip_while(|answer| *answer == More).collect();
            assert!(
                closed.iter().all(|it| *it == expected),
                "{protocol:?} {shown}"
            );
        }
    }

    #[test]
    fn a_pattern_matches_as_soon_as_it_is_complete() {
        let patterns: [&[u8]; 2] = [b"EHLO", b"EH"];
        for (bytes, expected) in [
            (&b""[..], More),
            (b"E", More),
            (b"EH", Complete(())),
            (b"EHX", Complete(())),
            (b"X", Other),
        ] {
            assert_eq!(begins_with(bytes, &patterns), expected);
        }
        assert_eq!(begins_with(b"EHL", &[b"EHLO"]), More);
        assert_eq!(begins_with(b"EHLX", &[b"EHLO"]), Other);
    }
}
