//! What a program asks for: `struct splice`.

use std::os::fd::RawFd;
use std::time::Duration;

use splice::IdleTimer;

/// The fields of `struct splice`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `sp_fd`: the drain; negative to undo.
    pub drain: RawFd,
    /// `sp_max`, in bytes; 0 for no limit.
    pub max_bytes: i64,
    /// `sp_idle.tv_sec`.
    pub idle_seconds: i64,
    /// `sp_idle.tv_usec`.
    pub idle_microseconds: i64,
}

impl Request {
    /// The size of `struct splice` where pointers have 64 bits, in bytes: an `int`, four bytes of
    /// padding, an `off_t`, and a `struct timeval` of two 64-bit fields.
    pub const BYTES: usize = 32;

    /// Reads `struct splice`.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let [first, max, seconds, microseconds] = words else {
            unreachable!("32 bytes are four words")
        };
        let [one, two, three, four, ..] = *first;
        Self {
            drain: RawFd::from_ne_bytes([one, two, three, four]),
            max_bytes: i64::from_ne_bytes(*max),
            idle_seconds: i64::from_ne_bytes(*seconds),
            idle_microseconds: i64::from_ne_bytes(*microseconds),
        }
    }

    /// Only a drain.
    pub fn to(drain: RawFd) -> Self {
        Self {
            drain,
            ..Self::default()
        }
    }

    pub(crate) fn byte_limit(&self) -> Option<u64> {
        u64::try_from(self.max_bytes).ok().filter(|max| *max > 0)
    }

    /// Whether `sp_idle` is a time (`timerisvalid`).
    pub(crate) fn has_valid_idle(&self) -> bool {
        self.idle_seconds >= 0 && (0..1_000_000).contains(&self.idle_microseconds)
    }

    /// The timer, unless it is zero or, where nobody checks it, no time.
    pub(crate) fn idle_timer(&self, restarts: bool) -> Option<IdleTimer> {
        let after = Duration::from_secs(u64::try_from(self.idle_seconds).ok()?).checked_add(
            Duration::from_micros(u64::try_from(self.idle_microseconds).ok()?),
        )?;
        (!after.is_zero()).then_some(IdleTimer { after, restarts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_lie_where_c_has_them() {
        let mut bytes = [0xff; Request::BYTES];
        bytes[..4].copy_from_slice(&7i32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&(1i64 << 40).to_ne_bytes());
        bytes[16..24].copy_from_slice(&3i64.to_ne_bytes());
        bytes[24..].copy_from_slice(&250_000i64.to_ne_bytes());
        let request = Request::from_bytes(&bytes);
        assert_eq!((request.drain, request.byte_limit()), (7, Some(1 << 40)));
        let after = Duration::from_millis(3250);
        let restarts = true;
        assert_eq!(
            request.idle_timer(true),
            Some(IdleTimer { after, restarts })
        );
    }

    #[test]
    fn zero_is_no_limit_and_no_timer() {
        let request = Request::to(3);
        assert_eq!(
            (request.byte_limit(), request.idle_timer(true)),
            (None, None)
        );
        assert!(request.has_valid_idle());
    }
}
