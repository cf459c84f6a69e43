//! A TCP socket in repair mode (`TCP_REPAIR`): it sends nothing, and its connection can be taken up at any place.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, connect_unspec,
    getsockname, recv, send, socket_with, sockopt,
};

use crate::socket_option::{get, set};

/// Of `struct tcp_repair_opt` in `linux/tcp.h`: the kinds of RFC 9293 and RFC 7323.
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;

/// That `TCP_MAXSEG` takes, in bytes (`TCP_MIN_MSS` and `MAX_TCP_WINDOW` in net/tcp.h).
const SMALLEST_MSS: i32 = 88;
const LARGEST_MSS: i32 = 32_767;

/// How much is written to a queue at once, in bytes: the kernel takes memory for all of it in one piece
/// (`tcp_send_rcvq`).
const WRITE_BYTES: usize = 32 << 10;

/// How often a buffer grows for one write, by twice as much each time: up to 2 MiB for the least.
const GROWTHS_MOST: u32 = 6;

/// The bound of what one segment carries, in bytes.
const LONGEST_SEGMENT_BYTES: usize = 64 << 10;

/// The values of `TCP_REPAIR`, from `linux/tcp.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Repair mode: the socket sends nothing, not even when it is closed.
    On = 1,
    /// Normal mode. The socket sends a window probe to its peer (`tcp_send_window_probe`).
    OffWithProbe = 0,
    /// Normal mode, without a packet.
    Off = -1,
}

/// Sets `TCP_REPAIR`. Leaving repair mode clears `SO_REUSEADDR` (`tcp_setsockopt`).
pub fn repair(fd: impl AsFd, state: Repair) -> Result<(), Errno> {
    set(
        fd.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_REPAIR,
        &(state as i32),
    )
}

/// The queues of a connection (`TCP_REPAIR_QUEUE`), from `linux/tcp.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairQueue {
    /// None: what is written is sent.
    None = 0,
    /// What it receives.
    Receive = 1,
    /// What it sends.
    Send = 2,
}

/// The number of the next byte of a queue (`TCP_QUEUE_SEQ`). The socket must be in repair mode.
#[cfg(feature = "test")]
pub fn queue_sequence(fd: impl AsFd, queue: RepairQueue) -> Result<u32, Errno> {
    let (fd, tcp) = (fd.as_fd(), libc::IPPROTO_TCP);
    set(fd, tcp, libc::TCP_REPAIR_QUEUE, &(queue as i32))?;
    let mut number = [0];
    get(fd, tcp, libc::TCP_QUEUE_SEQ, &mut number)?;
    Ok(number[0].cast_unsigned())
}

/// Sets it for a connection that is to be made. The socket must be in repair mode.
pub fn set_queue_sequence(fd: impl AsFd, queue: RepairQueue, number: u32) -> Result<(), Errno> {
    let fd = fd.as_fd();
    set_queue(fd, queue)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &number)
}

fn set_queue(fd: impl AsFd, queue: RepairQueue) -> Result<(), Errno> {
    let (fd, tcp) = (fd.as_fd(), libc::IPPROTO_TCP);
    set(fd, tcp, libc::TCP_REPAIR_QUEUE, &(queue as i32))
}

/// What a socket would send as its timestamp now (`TCP_TIMESTAMP`).
#[cfg(feature = "test")]
pub fn timestamp(fd: impl AsFd) -> Result<u32, Errno> {
    let mut now = [0];
    get(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &mut now)?;
    Ok(now[0].cast_unsigned())
}

/// Advances a socket's timestamp clock to `timestamp`, unless it is already ahead. The socket must be
/// in repair mode.
pub fn advance_timestamps(
    fd: impl AsFd,
    timestamp: u32,
    in_microseconds: bool,
) -> Result<(), Errno> {
    let fd = fd.as_fd();
    let mut now = [0];
    get(fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &mut now)?;
    if (now[0] as u32).wrapping_sub(timestamp).cast_signed() > 0 {
        return Ok(());
    }
    // The lowest bit selects the clock's unit (`do_tcp_setsockopt`, 6.7 on).
    let ahead = (timestamp.wrapping_add(2) & !1) | u32::from(in_microseconds);
    set(fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &ahead)
}

