//! setsockopt(2) and getsockopt(2).

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;

use libc::{iovec, socklen_t};
use rustix::io::Errno;
use so_splice::{Personality, Request};

use crate::next::{GETSOCKOPT, SETSOCKOPT, fail};
use crate::personality::personality;
use crate::{marks, registration};

/// The option's number in both systems. Linux has none near it.
const SO_SPLICE: c_int = 0x1023;

/// `SOL_SOCKET` of both systems, for programs that name it by its number.
const SOL_SOCKET_OF_BSD: c_int = 0xffff;

/// The size of an `off_t`, which `getsockopt` returns.
const COUNT_BYTES: usize = 8;

fn is_splice(level: c_int, name: c_int) -> bool {
    name == SO_SPLICE && matches!(level, libc::SOL_SOCKET | SOL_SOCKET_OF_BSD)
}

/// As setsockopt(2), and `SO_SPLICE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    match personality() {
        Some(personality) if is_splice(level, name) => {
            match set_splice(personality, fd, value, length as usize) {
                Ok(()) => 0,
                Err(errno) => fail(errno),
            }
        }
        // SAFETY: the program's own arguments.
        _ => unsafe { SETSOCKOPT.get()(fd, level, name, value, length) },
    }
}

fn set_splice(
    personality: Personality,
    fd: c_int,
    value: *const c_void,
    length: usize,
) -> Result<(), Errno> {
    let source = so_splice::cookie(fd)?;
    let request = match (personality, length) {
        (Personality::OpenBsd, _) if value.is_null() || length == 0 => Request::to(-1),
        (Personality::OpenBsd, 4..Request::BYTES) => {
            let mut drain = [0; 4];
            copy_in(value, &mut drain)?;
            Request::to(RawFd::from_ne_bytes(drain))
        }
        (_, Request::BYTES..) => {
            let mut bytes = [0; Request::BYTES];
            copy_in(value, &mut bytes)?;
            Request::from_bytes(&bytes)
        }
        _ => return Err(Errno::INVAL),
    };
    if request.drain < 0 {
        let undone = so_splice::splice(personality, fd, &request, |_| ());
        return undone.map(drop).map_err(errno_of);
    }
    let drain = so_splice::cookie(request.drain);
    // First, so that a close that comes right after the splice finds the marks.
    marks::set(fd, source);
    if let Ok(drain) = drain {
        marks::set(request.drain, drain);
    }
    so_splice::splice(personality, fd, &request, move |_| {
        registration::refresh(source);
        if let Ok(drain) = drain {
            registration::refresh(drain);
        }
    })
    .map_err(errno_of)?;
    registration::refresh(source);
    if let Ok(drain) = drain {
        registration::refresh(drain);
    }
    Ok(())
}

/// What an error of the library is for a program.
fn errno_of(error: so_splice::Error) -> Errno {
    so_splice::errno_of(&error)
}

/// Copies what the program points to, which may be nowhere: `EFAULT`.
fn copy_in(from: *const c_void, to: &mut [u8]) -> Result<(), Errno> {
    let local = iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let remote = iovec {
        iov_base: from.cast_mut(),
        iov_len: to.len(),
    };
    let own = std::process::id().cast_signed();
    // SAFETY: the kernel writes `to.len()` bytes to `to`, and checks where it reads.
    let copied =
        unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(copied) == Ok(to.len()) {
        return Ok(());
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        _ if copied >= 0 => Err(Errno::FAULT),
        Some(Errno::FAULT) => Err(Errno::FAULT),
        // A sandbox may forbid the call. Then a wrong pointer faults here.
        // SAFETY: the program says that there are as many bytes.
        _ => unsafe {
            ptr::copy_nonoverlapping(from.cast(), to.as_mut_ptr(), to.len());
            Ok(())
        },
    }
}

/// The error of a socket, as the BSDs have it: there, a reset is one also after the peer's FIN, for
/// which Linux has `EPIPE` (`tcp_reset`).
fn kernel_error(fd: c_int) -> Result<u32, Errno> {
    let mut error: c_int = 0;
    let mut length = size_of_val(&error) as socklen_t;
    // SAFETY: `error` has room for what the option returns.
    let result = unsafe {
        GETSOCKOPT.get()(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &raw mut length,
        )
    };
    match (result, error) {
        (0, libc::EPIPE) => Ok(libc::ECONNRESET.cast_unsigned()),
        (0, other) => Ok(other.cast_unsigned()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::BADF)),
    }
}

/// As getsockopt(2), `SO_SPLICE`, and the errors that splices have left (`SO_ERROR`).
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let bytes = match personality() {
        Some(personality) if is_splice(level, name) => {
            match so_splice::moved_bytes(personality, fd) {
                Ok(moved) => moved.to_ne_bytes(),
                Err(error) => return fail(errno_of(error)),
            }
        }
        _ if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let left = marks::valid(fd).and_then(|cookie| {
                let errno = so_splice::take_error(cookie)?;
                registration::refresh(cookie);
                Some(errno)
            });
            match left {
                Some(errno) => u64::from(errno.raw_os_error().cast_unsigned()).to_ne_bytes(),
                None if marks::get(fd).is_some() => match kernel_error(fd) {
                    Ok(error) => u64::from(error).to_ne_bytes(),
                    Err(errno) => return fail(errno),
                },
                // SAFETY: the program's own arguments.
                None => return unsafe { GETSOCKOPT.get()(fd, level, name, value, length) },
            }
        }
        // SAFETY: the program's own arguments.
        _ => return unsafe { GETSOCKOPT.get()(fd, level, name, value, length) },
    };
    if value.is_null() || length.is_null() {
        return fail(Errno::FAULT);
    }
    let most = if name == SO_SPLICE {
        COUNT_BYTES
    } else {
        size_of::<c_int>()
    };
    // SAFETY: the program says where its length is.
    let room = unsafe { *length } as usize;
    let count = most.min(room);
    // SAFETY: the program says that there are `room` bytes, of which this takes no more.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), count) };
    // SAFETY: as above.
    unsafe { *length = count as socklen_t };
    0
}
