//! Pairs of one loop that are due to change over at the same time.

use std::time::Duration;

use netlab::{Lab, Need, available};

use super::super::datapath::Datapath;
use super::{Connected, devices_here};
use crate::{EngineChoice, EventLoop, Options};

/// How many pairs one turn of a loop may begin with.
const MOST: usize = 10;

#[test]
fn one_turn_of_the_loop_starts_few_change_overs() {
    const PAIRS: usize = 40;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    lab.relay()
        .enter(|| {
            let mut event_loop = EventLoop::new().expect("a loop");
            event_loop.prepare(EngineChoice::Auto).expect("the program");
            let datapath = Datapath::here().expect("it is loaded");
            for device in devices_here() {
                datapath.ensure_attached(device).expect("attached");
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
            let before = datapath.entries();
            let mut known = before;
            while known < before + 2 * PAIRS {
                event_loop
                    .turn(Some(Duration::from_millis(100)))
                    .expect("a turn");
                let entries = datapath.entries();
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
