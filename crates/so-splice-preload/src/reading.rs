//! read(2) and its kind: on OpenBSD, a source has nothing to read until its splice has ended; on
//! FreeBSD, a byte goes to the program or to the splice, never to both. On both systems, a read
//! returns the error that a splice has left.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use libc::{c_ulong, iovec, msghdr, pollfd, size_t, sockaddr, socklen_t, ssize_t};
use rustix::io::Errno;
use so_splice::{Personality, Splice};

use crate::marks::{self, Spliced};
use crate::next::{
    FCNTL, GETSOCKOPT, IOCTL, POLL, READ, READV, RECV, RECVFROM, RECVMSG, Uncancelled, check, fail,
};
use crate::registration;

/// Makes the program's call as far as its splice allows it. `call` gets flags for recv(2) that are
/// to be added.
fn read_by(fd: c_int, flags: c_int, call: impl Fn(c_int) -> ssize_t) -> ssize_t {
    let cookie = match marks::valid(fd) {
        Some(cookie) if flags & libc::MSG_ERRQUEUE == 0 => cookie,
        _ => return call(0),
    };
    let blocks = flags & libc::MSG_DONTWAIT == 0 && !never_blocks(fd);
    let deadline = receive_timeout(fd).map(|after| Instant::now() + after);
    loop {
        let Some(splice) = Spliced::of(cookie).as_source else {
            break;
        };
        // OpenBSD has nothing to read for the program, FreeBSD has what the splice does not take.
        let result = match splice.personality() {
            Personality::OpenBsd => fail(Errno::AGAIN),
            _ => read_beside(&splice, || call(libc::MSG_DONTWAIT)),
        };
        if result >= 0 || !blocks || last_error() != Errno::AGAIN {
            return result;
        }
        let also = (splice.personality() != Personality::OpenBsd).then_some(fd);
        let waited = splice
            .end_event()
            .and_then(|end| wait(&end, also, deadline));
        if let Err(errno) = waited {
            return fail(errno);
        }
    }
    if so_splice::pending_error(cookie).is_some() && is_drained(fd) {
        let left = so_splice::take_error(cookie);
        registration::refresh(cookie);
        if let Some(errno) = left {
            return fail(errno);
        }
    }
    call(0)
}

/// Reads while the splice does not: it drops what it has moved after it has moved it, and must not
/// drop what somebody else has read.
fn read_beside(splice: &Splice, call: impl Fn() -> ssize_t) -> ssize_t {
    let _uncancelled = Uncancelled::new();
    let _still = splice.hold_still();
    call()
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn never_blocks(fd: c_int) -> bool {
    // SAFETY: the command takes no argument.
    let flags = unsafe { FCNTL.get()(fd, libc::F_GETFL, 0) };
    flags & libc::O_NONBLOCK != 0
}

/// Whether there is nothing before the error: bytes that have arrived come first (`soreceive`).
fn is_drained(fd: c_int) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: there is room for one byte.
    unsafe { RECV.get()(fd, (&raw mut byte).cast(), 1, flags) <= 0 }
}

/// How long a read of the socket may block (`SO_RCVTIMEO`).
fn receive_timeout(fd: c_int) -> Option<Duration> {
    let mut time = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut length = size_of_val(&time) as socklen_t;
    // SAFETY: `time` has room for what the option returns.
    unsafe {
        GETSOCKOPT.get()(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw mut time).cast(),
            &raw mut length,
        )
    };
    let after = Duration::new(
        time.tv_sec.try_into().ok()?,
        (time.tv_usec * 1000).try_into().ok()?,
    );
    (!after.is_zero()).then_some(after)
}

/// Waits for the end of a splice, or for bytes at `also`. A signal interrupts it as it interrupts a
/// read of a socket: if its handler was installed with `SA_RESTART`, only with a deadline or a
/// second descriptor (signal(7)).
fn wait(end: &OwnedFd, also: Option<c_int>, deadline: Option<Instant>) -> Result<(), Errno> {
    let end = end.as_raw_fd();
    if deadline.is_none() && also.is_none() {
        let mut count = [0u8; 8];
        // SAFETY: there is room for the count of an eventfd.
        return match unsafe { READ.get()(end, count.as_mut_ptr().cast(), count.len()) } {
            -1 => Err(Errno::INTR),
            _ => Ok(()),
        };
    }
    let mut watched = [end, also.unwrap_or(-1)].map(|fd| pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let left = deadline.map_or(-1, |at| {
        let left = at.saturating_duration_since(Instant::now());
        // Rounded up: a read does not return before its time.
        c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    });
    // SAFETY: two `pollfd`.
    match unsafe { POLL.get()(watched.as_mut_ptr(), 2, left) } {
        -1 => Err(Errno::INTR),
        0 => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}

/// As ioctl(2): what a splice has moved already is not counted among what can be read (`FIONREAD`).
/// The function is variadic in C, as fcntl(2) is.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    // SAFETY: the program's own arguments.
    let call = || unsafe { IOCTL.get()(fd, request, argument) };
    let is_count = request == libc::FIONREAD;
    let source = is_count.then(|| marks::valid(fd)).flatten();
    match source.and_then(|cookie| Spliced::of(cookie).as_source) {
        Some(splice) => {
            let _still = splice.hold_still();
            call()
        }
        None => call(),
    }
}

/// As read(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    read_by(fd, 0, |added| match added {
        // SAFETY: the program's own arguments.
        0 => unsafe { READ.get()(fd, buffer, length) },
        // SAFETY: the same; a marked descriptor is a socket.
        _ => unsafe { RECV.get()(fd, buffer, length, added) },
    })
}

/// As readv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    read_by(fd, 0, |added| match (added, size_t::try_from(count)) {
        (1.., Ok(count)) => {
            // SAFETY: all fields are integers or pointers that may be null.
            let mut message: msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = vectors.cast_mut();
            message.msg_iovlen = count;
            // SAFETY: the program's own vectors; a marked descriptor is a socket.
            unsafe { RECVMSG.get()(fd, &raw mut message, added) }
        }
        // SAFETY: the program's own arguments.
        _ => unsafe { READV.get()(fd, vectors, count) },
    })
}

/// As recv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    read_by(fd, flags, |added| unsafe {
        RECV.get()(fd, buffer, length, flags | added)
    })
}

/// As recvfrom(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    read_by(fd, flags, |added| unsafe {
        RECVFROM.get()(fd, buffer, length, flags | added, from, from_length)
    })
}

/// As recvmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    read_by(fd, flags, |added| unsafe {
        RECVMSG.get()(fd, message, flags | added)
    })
}

/// As read(2), of programs that were compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    check(length, room);
    // SAFETY: the program's own arguments.
    unsafe { read(fd, buffer, length) }
}

/// As recv(2), of programs that were compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(length, room);
    // SAFETY: the program's own arguments.
    unsafe { recv(fd, buffer, length, flags) }
}

/// As recvfrom(2), of programs that were compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    check(length, room);
    // SAFETY: the program's own arguments.
    unsafe { recvfrom(fd, buffer, length, flags, from, from_length) }
}
