//! How long the relay's sockets bear silence: their options, and the settings of their network namespace.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::net::sockopt;

use super::liveness::{KeepAlive, Patience, retransmitting};
use crate::endpoint::Endpoint;
use splice_base::socket_option;

/// How often TCP retransmits before it gives a connection up: settings of a network namespace, which may change at any
/// time. Reading them takes three pread(2).
#[derive(Debug)]
pub(super) struct Settings {
    /// `tcp_retries2`
    established: Option<File>,
    /// `tcp_orphan_retries`
    orphaned: Option<File>,
    /// `tcp_rto_max_ms`
    longest: Option<File>,
}

/// What was set; see ip-sysctl.rst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retries {
    established: u32,
    orphaned: u32,
    /// The longest time between two retransmissions.
    longest: Duration,
}

/// Where they cannot be read (`TCP_RETR2` in net/tcp.h, `tcp_orphan_retries` in net/ipv4/tcp_timer.c).
const ESTABLISHED: u32 = 15;
const ORPHANED: u32 = 8;

/// Before Linux 6.15 nothing else can be set (`TCP_RTO_MAX_SEC` in net/tcp.h).
const LONGEST_RTO: Duration = Duration::from_secs(120);

/// The retransmission timeout of a connection whose round trip nobody has measured (`TCP_TIMEOUT_INIT` in net/tcp.h).
const UNMEASURED_RTO: Duration = Duration::from_secs(1);

impl Settings {
    /// Those of this thread's network namespace.
    pub(super) fn here() -> Self {
        let open = |name: &str| File::open(format!("/proc/sys/net/ipv4/{name}")).ok();
        Self {
            established: open("tcp_retries2"),
            orphaned: open("tcp_orphan_retries"),
            longest: open("tcp_rto_max_ms"),
        }
    }

    pub(super) fn retries(&self) -> Retries {
        // 0 stands for another number.
        let orphaned = read(self.orphaned.as_ref()).filter(|retries| *retries != 0);
        Retries {
            established: read(self.established.as_ref()).unwrap_or(ESTABLISHED),
            orphaned: orphaned.unwrap_or(ORPHANED),
            longest: read(self.longest.as_ref())
                .map_or(LONGEST_RTO, |most| Duration::from_millis(most.into())),
        }
    }
}

fn read(setting: Option<&File>) -> Option<u32> {
    let mut text = [0; 16];
    let length = setting?.read_at(&mut text, 0).ok()?;
    str::from_utf8(&text[..length]).ok()?.trim().parse().ok()
}

impl Retries {
    /// How long a connection waits for an acknowledgement whose first retransmission comes after `rto`, and how long it
    /// does as an orphan.
    fn waits(self, rto: Duration) -> [Duration; 2] {
        let lasts = |retries| retransmitting(rto, retries, self.longest);
        let established = lasts(self.established);
        [established, lasts(self.orphaned).min(established)]
    }

    /// How long a connection waits for an acknowledgement whose round trip nobody has measured.
    pub(super) fn waits_at_most(self) -> Duration {
        self.waits(UNMEASURED_RTO)[0]
    }

    /// The patience with a peer of a connection without a socket.
    pub(super) fn unmeasured(
        self,
        keep_alive: Option<KeepAlive>,
        user_timeout: Option<Duration>,
    ) -> Patience {
        let timeouts = Timeouts {
            retransmission: UNMEASURED_RTO,
            user: user_timeout,
            keep_alive,
        };
        timeouts.patience(self)
    }
}

/// What a socket was set to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    retransmission: Duration,
    /// `TCP_USER_TIMEOUT`
    user: Option<Duration>,
    keep_alive: Option<KeepAlive>,
}

impl Timeouts {
    /// A timer runs that sends, or reads them.
    pub(super) fn have_timers(&self) -> bool {
        self.user.is_some() || self.keep_alive.is_some()
    }

    /// `TCP_USER_TIMEOUT`, if it is set.
    pub(super) fn user(&self) -> Option<Duration> {
        self.user
    }

