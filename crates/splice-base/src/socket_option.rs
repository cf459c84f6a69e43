//! Socket options that rustix does not have.
#![allow(
    unsafe_code,
    reason = "raw getsockopt and ioctl; see the SAFETY comments"
)]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;

use crate::error::ResultExt as _;

/// How many supplementary groups a process may have (`NGROUPS_MAX` in `linux/limits.h`).
const GROUPS_MOST: usize = 65536;

/// How many values `SO_MEMINFO` fills (`SK_MEMINFO_VARS` in `linux/sock_diag.h`).
const MEMINFO_VALUES: usize = 9;

/// The memory that the kernel holds for one socket, in bytes, with the overhead of each packet:
/// `SO_MEMINFO`, `sk_get_meminfo` (Linux 4.12 on).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketMemory {
    /// Received and not yet read (`SK_MEMINFO_RMEM_ALLOC`).
    pub receive_bytes: usize,
    /// The most that may wait to be read (`SK_MEMINFO_RCVBUF`).
    pub receive_limit_bytes: usize,
    /// Written and not yet acknowledged (`SK_MEMINFO_WMEM_QUEUED`). UNIX sockets count nothing
    /// there: for them, what the other end has not read (`SK_MEMINFO_WMEM_ALLOC`).
    pub send_bytes: usize,
    /// The most that may wait to be sent (`SK_MEMINFO_SNDBUF`).
    pub send_limit_bytes: usize,
    /// Received while the socket was locked, and not yet processed (`SK_MEMINFO_BACKLOG`).
    pub backlog_bytes: usize,
    /// Received and dropped, as datagrams for which there is no room (`SK_MEMINFO_DROPS`).
    pub dropped_packets: usize,
}

impl SocketMemory {
    /// Everything in the socket's buffers, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.receive_bytes + self.send_bytes + self.backlog_bytes
    }
}

/// The largest receive buffer that `SO_RCVBUF` accepts, in bytes: 208 KiB by default on older
/// kernels, 4 MiB on 6.18. 0 if the file is hidden, as it is on some kernels outside of the initial
/// network namespace.
pub fn receive_buffer_most() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let text = fs::read_to_string("/proc/sys/net/core/rmem_max");
        text.ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    })
}

/// What the kernel holds in a socket's buffers (`SO_MEMINFO`).
///
/// # Errors
/// `ENOPROTOOPT` before Linux 4.12.
pub fn memory(fd: impl AsFd) -> Result<SocketMemory, Errno> {
    let mut values = [0i32; MEMINFO_VALUES];
    get(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, &mut values)?;
    let [
        rmem_alloc,
        rcvbuf,
        wmem_alloc,
        sndbuf,
        _fwd_alloc,
        wmem_queued,
        _optmem,
        backlog,
        drops,
    ] = values.map(|value| value.cast_unsigned() as usize);
    Ok(SocketMemory {
        receive_bytes: rmem_alloc,
        receive_limit_bytes: rcvbuf,
        send_bytes: wmem_queued.max(wmem_alloc),
        send_limit_bytes: sndbuf,
        backlog_bytes: backlog,
        dropped_packets: drops,
    })
}

/// The largest payload of a segment that a connected TCP socket sends now, in bytes, and whether
/// segments carry timestamps.
pub fn segment(fd: impl AsFd) -> rustix::io::Result<(u32, bool)> {
    // `TCPI_OPT_TIMESTAMPS` in linux/tcp.h.
    const TIMESTAMPS: u8 = 1;
    let info = tcp_info(fd)?;
    Ok((info.tcpi_snd_mss, info.tcpi_options & TIMESTAMPS != 0))
}

fn tcp_info(fd: impl AsFd) -> rustix::io::Result<libc::tcp_info> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: `info` and `length` outlive the call, and `length` is the size of `info`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(last_error());
    }
    Ok(info)
}

/// After how long a TCP connection retransmits what nobody acknowledges, for the first time (`TCP_INFO`).
pub fn retransmission_timeout(fd: impl AsFd) -> rustix::io::Result<Duration> {
    Ok(Duration::from_micros(tcp_info(fd)?.tcpi_rto.into()))
}

