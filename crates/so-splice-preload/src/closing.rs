//! What gives descriptors up or makes more of them: close(2), shutdown(2), dup(2) and their kind.

use std::ffi::c_int;

use libc::c_ulong;

use crate::next::{CLOSE, CLOSE_RANGE, DUP, DUP2, DUP3, FCLOSE, FCNTL, SHUTDOWN};
use crate::{marks, registration};

/// The program is about to close a descriptor.
fn closes(fd: c_int) {
    registration::closes(fd);
    if marks::get(fd).is_none() || !marks::are_ours() || marks::valid(fd).is_none() {
        return;
    }
    // The sockets are still open, so that the splice's own descriptors are not the last ones.
    if let Some(cookie) = marks::remove(fd) {
        so_splice::closed(cookie);
    }
}

/// Without it, dup2(2) closes nothing.
fn is_open(fd: c_int) -> bool {
    // SAFETY: the command takes no argument.
    unsafe { FCNTL.get()(fd, libc::F_GETFD, 0) != -1 }
}

/// The program has a second descriptor of what `fd` names.
fn copied(fd: c_int, copy: c_int) {
    if copy < 0 || copy == fd {
        return;
    }
    // Marked even if it is not spliced yet: a splice of one descriptor is one of the other, too.
    if let Ok(cookie) = so_splice::cookie(fd) {
        marks::set(fd, cookie);
        marks::set(copy, cookie);
    }
}

/// As close(2). The last close of a socket dissolves its splices.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    closes(fd);
    // SAFETY: the program's own argument.
    unsafe { CLOSE.get()(fd) }
}

/// As close_range(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        let last = c_int::try_from(last).unwrap_or(c_int::MAX);
        if let Ok(first) = c_int::try_from(first) {
            marks::in_range(first, last).into_iter().for_each(closes);
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { CLOSE_RANGE.get()(first, last, flags) }
}

/// As fclose(3), which closes the stream's descriptor without calling close(2).
///
/// # Safety
/// As fclose(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut libc::FILE) -> c_int {
    // SAFETY: the program's own argument.
    closes(unsafe { libc::fileno(stream) });
    // SAFETY: the program's own argument.
    unsafe { FCLOSE.get()(stream) }
}

/// As shutdown(2). A splice ends with the half that it uses.
#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(cookie) = marks::valid(fd) {
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            so_splice::shut_source(cookie);
        }
        if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
            so_splice::shut_drain(cookie);
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { SHUTDOWN.get()(fd, how) }
}

/// As dup(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the program's own argument.
    let copy = unsafe { DUP.get()(fd) };
    copied(fd, copy);
    copy
}

/// As dup2(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, copy: c_int) -> c_int {
    if fd != copy && is_open(fd) {
        closes(copy);
    }
    // SAFETY: the program's own arguments.
    let copy = unsafe { DUP2.get()(fd, copy) };
    copied(fd, copy);
    copy
}

/// As dup3(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int {
    if fd != copy && is_open(fd) {
        closes(copy);
    }
    // SAFETY: the program's own arguments.
    let copy = unsafe { DUP3.get()(fd, copy, flags) };
    copied(fd, copy);
    copy
}

/// As fcntl(2). The function is variadic in C; on the ABIs of Linux with 64 bits, a third argument
/// is passed as if it were declared.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's own arguments.
    let result = unsafe { FCNTL.get()(fd, command, argument) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        copied(fd, result);
    }
    result
}

/// As fcntl(2), by the name that programs with large files use.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { fcntl(fd, command, argument) }
}
