//! A question about sessions that threads keep to themselves.
//!
//! Each thread gets a part of the question in its [`Inbox`], adds what it knows, some sessions at a time, and drops its
//! part. Whoever drops the last one sends the answer. So a thread that has ended keeps nobody waiting.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Error, Result};
use serde_json::Value;
use tokio::sync::oneshot;

use super::row::{Answer, Clocks, Own, Row};
use super::{About, NoSession, Sessions, ending};

/// A thread tells of so many sessions before others have their turn: less than a millisecond.
const TOLD_AT_ONCE: usize = 256;

/// A question that threads share.
#[derive(Debug)]
pub(crate) struct Survey {
    about: About,
    rows: Mutex<Vec<Row>>,
    /// So many are to end.
    ending: AtomicU64,
    /// `None` once it has answered.
    answer: Option<oneshot::Sender<Result<Value>>>,
}

/// The questions that a thread answers: for each, the number from which on it has not looked at its sessions.
#[derive(Debug, Default)]
pub(crate) struct Asked(Vec<(Arc<Survey>, usize)>);

/// The questions that a thread has not seen yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// `None` once the thread has ended.
    waiting: Mutex<Option<Vec<Arc<Survey>>>>,
}

impl Survey {
    pub(crate) fn new(about: About, answer: oneshot::Sender<Result<Value>>) -> Arc<Self> {
        Arc::new(Self {
            about,
            rows: Mutex::default(),
            ending: AtomicU64::new(0),
            answer: Some(answer),
        })
    }

    /// Adds those that are asked for among `sessions`, which no thread keeps to itself.
    pub(super) fn add(&self, sessions: &Sessions) {
        let mut rows = Vec::new();
        let mut ending = 0;
        match &self.about {
            About::All(filters) => sessions.each_row(filters, |row| rows.push(row)),
            About::One(id) => rows.extend(sessions.row_of(*id)),
            About::Kill(id) => ending = u64::from(sessions.kill(*id).is_ok()),
            About::KillAll(filters) => ending = sessions.kill_all(filters),
        }
        self.ending.fetch_add(ending, Ordering::Relaxed);
        lock(&self.rows).extend(rows);
    }

    /// Adds those that are asked for. Returns the numbers of those that are to end.
    fn look_at(&self, sessions: impl Iterator<Item = (usize, Own)>) -> Vec<usize> {
        let clocks = Clocks::now();
        let mut ending = Vec::new();
        let mut told = Vec::new();
        for (number, own) in sessions {
            match &self.about {
                About::Kill(id) if own.id == *id => ending.push(number),
                About::One(id) if own.id == *id => told.push(Row::of_own(own, clocks)),
                About::All(filters) => {
                    let row = Row::of_own(own, clocks);
                    if filters.iter().all(|filter| filter.takes(&row)) {
                        told.push(row);
                    }
                }
                About::KillAll(filters) => {
                    let row = Row::of_own(own, clocks);
                    if filters.iter().all(|filter| filter.takes(&row)) {
                        ending.push(number);
                    }
                }
                About::One(_) | About::Kill(_) => {}
            }
        }
        self.ending
            .fetch_add(ending.len() as u64, Ordering::Relaxed);
        lock(&self.rows).extend(told);
        ending
    }

    fn result(&mut self) -> Result<Value> {
        let mut rows = mem::take(self.rows.get_mut().unwrap_or_else(PoisonError::into_inner));
        match self.about {
            About::All(_) => {
                rows.sort_unstable_by_key(|row| row.id);
                Ok(serde_json::to_value(Answer { sessions: rows })?)
            }
            About::One(id) => match rows.pop() {
                Some(row) => Ok(serde_json::to_value(row)?),
                None => Err(NoSession(id).into()),
            },
            About::Kill(id) => match self.ending.load(Ordering::Relaxed) {
                0 => Err(Error::new(NoSession(id))),
                _ => Ok(ending(true)),
            },
            About::KillAll(_) => Ok(ending(self.ending.load(Ordering::Relaxed))),
        }
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            // Nobody receives if the client has gone away.
            let _ = answer.send(self.result());
        }
    }
}

impl Asked {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds those that have come.
    pub(crate) fn take(&mut self, inbox: &Inbox) {
        let come = lock(&inbox.waiting).as_mut().map(mem::take);
        let come = come.unwrap_or_default().into_iter();
        self.0.extend(come.map(|survey| (survey, 0)));
    }

    /// Looks at some sessions for each question: the thread numbers them below `end`, and `get` has what it knows of one.
    /// Returns the numbers of those that are to end.
    pub(crate) fn go_on(&mut self, end: usize, get: impl Fn(usize) -> Option<Own>) -> Vec<usize> {
        let mut ending = Vec::new();
        self.0.retain_mut(|(survey, from)| {
            let next = *from + TOLD_AT_ONCE;
            let some = (*from..next.min(end)).filter_map(|number| Some((number, get(number)?)));
            ending.extend(survey.look_at(some));
            *from = next;
            next < end
        });
        ending
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(Some(Vec::new())),
        }
    }
}

impl Inbox {
    /// Puts a question to the thread, which is to be woken then.
    pub(crate) fn put(&self, survey: &Arc<Survey>) {
        if let Some(waiting) = &mut *lock(&self.waiting) {
            waiting.push(Arc::clone(survey));
        }
    }

