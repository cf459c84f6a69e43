//! TCP keep-alive: whether and when a silent peer is asked for a sign of life.

use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::error::{Error, ErrorKind, Result, ResultExt as _};

/// The times that the kernel accepts, in seconds (`MAX_TCP_KEEPIDLE` and `MAX_TCP_KEEPINTVL` in
/// net/tcp.h).
const SECONDS: RangeInclusive<u64> = 1..=32_767;

/// The numbers of probes that it accepts (`MAX_TCP_KEEPCNT`).
const PROBES: RangeInclusive<u32> = 1..=127;

/// TCP keep-alive of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepAlive {
    /// Leaves the socket as it is.
    #[default]
    Unchanged,
    /// A silent peer is never asked.
    Off,
    /// A silent peer is asked after these times.
    On(KeepAliveTimes),
}

/// When a silent peer is asked for a sign of life, and how often. What is left out stays as the
/// socket has it. A new socket has the system's value (`net.ipv4.tcp_keepalive_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepAliveTimes {
    idle_seconds: Option<u16>,
    interval_seconds: Option<u16>,
    probes: Option<u32>,
}

impl KeepAliveTimes {
    /// The system's values.
    pub const SYSTEM: Self = Self {
        idle_seconds: None,
        interval_seconds: None,
        probes: None,
    };

    /// After `idle` without a segment the peer is asked (`TCP_KEEPIDLE`), then every `interval`
    /// (`TCP_KEEPINTVL`). If `probes` of these stay without an answer (`TCP_KEEPCNT`), the peer
    /// counts as gone.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] if the kernel does not have this value: times are whole seconds
    /// from 1 to 32767, probes 1 to 127.
    pub fn new(
        idle: Option<Duration>,
        interval: Option<Duration>,
        probes: Option<u32>,
    ) -> Result<Self> {
        let seconds = |what, time: Option<Duration>| time.map(|time| seconds(what, time));
        if let Some(probes) = probes.filter(|probes| !PROBES.contains(probes)) {
            let why = format!(
                "the number of keep-alive probes cannot be {probes}; use {} to {}",
                PROBES.start(),
                PROBES.end()
            );
            return Err(Error::new(ErrorKind::InvalidOption, why));
        }
        Ok(Self {
            idle_seconds: seconds("idle time", idle).transpose()?,
            interval_seconds: seconds("interval", interval).transpose()?,
            probes,
        })
    }

    /// How long a peer is silent before it is asked; `None`: not set here.
    pub fn idle(&self) -> Option<Duration> {
        self.idle_seconds.map(whole)
    }

    /// The time between two probes; `None`: not set here.
    pub fn interval(&self) -> Option<Duration> {
        self.interval_seconds.map(whole)
    }

    /// How many probes stay without an answer before the peer counts as gone; `None`: not set here.
    pub fn probes(&self) -> Option<u32> {
        self.probes
    }

    /// These times with the system's values for what is left out, as a new socket of this thread's
    /// network namespace has them. A socket that had other times gets rid of them only so: the
    /// kernel has no value that stands for its own.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if no socket can be created; [`ErrorKind::InvalidOption`] if the
    /// system's value is one that no socket accepts.
    pub fn with_systems(self) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            .context("cannot create a socket to read the system's keep-alive times")?;
        let unreadable = "cannot read the system's keep-alive times";
        Self::new(
            Some(match self.idle() {
                Some(idle) => idle,
                None => sockopt::tcp_keepidle(&socket).context(unreadable)?,
            }),
            Some(match self.interval() {
                Some(interval) => interval,
                None => sockopt::tcp_keepintvl(&socket).context(unreadable)?,
            }),
            Some(match self.probes {
                Some(probes) => probes,
                None => sockopt::tcp_keepcnt(&socket).context(unreadable)?,
            }),
        )
    }
}

