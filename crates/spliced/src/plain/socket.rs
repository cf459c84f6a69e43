//! Receiving from a connected socket: a message, or a part of a stream.

use std::fmt;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{SockaddrStorage, getpeername};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recvmsg, send, sockopt};

use crate::socket_address::SocketAddress;

/// The longest message: what a sender may have in flight whose send buffer is as large as `net.core.wmem_max`
/// allows by default on current kernels (4 MiB).
const LONGEST_MESSAGE_BYTES: usize = 4 << 20;

/// A part of a stream: what the engine `copy` reads at most at a time.
const PART_BYTES: usize = 256 << 10;

/// What the thread receives into.
pub(super) struct Buffer(Box<[u8]>);

/// What a socket has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// So many bytes at the beginning of the buffer.
    Bytes(usize),
    EndOfStream,
    TooLong,
}

impl Buffer {
    pub(super) fn for_messages(messages: bool) -> Self {
        let bytes = match messages {
            true => LONGEST_MESSAGE_BYTES,
            false => PART_BYTES,
        };
        Self(vec![0; bytes].into())
    }

    pub(super) fn bytes(&self, length: usize) -> &[u8] {
        &self.0[..length]
    }

    /// Receives from `socket`. `tells`: it reports who sent a message ([`report_sender`]).
    pub(super) fn receive(&mut self, socket: &OwnedFd, tells: bool) -> Result<Received, Errno> {
        // Descriptors that come with a message have no room here: the kernel closes them.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut self.0)];
        let message = recvmsg(socket, &mut slices, &mut control, RecvFlags::DONTWAIT)?;
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Ok(Received::TooLong);
        }
        // A message without bytes has a sender; the end of the stream has none.
        let is_message = tells && control.drain().next().is_some();
        Ok(match message.bytes {
            0 if !is_message => Received::EndOfStream,
            bytes => Received::Bytes(bytes),
        })
    }
}

/// Has a UNIX socket report who sent a message. Returns whether it does.
pub(super) fn report_sender(socket: &OwnedFd) -> bool {
    sockopt::set_socket_passcred(socket, true).is_ok()
}

/// The address of whom `socket` is connected with; empty for a UNIX socket without a name.
pub(super) fn name_of_peer(socket: &OwnedFd) -> String {
    let name = getpeername::<SockaddrStorage>(socket.as_raw_fd());
    if let Some(vsock) = name.ok().as_ref().and_then(SockaddrStorage::as_vsock_addr) {
        return format!("vsock:{}:{}", vsock.cid(), vsock.port());
    }
    let name = SocketAddress::from_kernel(rustix::net::getpeername(socket).ok().flatten());
    name.map(|name| name.to_string()).unwrap_or_default()
}

/// Sends without waiting. Returns how much was sent.
pub(super) fn send_now(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.0.len()).finish()
    }
}
