//! Threads with loops, with too few descriptors for all of them.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

mod support {
    pub(crate) mod alone;
    #[allow(dead_code, reason = "the rules of every engine ask for more")]
    pub(crate) mod descriptors;
}

use std::fs::File;
use std::iter;

use netlab::until;
use splice::Splicer;

use crate::support::alone::alone;
use crate::support::descriptors;

/// The descriptors of a loop: an epoll instance, an eventfd, a timerfd.
const OF_A_LOOP: usize = 3;
/// More than two loops need.
const SPARE: u64 = 20;

#[test]
fn a_failed_splicer_leaves_nothing() {
    alone(|| {
        descriptors::allow_more(SPARE);
        let mut fill: Vec<_> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // Enough for two loops, but not for a third.
        fill.truncate(fill.len() - 2 * OF_A_LOOP - 1);
        let before = descriptors::open();
        for _ in 0..3 {
            Splicer::new(3).unwrap_err();
        }
        until("everything is closed", || descriptors::open() == before);
        drop(Splicer::new(2).unwrap());
    });
}
