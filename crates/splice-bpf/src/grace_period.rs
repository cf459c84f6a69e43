//! Waiting until no program runs any more that may have seen a former state.
#![allow(unsafe_code, reason = "membarrier(2); see the SAFETY comment")]

use std::fs;

use rustix::io::Errno;
use rustix::system::uname;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// `MEMBARRIER_CMD_GLOBAL` of `linux/membarrier.h`, which the crate libc does not have.
const GLOBAL: libc::c_int = 1;

/// The CPUs that may run something: `0-3,5`.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Returns when every program, filter and softirq has ended that ran when it was called: this command is a call of
/// `synchronize_rcu` (kernel/sched/membarrier.c, Linux 6.1 to 7.2). It takes some milliseconds, or some ten with 250 ticks a
/// second.
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

/// Returns when every softirq has ended that ran when it was called, and so every program that it ran, such as those of tc.
/// Visits each CPU: that turns to a thread only after its softirq (`preempt_count`). It takes some 25 µs for each CPU that is
/// not busy, and for ever if a real-time thread does not leave one.
///
/// # Errors
/// `EOPNOTSUPP` if softirqs may be interrupted (PREEMPT_RT), and if the CPUs are not known; `EINVAL` if the process may not
/// run on one of them (cpuset), or if one has gone.
pub fn wait_for_softirqs() -> Result<(), Errno> {
    if is_real_time(&uname().version().to_string_lossy()) {
        return Err(Errno::OPNOTSUPP);
    }
    let online = fs::read_to_string(ONLINE).ok();
    let cpus = online.and_then(|list| cpus_of(list.trim()));
    let former = sched_getaffinity(None)?;
    let visited = cpus
        .ok_or(Errno::OPNOTSUPP)?
        .into_iter()
        .try_for_each(visit);
    sched_setaffinity(None, &former)?;
    visited
}

/// Whether a kernel of this version is built for real time: `#1 SMP PREEMPT_RT Debian ...`.
fn is_real_time(version: &str) -> bool {
    let mut words = version.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| word == "RT")
}

/// Returns on this CPU.
fn visit(cpu: usize) -> Result<(), Errno> {
    let mut only = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::OPNOTSUPP);
    }
    only.set(cpu);
    sched_setaffinity(None, &only)
}

fn cpus_of(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|number| number.parse::<usize>().ok());
        cpus.extend(first?..=last?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus_of("0"), Some(vec![0]));
        assert_eq!(cpus_of("0-2,5,8-9"), Some(vec![0, 1, 2, 5, 8, 9]));
        assert_eq!(cpus_of(""), None);
        assert_eq!(cpus_of("0-"), None);
    }

    #[test]
    fn a_kernel_for_real_time_is_known_by_its_version() {
        assert!(is_real_time(
            "#1 SMP PREEMPT_RT Debian 6.1.192-1 (2026-05-01)"
        ));
        assert!(!is_real_time(
            "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1 (2026-05-01)"
        ));
    }

    #[test]
    fn a_thread_that_has_visited_every_cpu_runs_where_it_ran() {
        let former = sched_getaffinity(None).expect("the CPUs");
        let visited = wait_for_softirqs();
        let all = fs::read_to_string(ONLINE).ok();
        let count = all.and_then(|all| cpus_of(all.trim())).map(|all| all.len());
        // Otherwise it depends on the cpuset.
        if count == Some(former.count() as usize)
            && !is_real_time(&uname().version().to_string_lossy())
        {
            assert_eq!(visited, Ok(()));
        }
        assert_eq!(sched_getaffinity(None).expect("the CPUs"), former);
    }
}