/// Whether a TCP connection is being made (`TCP_INFO`).
pub fn is_connecting(fd: impl AsFd) -> rustix::io::Result<bool> {
    // `net/tcp_states.h`.
    const SYN_SENT: u8 = 2;
    const SYN_RECV: u8 = 3;
    Ok(matches!(tcp_info(fd)?.tcpi_state, SYN_SENT | SYN_RECV))
}

/// Whether nothing is left of a TCP connection: it was reset, or both sides have ended it.
pub fn is_closed(fd: impl AsFd) -> rustix::io::Result<bool> {
    // `net/tcp_states.h`.
    const CLOSE: u8 = 7;
    Ok(tcp_info(fd)?.tcpi_state == CLOSE)
}

/// How many bytes the other host has acknowledged since a TCP connection was made (`TCP_INFO`). A SYN or an end of stream that
/// this side has sent counts as one.
pub fn acknowledged_bytes(fd: impl AsFd) -> rustix::io::Result<u64> {
    Ok(tcp_info(fd)?.tcpi_bytes_acked)
}

/// How many bytes were written to a TCP connection that the other host has not acknowledged (`SIOCOUTQ`).
pub fn unacknowledged_bytes(fd: impl AsFd) -> rustix::io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `bytes` outlives the call, which writes an int there (`tcp_ioctl`).
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => Ok(bytes.unsigned_abs().into()),
        _ => Err(last_error()),
    }
}

/// How many timeouts in a row a TCP connection has had for what it has sent and nobody acknowledges (`TCP_INFO`).
#[cfg(feature = "test")]
pub fn timeouts(fd: impl AsFd) -> rustix::io::Result<u8> {
    Ok(tcp_info(fd)?.tcpi_retransmits)
}

/// How far a TCP connection has come, in bytes since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What the application has read.
    pub read_bytes: u64,
    /// What has arrived and was not read yet.
    pub unread_bytes: u64,
    /// What the application has written, sent or not.
    pub written_bytes: u64,
    /// Neither side has ended its stream.
    pub is_established: bool,
}

/// How far a TCP connection has come. Exact if nobody reads from the socket or writes to it in the meantime; data may
/// arrive.
///
/// # Errors
/// An error of getsockopt(2) or ioctl(2), as `EOPNOTSUPP` for another kind of socket.
pub fn progress(fd: impl AsFd) -> rustix::io::Result<Progress> {
    // `net/tcp_states.h`.
    const ESTABLISHED: u8 = 1;
    loop {
        let unread_bytes = rustix::io::ioctl_fionread(&fd)?;
        let info = tcp_info(&fd)?;
        // Otherwise a segment has come between the two.
        if rustix::io::ioctl_fionread(&fd)? == unread_bytes {
            return Ok(Progress {
                read_bytes: info.tcpi_bytes_received.saturating_sub(unread_bytes),
                unread_bytes,
                // Counted when a segment leaves, and again when it leaves again (`__tcp_transmit_skb`,
                // `__tcp_retransmit_skb`, Linux 4.19 on).
                written_bytes: (info.tcpi_bytes_sent + u64::from(info.tcpi_notsent_bytes))
                    .saturating_sub(info.tcpi_bytes_retrans),
                is_established: info.tcpi_state == ESTABLISHED,
            });
        }
    }
}

/// The name of the protocol that is stacked on a TCP socket (`TCP_ULP`): `tls`, for example.
pub fn upper_protocol(fd: impl AsFd) -> rustix::io::Result<Option<String>> {
    // `TCP_ULP_NAME_MAX` in net/tcp.h.
    let mut name = [0u8; 16];
    let mut length = size_of_val(&name) as libc::socklen_t;
    // SAFETY: `name` and `length` outlive the call, and `length` is the size of `name`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_ULP,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(last_error());
    }
    let name = name[..length as usize].split(|byte| *byte == 0).next();
    let name = name.map(|name| String::from_utf8_lossy(name).into_owned());
    Ok(name.filter(|name| !name.is_empty()))
}

/// Sets `TCP_MAXSEG`: the largest segment that a future connection announces.
pub fn bound_segments(fd: impl AsFd, bytes: u32) -> rustix::io::Result<()> {
    let bytes = bytes.cast_signed();
    set(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG, &bytes)
}

