//! Whole messages of a socket that keeps them apart (`SOCK_SEQPACKET`), also empty ones.
//!
//! ```text
//! socket a ──recvmsg──▶ buffer ──send──▶ socket b
//! ```
//!
//! The buffer is as large as the longest message. A message that its destination has no room for is kept in memory of its
//! own length ([`Buffers::trim`](super::buffer::Buffers::trim)).

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg, sockopt};

use super::ReadOutcome;
use super::buffer::Buffer;

/// What the kernel wants of a UNIX socket's send buffer beyond a message, in bytes (`unix_dgram_sendmsg`).
const BESIDE_MESSAGE_BYTES: usize = 32;

/// How messages are to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Messages {
    /// The source reports when a message has arrived (`SO_TIMESTAMP`): an empty message has a time, and the end of the
    /// stream has none. Without it, an empty message looks like the end.
    pub(crate) tells_arrival: bool,
    /// The destination takes a part of a message that it has no room for, and reports `EAGAIN` as if it had taken none
    /// (VSOCK, `vsock_connectible_sendmsg`). What is sent next becomes the rest of that message.
    pub(crate) can_tear: bool,
}

impl Messages {
    /// Reads one message.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is longer than the buffer: it cannot be passed on whole, and a part would pass for all of it.
    pub(crate) fn fill(
        self,
        buffer: &mut Buffer,
        source: BorrowedFd<'_>,
    ) -> Result<ReadOutcome, Errno> {
        // There is no room for what comes with a message. The kernel closes descriptors, and says that it has left something
        // out, as the time is (`put_cmsg`). So there is nothing to take apart.
        let mut control = RecvAncillaryBuffer::default();
        let mut slices = [IoSliceMut::new(buffer.space(usize::MAX))];
        let message = match recvmsg(source, &mut slices, &mut control, RecvFlags::DONTWAIT) {
            Ok(message) => message,
            Err(Errno::AGAIN) => return Ok(ReadOutcome::Empty),
            Err(errno) => return Err(errno),
        };
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Err(Errno::MSGSIZE);
        }
        let has_arrived = self.tells_arrival && message.flags.contains(ReturnFlags::CTRUNC);
        if message.bytes == 0 && !has_arrived {
            return Ok(ReadOutcome::EndOfStream);
        }
        buffer.took_datagram(message.bytes);
        Ok(ReadOutcome::Bytes(message.bytes))
    }

    /// Sends the message in `buffer`.
    ///
    /// # Errors
    /// `EAGAIN` if nothing of it was sent, for want of room. `EMSGSIZE` if a UNIX socket's send buffer may not be as large as
    /// it needs. `EMSGSIZE` also if VSOCK has sent a part of it: nobody is told how much, so the connection cannot go on.
    pub(crate) fn drain(
        self,
        buffer: &mut Buffer,
        destination: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        if !self.can_tear {
            return match buffer.drain(destination) {
                Err(Errno::MSGSIZE) => {
                    make_room(destination, buffer.bytes().len());
                    buffer.drain(destination)
                }
                other => other,
            };
        }
        // With no room at all, no part is sent either.
        if !has_room(destination)? {
            return Err(Errno::AGAIN);
        }
        buffer.drain(destination).map_err(|errno| match errno {
            Errno::AGAIN => Errno::MSGSIZE,
            _ => errno,
        })
    }
}

/// Enlarges a UNIX socket's send buffer for a message of so many bytes, as far as `net.core.wmem_max` or CAP_NET_ADMIN allows.
fn make_room(socket: BorrowedFd<'_>, message_bytes: usize) {
    // The kernel doubles the value (socket(7)).
    let bytes = (message_bytes + BESIDE_MESSAGE_BYTES).div_ceil(2);
    // The message shows whether it was enough.
    let _ = sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes));
}

fn has_room(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut sockets = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    poll(&mut sockets, Some(&Timespec::default()))?;
    // An error is told by sending.
    Ok(!sockets[0].revents().is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, OwnedFd};

    use rustix::net::{
        AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
        socketpair,
    };
    use splice_base::socket_option::report_arrival;

    use super::*;
    use crate::carrier::buffer::{Buffers, Size};

    const MESSAGES: Messages = Messages {
        tells_arrival: true,
        can_tear: false,
    };

    fn pair() -> [OwnedFd; 2] {
        let (one, other) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        report_arrival(&other).unwrap();
        [one, other]
    }

    #[test]
    fn an_empty_message_is_not_the_end_of_the_stream() {
        let [client, source] = pair();
        let mut buffer = Buffers::default().take(Size::OF_MESSAGE);
        let mut fill = || MESSAGES.fill(&mut buffer, source.as_fd());
        assert_eq!(fill(), Ok(ReadOutcome::Empty));
        send(&client, b"", SendFlags::empty()).unwrap();
        send(&client, b"four", SendFlags::empty()).unwrap();
        shutdown(&client, Shutdown::Write).unwrap();
        assert_eq!(fill(), Ok(ReadOutcome::Bytes(0)));
        assert_eq!(fill(), Ok(ReadOutcome::Bytes(4)));
        assert_eq!(fill(), Ok(ReadOutcome::EndOfStream));
    }

    /// A message that waits for room takes no more memory than it has bytes.
    #[test]
    fn a_message_that_waits_is_kept_in_memory_of_its_length() {
        let [client, source] = pair();
        let [destination, server] = pair();
        let mut buffers = Buffers::default();
        let mut buffer = buffers.take(Size::OF_MESSAGE);
        let earlier = std::iter::repeat_with(|| send(&destination, b"earlier", SendFlags::empty()))
            .take_while(Result::is_ok)
            .count();
        for text in [&b""[..], b"later"] {
            send(&client, text, SendFlags::empty()).unwrap();
        }
        for text in [&b""[..], b"later"] {
            let filled = MESSAGES.fill(&mut buffer, source.as_fd());
            assert_eq!(filled, Ok(ReadOutcome::Bytes(text.len())));
            if text.is_empty() {
                assert_eq!(buffer.drain(destination.as_fd()), Err(Errno::AGAIN));
            }
            buffers.trim(&mut buffer);
            assert_eq!(buffer.bytes(), text);
            assert!(!buffer.suits_next() && !buffer.is_empty());
            for _ in 0..if text.is_empty() { earlier } else { 0 } {
                recv(&server, &mut [0; 9], RecvFlags::empty()).unwrap();
            }
            assert_eq!(buffer.drain(destination.as_fd()), Ok(text.len()));
            assert!(buffer.is_empty());
            let mut received = [0; 9];
            let (_, length) = recv(&server, &mut received, RecvFlags::empty()).unwrap();
            assert_eq!(&received[..length], text);
            buffers.give_back(buffer);
            // What was trimmed is lent to the next one.
            buffer = buffers.take(Size::OF_MESSAGE);
            assert!(buffer.suits_next());
        }
    }
}
