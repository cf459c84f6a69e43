//! How many live sessions each engine has.

use serde_json::{Map, Value};
use splice::EngineName;

use super::Sessions;

/// How many live sessions each engine has, and how many of them lose segments.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    /// In the order of [`EngineName::ALL`]; the last one has those without a pair.
    counts: [u64; EngineName::ALL.len() + 1],
    losing: u64,
    /// Why one of these does.
    why_losing: Option<String>,
}

impl Engines {
    /// Of these sessions, now.
    pub(crate) fn of(sessions: &Sessions) -> Self {
        let mut engines = Self::default();
        sessions.visit(|some| {
            for session in some {
                let (engine, lost) = session.engine();
                engines.add(engine, lost);
            }
        });
        engines
    }

    fn add(&mut self, engine: Option<EngineName>, lost: Option<String>) {
        let place = EngineName::ALL.iter().position(|it| Some(*it) == engine);
        self.counts[place.unwrap_or(EngineName::ALL.len())] += 1;
        if let Some(why) = lost {
            self.losing += 1;
            self.why_losing.get_or_insert(why);
        }
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
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_engine_has_its_count() {
        let mut engines = Engines::default();
        engines.add(None, None);
        engines.add(Some(EngineName::Segment), Some("one".into()));
        engines.add(Some(EngineName::Segment), Some("other".into()));
        engines.add(Some(EngineName::Copy), None);
        let mut answer = json!({});
        engines.tell(&mut answer);
        let expected = json!({
            "engines": {
                "copy": 1, "pipe": 0, "aio": 0, "uring": 0, "sockmap": 0, "segment": 2, "none": 1,
            },
            "losing_segments": 2,
            "why_losing_segments": "one",
        });
        assert_eq!(answer, expected);
    }
}