impl KeepAlive {
    /// Sets it on a TCP socket. A socket that listens passes it on to those that it accepts
    /// (`tcp_create_openreq_child`).
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the socket does not take it, as one of Multipath TCP on an older
    /// kernel.
    pub fn set_on(self, socket: impl AsFd) -> Result<()> {
        let times = match self {
            Self::Unchanged => return Ok(()),
            Self::Off => {
                return sockopt::set_socket_keepalive(socket, false)
                    .context("cannot clear SO_KEEPALIVE");
            }
            Self::On(times) => times,
        };
        // The times first: the option starts the timer.
        if let Some(idle) = times.idle() {
            sockopt::set_tcp_keepidle(&socket, idle).context("cannot set TCP_KEEPIDLE")?;
        }
        if let Some(interval) = times.interval() {
            sockopt::set_tcp_keepintvl(&socket, interval).context("cannot set TCP_KEEPINTVL")?;
        }
        if let Some(probes) = times.probes {
            sockopt::set_tcp_keepcnt(&socket, probes).context("cannot set TCP_KEEPCNT")?;
        }
        sockopt::set_socket_keepalive(&socket, true).context("cannot set SO_KEEPALIVE")
    }
}

fn whole(seconds: u16) -> Duration {
    Duration::from_secs(seconds.into())
}

fn seconds(what: &str, time: Duration) -> Result<u16> {
    let fits = time.subsec_nanos() == 0 && SECONDS.contains(&time.as_secs());
    let seconds = u16::try_from(time.as_secs()).ok().filter(|_| fits);
    seconds.ok_or_else(|| {
        let why = format!(
            "the keep-alive {what} cannot be {time:?}; use whole seconds from {}s to {}s",
            SECONDS.start(),
            SECONDS.end()
        );
        Error::new(ErrorKind::InvalidOption, why)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_the_kernel_does_not_have_is_refused() {
        let idle = |time| KeepAliveTimes::new(Some(time), None, None);
        let interval = |time| KeepAliveTimes::new(None, Some(time), None);
        for (refused, part) in [
            (idle(Duration::ZERO), "idle time cannot be 0ns"),
            (
                idle(Duration::from_millis(1500)),
                "idle time cannot be 1.5s",
            ),
            (
                idle(Duration::from_secs(32_768)),
                "whole seconds from 1s to 32767s",
            ),
            (interval(Duration::from_millis(1)), "interval cannot be 1ms"),
            (
                KeepAliveTimes::new(None, None, Some(0)),
                "probes cannot be 0; use 1 to 127",
            ),
            (
                KeepAliveTimes::new(None, None, Some(128)),
                "probes cannot be 128",
            ),
        ] {
            let error = refused.expect_err("it is out of bounds");
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn a_socket_takes_every_bound() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("it listens");
        for (seconds, probes) in [(1, 1), (32_767, 127)] {
            let time = Duration::from_secs(seconds);
            let times = KeepAliveTimes::new(Some(time), Some(time), Some(probes));
            let times = times.expect("within the bounds");
            KeepAlive::On(times).set_on(&socket).expect("set");
            assert_eq!(sockopt::socket_keepalive(&socket), Ok(true));
            assert_eq!(sockopt::tcp_keepidle(&socket), Ok(time));
            assert_eq!(sockopt::tcp_keepintvl(&socket), Ok(time));
            assert_eq!(sockopt::tcp_keepcnt(&socket), Ok(probes));
        }
        KeepAlive::Off.set_on(&socket).expect("cleared");
        assert_eq!(sockopt::socket_keepalive(&socket), Ok(false));
        KeepAlive::Unchanged.set_on(&socket).expect("nothing to do");
        assert_eq!(sockopt::socket_keepalive(&socket), Ok(false));
    }

    #[test]
    fn a_socket_gets_the_systems_values_back() {
        let times = |socket: &TcpListener| {
            let idle = sockopt::tcp_keepidle(socket).expect("TCP_KEEPIDLE");
            let interval = sockopt::tcp_keepintvl(socket).expect("TCP_KEEPINTVL");
            (idle, interval, sockopt::tcp_keepcnt(socket))
        };
        let [socket, untouched] =
            [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("it listens"));
        let time = Some(Duration::from_secs(11));
        let own = KeepAliveTimes::new(time, time, Some(2)).expect("within the bounds");
        KeepAlive::On(own).set_on(&socket).expect("set");
        assert_ne!(times(&socket), times(&untouched));
        let systems = KeepAliveTimes::SYSTEM.with_systems().expect("known");
        KeepAlive::On(systems).set_on(&socket).expect("set");
        assert_eq!(times(&socket), times(&untouched));
        // What is given stays.
        assert_eq!(own.with_systems().expect("known"), own);
    }
}
