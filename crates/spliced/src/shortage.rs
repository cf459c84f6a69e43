//! Which limit a failed system call has met.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// What has run out, and the limit's name, where a limit is the cause.
pub(crate) fn limit_met(errno: Errno) -> Option<String> {
    Some(match errno {
        Errno::MFILE => {
            let most = getrlimit(Resource::Nofile).current;
            let most = most.map_or_else(|| "all".into(), |most| most.to_string());
            format!("the process has used up RLIMIT_NOFILE ({most} descriptors)")
        }
        Errno::NFILE => "the system has used up fs.file-max (open files)".into(),
        Errno::NOBUFS | Errno::NOMEM => "the kernel has no memory for another socket".into(),
        _ => return None,
    })
}
