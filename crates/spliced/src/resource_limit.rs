//! Limits on descriptors and memory: raising them, and naming the one that a system call has met.

use std::os::fd::OwnedFd;

use anyhow::{Result, anyhow};
use rustix::event::{EventfdFlags, eventfd};
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

/// Descriptors that are kept free while a relay starts, so that it can serve a client when it has started: two sockets, two
/// pipes, and one more for an attempt at another server.
const OF_A_CONNECTION: usize = 7;

/// Takes the descriptors of a connection until the start is over. A relay that has none left for its clients would accept
/// nobody, or reset everybody.
///
/// # Errors
/// If there are too few.
pub(crate) fn keep_for_a_connection() -> Result<Vec<OwnedFd>> {
    let kept = (0..OF_A_CONNECTION).map(|_| eventfd(0, EventfdFlags::CLOEXEC));
    let kept: rustix::io::Result<_> = kept.collect();
    kept.map_err(|errno| match getrlimit(Resource::Nofile).current {
        Some(limit) if errno == Errno::MFILE => anyhow!(
            "RLIMIT_NOFILE is {limit}, which leaves no descriptors for connections; raise it to {} (ulimit -n, or LimitNOFILE= \
             of its service)",
            limit + DESCRIPTORS_BESIDE
        ),
        _ => anyhow!("no descriptors can be kept for connections: {}", words(errno)),
    })
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
