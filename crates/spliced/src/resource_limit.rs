//! Limits on descriptors and memory: raising them, and naming the one that a system call has met.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a relay needs beside those of its connections: loops, listeners, pipes, logs.
const DESCRIPTORS_BESIDE: u64 = 100;

/// Raises the soft limit on descriptors to the hard limit. A connection takes two descriptors, and the
/// usual soft limit of 1024 exists for the sake of select(2).
pub(crate) fn raise_descriptor_limit(max_connections: Option<u32>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // This fails only where something other than the limit forbids it, such as a seccomp filter.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    let wanted = max_connections.map(|most| u64::from(most) * 2 + DESCRIPTORS_BESIDE);
    if let (Some(maximum), Some(wanted)) = (maximum, wanted)
        && wanted > maximum
    {
        tracing::warn!(
            "--max-connections needs {wanted} descriptors and RLIMIT_NOFILE allows {maximum}; \
             raise it or connections will have to wait"
        );
    }
}

/// The limit behind a failed system call, if a limit is the cause.
pub(crate) fn limit_met(errno: Errno) -> Option<String> {
    Some(match errno {
        Errno::MFILE => {
            let most = getrlimit(Resource::Nofile).current;
            let most = most.map_or_else(|| "all".into(), |most| most.to_string());
            format!("the process has used up RLIMIT_NOFILE ({most} descriptors)")
        }
        Errno::NFILE => "the system has used up fs.file-max (open files)".into(),
        Errno::NOBUFS | Errno::NOMEM => "the kernel has no memory for another socket".into(),
        Errno::ADDRNOTAVAIL => {
            "this host has no free local address and port for it (net.ipv4.ip_local_port_range)"
                .into()
        }
        _ => return None,
    })
}

/// The limit that was met, or the system's text for an error number, without the number.
pub(crate) fn words(errno: Errno) -> String {
    if let Some(limit) = limit_met(errno) {
        return limit;
    }
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_lowercase()
}
