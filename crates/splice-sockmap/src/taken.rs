//! Sockets of another process, by their number.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use splice_base::error::{Error, ErrorKind, Result};

use crate::socket_kind::SocketKind;

/// A duplicate of the socket that is open as `fd` in the process `pid` (pidfd_getfd(2), Linux 5.6). The owner keeps
/// its own descriptor and notices nothing.
///
/// # Errors
/// - [`ErrorKind::System`] if there is no such process or descriptor (`ESRCH`, `EBADF`), or without the right to it
///   (`EPERM`): the same as to ptrace(2) it, so the same user without further capabilities, or `CAP_SYS_PTRACE`; a
///   security module may forbid it (kernel.yama.ptrace_scope).
/// - [`ErrorKind::UnsupportedSocket`] if it is no socket that a map takes.
pub fn of_process(pid: u32, fd: u32) -> Result<OwnedFd> {
    let failed = |what: String, errno| Error::system(what, errno);
    let none = || failed(format!("there is no process {pid}"), Errno::SRCH);
    let process = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(none)?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(|errno| match errno {
        Errno::SRCH => none(),
        other => failed(format!("cannot open the process {pid}"), other),
    })?;
    let taken = pidfd_getfd(&process, fd.cast_signed(), PidfdGetfdFlags::empty());
    let socket = taken.map_err(|errno| match errno {
        Errno::BADF => failed(format!("the process {pid} has no descriptor {fd}"), errno),
        Errno::PERM => failed(
            format!("cannot take the descriptor {fd} of the process {pid}"),
            errno,
        )
        .with_remedy(
            "run it as the same user, or with CAP_SYS_PTRACE, and look at kernel.yama.ptrace_scope",
        ),
        other => failed(
            format!("cannot take the descriptor {fd} of the process {pid}"),
            other,
        ),
    })?;
    SocketKind::of(&socket).map_err(|error| {
        Error::new(ErrorKind::UnsupportedSocket, error.reason())
            .about(format!("the descriptor {fd} of the process {pid}"))
    })?;
    Ok(socket)
}
