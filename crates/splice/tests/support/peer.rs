//! A program at the far end of one of the relay's sockets.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netlab::{Lab, uninterrupted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, send, socket, sockopt,
};
use splice::Kind;

use crate::support::apart::Surroundings;
use crate::support::patience::PATIENCE;

/// One end of a connection of any kind. `TcpStream` only reads, writes, and shuts down here, which
/// is the same for all kinds.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    pub(crate) kind: Kind,
}

/// Why this kernel has no MPTCP sockets; `None` if it has.
pub(crate) fn mptcp_missing() -> Option<io::Error> {
    socket(
        AddressFamily::INET,
        SocketType::STREAM,
        Some(ipproto::MPTCP),
    )
    .err()
    .map(io::Error::from)
}

impl Peer {
    /// A peer and the relay's end of its connection.
    pub(crate) fn connected(kind: Kind) -> (Self, OwnedFd) {
        Self::tuned(kind, |_| {})
    }

    /// The same, with options that `tune` sets on both ends before they connect.
    pub(crate) fn tuned(kind: Kind, tune: impl Fn(BorrowedFd<'_>)) -> (Self, OwnedFd) {
        if kind == Kind::Unix {
            let (near, far) = UnixStream::pair().expect("a pair of UNIX sockets");
            tune(near.as_fd());
            tune(far.as_fd());
            return (Self::new(near.into(), kind), far.into());
        }
        let family = match kind {
            Kind::Tcp6 => AddressFamily::INET6,
            _ => AddressFamily::INET,
        };
        let surroundings = Surroundings::here();
        let side = surroundings.as_ref().map(|around| {
            if around.is_server_next() {
                let ip = (Lab::RELAY_FAR_V4.into(), Lab::RELAY_FAR_V6.into());
                (around.lab.server(), ip)
            } else {
                let ip = (Lab::RELAY_V4.into(), Lab::RELAY_V6.into());
                (around.lab.client(), ip)
            }
        });
        let local: (IpAddr, IpAddr) = side.map_or_else(
            || (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()),
            |(_, ip)| ip,
        );
        let local = if kind == Kind::Tcp6 { local.1 } else { local.0 };
        let protocol = (kind == Kind::Mptcp).then_some(ipproto::MPTCP);
        let made = || socket(family, SocketType::STREAM, protocol).expect("a socket");
        let listener = made();
        tune(listener.as_fd());
        rustix::net::bind(&listener, &SocketAddr::new(local, 0)).expect("bind");
        rustix::net::listen(&listener, 1).expect("listen");
        let listener = TcpListener::from(listener);
        let near = match side {
            Some((namespace, _)) => namespace.enter(made).expect("entered"),
            None => made(),
        };
        tune(near.as_fd());
        let address = listener.local_addr().expect("the listener's address");
        rustix::net::connect(&near, &address).expect("connect");
        let (far, _) = listener.accept().expect("accept");
        (Self::new(near, kind), far.into())
    }

    pub(crate) fn new(fd: OwnedFd, kind: Kind) -> Self {
        let stream = TcpStream::from(fd);
        // A lost byte shows as a read that never returns, so it has a timeout.
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        if kind != Kind::Unix {
            stream.set_nodelay(true).expect("TCP_NODELAY");
        }
        Self { stream, kind }
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.kind == Kind::Unix
    }

    pub(crate) fn end_stream(&self) {
        self.stream.shutdown(Shutdown::Write).expect("shutdown");
    }

    /// Closes with a reset. A UNIX stream sends one only if it leaves bytes unread.
    pub(crate) fn reset(self) {
        if !self.is_unix() {
            sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).expect("SO_LINGER");
        }
    }

    /// Takes the socket's error; a peer that has read EOF learns of a reset in no other way.
    pub(crate) fn has_error(&self) -> bool {
        matches!(sockopt::socket_error(&self.stream), Ok(Err(_)))
    }

    pub(crate) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(send(&self.stream, bytes, flags)?)
    }

    pub(crate) fn write_urgent(&self, byte: u8) {
        assert_eq!(send(&self.stream, &[byte], SendFlags::OOB), Ok(1));
    }

    /// Whether a write becomes possible within `time`.
    pub(crate) fn is_writable_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a short time");
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
        // After an interruption it waits for the whole time again.
        retry_on_intr(|| poll(&mut fds, Some(&time))).expect("poll") > 0
    }

    /// Waits until this peer has `count` unread bytes.
    pub(crate) fn wait_unread(&self, count: usize) {
        let mut seen = vec![0; count];
        let flags = RecvFlags::PEEK | RecvFlags::WAITALL;
        let peeked = retry_on_intr(|| recv(&self.stream, &mut *seen, flags));
        let (_, length) = peeked.expect("a peek");
        assert_eq!(length, count);
    }

    /// Enlarges this peer's buffers, so that they do not hide what the relay holds.
    pub(crate) fn widen(&self, bytes: usize) {
        sockopt::set_socket_recv_buffer_size(&self.stream, bytes).expect("SO_RCVBUF");
        sockopt::set_socket_send_buffer_size(&self.stream, bytes).expect("SO_SNDBUF");
    }
}

impl Read for &Peer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| (&self.stream).read(buffer))
    }
}

impl Write for &Peer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        uninterrupted(|| (&self.stream).write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