/// Bounds what a TCP socket sends, in bytes per second: `SO_MAX_PACING_RATE`. TCP paces itself
/// (`tcp_update_pacing_rate`, `tcp_internal_pacing`, Linux 4.20 on), so no queueing discipline is needed.
///
/// # Errors
/// [`ErrorKind::System`](crate::ErrorKind::System) when the descriptor is not a socket.
pub fn set_pacing_rate(socket: impl AsFd, bytes_per_second: u64) -> crate::Result<()> {
    let option = libc::SO_MAX_PACING_RATE;
    set(socket.as_fd(), libc::SOL_SOCKET, option, &bytes_per_second)
        .context("cannot set SO_MAX_PACING_RATE")
}

/// Makes a socket poll its device for up to `time` before it blocks: `SO_BUSY_POLL`. Connections
/// inherit it from a listening TCP socket.
///
/// # Errors
/// [`ErrorKind::System`](crate::ErrorKind::System), `EPERM` without CAP_NET_ADMIN on older kernels.
pub fn set_busy_poll(socket: impl AsFd, time: Duration) -> crate::Result<()> {
    let microseconds = i32::try_from(time.as_micros()).unwrap_or(i32::MAX);
    let fd = socket.as_fd();
    set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &microseconds).context("cannot set SO_BUSY_POLL")
}

/// How long a socket polls its device: see [`set_busy_poll`].
///
/// # Errors
/// [`ErrorKind::System`](crate::ErrorKind::System) when the descriptor is not a socket.
pub fn busy_poll(socket: impl AsFd) -> crate::Result<Duration> {
    let mut microseconds = [0i32];
    get(
        socket.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_BUSY_POLL,
        &mut microseconds,
    )
    .context("cannot read SO_BUSY_POLL")?;
    Ok(Duration::from_micros(microseconds[0].max(0) as u64))
}

/// Makes an epoll instance poll the device of its sockets for up to `time` before it sleeps
/// (`ep_eventpoll_bp_ioctl`, Linux 6.9 on).
pub fn set_epoll_busy_poll(epoll: BorrowedFd<'_>, time: Duration) -> crate::Result<()> {
    // SAFETY: all fields are integers.
    let mut parameters: libc::epoll_params = unsafe { std::mem::zeroed() };
    parameters.busy_poll_usecs = time.as_micros().try_into().unwrap_or(i32::MAX as u32);
    // SAFETY: the kernel reads one `epoll_params`, which outlives the call.
    let result =
        unsafe { libc::ioctl(epoll.as_raw_fd(), libc::EPIOCSPARAMS, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_error()).context("cannot make epoll poll the device")
    }
}

/// How long a VSOCK socket may take to connect, 2 s unless it is said: `SO_VM_SOCKETS_CONNECT_TIMEOUT`.
///
/// # Errors
/// `ERANGE` for a time that is too long for the kernel (`vsock_connectible_setsockopt`).
pub fn set_vsock_connect_timeout(fd: impl AsFd, time: Duration) -> rustix::io::Result<()> {
    let time = libc::timeval {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_usec: time.subsec_micros().into(),
    };
    set(fd.as_fd(), libc::AF_VSOCK, CONNECT_TIMEOUT, &time)
}

/// `SO_VM_SOCKETS_CONNECT_TIMEOUT_OLD` in linux/vm_sockets.h, whose value is a `timeval` of the architecture; the libc crate
/// lacks it.
const CONNECT_TIMEOUT: i32 = 6;

/// What [`set_vsock_connect_timeout`] has set.
#[cfg(feature = "test")]
pub fn vsock_connect_timeout(fd: impl AsFd) -> rustix::io::Result<Duration> {
    // A `timeval` of two 64-bit integers.
    let mut halves = [0i32; 4];
    get(fd.as_fd(), libc::AF_VSOCK, CONNECT_TIMEOUT, &mut halves)?;
    let [seconds, _, microseconds, _] = halves.map(i32::cast_unsigned);
    Ok(Duration::from_secs(seconds.into()) + Duration::from_micros(microseconds.into()))
}

