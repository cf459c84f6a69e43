//! A stream of moments: each part is the time at which it was sent. The last one that arrives tells how long something
//! could pass.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use netlab::until_at_rest;

use super::connection::{Connection, Side};
use crate::patience::until;
use crate::peer::Over;

/// docs/firewall.md promises that what comes is obeyed by then.
pub(super) const WITHIN: Duration = Duration::from_secs(1);

/// Between two parts: the accuracy of what the last one tells.
const EVERY: Duration = Duration::from_millis(1);

/// Nothing passes any more if nothing has arrived for so long: longer than the pauses between the first retransmissions.
const REST: Duration = Duration::from_millis(700);

/// The last part.
const END: u64 = u64::MAX;

/// Sends parts from this side and has something changed that stops them. Tells how long after the change the last one was
/// sent that has arrived, and lifts the change. Everything arrives then, once.
///
/// `settled` waits until the relay has obeyed. `change` may take its time: what counts begins when it returns.
pub(super) fn passes_for<T>(
    connection: &Connection,
    from: Side,
    change: impl FnOnce() -> T,
    settled: impl FnOnce(),
    lift: impl FnOnce(T),
) -> Duration {
    let (sender, receiver) = (connection.end(from), connection.end(from.other()));
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let (is_over, last) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let over = Over(&is_over);
        let sent = scope.spawn(|| {
            let mut sent = 0u64;
            while !is_over.load(Acquire) {
                sender.write_number(now());
                sent += 1;
                thread::sleep(EVERY);
            }
            sender.write_number(END);
            sent
        });
        let arrived = scope.spawn(|| {
            let mut arrived = 0u64;
            loop {
                let stamp = receiver.read_number();
                if stamp == END {
                    return arrived;
                }
                assert!(stamp > last.load(Acquire), "{stamp} comes late");
                last.store(stamp, Release);
                arrived += 1;
            }
        });
        until("it flows", || last.load(Acquire) > 0);
        let changed = change();
        let since = now();
        settled();
        let last = until_at_rest(REST, || last.load(Acquire));
        lift(changed);
        drop(over);
        let sent = sent.join().expect("all is sent");
        assert_eq!(arrived.join().expect("all arrives"), sent);
        Duration::from_nanos(last.saturating_sub(since))
    })
}
