//! How old an answer of the resolver is, and what that means for a connection. No clock.
//!
//! ```text
//!         answered              ASKED_AFTER             STALE_AFTER                TOO_OLD_AFTER
//! unknown ───────▶ fresh ───────────▶ fresh, asked for ───────▶ stale ───────────────────▶ too old
//!    ▲             used               used                      used, if the next one      not used: the next one
//!    │                                                          is not there at once       is waited for
//!    └──────────────────────────────────────no answer────────────────────────────────────────┘
//! ```

use std::time::{Duration, Instant};

/// How long an answer is fresh: a busy relay asks seldom, and still follows a target that moves before its users
/// complain.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// A busy relay asks before the answer is stale, so that none of its clients waits.
const ASKED_AFTER: Duration = Duration::from_secs(4);

/// How old an answer may become. getaddrinfo(3) tells no time to live; most addresses that move have one of a minute.
const TOO_OLD_AFTER: Duration = Duration::from_secs(60);

/// How long a question is waited for while there is a stale answer: that of a name server which works is there by then,
/// and one which does not must not stop a target that has not moved.
const WAITED_FOR: Duration = Duration::from_millis(250);

/// How long a question is called new: where other servers have addresses, one does not keep its clients longer.
const NEW_FOR: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerAge {
    answered_at: Option<Instant>,
    /// Of the question under way.
    asked_at: Option<Instant>,
    /// Of the last question, if it had no answer.
    failed_at: Option<Instant>,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It uses the answer.
    Now,
    /// It waits for the next one; from then on it uses the last one, if there is such a time.
    Later(Option<Instant>),
    /// There is none, and no question is under way.
    Never,
}

impl Use {
    /// The same for somebody who has little time: at `latest` it uses the last answer instead of waiting for the next one.
    pub(super) fn at_the_latest(self, latest: Instant, now: Instant) -> Self {
        match self {
            Self::Later(Some(_)) if now >= latest => Self::Now,
            Self::Later(Some(until)) => Self::Later(Some(until.min(latest))),
            Self::Now | Self::Later(None) | Self::Never => self,
        }
    }
}

impl AnswerAge {
    pub(super) fn what(&self, now: Instant) -> Use {
        let age = self.age(now);
        match (age, self.asked_at) {
            (Some(age), _) if age < STALE_AFTER => Use::Now,
            (Some(age), Some(at)) if age < TOO_OLD_AFTER && now < at + WAITED_FOR => {
                Use::Later(Some(at + WAITED_FOR))
            }
            (Some(age), _) if age < TOO_OLD_AFTER => Use::Now,
            (_, Some(_)) => Use::Later(None),
            (_, None) => Use::Never,
        }
    }

    /// Whether to ask for another one, since somebody wants to use it.
    pub(super) fn wants_another(&self, now: Instant) -> bool {
        let passed = |at: Instant| now.saturating_duration_since(at);
        match self.age(now) {
            Some(age) if self.asked_at.is_none() => {
                age >= TOO_OLD_AFTER
                    || age >= ASKED_AFTER
                        && self.failed_at.is_none_or(|at| passed(at) >= STALE_AFTER)
            }
            // Who is unknown is asked for without anybody's wish.
            _ => false,
        }
    }

    /// Whether an answer can be expected at once: the question is new, and the last one was not in vain.
    pub(super) fn is_expected(&self, now: Instant) -> bool {
        self.failed_at.is_none()
            && self
                .asked_at
                .is_some_and(|at| now.saturating_duration_since(at) < NEW_FOR)
    }

    /// Whether the last question had no answer.
    pub(super) fn has_failed(&self) -> bool {
        self.failed_at.is_some()
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.answered_at.is_none()
    }

    pub(super) fn asked(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
    }

    pub(super) fn answered(&mut self, now: Instant) {
        *self = Self {
            answered_at: Some(now),
            ..Self::default()
        };
    }