/// Where a connection stands, for a socket that is to take it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The socket's address, with its scope.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
    /// The number of the next byte to the peer, which has acknowledged all before it.
    pub send_next: u32,
    /// The number of the next byte from the peer, which knows that all before it was received.
    pub receive_next: u32,
    /// What was sent from `send_next` on.
    pub sent: &'a [u8],
    /// What was received before `receive_next`, and not yet read.
    pub unread: &'a [u8],
    /// The MSS that the peer has announced, in bytes.
    pub peer_mss: u16,
    /// The window scale of the peer, and the one that it was told.
    pub scales: [u8; 2],
    /// Both ends understand selective acknowledgements.
    pub sack: bool,
    /// Both ends send timestamps.
    pub timestamps: bool,
    /// The window that the peer has announced last, and the largest one, in bytes.
    pub windows: [u32; 2],
    /// The window that the peer was told of, in bytes.
    pub room: u32,
}

/// Why a connection cannot be taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The process lacks a right.
    Always(Errno),
    /// There is no way to the peer, a policy or a program of the host forbids it, or something is short.
    Now(Errno),
}

/// A socket of the family of an address.
pub fn stream_socket(local: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if local.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Tries whether `take_up` would be refused, with another [`stream_socket`] of the same family. A connection that a socket has
/// stays as it is.
///
/// # Errors
/// [`Refusal::Always`] for a port below 1024 without CAP_NET_BIND_SERVICE, or without CAP_NET_ADMIN in the user namespace
/// of the network namespace.
pub fn may_take_up(
    socket: impl AsFd,
    local: &SocketAddr,
    peer: &SocketAddr,
    is_transparent: bool,
) -> Result<(), Refusal> {
    let socket = socket.as_fd();
    repair(socket, Repair::On).map_err(Refusal::Always)?;
    if is_transparent {
        be_transparent(socket, local).map_err(Refusal::Always)?;
    }
    match bind_anyhow(socket, local) {
        Ok(()) => {}
        Err(Errno::ACCESS) => return Err(Refusal::Always(Errno::ACCESS)),
        Err(errno) => return Err(Refusal::Now(errno)),
    }
    match connect(socket, peer) {
        // Nothing is sent in repair mode. The connection that is there is in the way (`__inet_check_established`), behind
        // all that could refuse it.
        Ok(()) | Err(Errno::ADDRNOTAVAIL) => Ok(()),
        Err(errno) => Err(Refusal::Now(errno)),
    }
}

fn be_transparent(socket: BorrowedFd<'_>, local: &SocketAddr) -> Result<(), Errno> {
    match local {
        SocketAddr::V4(_) => set(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, &1),
        SocketAddr::V6(_) => set(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, &1),
    }
}

/// Also to an address of a range that is routed to this host (`ip -6 route add local`): with IPv6 only connections come to
/// it, and bind(2) does not know it (`ipv6_chk_addr`).
fn bind_anyhow(socket: impl AsFd, local: &SocketAddr) -> Result<(), Errno> {
    let socket = socket.as_fd();
    if local.is_ipv6() {
        sockopt::set_ipv6_freebind(socket, true)?;
    }
    bind(socket, local)
}

/// Has a socket leave its connection without a word, and take up the one that stands there, with the same descriptor
/// and the same options. It stays in repair mode. Its queues hold what the standing names, its receive buffer is no larger
/// than its window needs, and ECN is off.
///
/// # Errors
/// Those of the system calls: `EADDRINUSE` if another socket has taken the connection up, `EADDRNOTAVAIL` if the address
/// is gone, `EACCES` for a port below 1024 without CAP_NET_BIND_SERVICE, `EPERM` without CAP_NET_ADMIN in the user
/// namespace of the network namespace, and those of a way that is closed. Then the socket has no connection, and it can be
/// tried again.
pub fn take_up(fd: impl AsFd, standing: &Standing<'_>) -> Result<(), Errno> {
    let (fd, tcp) = (fd.as_fd(), libc::IPPROTO_TCP);
    repair(fd, Repair::On)?;
    let mut widest = [0];
    get(fd, tcp, libc::TCP_WINDOW_CLAMP, &mut widest)?;
    connect_unspec(fd)?;
    match bind_anyhow(fd, &standing.local) {
        // A socket that was bound by name still is (`SOCK_BINDPORT_LOCK`).
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno),
    }
    set_queue_sequence(fd, RepairQueue::Send, standing.send_next)?;
    let unread = standing.unread.len() as u32;
    let first_unread = standing.receive_next.wrapping_sub(unread);
    set_queue_sequence(fd, RepairQueue::Receive, first_unread)?;
    // The size of segments follows from it only here (`tcp_connect_init`); the option for repair does not change that.
    let most = i32::from(standing.peer_mss).clamp(SMALLEST_MSS, LARGEST_MSS);
    set(fd, tcp, libc::TCP_MAXSEG, &most)?;
    // A socket that has promised more than it can hold closes its window, and may then take its peer's window updates for
    // old ones: it sends nothing more (`tcp_may_update_window`, 6.18). So the window is no wider than before, and not as
    // wide as the buffer (`tcp_connect_init`), to which the first segment would widen it again (`tcp_measure_rcv_mss`).
    set(fd, tcp, libc::TCP_WINDOW_CLAMP, &widest)?;
    let enough = 2 * standing.room.max(widest[0].cast_unsigned()) as usize;
    if enough < sockopt::socket_recv_buffer_size(fd)? {
        // The kernel doubles it (`__sock_set_rcvbuf`).
        sockopt::set_socket_recv_buffer_size_force(fd, enough / 2)?;
    }
    connect(fd, &standing.peer)?;
    // Bound by name to any address, it has the one that the route has now.
    if SocketAddr::try_from(getsockname(fd)?)? != standing.local {
        return Err(Errno::ADDRNOTAVAIL);
    }
    let [peer_scale, own_scale] = standing.scales.map(u32::from);
    for (kind, value, is_used) in [
        (MSS, standing.peer_mss.into(), true),
        // Without it the socket would scale as its host does.
        (WINDOW_SCALE, peer_scale | own_scale << 16, true),
        (SACK_PERMITTED, 0, standing.sack),
        (TIMESTAMPS, 0, standing.timestamps),
    ] {
        if is_used {
            set(fd, tcp, libc::TCP_REPAIR_OPTIONS, &[kind, value])?;
        }
    }
    for (queue, bytes) in [
        (RepairQueue::Receive, standing.unread),
        (RepairQueue::Send, standing.sent),
    ] {
        set_queue(fd, queue)?;
        write_all(fd, queue, bytes)?;
    }
    // `struct tcp_repair_window`
    let mut window = [0; 5];
    get(fd, tcp, libc::TCP_REPAIR_WINDOW, &mut window)?;
    let [last, largest] = standing.windows;
    // Whatever the peer announces next counts (`tcp_may_update_window`).
    window[0] = standing.receive_next.wrapping_sub(1).cast_signed();
    window[1] = last.cast_signed();
    window[2] = largest.max(last).cast_signed();
    // It never shrinks (`tcp_select_window`).
    let most = u32::from(u16::MAX) << own_scale;
    window[3] = standing.room.min(most).cast_signed();
    window[4] = standing.receive_next.cast_signed();
    set(fd, tcp, libc::TCP_REPAIR_WINDOW, &window)?;
    set_queue(fd, RepairQueue::None)
}

