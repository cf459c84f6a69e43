//! What became of the segments that went through the engine `segment`.

use std::fmt;

use splice::doctor::segment_counts;

use crate::results::count;

/// The names of segments that take the way the engine is meant for.
const ORDINARY: [&str; 3] = ["translated", "own_copies", "forward_opened"];

/// Numbers of segments by the names of docs/segment.md, in all relays of the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentCounts(pub(crate) Vec<(&'static str, u64)>);

impl SegmentCounts {
    /// Since each relay loaded its program. Fails without CAP_SYS_ADMIN.
    pub(crate) fn now() -> splice::Result<Self> {
        segment_counts().map(Self)
    }

    /// The counts that have grown since `before`, by how much. A relay that has ended took its own away.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let grown = self.0.iter().filter_map(|&(name, after)| {
            let growth = after.saturating_sub(before.of(name));
            (growth > 0).then_some((name, growth))
        });
        Self(grown.collect())
    }

    /// Whether a relay has ended since `before`, whose counts are no longer in the sum.
    fn fell_since(&self, before: &Self) -> bool {
        before
            .0
            .iter()
            .any(|&(name, segments)| self.of(name) < segments)
    }

    pub(crate) fn add(&mut self, more: &Self) {
        for &(name, segments) in &more.0 {
            match self.0.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += segments,
                None => self.0.push((name, segments)),
            }
        }
    }

    /// Those that were not simply translated or copied.
    pub(crate) fn unusual(&self) -> Option<Self> {
        let unusual = self.0.iter().filter(|(name, _)| !ORDINARY.contains(name));
        let unusual: Vec<_> = unusual.copied().collect();
        (!unusual.is_empty()).then_some(Self(unusual))
    }

    fn of(&self, name: &str) -> u64 {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map_or(0, |&(_, segments)| segments)
    }
}

/// The growth of the counts while other relays may end.
#[derive(Debug)]
pub(crate) struct Growth {
    last: SegmentCounts,
    grown: SegmentCounts,
}

impl Growth {
    pub(crate) fn from(now: SegmentCounts) -> Self {
        Self {
            last: now,
            grown: SegmentCounts::default(),
        }
    }

    /// Takes the next reading. What grew up to one that a relay's end has made smaller is not known.
    pub(crate) fn follow(&mut self, now: SegmentCounts) {
        if !now.fell_since(&self.last) {
            self.grown.add(&now.since(&self.last));
        }
        self.last = now;
    }

    pub(crate) fn all(self) -> SegmentCounts {
        self.grown
    }
}

impl fmt::Display for SegmentCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, segments)) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(out, "{comma}{name} {}", count(*segments))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Growth, SegmentCounts};

    #[test]
    fn only_what_grew_is_told_and_the_unusual_apart() {
        let before = SegmentCounts(vec![("translated", 5), ("gone", 9), ("expired", 2)]);
        let after = [
            ("translated", 8),
            ("own_copies", 1),
            ("gone", 3),
            ("expired", 4),
        ];
        let mut grown = SegmentCounts(after.into()).since(&before);
        assert_eq!(grown.to_string(), "translated 3, own_copies 1, expired 2");
        grown.add(&SegmentCounts(vec![("expired", 1), ("reused", 1)]));
        let unusual = grown.unusual().expect("there are some");
        assert_eq!(unusual.to_string(), "expired 3, reused 1");
        assert!(SegmentCounts(vec![("translated", 1)]).unusual().is_none());
    }

    #[test]
    fn a_relay_that_ends_does_not_hide_what_grows() {
        let reading = |translated| SegmentCounts(vec![("translated", translated)]);
        let mut growth = Growth::from(reading(1_000));
        for translated in [1_001, 2, 5, 9] {
            growth.follow(reading(translated));
        }
        assert_eq!(growth.all().to_string(), "translated 8");
    }
}
