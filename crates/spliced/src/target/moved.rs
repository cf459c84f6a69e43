//! A name that has other addresses than before.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use crate::socket_address::SocketAddress;

/// So many addresses of an answer are named.
const NAMED_MOST: usize = 4;

/// The least time between two lines about one name: some name servers give other addresses to each question.
const TOLD_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    now: String,
    before: String,
    /// How often it has moved in between.
    more: u64,
}

/// The moves of one name, of which not all are told.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    told_at: Option<Instant>,
    /// What has not been told.
    held: Option<Moved>,
}

impl Moves {
    /// There is an answer, by which the name has moved or not. Returns what is to be told now: what was held back as well,
    /// but nothing of a name that is where it was when it was last told of.
    pub(super) fn answered(&mut self, moved: Option<Moved>, now: Instant) -> Option<Moved> {
        self.held = match (self.held.take(), moved) {
            (Some(held), Some(moved)) => Some(Moved {
                now: moved.now,
                before: held.before,
                more: held.more + 1,
            }),
            (held, moved) => held.or(moved),
        };
        let is_recent = |at: Instant| now.saturating_duration_since(at) < TOLD_EVERY;
        if self.held.is_none() || self.told_at.is_some_and(is_recent) {
            return None;
        }
        let told = self.held.take_if(|held| held.now != held.before)?;
        self.told_at = Some(now);
        Some(told)
    }
}

impl Moved {
    /// `None` if the addresses are the same, in whatever order: name servers turn it. A first answer moves nothing.
    pub(super) fn between(before: &[SocketAddress], now: &[SocketAddress]) -> Option<Self> {
        let [before, now] = [before, now].map(shown);
        (!before.is_empty() && before != now).then(|| Self {
            now: listed(&now),
            before: listed(&before),
            more: 0,
        })
    }
}

/// "10.0.0.2 now instead of 10.0.0.1 (3 more changes since the last line)".
impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} now instead of {}", self.now, self.before)?;
        match self.more {
            0 => Ok(()),
            1 => f.write_str(" (1 more change since the last line)"),
            more => write!(f, " ({more} more changes since the last line)"),
        }
    }
}

/// Without the port, which the name has, too.
fn shown(addresses: &[SocketAddress]) -> BTreeSet<String> {
    let shown = addresses.iter().map(|address| match address {
        SocketAddress::Inet(address) => address.ip().to_string(),
        other => other.to_string(),
    });
    shown.collect()
}

fn listed(addresses: &BTreeSet<String>) -> String {
    let named: Vec<_> = addresses.iter().take(NAMED_MOST).cloned().collect();
    let named = named.join(", ");
    match addresses.len().saturating_sub(NAMED_MOST) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(last: impl IntoIterator<Item = u8>) -> Vec<SocketAddress> {
        let addresses = last
            .into_iter()
            .map(|last| SocketAddress::Inet(([10, 0, 0, last], 80).into()));
        addresses.collect()
    }

    /// The last word is told in any case, if it differs from what was told.
    #[test]
    fn a_name_that_moves_all_the_time_is_told_of_once_a_minute() {
        let mut moves = Moves::default();
        let began = Instant::now();
        let mut after = |seconds: u64, moved: Option<(u8, u8)>| {
            let moved = moved.map(|(before, now)| {
                Moved::between(&addresses([before]), &addresses([now])).expect("another one")
            });
            let told = moves.answered(moved, began + Duration::from_secs(seconds));
            told.map(|told| told.to_string())
        };
        let says = |text: &str| Some(text.to_owned());
        assert_eq!(after(0, None), None);
        let first = "10.0.0.2 now instead of 10.0.0.1";
        assert_eq!(after(1, Some((1, 2))), says(first));
        assert_eq!(after(2, Some((2, 3))), None);
        assert_eq!(after(3, Some((3, 4))), None);
        assert_eq!(after(60, None), None);
        let held = "10.0.0.4 now instead of 10.0.0.2 (1 more change since the last line)";
        assert_eq!(after(61, None), says(held));
        assert_eq!(after(62, Some((4, 5))), None);
        assert_eq!(after(63, Some((5, 4))), None);
        assert_eq!(after(200, None), None);
        let later = "10.0.0.6 now instead of 10.0.0.4 (2 more changes since the last line)";
        assert_eq!(after(201, Some((4, 6))), says(later));
        assert_eq!(after(300, None), None);
    }

    #[test]
    fn only_other_addresses_are_told_and_long_lists_are_cut() {
        for (before, now, told) in [
            (vec![], vec![1], None),
            (vec![1, 2], vec![2, 1], None),
            (vec![1], vec![2], Some("10.0.0.2 now instead of 10.0.0.1")),
            (
                vec![2, 1],
                vec![1],
                Some("10.0.0.1 now instead of 10.0.0.1, 10.0.0.2"),
            ),
            (
                vec![1],
                (2..=9).collect(),
                Some("10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5 and 4 more now instead of 10.0.0.1"),
            ),
        ] {
            let moved = Moved::between(&addresses(before), &addresses(now));
            assert_eq!(moved.map(|moved| moved.to_string()).as_deref(), told);
        }
    }
}
