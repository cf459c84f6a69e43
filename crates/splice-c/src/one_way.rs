//! One direction: `so_splice` and its kind.

use std::ffi::c_int;
use std::mem::offset_of;

use libc::{off_t, timeval};
use rustix::io::Errno;
use so_splice::{Personality, Request};

use crate::fault::{Fault, Result, answer};

/// Personality: every stream socket and UDP, a true idle timer, end of stream passed on.
pub const SO_SPLICE_LINUX: c_int = 0;

/// Personality: as FreeBSD 15.
pub const SO_SPLICE_FREEBSD: c_int = 1;

/// Personality: as OpenBSD 7.
pub const SO_SPLICE_OPENBSD: c_int = 2;

/// What is to be spliced: as in the two BSDs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Splice {
    /// The drain: the socket that gets what arrives. Negative to undo.
    pub sp_fd: c_int,
    /// The splice ends when it has moved this many bytes; 0 for no limit.
    pub sp_max: off_t,
    /// The splice ends when no byte has moved for this long; zero for never. With
    /// SO_SPLICE_FREEBSD it ends this long after its start.
    pub sp_idle: timeval,
}

const _: () = assert!(size_of::<Splice>() == Request::BYTES);
const _: () = assert!(offset_of!(Splice, sp_max) == 8);
const _: () = assert!(offset_of!(Splice, sp_idle) == 16);

/// Moves what arrives at the socket fd to the socket sp->sp_fd, until the end of the stream, an
/// error, sp_max, sp_idle, or so_unsplice(). What has arrived already is moved when this returns.
/// Both sockets stay the caller's, blocking or not: he may close them, and what was not moved when
/// the splice ends is still readable at fd. NULL, or a negative sp_fd, undoes.
///
/// Returns 0, or -1 with errno: EBADF, ENOTSOCK; EPROTONOSUPPORT, two sockets that cannot be
/// spliced; EINVAL, a listening socket, a negative sp_max, an sp_idle that is no time; ENOTCONN;
/// EBUSY, fd is a source or sp_fd a drain already; EMFILE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn so_splice(fd: c_int, sp: *const Splice) -> c_int {
    // SAFETY: as the caller owes it.
    unsafe { so_splice_as(fd, sp, SO_SPLICE_LINUX) }
}

/// As so_splice(), by the rules and with the errors of another system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn so_splice_as(fd: c_int, sp: *const Splice, personality: c_int) -> c_int {
    // SAFETY: null, or the caller points to a struct.
    let splice = unsafe { sp.as_ref() };
    answer(start(fd, splice, personality))
}

fn start(fd: c_int, splice: Option<&Splice>, personality: c_int) -> Result<c_int> {
    let personality = match personality {
        SO_SPLICE_LINUX => Personality::Linux,
        SO_SPLICE_FREEBSD => Personality::FreeBsd,
        SO_SPLICE_OPENBSD => Personality::OpenBsd,
        other => {
            let why = format!("there is no personality {other}; see SO_SPLICE_LINUX in splice.h");
            return Err(Fault::new(Errno::INVAL, why));
        }
    };
    let request = splice.map_or_else(
        || Request::to(-1),
        |splice| Request {
            drain: splice.sp_fd,
            max_bytes: splice.sp_max,
            idle_seconds: splice.sp_idle.tv_sec,
            idle_microseconds: splice.sp_idle.tv_usec,
        },
    );
    so_splice::splice(personality, fd, &request, |_| ())?;
    Ok(0)
}

/// Undoes the splice of fd. When this returns, the splice reads nothing more, and every byte that
/// it has not moved is readable at fd.
///
/// Returns 0, or -1 with errno: EBADF, ENOTSOCK; ENOTCONN, fd is not spliced (any more).
#[unsafe(no_mangle)]
pub extern "C" fn so_unsplice(fd: c_int) -> c_int {
    let undone = so_splice::unsplice(Personality::Linux, fd);
    answer(undone.map(|()| 0).map_err(Fault::from))
}

/// How many bytes the last splice of fd has moved, also after its end; 0 if there was none. A byte
/// that the drain's peer has seen is counted.
///
/// Returns -1 with errno: EBADF, ENOTSOCK.
#[unsafe(no_mangle)]
pub extern "C" fn so_splice_bytes(fd: c_int) -> off_t {
    let moved = so_splice::moved_bytes(Personality::Linux, fd);
    let moved = moved.map(|bytes| off_t::try_from(bytes).unwrap_or(off_t::MAX));
    answer(moved.map_err(Fault::from))
}

/// A descriptor that becomes readable when the last splice of fd has ended, for poll(2) and its
/// kind. It is the library's, which closes it with the next splice of fd. Do not read from it.
///
/// Returns -1 with errno: EBADF, ENOTSOCK; ENOTCONN, fd was never spliced; EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn so_splice_fd(fd: c_int) -> c_int {
    answer(so_splice::watch_end(fd).map_err(Fault::from))
}

/// Why the last splice of fd has ended: 0 while it runs, and if it was undone or its stream has
/// ended; EFBIG, sp_max; ETIMEDOUT, sp_idle; ELOOP, a ring of splices; EPIPE, the drain takes
/// nothing more; otherwise the error of one of the sockets.
///
/// Returns -1 with errno: EBADF, ENOTSOCK; ENOTCONN, fd was never spliced.
#[unsafe(no_mangle)]
pub extern "C" fn so_splice_error(fd: c_int) -> c_int {
    let error = so_splice::error_of_last(fd);
    answer(
        error
            .map(|errno| errno.map_or(0, Errno::raw_os_error))
            .map_err(Fault::from),
    )
}
