//! What the filters would do with a pair, and why one is not admitted.

use std::io;

use rustix::io::Errno;
use splice_base::error::Error;
use splice_base::shortage::is_shortage;
use splice_firewall::HookCounts;

/// The filters' verdict on a pair, with a reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Accepts,
    Stops(String),
    Unknown(String),
    /// The filters could not be read.
    Unread(String),
    /// The filters do not account for these hooks.
    Unaccounted(HookCounts, String),
    /// A device is.
    Gone(String),
    /// Something is short for the moment, so that they cannot be asked.
    Short(String),
}

impl Judgement {
    /// That of filters about which something cannot be read.
    pub(super) fn unknown(error: &Error) -> Self {
        Self::without(error.errno(), error.to_string())
    }

    /// The same for a device.
    pub(super) fn unknown_on(device: &str, what: &str, error: &io::Error) -> Self {
        let why = format!("{what} {device}: {error}");
        Self::without(Errno::from_io_error(error), why)
    }

    fn without(errno: Option<Errno>, why: String) -> Self {
        match errno.is_some_and(is_shortage) {
            true => Self::Short(why),
            false => Self::Unknown(why),
        }
    }

    /// The verdict on a pair, of whose connections one is judged so, and another one like this. None is known yet where
    /// something is short.
    pub(super) fn join(self, other: Self) -> Self {
        match (self, other) {
            (stops @ Self::Stops(_), _) | (_, stops @ Self::Stops(_)) => stops,
            (one, Self::Accepts) => one,
            (Self::Accepts | Self::Short(_), other) => other,
            (one, Self::Short(_)) => one,
            (_, other) => other,
        }
    }

    /// The reason; of a pair that may pass there is none.
    pub(super) fn into_words(self) -> String {
        match self {
            Self::Accepts => String::new(),
            Self::Stops(why)
            | Self::Unknown(why)
            | Self::Unread(why)
            | Self::Gone(why)
            | Self::Short(why)
            | Self::Unaccounted(_, why) => why,
        }
    }
}

/// Why a pair is not admitted.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The reason.
    Because(String),
    /// The filters are being read: ask again soon.
    NotYet,
    /// Something is short for the moment: ask again later.
    Short,
}

#[cfg(test)]
mod tests {
    use splice_base::error::ErrorKind;

    use super::*;

    #[test]
    fn a_shortage_hides_no_reason() {
        let short = || Judgement::Short("short".into());
        for other in [
            Judgement::Stops("a rule".into()),
            Judgement::Unknown("a rule".into()),
            Judgement::Unread("they change".into()),
        ] {
            assert_eq!(short().join(other.clone()), other);
            assert_eq!(other.clone().join(short()), other);
        }
        assert_eq!(short().join(Judgement::Accepts), short());
        assert_eq!(Judgement::Accepts.join(short()), short());
    }

    #[test]
    fn a_shortage_is_told_from_what_cannot_be_read() {
        let of = |errno: Errno| {
            let error = Error::new(ErrorKind::BpfRefused, "no answer").with_source(errno);
            Judgement::unknown(&error)
        };
        assert!(matches!(of(Errno::NOMEM), Judgement::Short(_)));
        assert!(matches!(of(Errno::PERM), Judgement::Unknown(_)));
    }
}
