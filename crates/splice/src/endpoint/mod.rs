//! One connected socket, owned.

mod segment_size;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketType, connect_unspec, getpeername, ipproto, shutdown, sockopt,
};
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
use splice_base::keep_alive::KeepAlive;
use splice_base::socket_option::{self, SocketMemory};
use splice_base::user_timeout::UserTimeout;

pub use self::segment_size::SegmentSize;
pub(crate) use self::segment_size::{HEADERS_V4_BYTES, HEADERS_V6_BYTES, TIMESTAMP_BYTES};

/// The kind of an endpoint's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// TCP on an IPv4 socket.
    Tcp4,
    /// TCP on an IPv6 socket. Its peer may use IPv4 (a v4-mapped address).
    Tcp6,
    /// Multipath TCP, over either family.
    Mptcp,
    /// A UNIX stream socket. The pair does not pass on descriptors and credentials that come with
    /// its bytes: it closes the descriptors.
    Unix,
    /// A VSOCK stream socket. Like a UNIX stream it has no reset that its other end can send at will. Only
    /// [`Endpoint::prepared`] takes one.
    Vsock,
    /// A UNIX socket with message boundaries (`SOCK_SEQPACKET`). What holds for [`Kind::Unix`] holds for its messages. Only
    /// [`Endpoint::prepared`] takes one.
    UnixSeqpacket,
    /// A VSOCK socket with message boundaries. It does not tell an empty message from the end of the stream. Only
    /// [`Endpoint::prepared`] takes one.
    VsockSeqpacket,
}

impl Kind {
    /// Whether it is TCP, over one path or several.
    pub fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Tcp6 | Self::Mptcp)
    }

    /// Whether it is a UNIX socket.
    pub fn is_unix(self) -> bool {
        matches!(self, Self::Unix | Self::UnixSeqpacket)
    }

    /// Whether it is a VSOCK socket.
    pub fn is_vsock(self) -> bool {
        matches!(self, Self::Vsock | Self::VsockSeqpacket)
    }

    /// Whether its socket keeps messages apart. Two of these can be joined, and each message arrives whole.
    pub fn keeps_messages(self) -> bool {
        matches!(self, Self::UnixSeqpacket | Self::VsockSeqpacket)
    }

    /// Whether no engine but `copy` takes it.
    pub(crate) fn is_only_copied(self) -> bool {
        self.is_vsock() || self.keeps_messages()
    }
}

/// One connected socket, owned and non-blocking: an end of a pair.
#[derive(Debug)]
pub struct Endpoint {
    fd: OwnedFd,
    kind: Kind,
    /// Another process may hold a duplicate of the descriptor.
    shared: bool,
    /// A protocol is stacked on TCP in the kernel (`TCP_ULP`), as kTLS is.
    layered: bool,
    /// The socket reports when a message has arrived.
    tells_arrival: bool,
    /// Atomic, since a source may be its own destination; only one loop changes them.
    receive_bounded: AtomicBool,
    send_bounded: AtomicBool,
}

