//! Limits on descriptors and memory: raising them, and naming the one that a system call has met.

use std::os::fd::AsRawFd;

use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use splice_base::descriptors;

/// Descriptors that a relay needs beside those of its connections: loops, listeners, pipes, logs.
const DESCRIPTORS_BESIDE: u64 = 100;

/// Raises the soft limit on descriptors to the hard limit. A connection takes two descriptors, and the
/// usual soft limit of 1024 exists for the sake of select(2).
pub(crate) fn raise_descriptor_limit(max_connections: Option<u32>) {
    raise_descriptor_limit_for(max_connections, 0);
}

/// The same for connections and sessions of datagrams.
pub(crate) fn raise_descriptor_limit_for(max_connections: Option<u32>, max_sessions: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // This fails only where something other than the limit forbids it, such as a seccomp filter.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    if let Some(sentence) = too_few_descriptors(max_connections, max_sessions) {
        tracing::warn!("{sentence}");
    }
}

/// What to say if the hard limit is too low for as many connections, which take two descriptors each, and sessions of
/// datagrams, which take one.
pub(crate) fn too_few_descriptors(
    max_connections: Option<u32>,
    max_sessions: u64,
) -> Option<String> {
    let connections = u64::from(max_connections.unwrap_or(0));
    let wanted = connections * 2 + max_sessions + DESCRIPTORS_BESIDE;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let maximum = maximum.filter(|maximum| wanted > *maximum)?;
    Some(match (connections, max_sessions) {
        (0, 0) => return None,
        (_, 0) => format!(
            "all connections that may be open at once need {wanted} descriptors, and RLIMIT_NOFILE allows {maximum}; raise it \
             or lower --max-connections (max_connections), or connections will have to wait"
        ),
        (0, _) => format!(
            "all sessions that may be open at once need {wanted} descriptors, and RLIMIT_NOFILE allows {maximum}; raise it or \
             lower --max-sessions (max_sessions), or new clients will displace others before there are as many"
        ),
        (_, _) => format!(
            "all connections and sessions that may be open at once need {wanted} descriptors, and RLIMIT_NOFILE allows \
             {maximum}; raise it or lower max_connections and max_sessions, or connections will have to wait, and sessions \
             will make room"
        ),
    })
}

/// What a relay needs once it listens: its control socket and what is kept for that (9 on Linux 6.18), two for a connection,
/// two for a pipe, and some that are open for a moment.
const DESCRIPTORS_TO_SERVE: u64 = 16;

/// Refuses a start that would leave no descriptors for clients: they would be accepted by the kernel, and served by nobody.
///
/// # Errors
/// If there are too few.
pub(crate) fn require_descriptors_to_serve() -> Result<()> {
    let limit = getrlimit(Resource::Nofile).current;
    if let (Some(limit), Some(free)) = (limit, descriptors::free())
        && free < DESCRIPTORS_TO_SERVE
    {
        bail!(
            "of the {limit} file descriptors that the process may have (RLIMIT_NOFILE), {free} are left for connections and the \
             control socket, which need {DESCRIPTORS_TO_SERVE}; raise the limit to {} (ulimit -n, or LimitNOFILE= of its service)",
            limit - free + DESCRIPTORS_TO_SERVE
        );
    }
    Ok(())
}

/// How many descriptors sessions of datagrams leave alone: a reload opens the configuration, logs and listeners.
const DESCRIPTORS_TO_RELOAD: u64 = 8;

/// Whether a descriptor that was just made is one of the last that the process may have. The kernel gives the lowest that is
/// free.
pub(crate) fn is_among_the_last(descriptor: &impl AsRawFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current;
    let number = u64::try_from(descriptor.as_raw_fd()).unwrap_or(0);
    limit.is_some_and(|limit| number + DESCRIPTORS_TO_RELOAD >= limit)
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
