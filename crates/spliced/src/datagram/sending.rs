//! Sending the datagrams of a message, together or one by one, and counting them.

use rustix::io::Errno;

use super::counters::Flow;
use super::socket::{Offload, Piece};

/// Sends all datagrams of `piece` and counts them. Returns an error that ends the session.
pub(crate) fn send_all(
    offload: &Offload,
    piece: &Piece<'_>,
    flow: &mut Flow,
    send: impl Fn(&Piece<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let datagrams = piece.datagrams();
    if piece.is_many() {
        // A path that is too narrow for them takes them as fragments, one by one.
        if offload.takes(datagrams) && count(piece, datagrams, flow, &send)? {
            return Ok(());
        }
        for single in piece.singles() {
            count(&single, 1, flow, &send)?;
        }
        return Ok(());
    }
    count(piece, 1, flow, &send).map(drop)
}

/// Sends `piece`, and counts it as sent or dropped. Returns false if it has to be sent in parts.
fn count(
    piece: &Piece<'_>,
    datagrams: usize,
    flow: &mut Flow,
    send: &impl Fn(&Piece<'_>) -> Result<(), Errno>,
) -> Result<bool, Errno> {
    let number = datagrams as u64;
    let mut sent = send(piece);
    if sent == Err(Errno::MSGSIZE) && datagrams == 1 {
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
        Err(Errno::MSGSIZE | Errno::INVAL | Errno::IO | Errno::OPNOTSUPP) if datagrams > 1 => {
            return Ok(false);
        }
        Err(Errno::MSGSIZE) => flow.dropped.too_long += 1,
        // A packet filter of this host has dropped it.
        Err(Errno::PERM) => flow.dropped.nowhere += number,
        Err(errno) => return Err(errno),
    }
    Ok(true)
}