/// The context identifier of this machine for VSOCK (`IOCTL_VM_SOCKETS_GET_LOCAL_CID`): one from 3 on in a guest, 2 on a
/// host of guests, and 1 on a machine that only reaches itself, or `VMADDR_CID_ANY` (`vsock_dev_do_ioctl`).
///
/// # Errors
/// If there is no `/dev/vsock`, or it may not be opened.
pub fn vsock_local_cid() -> rustix::io::Result<u32> {
    // `_IO(7, 0xb9)` in linux/vm_sockets.h; the libc crate lacks it.
    const GET_LOCAL_CID: libc::c_ulong = 0x7b9;
    let device = fs::File::open("/dev/vsock");
    let device = device.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut cid: u32 = 0;
    // SAFETY: the kernel writes one `u32`, which outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_LOCAL_CID as _, &raw mut cid) };
    match result {
        0 => Ok(cid),
        _ => Err(last_error()),
    }
}

/// Sets `SO_ZEROCOPY`.
#[cfg(feature = "test")]
pub fn set_zero_copy(fd: impl AsFd) -> rustix::io::Result<()> {
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1i32)
}

/// Has every packet of a socket carry these options of IPv4 (`IP_OPTIONS`).
#[cfg(feature = "test")]
pub fn send_ip_options<const BYTES: usize>(
    fd: impl AsFd,
    options: [u8; BYTES],
) -> rustix::io::Result<()> {
    set(fd.as_fd(), libc::IPPROTO_IP, libc::IP_OPTIONS, &options)
}

/// Has every packet of a socket carry this header of hop-by-hop options of IPv6 (`IPV6_HOPOPTS`).
#[cfg(feature = "test")]
pub fn send_hop_by_hop_options<const BYTES: usize>(
    fd: impl AsFd,
    header: [u8; BYTES],
) -> rustix::io::Result<()> {
    set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_HOPOPTS, &header)
}

/// Has every packet of a socket carry this header of destination options of IPv6 (`IPV6_DSTOPTS`).
#[cfg(feature = "test")]
pub fn send_destination_options<const BYTES: usize>(
    fd: impl AsFd,
    header: [u8; BYTES],
) -> rustix::io::Result<()> {
    set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &header)
}

/// Attaches a BPF program that filters what the socket receives (`SO_ATTACH_BPF`).
pub fn attach_filter(fd: impl AsFd, program: impl AsFd) -> rustix::io::Result<()> {
    let program = program.as_fd().as_raw_fd();
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program)
}

/// Detaches the program of [`attach_filter`].
pub fn detach_filter(fd: impl AsFd) -> rustix::io::Result<()> {
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_BPF, &0i32)
}

/// Whether the socket has a filter, of either kind (`SO_GET_FILTER`).
pub fn has_filter(fd: impl AsFd) -> rustix::io::Result<bool> {
    // The length is a number of instructions, and with 0 none is copied (`sk_get_filter`).
    let mut instructions: libc::socklen_t = 0;
    // SAFETY: nothing is written to a buffer of the length 0, and `instructions` outlives the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_GET_FILTER,
            std::ptr::null_mut(),
            &raw mut instructions,
        )
    };
    match result {
        0 => Ok(instructions != 0),
        // An eBPF program has no instructions to copy.
        _ if last_error() == Errno::ACCESS => Ok(true),
        _ => Err(last_error()),
    }
}

/// Makes the kernel tune both buffers again; setting a size had ended that (`SO_BUF_LOCK`, Linux
/// 5.16 on).
pub fn tune_buffers(fd: impl AsFd) -> rustix::io::Result<()> {
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK, &0i32)
}

/// The cookie of the network namespace that a socket belongs to (`SO_NETNS_COOKIE`, Linux 5.14 on).
/// The kernel never reuses it.
pub fn namespace_cookie(fd: impl AsFd) -> rustix::io::Result<u64> {
    let mut halves = [0; 2];
    get(
        fd.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_NETNS_COOKIE,
        &mut halves,
    )?;
    // As BPF programs have it.
    let [one, other] = halves.map(|half: i32| u64::from(half.cast_unsigned()));
    Ok(if cfg!(target_endian = "little") {
        one | other << u32::BITS
    } else {
        one << u32::BITS | other
    })
}