impl Endpoint {
    /// Takes a connected stream socket and makes it non-blocking. For TCP it sets `TCP_NODELAY`,
    /// since a relay that waits for more adds a delay that neither peer asked for. For TCP and UNIX
    /// streams it sets `SO_OOBINLINE`, so that an urgent byte keeps its place in the stream. It
    /// resets what the former owner may have set: `SO_LINGER`, `SO_RCVLOWAT`, `TCP_CORK`. A
    /// connection that was reset meanwhile is accepted: the pair ends at once and passes the reset
    /// on.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedSocket`] if the descriptor is not a connected stream socket of a
    /// kind in [`Kind`]; [`ErrorKind::System`] if an option cannot be set.
    pub fn new(socket: impl Into<OwnedFd>) -> Result<Self> {
        let fd = socket.into();
        let kind = kind_of(&fd)?;
        if getpeername(&fd).is_err() && !was_cut(&fd) {
            return Err(unsupported(
                "the socket is not connected; connect it before joining it",
            ));
        }
        let flags = fcntl_getfl(&fd).context("cannot read the socket's flags")?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK)
                .context("cannot make the socket non-blocking")?;
        }
        // With SO_LINGER a close would drop what is not yet sent, or block the loop.
        sockopt::set_socket_linger(&fd, None).context("cannot clear SO_LINGER")?;
        // Older kernels lack it for Multipath TCP.
        let _ = socket_option::set_receive_low_mark(&fd, 1);
        if kind.is_tcp() {
            sockopt::set_tcp_cork(&fd, false).context("cannot clear TCP_CORK")?;
            sockopt::set_tcp_nodelay(&fd, true).context("cannot set TCP_NODELAY")?;
        }
        match kind {
            Kind::Tcp4 | Kind::Tcp6 => {
                sockopt::set_socket_oobinline(&fd, true).context("cannot set SO_OOBINLINE")?;
            }
            // Kernels whose UNIX streams have no urgent byte (before 5.15) lose none.
            Kind::Unix => drop(sockopt::set_socket_oobinline(&fd, true)),
            // MPTCP has neither urgent data nor the option (`mptcp_setsockopt_sol_socket`).
            Kind::Mptcp => {}
            Kind::Vsock | Kind::UnixSeqpacket | Kind::VsockSeqpacket => {}
        }
        // A multipath connection shows the protocol of its first subflow, which is MPTCP's own.
        let layered = matches!(kind, Kind::Tcp4 | Kind::Tcp6)
            && matches!(socket_option::upper_protocol(&fd), Ok(Some(_)));
        Ok(Self {
            shared: true,
            layered,
            ..Self::prepared(fd, kind)
        })
    }

    /// Takes a socket that is already set up as [`new`](Self::new) does it. A proxy that sets the
    /// options on its listener, from which `accept4` inherits them (`sk_clone`, Linux 2.6 on),
    /// saves ten system calls per connection. Without the options the pair works, but may block its
    /// loop. Nobody may hold a duplicate of the descriptor: it would keep the socket open, and
    /// watched, after the pair has ended. Nothing may be stacked on TCP (`TCP_ULP`, as for kTLS),
    /// which `new` looks for.
    pub fn prepared(fd: OwnedFd, kind: Kind) -> Self {
        Self {
            // Credentials would tell messages, too. But to ask for them gives the socket a name once it sends
            // (`unix_dgram_sendmsg`), which its peer would see.
            tells_arrival: kind == Kind::UnixSeqpacket
                && socket_option::report_arrival(&fd).is_ok(),
            fd,
            kind,
            shared: false,
            layered: false,
            receive_bounded: AtomicBool::new(false),
            send_bounded: AtomicBool::new(false),
        }
    }

    /// The same endpoint as if something were stacked on TCP: not every kernel has kTLS.
    #[cfg(test)]
    pub(crate) fn layered(mut self) -> Self {
        self.layered = true;
        self
    }

    /// The kind of the stream.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn tells_arrival(&self) -> bool {
        self.tells_arrival
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether a protocol is stacked on TCP in the kernel, as kTLS is.
    pub(crate) fn has_upper_protocol(&self) -> bool {
        self.layered
    }

    /// What the socket's buffers hold now.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel does not know `SO_MEMINFO` (before 4.12).
    pub fn memory(&self) -> Result<SocketMemory> {
        socket_option::memory(&self.fd).context("cannot read the socket's SO_MEMINFO")
    }

    /// Sets when TCP takes its peer for gone.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the socket does not take it: Multipath TCP has no
    /// `TCP_USER_TIMEOUT` (6.18).
    pub(crate) fn set_peer_timeouts(
        &self,
        keepalive: KeepAlive,
        user_timeout: Option<UserTimeout>,
    ) -> Result<()> {
        if !self.kind.is_tcp() {
            return Ok(());
        }
        keepalive.set_on(&self.fd)?;
        user_timeout.map_or(Ok(()), |timeout| timeout.set_on(&self.fd))
    }

    /// Tells the peer that nothing of what it sends is read any more, if the protocol can: its next write fails.
    pub(crate) fn refuse_more(&self) {
        // TCP has no way to say so (`tcp_shutdown`).
        if !self.kind.is_tcp() {
            // It fails only on a socket that is not connected any more.
            let _ = shutdown(&self.fd, Shutdown::Read);
        }
    }

    /// Sends EOF after the bytes that were already written.
    pub(crate) fn end_stream(&self) -> rustix::io::Result<()> {
        shutdown(&self.fd, Shutdown::Write)
    }

    /// Whether bytes that are written right before EOF may wait for it. kTLS keeps an unfinished
    /// record to itself when the stream is shut down (`tls_sw_sendmsg`, 6.18): the bytes would be
    /// lost.
    pub(crate) fn can_hold_for_end(&self) -> bool {
        !self.layered && matches!(self.kind, Kind::Tcp4 | Kind::Tcp6)
    }

    /// Sends what the kernel holds back because more was announced.
    pub(crate) fn push(&self) {
        // Setting the option again does it (`__tcp_sock_set_nodelay`), and it fails on no TCP
        // socket.
        let _ = sockopt::set_tcp_nodelay(&self.fd, true);
    }

    /// Whether the peer has everything that was written, EOF included.
    pub(crate) fn has_delivered_all(&self) -> bool {
        // Bytes written to a UNIX stream are with its peer at once, and those of VSOCK with the other machine.
        !self.kind.is_tcp() || self.memory().is_ok_and(|memory| memory.send_bytes == 0)
    }

    /// What `ENOTCONN` of a read means: `None` if it is the end of the stream. VSOCK forgets that its peer has ended both
    /// streams as soon as this side ends its own (`SOCK_DONE` in `vsock_shutdown`, `__vsock_connectible_recvmsg`).
    pub(crate) fn why_not_connected(&self) -> Option<Errno> {
        match self.kind.is_vsock() {
            // A connection that was cut has an error (`virtio_vsock_reset_sock`).
            true => self.take_error(),
            false => Some(Errno::NOTCONN),
        }
    }

    /// Makes the coming close a reset, if the protocol has one: a truncated connection must not
    /// look complete.
    pub(crate) fn reset_on_close(&self) {
        if self.kind.is_tcp() {
            // It fails only on a socket that is not connected any more, which needs no reset.
            let _ = sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
        }
    }

    /// Cuts the stream in both directions: the coming close is a reset, if the protocol has one. A
    /// duplicate of the descriptor, as in a process that is being started, keeps the close from
    /// sending anything, so then the reset is sent at once.
    pub(crate) fn cut(&self) {
        self.reset_on_close();
        // Either fails only on a socket that is not connected any more.
        let _ = match self.kind {
            _ if !self.shared => Ok(()),
            kind if !kind.is_tcp() => shutdown(&self.fd, Shutdown::Both),
            _ => connect_unspec(&self.fd),
        };
    }

    /// Undoes [`reset_on_close`](Self::reset_on_close).
    pub(crate) fn end_on_close(&self) {
        // It fails only on a socket that is not connected any more.
        let _ = sockopt::set_socket_linger(&self.fd, None);
    }

    /// Takes the socket's pending error.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        match sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => None,
            Ok(Err(errno)) | Err(errno) => Some(errno),
        }
    }

    /// Stops the growth of the receive buffer at `most_bytes`, once it has come near that.
    ///
    /// TCP's own tuning enlarges a receive buffer up to `tcp_rmem[2]` (32 MiB on 6.18), which a
    /// receiver that stops reading would leave full. Setting a size ends the tuning
    /// (`SOCK_RCVBUF_LOCK`).
    pub(crate) fn bound_receive_buffer(&self, most_bytes: usize) {
        if self.receive_bounded.load(Ordering::Relaxed) {
            return;
        }
        // Half, since the buffer grows until the next check.
        if sockopt::socket_recv_buffer_size(&self.fd).is_ok_and(|size| size > most_bytes / 2) {
            self.set_receive_buffer(most_bytes);
        }
    }

    /// Stops the growth of the send buffer in the same way. That of a UNIX socket with messages grows only with these.
    pub(crate) fn bound_send_buffer(&self, most_bytes: usize) {
        if self.send_bounded.load(Ordering::Relaxed) || self.kind == Kind::UnixSeqpacket {
            return;
        }
        if sockopt::socket_send_buffer_size(&self.fd).is_ok_and(|size| size > most_bytes / 2) {
            self.set_send_buffer(most_bytes);
        }
    }

    /// Fixes the receive buffer's size at `bytes`, unless that needs a privilege that this process
    /// lacks. Then [`bound_receive_buffer`](Self::bound_receive_buffer) does what it can. A fixed
    /// buffer is never made smaller: see [`redirected_receive_bytes`].
    pub(crate) fn fix_receive_buffer(&self, bytes: usize) {
        // The sender of a UNIX stream is charged for what it sends, and VSOCK has credit of its own.
        if !self.kind.is_tcp() {
            return;
        }
        if self.receive_bounded.load(Ordering::Relaxed)
            && sockopt::socket_recv_buffer_size(&self.fd).is_ok_and(|size| size >= bytes / 2 * 2)
        {
            return;
        }
        if sockopt::set_socket_recv_buffer_size_force(&self.fd, bytes / 2).is_ok() {
            self.receive_bounded.store(true, Ordering::Relaxed);
        } else if bytes / 2 <= socket_option::receive_buffer_most() {
            self.set_receive_buffer(bytes);
        }
    }

    /// Fixes both buffers for an engine that keeps the receive buffer empty: three halves of
    /// `bytes` for the send buffer, [`redirected_receive_bytes`] for the receive buffer, as far as
    /// `net.core.rmem_max` and `wmem_max` or CAP_NET_ADMIN allow.
    pub(crate) fn fix_buffers(&self, bytes: usize) {
        self.set_receive_buffer(redirected_receive_bytes(bytes));
        self.set_send_buffer(bytes * 3 / 2);
    }

    /// Undoes [`fix_buffers`](Self::fix_buffers), if the kernel can: it tunes both buffers from
    /// their present sizes.
    pub(crate) fn tune_buffers(&self) {
        if socket_option::tune_buffers(&self.fd).is_ok() {
            self.receive_bounded.store(false, Ordering::Relaxed);
            self.send_bounded.store(false, Ordering::Relaxed);
        }
    }

    /// The kernel doubles the value to make room for its own overhead (socket(7)). Only the forced
    /// form may exceed `rmem_max`, which is 208 KiB on older kernels.
    fn set_receive_buffer(&self, bytes: usize) {
        self.receive_bounded.store(true, Ordering::Relaxed);
        let _ = sockopt::set_socket_recv_buffer_size_force(&self.fd, bytes / 2)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&self.fd, bytes / 2));
    }

    /// Like [`set_receive_buffer`](Self::set_receive_buffer).
    fn set_send_buffer(&self, bytes: usize) {
        self.send_bounded.store(true, Ordering::Relaxed);
        let _ = sockopt::set_socket_send_buffer_size_force(&self.fd, bytes / 2)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&self.fd, bytes / 2));
    }
}

