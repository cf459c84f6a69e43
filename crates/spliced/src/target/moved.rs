//! A name that has other addresses than before.

use std::collections::BTreeSet;
use std::fmt;

use crate::socket_address::SocketAddress;

/// So many addresses of an answer are named.
const NAMED_MOST: usize = 4;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    now: String,
    before: String,
}

impl Moved {
    /// `None` if the addresses are the same, in whatever order: name servers turn it. A first answer moves nothing.
    pub(super) fn between(before: &[SocketAddress], now: &[SocketAddress]) -> Option<Self> {
        let [before, now] = [before, now].map(shown);
        (!before.is_empty() && before != now).then(|| Self {
            now: listed(&now),
            before: listed(&before),
        })
    }
}

/// "10.0.0.2 now instead of 10.0.0.1".
impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} now instead of {}", self.now, self.before)
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
