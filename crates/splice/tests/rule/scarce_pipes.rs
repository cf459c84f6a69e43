//! When pipes run out, the bytes are copied, and the outcome says why.

use std::fs::File;
use std::thread;

use splice::{EngineChoice, Reason};

use crate::support::alone::alone;
use crate::support::contestant::Contestant;
use crate::support::descriptors;
use crate::support::mix::Mix;
use crate::support::patience::{QUIET, until};
use crate::support::peer::Peer;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive_to_end, send};

/// More than half of what `fs.pipe-user-pages-soft` allows by default: 32 pipes of 1 MiB.
const PAIRS: usize = 44;
const PIPE_PAGES: usize = 256;
/// The words of the outcome.
const NO_PIPE: &str = "no pipe could be created";
const EXTRA_BYTES: u64 = 1 << 20;
const PIECE_BYTES: usize = 64 << 10;
/// Enough for a pair of any kind, its peers, and the datapath of a network namespace.
const SPARE_DESCRIPTORS: u64 = 96;

fn allowed_pipes() -> usize {
    let text = std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").unwrap();
    let soft_pages: usize = text.trim().parse().unwrap();
    match soft_pages {
        0 => usize::MAX,
        pages => pages / 2 / PIPE_PAGES,
    }
}

/// Each sender writes what it can; `sent` counts it. Returns whether any could write.
fn fill(pairs: &[Joined], sent: &mut [u64]) -> bool {
    let [from_a, _] = payloads();
    let mut moved = false;
    for (pair, sent) in pairs.iter().zip(sent) {
        while let Ok(count) = pair.a.write_now(from_a.piece(*sent, PIECE_BYTES)) {
            *sent += count as u64;
            moved = true;
        }
    }
    moved
}

pub(crate) fn more_stalled_pairs_than_pipes(engine: &Contestant) {
    alone(|| {
        descriptors::allow_most();
        let relay = Relay::new(engine);
        let foreign = descriptors::count("pipe:");
        let pairs: Vec<_> = (0..PAIRS)
            .map(|_| {
                let (a, near) = Peer::connected(Mix::TCP4.a);
                let (b, far) = Peer::connected(Mix::TCP4.b);
                let handle = relay.join_sockets(near, far);
                Joined { a, b, handle }
            })
            .collect();
        let is_short = engine.uses_pipes() && allowed_pipes() < PAIRS;
        let lacks_pipe = |pair: &Joined| pair.handle.engine().1.contains(NO_PIPE);
        let mut sent = vec![0; PAIRS];
        until("they have stalled", || {
            // A loop that gets no CPU is quiet, too.
            if fill(&pairs, &mut sent) || (is_short && !pairs.iter().any(lacks_pipe)) {
                return false;
            }
            thread::sleep(QUIET);
            !fill(&pairs, &mut sent)
        });
        let pipes = (descriptors::count("pipe:") - foreign) / 2;
        eprintln!("{pipes} pipes");
        assert!(pipes <= allowed_pipes(), "{pipes} pipes are in use");
        let without: usize = thread::scope(|scope| {
            let flows: Vec<_> = pairs
                .into_iter()
                .zip(sent)
                .map(|(joined, sent)| scope.spawn(move || flow_on(&joined, sent)))
                .collect();
            let without = flows.into_iter().map(|flow| flow.join().unwrap());
            without.map(usize::from).sum()
        });
        if is_short {
            assert!(pipes > 0 && without > 0, "{pipes} pipes, {without} without");
        }
    });
}

/// Everything arrives, and more after it. Returns whether a pipe was missing.
fn flow_on(Joined { a, b, handle }: &Joined, sent: u64) -> bool {
    let [from_a, _] = payloads();
    let end = sent + EXTRA_BYTES;
    thread::scope(|scope| {
        scope.spawn(|| {
            send(a, from_a, sent..end, Pace::Steady);
            a.end_stream();
        });
        receive_to_end(b, from_a, 0..end, Pace::Steady);
    });
    b.end_stream();
    let outcome = outcome(handle);
    assert_eq!(outcome.reason, Reason::EndOfStream);
    assert_eq!(outcome.moved.a_to_b, end);
    outcome.why_engine.contains(NO_PIPE)
}

/// Descriptors run out after the join, which the pair must survive.
pub(crate) fn no_descriptor_for_a_pipe(engine: &Contestant) {
    alone(|| {
        let relay = Relay::new(engine);
        // Not before: where the kernel counts system calls, the relay's witness has a descriptor for each.
        descriptors::allow_more(SPARE_DESCRIPTORS);
        let [from_a, _] = payloads();
        engine.with_each_mix(|mix| {
            let Joined { a, b, handle } = relay.join(mix);
            // Once it answers, the loop has the pair.
            send(&a, from_a, 0..100, Pace::Steady);
            crate::support::transfer::receive(&b, from_a, 0..100, Pace::Steady);
            // An idle loop with a pair keeps at most a few pipes. The test takes away the other
            // descriptors.
            let mut hoard = Vec::new();
            while let Ok(file) = File::open("/dev/null") {
                hoard.push(file);
            }
            let end = 3 << 20;
            thread::scope(|scope| {
                scope.spawn(|| {
                    send(&a, from_a, 100..end, Pace::Steady);
                    a.end_stream();
                });
                receive_to_end(&b, from_a, 100..end, Pace::Steady);
            });
            drop(hoard);
            b.end_stream();
            let outcome = outcome(&handle);
            assert_eq!(outcome.reason, Reason::EndOfStream);
            if engine.choice == EngineChoice::Auto {
                // With the engine by name, the first bytes have made the loop keep a pipe, which
                // suffices.
                assert!(
                    outcome.why_engine.contains(NO_PIPE),
                    "{}",
                    outcome.why_engine
                );
            }
        });
    });
}