    pub(super) fn of(end: &Endpoint) -> Self {
        let user = sockopt::tcp_user_timeout(end).unwrap_or(0);
        let user = (user != 0).then(|| Duration::from_millis(user.into()));
        Self {
            retransmission: socket_option::retransmission_timeout(end).unwrap_or(UNMEASURED_RTO),
            user,
            keep_alive: keep_alive_of(end),
        }
    }

    /// Sets a socket so again, whose timers were ended.
    pub(super) fn restore(&self, end: &Endpoint) {
        // They have been set before.
        if let Some(user) = self.user {
            let _ = sockopt::set_tcp_user_timeout(end, user.as_millis() as u32);
        }
        if let Some(keep_alive) = self.keep_alive {
            let _ = sockopt::set_tcp_keepidle(end, keep_alive.idle);
            let _ = sockopt::set_tcp_keepintvl(end, keep_alive.interval);
            let _ = sockopt::set_tcp_keepcnt(end, keep_alive.probes);
        }
        // It may have been asked by a keep-alive that nobody had set.
        let _ = sockopt::set_socket_keepalive(end, self.keep_alive.is_some());
    }

    pub(super) fn patience(&self, retries: Retries) -> Patience {
        let [mut awaited, mut orphaned] = retries.waits(self.retransmission);
        let mut keep_alive = self.keep_alive;
        if let Some(timeout) = self.user {
            // It is counted from the first retransmission on (`tcp_clamp_rto_to_user_timeout`).
            awaited = self.retransmission + timeout;
            orphaned = orphaned.min(awaited);
            // The first probe without an answer after that time ends the connection, whatever their number
            // (`tcp_keepalive_timer`).
            if let Some(keep_alive) = &mut keep_alive {
                let left = timeout.saturating_sub(keep_alive.idle).as_secs_f64();
                let probes = (left / keep_alive.interval.as_secs_f64()).ceil();
                keep_alive.probes = (probes as u32).max(1);
            }
        }
        Patience {
            awaited,
            orphaned,
            keep_alive,
        }
    }
}

fn keep_alive_of(end: &Endpoint) -> Option<KeepAlive> {
    if !sockopt::socket_keepalive(end).unwrap_or(false) {
        return None;
    }
    Some(KeepAlive {
        idle: sockopt::tcp_keepidle(end).ok()?,
        interval: sockopt::tcp_keepintvl(end).ok()?,
        probes: sockopt::tcp_keepcnt(end).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use netlab::connection;

    use super::*;

    #[test]
    fn the_options_of_a_socket_count() {
        let (near, _far) = connection();
        let near = Endpoint::new(near).unwrap();
        let patience_of = |end| Timeouts::of(end).patience(Settings::here().retries());
        assert_eq!(patience_of(&near).keep_alive, None);
        sockopt::set_socket_keepalive(&near, true).unwrap();
        sockopt::set_tcp_keepidle(&near, Duration::from_secs(10)).unwrap();
        sockopt::set_tcp_keepintvl(&near, Duration::from_secs(4)).unwrap();
        sockopt::set_tcp_keepcnt(&near, 7).unwrap();
        let patience = patience_of(&near);
        let keep_alive = |probes| {
            Some(KeepAlive {
                idle: Duration::from_secs(10),
                interval: Duration::from_secs(4),
                probes,
            })
        };
        assert_eq!(patience.keep_alive, keep_alive(7));
        assert!(patience.orphaned < patience.awaited);
        for (timeout_ms, probes) in [(1_000, 1), (14_000, 1), (14_001, 2), (30_000, 5)] {
            sockopt::set_tcp_user_timeout(&near, timeout_ms).unwrap();
            let patience = patience_of(&near);
            assert_eq!(patience.keep_alive, keep_alive(probes), "{timeout_ms}");
            let rto = socket_option::retransmission_timeout(&near).unwrap();
            let timeout = Duration::from_millis(timeout_ms.into());
            assert_eq!(patience.awaited, rto + timeout);
        }
    }
}
