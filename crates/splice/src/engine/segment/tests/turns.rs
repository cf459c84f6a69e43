//! Pairs of one loop that want to change over at the same time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use netlab::{Lab, Need, available};

use super::super::ground::{Ground, Standing};
use super::{Connected, devices_here};
use crate::{EngineChoice, EventLoop, Options};

/// What one turn of a loop may begin with.
const MOST: usize = 10;

#[test]
fn those_that_wait_go_ten_to_a_millisecond() {
    const PAIRS: usize = 1000;
    let mut standing = Standing::default();
    let begin = Instant::now();
    let mut waiting: VecDeque<(Instant, bool)> = (0..PAIRS).map(|_| (begin, false)).collect();
    let mut turns = 0;
    while !waiting.is_empty() {
        // Once the loop comes late.
        let late = Duration::from_millis(if turns > 50 { 20 } else { 0 });
        let now = begin + Duration::from_millis(turns) + late;
        let mut begun = 0;
        for _ in 0..waiting.len() {
            let (at, booked) = waiting.pop_front().expect("so many are there");
            if at > now {
                waiting.push_back((at, booked));
                continue;
            }
            match standing.admit(now, booked) {
                Ok(()) => begun += 1,
                Err(later) => waiting.push_back((later, true)),
            }
        }
        assert!(begun <= MOST, "{begun} in turn {turns}");
        turns += 1;
    }
    // Nobody takes the relay for slow meanwhile.
    assert!(turns <= 150, "{turns} ms");
    let later = begin + Duration::from_secs(1);
    assert_eq!(
        standing.admit(later, false),
        Ok(()),
        "the next waits for none"
    );
}

#[test]
fn a_turn_of_the_loop_begins_with_few_of_them() {
    const PAIRS: usize = 40;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    lab.relay()
        .enter(|| {
            let mut event_loop = EventLoop::new().expect("a loop");
            event_loop.prepare(EngineChoice::Auto).expect("the program");
            let ground = Ground::here().expect("it is loaded");
            for device in devices_here() {
                ground.stand_on(device).expect("attached");
            }
            let options = Options {
                segment_after: Some(Duration::ZERO),
                ..Options::default()
            };
            let kept: Vec<_> = (0..PAIRS)
                .map(|_| {
                    let joined = Connected::here("127.0.0.1:0");
                    let handle = event_loop
                        .join(joined.a, joined.b, &options)
                        .expect("joined");
                    (joined.client, joined.server, handle)
                })
                .collect();
            let before = ground.entries();
            let mut known = before;
            while known < before + 2 * PAIRS {
                event_loop
                    .turn(Some(Duration::from_millis(100)))
                    .expect("a turn");
                let entries = ground.entries();
                assert!(
                    entries - known <= 2 * MOST,
                    "{} at once",
                    (entries - known) / 2
                );
                known = entries;
            }
            drop(kept);
        })
        .expect("entered");
}
