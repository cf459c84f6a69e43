//! When the sockets of a connection take a peer for gone that says nothing: keep-alive and TCP_USER_TIMEOUT.

use std::os::fd::AsFd;

use splice::{KeepAlive, KeepAliveTimes, UserTimeout};

use crate::time_text::duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerTimeouts {
    pub(crate) keepalive: KeepAlive,
    pub(crate) user_timeout: UserTimeout,
}

impl Default for PeerTimeouts {
    /// Keep-alive with the system's times, as every TCP socket of the relay has from the start.
    fn default() -> Self {
        Self {
            keepalive: KeepAlive::On(KeepAliveTimes::SYSTEM),
            user_timeout: UserTimeout::SYSTEM,
        }
    }
}

impl PeerTimeouts {
    /// Sets them on a TCP socket that has the default, which costs no system call for what stays.
    pub(crate) fn set_on_new(self, socket: impl AsFd) -> splice::Result<()> {
        let default = Self::default();
        if self.keepalive != default.keepalive {
            self.keepalive.set_on(&socket)?;
        }
        if self.user_timeout != default.user_timeout {
            self.user_timeout.set_on(&socket)?;
        }
        Ok(())
    }

    /// Sets them on a TCP socket that may have had others.
    pub(crate) fn replace_on(self, socket: impl AsFd) -> splice::Result<()> {
        let keepalive = match self.keepalive {
            KeepAlive::On(times) => KeepAlive::On(times.with_systems()?),
            other => other,
        };
        keepalive.set_on(&socket)?;
        self.user_timeout.set_on(&socket)
    }
}

/// The value of `--keepalive`: `IDLE[,INTERVAL[,PROBES]]` or `off`.
pub(crate) fn keepalive(text: &str) -> Result<KeepAlive, String> {
    if text == "off" {
        return Ok(KeepAlive::Off);
    }
    let mut parts = text.split(',').map(str::trim);
    let mut time = || parts.next().map(duration).transpose();
    let (idle, interval) = (time()?, time()?);
    let probes = parts.next().map(|part| {
        let not_a_number = |_| format!("{part:?} is not a number of probes; write 1 to 127");
        part.parse().map_err(not_a_number)
    });
    if parts.next().is_some() {
        return Err("it has more than three parts; write IDLE,INTERVAL,PROBES".into());
    }
    let times = KeepAliveTimes::new(idle, interval, probes.transpose()?);
    times.map(KeepAlive::On).map_err(|error| error.to_string())
}

/// The value of `--user-timeout`.
pub(crate) fn user_timeout(text: &str) -> Result<UserTimeout, String> {
    UserTimeout::new(duration(text)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn keepalive_has_up_to_three_parts() {
        let [thirty, ten] = [30, 10].map(|seconds| Some(Duration::from_secs(seconds)));
        let on = |times: splice::Result<KeepAliveTimes>| KeepAlive::On(times.expect("in bounds"));
        for (text, expected) in [
            ("off", KeepAlive::Off),
            ("30s", on(KeepAliveTimes::new(thirty, None, None))),
            ("30s,10s", on(KeepAliveTimes::new(thirty, ten, None))),
            ("30s, 10s, 3", on(KeepAliveTimes::new(thirty, ten, Some(3)))),
        ] {
            assert_eq!(keepalive(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "on",
            "30",
            "30s,",
            "30s,10s,x",
            "30s,10s,3,4",
            "30s,10s,0",
        ] {
            assert!(keepalive(text).is_err(), "{text}");
        }
    }
}