    /// Nothing is asked any more.
    pub(crate) fn close(&self) {
        let left = lock(&self.waiting).take();
        // Answered without the lock.
        drop(left);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is a single step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::session_filter::SessionFilter;
    use crate::sessions::{End, Phase, Units};

    fn own(id: u64) -> Own {
        Own {
            id,
            listener: "127.0.0.1:53".into(),
            route: 1,
            backend: "udp:127.0.0.1:5353".into(),
            server: "udp:127.0.0.1:5353".into(),
            client: "127.0.0.1:4711".into(),
            target: "udp:127.0.0.1:5353".into(),
            phase: Phase::Relaying,
            streams: [End::Open; 2],
            began: Instant::now(),
            used: Instant::now(),
            bytes: [0; 2],
            units: Units::default(),
        }
    }

    fn asked(about: About) -> (Arc<Survey>, oneshot::Receiver<Result<Value>>) {
        let (sender, answer) = oneshot::channel();
        (Survey::new(about, sender), answer)
    }

    /// A thread with these sessions answers all that it is asked. Returns those that it has ended.
    fn answer(inbox: &Inbox, ids: &[u64]) -> Vec<u64> {
        let mut asked = Asked::default();
        asked.take(inbox);
        let mut ended = Vec::new();
        while !asked.is_empty() {
            let ending = asked.go_on(ids.len(), |number| ids.get(number).copied().map(own));
            ended.extend(ending.into_iter().map(|number| ids[number]));
        }
        ended
    }

    #[test]
    fn the_last_of_several_threads_answers() {
        let (survey, mut answer) = asked(About::All(Vec::new()));
        let inboxes = [(); 3].map(|()| Inbox::default());
        // Its thread has ended.
        inboxes[2].close();
        for inbox in &inboxes {
            inbox.put(&survey);
        }
        drop(survey);
        let many: Vec<_> = (1..=3 * TOLD_AT_ONCE as u64).collect();
        self::answer(&inboxes[0], &many[2..]);
        assert!(answer.try_recv().is_err(), "too early");
        self::answer(&inboxes[1], &[2, 1]);
        let told = answer.try_recv().expect("an answer").expect("sessions");
        let sessions = told["sessions"].as_array().expect("a list");
        let ids: Vec<_> = sessions
            .iter()
            .filter_map(|row| row["id"].as_u64())
            .collect();
        assert_eq!(ids, many);
    }

    #[test]
    fn a_thread_looks_at_some_sessions_at_a_time() {
        let (survey, _answer) = asked(About::All(Vec::new()));
        let inbox = Inbox::default();
        inbox.put(&survey);
        let mut asked = Asked::default();
        asked.take(&inbox);
        let looked_at = std::cell::Cell::new(0);
        asked.go_on(10 * TOLD_AT_ONCE, |_| {
            looked_at.set(looked_at.get() + 1);
            None
        });
        assert_eq!(looked_at.get(), TOLD_AT_ONCE);
        assert!(!asked.is_empty());
    }

    #[test]
    fn one_session_is_found_or_ended_among_those_of_all_threads() {
        for (about, known) in [
            (About::One(7), false),
            (About::Kill(7), false),
            (About::One(9), true),
            (About::Kill(9), true),
        ] {
            let (survey, mut answer) = asked(about.clone());
            let inboxes = [(); 2].map(|()| Inbox::default());
            inboxes.iter().for_each(|inbox| inbox.put(&survey));
            drop(survey);
            let ended = [
                self::answer(&inboxes[0], &[8, 9]),
                self::answer(&inboxes[1], &[10]),
            ];
            let is_kill = matches!(about, About::Kill(_));
            assert_eq!(
                ended.concat(),
                if is_kill && known { vec![9] } else { vec![] }
            );
            match (answer.try_recv().expect("an answer"), known) {
                (Ok(told), true) if is_kill => assert_eq!(told["ending"], true),
                (Ok(told), true) => assert_eq!(told["id"], 9),
                (Err(error), false) => assert_eq!(error.downcast_ref(), Some(&NoSession(7))),
                (other, _) => panic!("{about:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn those_of_all_threads_that_a_filter_takes_are_ended() {
        let takes = |value| vec![SessionFilter::new("client", value).expect("a filter")];
        for (value, ids) in [("127.0.0.1", vec![8, 9, 10]), ("127.0.0.2", vec![])] {
            let (survey, mut answer) = asked(About::KillAll(takes(value)));
            let inboxes = [(); 2].map(|()| Inbox::default());
            inboxes.iter().for_each(|inbox| inbox.put(&survey));
            drop(survey);
            let ended = [
                self::answer(&inboxes[0], &[8, 9]),
                self::answer(&inboxes[1], &[10]),
            ];
            assert_eq!(ended.concat(), ids);
            let told = answer.try_recv().expect("an answer").expect("a count");
            assert_eq!(told["ending"], ids.len());
        }
    }

    #[test]
    fn a_thread_that_ends_answers_what_it_was_asked() {
        let (survey, mut answer) = asked(About::One(1));
        let inbox = Inbox::default();
        inbox.put(&survey);
        drop(survey);
        assert!(answer.try_recv().is_err(), "too early");
        inbox.close();
        assert!(answer.try_recv().expect("an answer").is_err());
    }
}
