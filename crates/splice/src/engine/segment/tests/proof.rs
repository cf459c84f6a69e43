//! That the bytes of a pair pass by its relay.

use super::system_calls::{CARRYING, SystemCalls};
use super::*;

/// How many of the bytes after a change-over must have been translated, in percent. Repetitions
/// count as well, so that the relay has neither read nor written is what settles it.
const TRANSLATED_PERCENT: u64 = 99;

/// What a pair moves after its change-over.
pub(super) struct Proof<'a> {
    handle: &'a Handle,
    ground: Arc<Ground>,
    calls: SystemCalls,
    carried: Vec<u64>,
    moved_bytes: u64,
    translated_bytes: u64,
}

impl<'a> Proof<'a> {
    /// Begins once the pair is spliced and its sockets have had their last words. It is the only
    /// one of the splicer's, which has one loop, that moves bytes from then on.
    pub(super) fn begin(lab: &Lab, splicer: &Splicer, handle: &'a Handle) -> Self {
        let deadline = Instant::now() + PATIENCE;
        while !handle.is_taken() {
            assert!(Instant::now() < deadline, "{handle:?}");
            thread::sleep(Duration::from_millis(1));
        }
        wait_for_sleep(lab);
        let ground = lab.relay().enter(Ground::here).expect("entered");
        let ground = ground.expect("a ground");
        let mut calls = calls_of(splicer);
        Self {
            handle,
            carried: carried(&mut calls),
            calls,
            moved_bytes: handle.counters().total(),
            translated_bytes: ground.translated_bytes(),
            ground,
        }
    }

    /// So many bytes have gone both ways together since it began: past the sockets.
    pub(super) fn end(mut self, bytes: u64) {
        let moved = || self.handle.counters().total() - self.moved_bytes;
        let deadline = Instant::now() + PATIENCE;
        // The last may not have been acknowledged yet.
        while moved() < bytes {
            assert!(Instant::now() < deadline, "{} of {bytes}", moved());
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(moved(), bytes);
        let translated = self.ground.translated_bytes() - self.translated_bytes;
        assert!(
            translated * 100 >= bytes * TRANSLATED_PERCENT,
            "{translated} of {bytes}"
        );
        assert_eq!(
            carried(&mut self.calls),
            self.carried,
            "{CARRYING:?}, splice"
        );
    }
}

/// What the splicer's loop calls from now on.
pub(super) fn calls_of(splicer: &Splicer) -> SystemCalls {
    let (sender, receiver) = mpsc::channel();
    let count = move |_: &mut EventLoop| {
        sender.send(SystemCalls::of_this_thread()).expect("awaited");
    };
    splicer.remote().run(count).expect("a loop");
    receiver.recv().expect("counters")
}

/// How often the loop has made each call that can carry bytes.
fn carried(calls: &mut SystemCalls) -> Vec<u64> {
    let names = CARRYING.into_iter().chain(["splice"]);
    names.map(|name| calls.begun(name)).collect()
}