/// What was written to a socket and not acknowledged, no more than the last `bytes` of it. The socket must be in repair
/// mode.
pub fn unacknowledged(fd: impl AsFd, bytes: usize) -> Result<Vec<u8>, Errno> {
    let fd = fd.as_fd();
    set_queue(fd, RepairQueue::Send)?;
    // A segment that was acknowledged in part stands there as a whole (`tcp_clean_rtx_queue`).
    let mut written = vec![0; bytes + LONGEST_SEGMENT_BYTES];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    // The count includes what found no room (`tcp_peek_sndq`).
    let (_, found) = recv(fd, written.as_mut_slice(), flags)?;
    set_queue(fd, RepairQueue::None)?;
    if found > written.len() {
        return Err(Errno::MSGSIZE);
    }
    written.truncate(found);
    written.drain(..found.saturating_sub(bytes));
    Ok(written)
}

/// Reads the next `bytes` of a socket that has received so many; fewer only at the end of the stream. The socket must
/// not be in repair mode.
pub fn read_received(fd: impl AsFd, bytes: usize) -> Result<Vec<u8>, Errno> {
    let fd = fd.as_fd();
    let mut received = vec![0; bytes];
    let mut count = 0;
    // One call stops at an urgent mark.
    while count < bytes {
        match recv(fd, &mut received[count..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => break,
            Ok((_, more)) => count += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    received.truncate(count);
    Ok(received)
}

/// Writes all of `bytes` to a socket, whose buffer grows if they do not fit. In repair mode they go to its `queue`.
///
/// # Errors
/// Those of the system calls: `EAGAIN`, `ENOBUFS` (`tcp_send_rcvq`) or `ENOMEM` if the host is short of memory. Some of the
/// bytes may be written then.
pub fn write_all(fd: impl AsFd, queue: RepairQueue, mut bytes: &[u8]) -> Result<(), Errno> {
    let fd = fd.as_fd();
    let mut growths = 0;
    while !bytes.is_empty() {
        let part = &bytes[..bytes.len().min(WRITE_BYTES)];
        match send(fd, part, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(written) => {
                bytes = &bytes[written..];
                growths = 0;
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) if growths < GROWTHS_MOST => {
                // The bytes count with what the kernel keeps beside them, and the last ones may have gone far beyond the
                // buffer: by how much is not told.
                let more = bytes.len().max(WRITE_BYTES) << growths;
                growths += 1;
                // Half of what is asked for is the kernel's own (`__sock_set_sndbuf`, `__sock_set_rcvbuf`).
                if queue == RepairQueue::Receive {
                    let now = sockopt::socket_recv_buffer_size(fd)?;
                    sockopt::set_socket_recv_buffer_size_force(fd, now / 2 + more)?;
                } else {
                    let now = sockopt::socket_send_buffer_size(fd)?;
                    sockopt::set_socket_send_buffer_size_force(fd, now / 2 + more)?;
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Has a socket whose peer has ended its stream already, as the socket has not heard, wait for that end no longer than
/// this once it is closed (`TCP_LINGER2`).
pub fn expect_no_end(fd: impl AsFd, wait: Duration) -> Result<(), Errno> {
    let seconds = i32::try_from(wait.as_secs()).unwrap_or(i32::MAX);
    set(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_LINGER2, &seconds)
}

/// Has a [`stream_socket`] take up a connection that has no socket any more, at the given place in the sequence space: when
/// it is closed, it resets the connection. `seq` is what the peer expects next.
pub fn reset_on_close(
    socket: impl AsFd,
    local: &SocketAddr,
    peer: &SocketAddr,
    seq: u32,
    ack: u32,
) -> Result<(), Errno> {
    let socket = socket.as_fd();
    repair(socket, Repair::On)?;
    bind_anyhow(socket, local)?;
    set_queue_sequence(socket, RepairQueue::Send, seq)?;
    set_queue_sequence(socket, RepairQueue::Receive, ack)?;
    connect(socket, peer)?;
    repair(socket, Repair::Off)?;
    sockopt::set_socket_linger(socket, Some(Duration::ZERO))
}
