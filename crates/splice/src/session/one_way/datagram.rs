//! Moves whole datagrams, also empty ones.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use super::end::{End, Moved};
use crate::outcome::Side;

/// The largest datagram of UDP, in bytes.
const LARGEST_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Datagrams {
    buffer: Box<[u8]>,
    is_bounded: bool,
    /// Another process may read the source: what is dropped could be another datagram than that
    /// which was peeked, so it is read before it is sent.
    pub(super) is_shared: bool,
    /// The size of a datagram that was read and not sent yet.
    held: Option<usize>,
}

impl Datagrams {
    pub(super) fn new(is_bounded: bool) -> Self {
        Self {
            buffer: Box::default(),
            is_bounded,
            is_shared: false,
            held: None,
        }
    }

    /// Moves one datagram of at most `most_bytes`. It leaves the source once it is sent.
    pub(super) fn step(
        &mut self,
        [source, destination]: &[End; 2],
        most_bytes: usize,
    ) -> Result<Moved, (Side, Errno)> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; LARGEST_BYTES].into_boxed_slice();
        }
        let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        let size = match self.held {
            Some(size) => size,
            None => match recv(&source.fd, &mut *self.buffer, flags) {
                Ok((_, size)) => size.min(LARGEST_BYTES),
                Err(Errno::AGAIN) => return Ok(Moved::SourceEmpty),
                Err(errno) => return Err((Side::A, errno)),
            },
        };
        if size > most_bytes {
            return Ok(Moved::OverLimit);
        }
        // The kernel has doubled what the owner set (socket(7)).
        if self.is_bounded
            && sockopt::socket_send_buffer_size(&destination.fd).is_ok_and(|most| size > most / 2)
        {
            return Err((Side::B, Errno::MSGSIZE));
        }
        let mut size = size;
        if self.is_shared && self.held.is_none() {
            match recv(&source.fd, &mut *self.buffer, RecvFlags::DONTWAIT) {
                Ok((count, _)) => size = count,
                Err(Errno::AGAIN) => return Ok(Moved::SourceEmpty),
                Err(errno) => return Err((Side::A, errno)),
            }
            self.held = Some(size);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&destination.fd, &self.buffer[..size], flags) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(Moved::DestinationFull),
            Err(errno) => return Err((Side::B, errno)),
        }
        if self.held.take().is_some() {
            return Ok(Moved::Bytes(size));
        }
        // A datagram is dropped as a whole, however little of it is read.
        match recv(&source.fd, &mut [0u8; 1], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN) => Ok(Moved::Bytes(size)),
            Err(errno) => Err((Side::A, errno)),
        }
    }
}
