//! Sending the datagrams of a message, together or one by one, and counting them.

use rustix::io::Errno;

use super::counters::Flow;
use super::piece::Piece;

/// An error that ends a session or asks for another way, and the datagrams that have not been sent.
#[derive(Debug)]
pub(crate) struct Unsent<'a> {
    pub(crate) errno: Errno,
    pub(crate) rest: Piece<'a>,
}

/// Sends all datagrams of `piece` and counts them. `takes_trains`: one call may send several, as far as is known.
pub(crate) fn send_all<'a>(
    piece: Piece<'a>,
    takes_trains: &mut bool,
    flow: &mut Flow,
    send: impl Fn(&Piece<'_>) -> Result<(), Errno>,
) -> Result<(), Unsent<'a>> {
    let unsent = |errno, rest| Unsent { errno, rest };
    if *takes_trains || !piece.is_many() {
        match count(&piece, flow, &send) {
            Ok(Sent::Counted) => return Ok(()),
            // A path that is too narrow for them takes them as fragments, one by one.
            Ok(Sent::NotTogether) => {}
            Ok(Sent::NeverTogether) => *takes_trains = false,
            Err(errno) => return Err(unsent(errno, piece)),
        }
    }
    let mut left = Some(piece);
    while let Some(rest) = left {
        let (first, others) = rest.split_first();
        if let Err(errno) = count(&first, flow, &send) {
            return Err(unsent(errno, rest));
        }
        left = others;
    }
    Ok(())
}

/// What has become of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// It was sent or dropped, and counted.
    Counted,
    /// Its datagrams have to be sent one by one.
    NotTogether,
    /// So have those that come later on this way.
    NeverTogether,
}

/// Sends `piece` with one call.
fn count(
    piece: &Piece<'_>,
    flow: &mut Flow,
    send: &impl Fn(&Piece<'_>) -> Result<(), Errno>,
) -> Result<Sent, Errno> {
    let number = piece.datagrams() as u64;
    let mut sent = send(piece);
    if sent == Err(Errno::MSGSIZE) && number == 1 {
        // The kernel reports to this call that an earlier datagram was too big for a router (`sock_error`), and has
        // not looked at this one.
        sent = send(piece);
        if sent.is_ok() {
            flow.dropped.too_long += 1;
        }
    }
    match sent {
        Ok(()) => {
            flow.datagrams += number;
            flow.bytes += piece.bytes.len() as u64;
        }
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => flow.dropped.full += number,
        // Longer than the path takes as a segment; `EINVAL` in older kernels (`udp_send_skb`).
        Err(Errno::MSGSIZE | Errno::INVAL) if number > 1 => return Ok(Sent::NotTogether),
        // The device computes no checksums, or IPsec is in the way.
        Err(Errno::IO | Errno::OPNOTSUPP) if number > 1 => return Ok(Sent::NeverTogether),
        Err(Errno::MSGSIZE) => flow.dropped.too_long += 1,
        // A packet filter of this host has dropped it.
        Err(Errno::PERM) => flow.dropped.nowhere += number,
        Err(errno) => return Err(errno),
    }
    Ok(Sent::Counted)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const TRAIN: Piece<'static> = Piece {
        bytes: b"aabbc",
        stride: 2,
        congestion: None,
        ttl: None,
    };

    type Left = Option<(Errno, Vec<u8>)>;

    /// Sends [`TRAIN`] where a call ends as `answer` says, and returns what was tried and what is left.
    fn tried(
        takes_trains: &mut bool,
        answer: impl Fn(&[u8]) -> Result<(), Errno>,
    ) -> (Vec<Vec<u8>>, Left) {
        let calls = RefCell::new(Vec::new());
        let sent = send_all(TRAIN, takes_trains, &mut Flow::default(), |piece| {
            calls.borrow_mut().push(piece.bytes.to_vec());
            answer(piece.bytes)
        });
        let unsent = sent.err();
        let unsent = unsent.map(|unsent| (unsent.errno, unsent.rest.bytes.to_vec()));
        (calls.into_inner(), unsent)
    }

    #[test]
    fn a_train_goes_as_one_only_where_the_way_takes_it() {
        let (calls, _) = tried(&mut true, |_| Ok(()));
        assert_eq!(calls, [b"aabbc"]);
        let (calls, _) = tried(&mut false, |_| Ok(()));
        assert_eq!(calls, [&b"aa"[..], b"bb", b"c"]);
    }

    #[test]
    fn what_was_sent_of_a_train_is_not_part_of_what_is_left() {
        let refuse = |bytes: &[u8]| match bytes {
            b"bb" => Err(Errno::CONNREFUSED),
            _ => Ok(()),
        };
        let (_, unsent) = tried(&mut false, refuse);
        assert_eq!(unsent, Some((Errno::CONNREFUSED, b"bbc".to_vec())));
    }

    #[test]
    fn an_error_of_one_train_says_nothing_about_the_next() {
        let narrow = |bytes: &[u8]| match bytes.len() {
            5 => Err(Errno::INVAL),
            _ => Ok(()),
        };
        let mut takes_trains = true;
        let (calls, _) = tried(&mut takes_trains, narrow);
        assert_eq!(calls.len(), 4);
        assert!(takes_trains);
        let unable = |bytes: &[u8]| match bytes.len() {
            5 => Err(Errno::IO),
            _ => Ok(()),
        };
        tried(&mut takes_trains, unable);
        assert!(!takes_trains);
    }
}