/// A socket that a direction reads from or writes to: a pair's, or the caller's.
pub(crate) trait Socket: AsFd {
    /// Whether a read that returns less than it asked for has emptied the socket.
    fn is_emptied_by_short_read(&self) -> bool;

    /// The endpoint, if it is one. Of a caller's socket nothing is changed.
    fn endpoint(&self) -> Option<&Endpoint> {
        None
    }
}

impl Socket for Endpoint {
    /// A read of a UNIX stream stops after a message that carries a descriptor, and the kernel does
    /// not report that (`unix_stream_read_generic`). One of VSOCK may stop after a packet
    /// (`__vsock_stream_recvmsg`).
    fn is_emptied_by_short_read(&self) -> bool {
        self.kind.is_tcp()
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        Some(self)
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The part of a buffer's share that a kernel engine leaves to the receive buffer, in bytes: three
/// eighths. A pair that may get such an engine has no more before.
///
/// A receive buffer must not become smaller than its contents. The peer goes on filling the window
/// that was announced. TCP then makes room by copying the queue into packets of a page
/// (`tcp_collapse`, 6.18), and charges the copies without having reserved memory for them.
/// `sk_forward_alloc` becomes negative, and a send that finds TCP's memory short takes it for the
/// size of a copy (`tcp_wmem_schedule`): `EFAULT`.
pub(crate) fn redirected_receive_bytes(share_bytes: usize) -> usize {
    share_bytes * 3 / 8
}

/// Whether the socket has a pending error: it was connected, or about to be, and is not any more.
fn was_cut(fd: &OwnedFd) -> bool {
    const AT_ONCE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    poll(&mut fds, Some(&AT_ONCE)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

fn kind_of(fd: &OwnedFd) -> Result<Kind> {
    let Ok(socket_type) = sockopt::socket_type(fd) else {
        return Err(unsupported(
            "the descriptor is not a socket; pass a connected stream socket",
        ));
    };
    if socket_type != SocketType::STREAM {
        return Err(unsupported(
            "the socket is not a stream socket; only streams can be joined",
        ));
    }
    let domain = sockopt::socket_domain(fd).context("cannot read the socket's family")?;
    let protocol = sockopt::socket_protocol(fd).context("cannot read the socket's protocol")?;
    match domain {
        AddressFamily::UNIX => Ok(Kind::Unix),
        _ if protocol == Some(ipproto::MPTCP) => Ok(Kind::Mptcp),
        AddressFamily::INET if protocol == Some(ipproto::TCP) => Ok(Kind::Tcp4),
        AddressFamily::INET6 if protocol == Some(ipproto::TCP) => Ok(Kind::Tcp6),
        _ => Err(unsupported(
            "the socket is neither TCP nor a UNIX stream; pass one of these",
        )),
    }
}

fn unsupported(why: &'static str) -> Error {
    Error::new(ErrorKind::UnsupportedSocket, why)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Instant;

    use netlab::{PATIENCE, connection};

    use super::*;
    use crate::options::Options;
    use crate::reactor::EventLoop;

    #[test]
    fn options_of_the_former_owner_delay_nothing() {
        let (mut a, near) = connection();
        let (mut b, far) = connection();
        b.set_nonblocking(true).unwrap();
        socket_option::set_receive_low_mark(&near, 100).unwrap();
        sockopt::set_tcp_cork(&far, true).unwrap();
        let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
        assert_eq!(sockopt::tcp_cork(&far), Ok(false));
        let mut event_loop = EventLoop::new().unwrap();
        let _pair = event_loop.join(near, far, &Options::default()).unwrap();
        a.write_all(b"ten bytes.").unwrap();
        let (start, mut received) = (Instant::now(), [0; 10]);
        while b.read(&mut received).is_err() {
            assert!(start.elapsed() < PATIENCE, "it lies there");
            event_loop.turn(Some(Duration::from_millis(1))).unwrap();
        }
        assert_eq!(&received, b"ten bytes.");
    }
}
