//! Which engines have how many sessions, and why no faster one has them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::super::rated::Rated;

/// All sessions of an engine, or those of them with the same reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// `None` before a server is connected.
    pub(super) engine: Option<String>,
    /// `None` for all of the engine.
    pub(super) why: Option<String>,
    pub(super) sessions: usize,
    pub(super) bytes_per_second: u64,
    pub(super) bytes: u64,
}

impl Share {
    fn add(&mut self, one: &Rated) {
        self.sessions += 1;
        self.bytes_per_second += one.bytes_per_second();
        self.bytes += one.bytes();
    }
}

/// The engine with the most sessions first, and behind each one its reasons, the most frequent one first.
pub(super) fn shares(sessions: &[&Rated]) -> Vec<Share> {
    let mut engines: BTreeMap<_, BTreeMap<_, Share>> = BTreeMap::new();
    for one in sessions {
        let reasons = engines.entry(&one.row.engine).or_default();
        // `None` is before all reasons.
        for why in [None, Some(&one.row.why_engine)] {
            reasons.entry(why).or_default().add(one);
        }
    }
    let groups = engines.into_iter().map(|(engine, reasons)| {
        let shares = reasons.into_iter().map(|(why, share)| Share {
            engine: engine.clone(),
            why: why.cloned(),
            ..share
        });
        let mut group: Vec<_> = shares.collect();
        group.sort_by_key(|share| (share.why.is_some(), Reverse(share.sessions)));
        group
    });
    let mut groups: Vec<_> = groups.collect();
    groups.sort_by_key(|group| Reverse(group.first().map(|all| all.sessions)));
    groups.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::rated::rated;
    use crate::command::rated::tests::row;

    #[test]
    fn sessions_are_counted_by_engine_and_reason() {
        let rows = [
            (Some("copy"), "a filter logs"),
            (Some("segment"), "it moves in the kernel"),
            (Some("copy"), "a filter marks"),
            (None, "no server is connected yet"),
            (Some("copy"), "a filter marks"),
        ];
        let rows = rows.into_iter().zip(1..).map(|((engine, why), id)| {
            let (of, mut row) = row(id, 1000.0, 10, 5);
            row.engine = engine.map(Into::into);
            row.why_engine = why.into();
            (of, row)
        });
        let sessions = rated([], rows.collect());
        let shares = shares(&sessions.iter().collect::<Vec<_>>());
        let shown: Vec<_> = shares
            .iter()
            .map(|share| {
                let texts = (share.engine.as_deref(), share.why.as_deref());
                (texts, share.sessions, share.bytes_per_second, share.bytes)
            })
            .collect();
        let none = "no server is connected yet";
        let segment = "it moves in the kernel";
        assert_eq!(
            shown,
            [
                ((Some("copy"), None), 3, 45, 45),
                ((Some("copy"), Some("a filter marks")), 2, 30, 30),
                ((Some("copy"), Some("a filter logs")), 1, 15, 15),
                ((None, None), 1, 15, 15),
                ((None, Some(none)), 1, 15, 15),
                ((Some("segment"), None), 1, 15, 15),
                ((Some("segment"), Some(segment)), 1, 15, 15),
            ]
        );
    }
}
