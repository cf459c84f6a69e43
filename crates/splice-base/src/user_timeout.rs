//! How long a TCP peer may leave bytes unacknowledged.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::error::{Error, ErrorKind, Result, ResultExt as _};

/// The longest time that a socket takes, in milliseconds: it refuses what is negative as an `int`
/// (`do_tcp_setsockopt`, 6.18).
const MOST_MS: u32 = i32::MAX.unsigned_abs();

/// How long bytes may stay unacknowledged before TCP gives the connection up
/// (`TCP_USER_TIMEOUT`). With keep-alive it also replaces the number of probes (tcp(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserTimeout {
    milliseconds: u32,
}

impl UserTimeout {
    /// As long as the system retransmits (`net.ipv4.tcp_retries2`).
    pub const SYSTEM: Self = Self { milliseconds: 0 };

    /// Zero is [`SYSTEM`](Self::SYSTEM).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a part of a millisecond, or for more than 2147483647 ms.
    pub fn new(time: Duration) -> Result<Self> {
        let is_whole = time.subsec_nanos().is_multiple_of(1_000_000);
        let milliseconds = u32::try_from(time.as_millis()).ok();
        match milliseconds.filter(|milliseconds| is_whole && *milliseconds <= MOST_MS) {
            Some(milliseconds) => Ok(Self { milliseconds }),
            None => {
                let why = format!(
                    "the user timeout cannot be {time:?}; use whole milliseconds up to \
                     {MOST_MS}ms (24 days), or 0s for the system's"
                );
                Err(Error::new(ErrorKind::InvalidOption, why))
            }
        }
    }

    /// How long it is, if it is not the system's.
    pub fn time(self) -> Option<Duration> {
        let milliseconds = u64::from(self.milliseconds);
        (milliseconds != 0).then(|| Duration::from_millis(milliseconds))
    }

    /// Sets it on a TCP socket. A socket that listens passes it on to those that it accepts
    /// (`inet_csk_clone_lock`).
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the socket does not take it, as one of Multipath TCP.
    pub fn set_on(self, socket: impl AsFd) -> Result<()> {
        sockopt::set_tcp_user_timeout(socket, self.milliseconds)
            .context("cannot set TCP_USER_TIMEOUT")
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_the_kernel_does_not_have_is_refused() {
        for time in [
            Duration::from_micros(1500),
            Duration::from_millis(u64::from(MOST_MS) + 1),
            Duration::MAX,
        ] {
            let error = UserTimeout::new(time).expect_err("it is out of bounds");
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            let text = error.to_string();
            assert!(
                text.contains("whole milliseconds up to 2147483647ms"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_socket_takes_every_bound() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("it listens");
        for milliseconds in [1, MOST_MS, 0] {
            let time = Duration::from_millis(milliseconds.into());
            let timeout = UserTimeout::new(time).expect("within the bounds");
            timeout.set_on(&socket).expect("set");
            assert_eq!(sockopt::tcp_user_timeout(&socket), Ok(milliseconds));
        }
        assert_eq!(
            UserTimeout::new(Duration::ZERO).unwrap(),
            UserTimeout::SYSTEM
        );
    }
}
