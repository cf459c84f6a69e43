//! What a client has sent before its bytes can flow by themselves.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// How much room a read gets: the hello of most clients fits in, those with post-quantum keys included.
const ROOM_BYTES: usize = 4 << 10;

/// What is kept grows by at least so much: a message of 64 KiB that comes byte by byte is moved 128 times at
/// most. A client that waits costs at most this much more than it has sent.
const GROWTH_BYTES: usize = 512;

/// The client's bytes so far.
#[derive(Debug, Default)]
pub(super) struct FirstBytes {
    received: Vec<u8>,
    /// How many of them, from the first on, were for the proxy.
    used: usize,
    has_ended: bool,
}

/// What a read has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    Bytes,
    /// The client sends no more.
    End,
    Nothing,
}

impl FirstBytes {
    /// Those that were not for the proxy.
    pub(super) fn payload(&self) -> &[u8] {
        &self.received[self.used..]
    }

    /// The client sends no more.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// `count` more bytes were for the proxy.
    pub(super) fn consume(&mut self, count: usize) {
        self.used = (self.used + count).min(self.received.len());
    }

    /// Reads what has come, one room full at most. More may be left.
    pub(super) fn read(&mut self, client: impl AsFd) -> Result<Came, Errno> {
        if self.has_ended {
            return Ok(Came::Nothing);
        }
        // Not read into the vector: its room would cost each client that waits as much.
        let mut room = [const { MaybeUninit::<u8>::uninit() }; ROOM_BYTES];
        match recv(client, &mut room[..], RecvFlags::empty()) {
            Ok((([], _), _)) => {
                self.has_ended = true;
                Ok(Came::End)
            }
            Ok(((bytes, _), _)) => {
                if self.received.capacity() - self.received.len() < bytes.len() {
                    // Not amortised: a full vector would take twice what has come.
                    let more = match self.received.is_empty() {
                        true => bytes.len(),
                        false => bytes.len().max(GROWTH_BYTES),
                    };
                    self.received.reserve_exact(more);
                }
                self.received.extend_from_slice(bytes);
                Ok(Came::Bytes)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Came::Nothing),
            Err(errno) => Err(errno),
        }
    }

    /// The bytes for the server.
    pub(super) fn into_payload(mut self) -> Vec<u8> {
        self.received.drain(..self.used);
        self.received
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_waiting_client_costs_little_more_than_what_has_come() {
        let (mut client, ours) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("non-blocking");
        let mut bytes = FirstBytes::default();
        assert_eq!(bytes.read(&ours), Ok(Came::Nothing));
        assert_eq!(bytes.received.capacity(), 0);
        for _ in 0..20_000 {
            client.write_all(b"x").expect("sent");
            assert_eq!(bytes.read(&ours), Ok(Came::Bytes));
            assert!(bytes.received.capacity() <= bytes.payload().len() + GROWTH_BYTES);
        }
        // Not by close(2): a child that another test starts may hold a copy for a moment.
        client.shutdown(Shutdown::Write).expect("ended");
        assert_eq!(bytes.read(&ours), Ok(Came::End));
        assert!(bytes.has_ended());
        bytes.consume(3);
        assert_eq!(bytes.payload().len(), 19_997);
        assert_eq!(bytes.into_payload().len(), 19_997);
    }
}
