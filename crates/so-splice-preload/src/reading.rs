//! read(2) and its kind: on OpenBSD, a source has nothing to read until its splice has ended; on
//! both systems, a read returns the error that a splice has left.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use libc::{iovec, msghdr, pollfd, size_t, sockaddr, socklen_t, ssize_t};
use rustix::io::Errno;
use so_splice::Personality;

use crate::marks::{self, Spliced};
use crate::next::{FCNTL, GETSOCKOPT, POLL, READ, READV, RECV, RECVFROM, RECVMSG, check, fail};
use crate::registration;

/// Waits until the program may read, and returns the error that it is to get.
fn admit(fd: c_int, flags: c_int) -> Result<(), Errno> {
    let Some(cookie) = marks::valid(fd) else {
        return Ok(());
    };
    let is_error_queue = flags & libc::MSG_ERRQUEUE != 0;
    if is_error_queue {
        return Ok(());
    }
    let deadline = receive_timeout(fd).map(|after| Instant::now() + after);
    loop {
        let spliced = Spliced::of(cookie);
        let Some(splice) = &spliced.as_source else {
            break;
        };
        if splice.personality() != Personality::OpenBsd {
            return Ok(());
        }
        if flags & libc::MSG_DONTWAIT != 0 || never_blocks(fd) {
            return Err(Errno::AGAIN);
        }
        wait(&splice.end_event()?, deadline)?;
    }
    if so_splice::pending_error(cookie).is_some() && is_drained(fd) {
        let left = so_splice::take_error(cookie);
        registration::refresh(cookie);
        if let Some(errno) = left {
            return Err(errno);
        }
    }
    Ok(())
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

/// Waits for the end of a splice as a read of a socket waits for bytes: a signal whose handler was
/// installed with `SA_RESTART` interrupts it only if there is a deadline (signal(7)).
fn wait(event: &OwnedFd, deadline: Option<Instant>) -> Result<(), Errno> {
    let event = event.as_raw_fd();
    let Some(deadline) = deadline else {
        let mut count = [0u8; 8];
        // SAFETY: there is room for the count of an eventfd.
        return match unsafe { READ.get()(event, count.as_mut_ptr().cast(), count.len()) } {
            -1 => Err(Errno::INTR),
            _ => Ok(()),
        };
    };
    let mut watched = pollfd {
        fd: event,
        events: libc::POLLIN,
        revents: 0,
    };
    let left = deadline.saturating_duration_since(Instant::now());
    // Rounded up: a read does not return before its time.
    let left = c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
    // SAFETY: one `pollfd`.
    match unsafe { POLL.get()(&raw mut watched, 1, left) } {
        -1 => Err(Errno::INTR),
        0 => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}

/// As read(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    if let Err(errno) = admit(fd, 0) {
        return fail(errno);
    }
    // SAFETY: the program's own arguments.
    unsafe { READ.get()(fd, buffer, length) }
}

/// As readv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    if let Err(errno) = admit(fd, 0) {
        return fail(errno);
    }
    // SAFETY: the program's own arguments.
    unsafe { READV.get()(fd, vectors, count) }
}

/// As recv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    if let Err(errno) = admit(fd, flags) {
        return fail(errno);
    }
    // SAFETY: the program's own arguments.
    unsafe { RECV.get()(fd, buffer, length, flags) }
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
    if let Err(errno) = admit(fd, flags) {
        return fail(errno);
    }
    // SAFETY: the program's own arguments.
    unsafe { RECVFROM.get()(fd, buffer, length, flags, from, from_length) }
}

/// As recvmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if let Err(errno) = admit(fd, flags) {
        return fail(errno);
    }
    // SAFETY: the program's own arguments.
    unsafe { RECVMSG.get()(fd, message, flags) }
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
