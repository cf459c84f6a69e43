//! Waiting for programs that run already.
#![allow(unsafe_code, reason = "membarrier(2); see the SAFETY comment")]

use rustix::io::Errno;

/// `MEMBARRIER_CMD_GLOBAL` of `linux/membarrier.h`, which the crate libc does not have.
const GLOBAL: libc::c_int = 1;

/// Returns when every program, filter and softirq has ended that ran when it was called: this command is a call of
/// `synchronize_rcu` (kernel/sched/membarrier.c, Linux 6.1 to 7.2). It takes some milliseconds.
///
/// # Errors
/// The error of membarrier(2): `ENOSYS` if the kernel lacks it, `EINVAL` if CPUs run without ticks (`nohz_full`).
pub fn wait_for_programs() -> Result<(), Errno> {
    // SAFETY: the call has no pointers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
    }
}
