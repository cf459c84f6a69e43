//! How many live sessions each engine has.

use serde_json::{Map, Value};
use splice::EngineName;

use super::Sessions;

/// Who moves the bytes of a session, and what is wrong with that.
#[derive(Clone, Debug, Default)]
pub(super) struct Carried {
    /// `None` without a pair.
    pub(super) engine: Option<EngineName>,
    /// Why it loses segments now.
    pub(super) lost: Option<String>,
    /// Why an engine in the kernel has not taken the pair, or has given it back.
    pub(super) refused: Option<String>,
}

/// How many live sessions each engine has, how many of them lose segments, and how many were refused by an engine in the
/// kernel.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    /// In the order of [`EngineName::ALL`]; the last one has those without a pair.
    counts: [u64; EngineName::ALL.len() + 1],
    losing: u64,
    /// Why one of these does.
    why_losing: Option<String>,
    refused: u64,
    /// Why the youngest of these was.
    why_refused: Option<String>,
}

impl Engines {
    /// Of these sessions, now.
    pub(crate) fn of(sessions: &Sessions) -> Self {
        let mut engines = Self::default();
        sessions.visit(|some| {
            for session in some {
                engines.add(session.engine());
            }
        });
        engines
    }

    fn add(&mut self, carried: Carried) {
        let Carried {
            engine,
            lost,
            refused,
        } = carried;
        let place = EngineName::ALL.iter().position(|it| Some(*it) == engine);
        self.counts[place.unwrap_or(EngineName::ALL.len())] += 1;
        if let Some(why) = lost {
            self.losing += 1;
            self.why_losing.get_or_insert(why);
        }
        if let Some(why) = refused {
            self.refused += 1;
            self.why_refused = Some(why);
        }
    }

    /// Adds sessions that are copied, and are not among those that are counted one by one.
    pub(crate) fn add_copied(&mut self, count: u64) {
        let place = EngineName::ALL
            .iter()
            .position(|it| *it == EngineName::Copy);
        self.counts[place.unwrap_or(EngineName::ALL.len())] += count;
    }

    /// Adds its fields to an answer.
    pub(crate) fn tell(self, answer: &mut Value) {
        let names = EngineName::ALL.map(EngineName::as_str);
        let names = names.into_iter().chain(["none"]);
        let counts: Map<_, _> = names
            .zip(self.counts)
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        answer["engines"] = counts.into();
        answer["losing_segments"] = self.losing.into();
        answer["why_losing_segments"] = self.why_losing.into();
        answer["not_spliced"] = self.refused.into();
        answer["why_not_spliced"] = self.why_refused.into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_engine_has_its_count() {
        let mut engines = Engines::default();
        let carried = |engine, lost: Option<&str>, refused: Option<&str>| Carried {
            engine,
            lost: lost.map(Into::into),
            refused: refused.map(Into::into),
        };
        engines.add(carried(None, None, None));
        engines.add(carried(Some(EngineName::Segment), Some("one"), None));
        engines.add(carried(Some(EngineName::Segment), Some("other"), None));
        engines.add(carried(Some(EngineName::Copy), None, Some("a filter")));
        let mut answer = json!({});
        engines.tell(&mut answer);
        let expected = json!({
            "engines": {
                "copy": 1, "pipe": 0, "aio": 0, "uring": 0, "sockmap": 0, "segment": 2, "none": 1,
            },
            "losing_segments": 2,
            "why_losing_segments": "one",
            "not_spliced": 1,
            "why_not_spliced": "a filter",
        });
        assert_eq!(answer, expected);
    }
}