    /// The question has had no answer. Returns whether the last one may still be used.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let is_usable = self.age(now).is_some_and(|age| age < TOO_OLD_AFTER);
        *self = Self {
            answered_at: self.answered_at.filter(|_| is_usable),
            asked_at: None,
            failed_at: Some(now),
        };
        is_usable
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        let at = self.answered_at?;
        Some(now.saturating_duration_since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_is_used_until_it_is_too_old() {
        let begin = Instant::now();
        let mut age = AnswerAge::default();
        assert_eq!(age.what(begin), Use::Never);
        age.asked(begin);
        assert_eq!(age.what(begin), Use::Later(None));
        age.answered(begin);
        for (time, wants_another) in [
            (Duration::ZERO, false),
            (ASKED_AFTER - MILLISECOND, false),
            (ASKED_AFTER, true),
            (STALE_AFTER - MILLISECOND, true),
        ] {
            assert_eq!(age.wants_another(begin + time), wants_another, "{time:?}");
            let mut asked = age;
            asked.asked(begin + time);
            assert_eq!(asked.what(begin + time), Use::Now, "{time:?}");
            assert!(!asked.wants_another(begin + time), "it is asked");
        }
        for time in [STALE_AFTER, TOO_OLD_AFTER - MILLISECOND] {
            let now = begin + time;
            let mut asked = age;
            assert!(asked.wants_another(now));
            asked.asked(now);
            // Who comes later still waits no longer.
            asked.asked(now + MILLISECOND);
            let until = now + WAITED_FOR;
            assert_eq!(asked.what(now), Use::Later(Some(until)), "{time:?}");
        }
        let now = begin + STALE_AFTER;
        age.asked(now);
        assert_eq!(age.what(now + WAITED_FOR), Use::Now);
        let too_old = begin + TOO_OLD_AFTER;
        assert_eq!(age.what(too_old), Use::Later(None));
    }

    #[test]
    fn who_has_little_time_waits_for_a_part_of_it() {
        let begin = Instant::now();
        let mut age = AnswerAge::default();
        age.answered(begin);
        let now = begin + STALE_AFTER;
        age.asked(now);
        let what = |latest, now| age.what(now).at_the_latest(latest, now);
        let latest = now + WAITED_FOR / 2;
        assert_eq!(what(latest, now), Use::Later(Some(latest)));
        assert_eq!(what(latest, latest), Use::Now);
        let until = now + WAITED_FOR;
        assert_eq!(what(until + MILLISECOND, now), Use::Later(Some(until)));
        // Nothing makes an answer younger.
        let too_old = begin + TOO_OLD_AFTER;
        assert_eq!(what(latest, too_old), Use::Later(None));
    }

    #[test]
    fn a_question_without_an_answer_leaves_the_last_one_its_time() {
        let begin = Instant::now();
        let mut age = AnswerAge::default();
        age.answered(begin);
        let now = begin + STALE_AFTER;
        age.asked(now);
        assert!(age.failed(now));
        assert_eq!((age.what(now), age.wants_another(now)), (Use::Now, false));
        assert!(age.wants_another(now + STALE_AFTER));
        // However lately it has failed.
        let late = begin + TOO_OLD_AFTER - MILLISECOND;
        assert!(age.failed(late));
        let too_old = begin + TOO_OLD_AFTER;
        assert!(age.wants_another(too_old));
        age.asked(too_old);
        assert_eq!(age.what(too_old), Use::Later(None));
        assert!(!age.failed(too_old));
        assert!(age.is_unknown());
        assert_eq!(
            (age.what(too_old), age.wants_another(too_old)),
            (Use::Never, false)
        );
    }

    #[test]
    fn an_answer_is_expected_within_a_second() {
        let now = Instant::now();
        let mut age = AnswerAge::default();
        assert!(!age.is_expected(now));
        age.asked(now);
        assert!(age.is_expected(now));
        assert!(!age.is_expected(now + NEW_FOR));
        age.answered(now);
        let later = now + TOO_OLD_AFTER;
        age.asked(later);
        assert!(age.is_expected(later));
    }

    #[test]
    fn no_answer_is_expected_after_a_question_in_vain() {
        let now = Instant::now();
        let mut age = AnswerAge::default();
        for _ in 0..3 {
            age.asked(now);
            age.failed(now);
            age.asked(now);
            assert!(!age.is_expected(now), "whoever is asked again");
        }
        age.answered(now);
        let later = now + TOO_OLD_AFTER;
        age.asked(later);
        assert!(age.is_expected(later));
    }
}
