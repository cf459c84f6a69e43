//! Proof that a pair's bytes bypass its relay.

use std::sync::Mutex;

use super::system_calls::{CARRYING, SystemCalls};
use super::*;

/// How many of the bytes after a change-over must have been translated, in percent. Retransmissions count,
/// too; what settles it is that the relay has neither read nor written.
const TRANSLATED_PERCENT: u64 = 99;

/// Watches what a pair moves after its change-over.
pub(super) struct Proof<'a> {
    handle: &'a Handle,
    datapath: Arc<Datapath>,
    calls: SystemCalls,
    carried: Vec<u64>,
    moved_bytes: u64,
    translated_bytes: u64,
}

impl<'a> Proof<'a> {
    /// Begins once the pair is spliced and its sockets are silent. The splicer has one loop, and from then on
    /// only this pair of it moves bytes.
    pub(super) fn begin(lab: &Lab, splicer: &Splicer, handle: &'a Handle) -> Self {
        netlab::until("the pair is taken", || handle.is_taken());
        wait_for_sleep(lab);
        let datapath = datapath_in(lab);
        let mut calls = calls_of(splicer);
        Self {
            handle,
            carried: carried(&mut calls),
            calls,
            moved_bytes: handle.counters().total(),
            translated_bytes: datapath.translated_bytes(),
            datapath,
        }
    }

    /// Asserts that this many bytes, both ways together, have bypassed the sockets since the beginning.
    pub(super) fn end(mut self, bytes: u64) {
        let moved = || self.handle.counters().total() - self.moved_bytes;
        // The last bytes may not be acknowledged yet.
        netlab::until("all has arrived", || moved() >= bytes);
        assert_eq!(moved(), bytes);
        let translated = self.datapath.translated_bytes() - self.translated_bytes;
        expect_translated(translated, bytes);
        expect_none_carried(&self.carried, &mut self.calls);
    }
}

/// Watches pairs that change over while bytes flow, from then on.
pub(super) struct Witness {
    calls: Arc<Mutex<SystemCalls>>,
    seen: Arc<Mutex<Option<Seen>>>,
}

/// The counters at the moment when the last of the pairs was put to sleep.
struct Seen {
    carried: Vec<u64>,
    /// How many bytes of each pair user space had moved.
    in_user_space: Vec<u64>,
}

impl Witness {
    /// Begins before the first byte of pairs that change over by volume. The splicer has one loop, and only
    /// these pairs of it move bytes.
    pub(super) fn of(splicer: &Splicer, handles: &[&Handle]) -> Self {
        let in_user_space: Vec<_> = handles
            .iter()
            .map(|handle| handle.by_user_space())
            .collect();
        let calls = Arc::new(Mutex::new(calls_of(splicer)));
        let seen = Arc::new(Mutex::new(None));
        let (counted, noted) = (Arc::clone(&calls), Arc::clone(&seen));
        watch(splicer, move |step| {
            if step == "asleep" {
                *noted.lock().expect("no panic") = Some(Seen {
                    carried: carried_here(&counted),
                    in_user_space: in_user_space
                        .iter()
                        .map(|in_user_space| in_user_space())
                        .collect(),
                });
            }
        });
        Self { calls, seen }
    }

    /// Waits until the pairs, which have moved enough bytes, have changed over.
    pub(super) fn wait_for_sleep(&self) {
        netlab::until("the sockets sleep", || self.has_seen_sleep());
    }

    /// Whether the pairs have changed over.
    pub(super) fn has_seen_sleep(&self) -> bool {
        self.seen.lock().expect("no panic").is_some()
    }

    /// Asserts, for pairs that have ended with these outcomes, that the program has carried all bytes that
    /// the relay had not moved when it put the last of them to sleep.
    pub(super) fn end(self, ended: &[(&Outcome, u64)]) {
        let seen = self.seen.lock().expect("no panic").take();
        let seen = seen.unwrap_or_else(|| panic!("none was put to sleep: {ended:?}"));
        let mut past_sockets = 0;
        let mut translated = 0;
        for ((outcome, carried), in_user_space) in ended.iter().zip(&seen.in_user_space) {
            past_sockets += outcome.moved.total() - in_user_space;
            translated += carried;
        }
        expect_translated(translated, past_sockets);
        expect_none_carried(&seen.carried, &mut self.calls.lock().expect("no panic"));
    }
}

pub(super) fn expect_translated(translated: u64, bytes: u64) {
    assert!(
        translated * 100 >= bytes * TRANSLATED_PERCENT,
        "{translated} of {bytes}"
    );
}

fn expect_none_carried(before: &[u64], calls: &mut SystemCalls) {
    assert_eq!(carried(calls), before, "{CARRYING:?}, splice");
}

/// Counts the system calls of the splicer's loop from now on.
pub(super) fn calls_of(splicer: &Splicer) -> SystemCalls {
    on_loop(splicer, |_| SystemCalls::of_this_thread())
}

/// How often the loop has made each call that can carry bytes.
fn carried(calls: &mut SystemCalls) -> Vec<u64> {
    let names = CARRYING.into_iter().chain(["splice"]);
    names.map(|name| calls.begun(name)).collect()
}

/// The same on the loop's own thread, which must not read the counters itself: that would count.
fn carried_here(calls: &Mutex<SystemCalls>) -> Vec<u64> {
    thread::scope(|scope| {
        let counting = scope.spawn(|| carried(&mut calls.lock().expect("no panic")));
        counting.join().expect("counted")
    })
}
