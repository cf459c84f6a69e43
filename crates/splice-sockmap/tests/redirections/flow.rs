//! A peer that sends without end, as far as it may.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use netlab::until;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::payload::Payload;

/// Reads what there is, to the end or to the first moment without bytes.
pub(crate) fn drain(socket: impl AsFd, into: &mut Vec<u8>) {
    let mut buffer = [0; 64 << 10];
    while let Ok((_, length @ 1..)) = recv(&socket, &mut buffer, RecvFlags::DONTWAIT) {
        into.extend_from_slice(&buffer[..length]);
    }
}

/// How far a sender gets ahead of the reader. The kernel bounds nothing.
pub(crate) const AHEAD_BYTES: usize = 64 << 10;

/// A sender that waits where it is not allowed to go on, and stops when its connection is cut.
#[derive(Default)]
pub(crate) struct Flow {
    pub(crate) sent: AtomicUsize,
    allowed: AtomicUsize,
    is_over: AtomicBool,
}

impl Flow {
    pub(crate) fn send(&self, socket: impl AsFd, payload: Payload) {
        while !self.is_over.load(Ordering::Relaxed) {
            let sent = self.sent.load(Ordering::Relaxed);
            if sent < self.allowed.load(Ordering::Relaxed) {
                let piece = payload.piece(sent as u64, 1000);
                match send(&socket, piece, SendFlags::NOSIGNAL) {
                    Ok(count) => self.sent.store(sent + count, Ordering::Relaxed),
                    Err(_) => return,
                }
            } else {
                thread::yield_now();
            }
        }
    }

    pub(crate) fn allow(&self, bytes: usize) {
        self.allowed.store(bytes, Ordering::Relaxed);
    }

    /// Whether all has been read that was allowed to be sent.
    pub(crate) fn waits_at(&self, read: usize) -> bool {
        read >= self.allowed.load(Ordering::Relaxed) && read == self.sent.load(Ordering::Relaxed)
    }
}

pub(crate) struct EndOf<'a>(pub(crate) &'a Flow);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Reads until as many more bytes have come, and lets the sender go on.
pub(crate) fn follow(flow: &Flow, reader: impl AsFd, come: &mut Vec<u8>, bytes: usize) {
    let enough = come.len() + bytes;
    until("much has come", || {
        drain(&reader, come);
        flow.allow(come.len() + AHEAD_BYTES);
        come.len() >= enough
    });
}