/// Which of the two sizes the kernel does not tune, as bits.
#[cfg(feature = "test")]
pub fn fixed_buffers(fd: impl AsFd) -> rustix::io::Result<i32> {
    let mut fixed = [0];
    get(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK, &mut fixed)?;
    Ok(fixed[0])
}

/// How many unsent bytes stop a TCP socket from taking more, in bytes; 0 if the socket has no such
/// bound of its own (`TCP_NOTSENT_LOWAT`).
pub fn unsent_low_mark(fd: impl AsFd) -> rustix::io::Result<u32> {
    let mut bytes = [0];
    let fd = fd.as_fd();
    get(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &mut bytes)?;
    Ok(bytes[0].cast_unsigned())
}

/// Whether a socket may have an address that is not this host's (`IP_TRANSPARENT`; it is one option for both versions of
/// IP, `ip_getsockopt`).
pub fn is_transparent(fd: impl AsFd) -> rustix::io::Result<bool> {
    let mut value = [0];
    get(
        fd.as_fd(),
        libc::IPPROTO_IP,
        libc::IP_TRANSPARENT,
        &mut value,
    )?;
    Ok(value[0] != 0)
}

/// Whether the next byte that a socket reads is the urgent one (`SIOCATMARK`).
pub fn is_at_mark(fd: impl AsFd) -> rustix::io::Result<bool> {
    // `asm-generic/sockios.h`; the libc crate lacks it.
    const SIOCATMARK: libc::c_ulong = 0x8905;
    let mut is_at_mark: i32 = 0;
    // SAFETY: the kernel writes one integer, which outlives the call.
    let result =
        unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), SIOCATMARK as _, &raw mut is_at_mark) };
    match result {
        0 => Ok(is_at_mark != 0),
        _ => Err(last_error()),
    }
}

/// Has every message that a socket reads come with the time of its arrival, as a control message (`SO_TIMESTAMP`). UNIX
/// sockets with messages have it, also for what arrived before (`__sock_recv_timestamp`), and no other socket pays for it
/// (`sock_needs_netstamp`).
pub fn report_arrival(fd: impl AsFd) -> rustix::io::Result<()> {
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMP, &1i32)
}

/// Sets `SO_RCVLOWAT`: a socket with fewer bytes is not readable.
pub fn set_receive_low_mark(fd: impl AsFd, bytes: i32) -> rustix::io::Result<()> {
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes)
}

/// The supplementary groups of the process at the other end of a UNIX socket, as they were when it connected
/// (`SO_PEERGROUPS`, Linux 4.13 on).
///
/// # Errors
/// If the kernel does not tell.
pub fn peer_groups(fd: impl AsFd) -> rustix::io::Result<Vec<u32>> {
    // No group has this number (`INVALID_GID`).
    let mut groups = vec![-1; GROUPS_MOST];
    get(
        fd.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_PEERGROUPS,
        &mut groups,
    )?;
    let groups = groups.into_iter().take_while(|group| *group != -1);
    Ok(groups.map(i32::cast_unsigned).collect())
}

/// Reads an option whose value consists of integers.
pub(crate) fn get(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    values: &mut [i32],
) -> Result<(), Errno> {
    let mut length = size_of_val(values) as libc::socklen_t;
    // SAFETY: `values` and `length` outlive the call, and `length` is the size of `values`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

pub(crate) fn set<T>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> Result<(), Errno> {
    // SAFETY: `value` outlives the call and its size is given with it. The options set here take
    // integers, or a structure of them.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Has a UDP socket hand over consecutive datagrams of one sender and size in one piece (`UDP_GRO`, Linux
/// 5.0 on).
pub fn merge_datagrams(udp: impl AsFd) -> rustix::io::Result<()> {
    set(udp.as_fd(), libc::SOL_UDP, libc::UDP_GRO, &1i32)
}

/// Has a UDP socket tell for each datagram the address it was sent to. A socket of IPv6 also does for IPv4.
pub fn report_destination(udp: impl AsFd, is_ipv6: bool) -> rustix::io::Result<()> {
    if is_ipv6 {
        set(
            udp.as_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_RECVPKTINFO,
            &1i32,
        )?;
    }
    set(udp.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, &1i32)
}

/// The error of the thread's last system call.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
