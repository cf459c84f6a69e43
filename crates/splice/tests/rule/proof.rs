//! Proof that this engine moves the bytes, at the cost that it promises: the kernel counts each
//! system call of the loop's thread.
//!
//! Each proof has a process of its own. All loops of a process answer the calls of `sockmap`'s programs, so the pair
//! of another test would wake this loop. They also share the process's budget of pipes.

use std::ops::Range;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Need, available};
use splice::{Endpoint, EngineChoice, EngineName, Handle, Kind};

use crate::support::alone::alone;
use crate::support::contestant::{AIO, COPY, Contestant, PIPE, SEGMENT, SOCKMAP, URING};
use crate::support::driven::DrivenLoop;
use crate::support::mix::Mix;
use crate::support::patience::until;
use crate::support::peer::Peer;
use crate::support::relay::{Joined, payloads};
use crate::support::system_calls::{CARRYING, SystemCalls, WAITING};
use crate::support::transfer::{Pace, receive, send};

const ROUND_TRIPS: u64 = 200;
const MESSAGE_BYTES: u64 = 100;
const SET_UP_BYTES: u64 = 1 << 20;
const BULK_BYTES: u64 = 128 << 20;
const RING_LOOKS: Duration = Duration::from_millis(50);
const SOCKMAP_ROUND_BYTES: u64 = 1 << 20;

/// How long an idle pair must leave its loop asleep. A periodic timer would show.
const SLEEPS_ON: Duration = Duration::from_millis(500);

/// Longer than a kernel engine waits for anything.
const AT_REST: Duration = Duration::from_millis(500);

fn join_on(driven: &DrivenLoop, engine: &Contestant, mix: Mix) -> Joined {
    let (a, near) = Peer::connected(mix.a);
    let (b, far) = Peer::connected(mix.b);
    let options = engine.options();
    let (sender, receiver) = mpsc::channel::<Handle>();
    driven
        .remote
        .run(move |event_loop| {
            let [near, far] = [near, far].map(|fd| Endpoint::new(fd).unwrap());
            sender
                .send(event_loop.join(near, far, &options).unwrap())
                .unwrap();
        })
        .unwrap();
    let handle = receiver.recv().unwrap();
    Joined { a, b, handle }
}

fn round_trips(Joined { a, b, .. }: &Joined, numbers: Range<u64>) {
    let [from_a, from_b] = payloads();
    for number in numbers {
        let range = number * MESSAGE_BYTES..(number + 1) * MESSAGE_BYTES;
        send(a, from_a, range.clone(), Pace::Steady);
        receive(b, from_a, range.clone(), Pace::Steady);
        send(b, from_b, range.clone(), Pace::Steady);
        receive(a, from_b, range, Pace::Steady);
    }
}

/// Waits until the loop's thread blocks in its wait.
pub(crate) fn wait_asleep(calls: &mut SystemCalls) {
    until("the loop waits", || {
        let ended = calls.sum_ended(WAITING);
        calls.sum_begun(WAITING) == ended + 1
    });
}

/// A kernel engine looks at its pairs for a while: `segment` for the last time after a quarter of a
/// second without any event, `sockmap` after 64 ms at most. What has woken the loop shows only when
/// it gets the CPU.
fn wait_at_rest(engine: &Contestant, calls: &mut SystemCalls) {
    if is_in_kernel(engine) {
        let mut last = (0, Instant::now());
        until("the loop has been asleep for long", || {
            let waits = calls.sum_begun(WAITING);
            if waits != last.0 {
                last = (waits, Instant::now());
            }
            last.1.elapsed() > AT_REST
        });
    }
    wait_asleep(calls);
}

fn is_in_kernel(engine: &Contestant) -> bool {
    [SEGMENT.choice, SOCKMAP.choice].contains(&engine.choice)
}

/// Waits for the rest of the work after the first message. A kernel engine has the pair when a
/// message after a pause costs the loop nothing: then none of its timers can run any more.
pub(crate) fn wait_until_free(
    engine: &Contestant,
    calls: &mut SystemCalls,
    mut message: impl FnMut(),
) {
    wait_at_rest(engine, calls);
    if is_in_kernel(engine) {
        until("the kernel has the pair", || {
            let before = counted(calls);
            message();
            wait_at_rest(engine, calls);
            counted(calls) == before
        });
    }
}

pub(crate) fn small_messages_cost_one_read_and_one_write(engine: &Contestant) {
    if !available(Need::Root) {
        return;
    }
    alone(|| engine.with_each_kind(|mix| cost_of_small_messages(engine, mix)));
}

fn cost_of_small_messages(engine: &Contestant, mix: Mix) {
    let mut driven = DrivenLoop::counted();
    let joined = join_on(&driven, engine, mix);
    round_trips(&joined, 0..1);
    let calls = &mut driven.calls;
    let mut warm = 1;
    wait_until_free(engine, calls, || {
        round_trips(&joined, warm..warm + 1);
        warm += 1;
    });
    let since = Instant::now();
    let before = counted(calls);
    round_trips(&joined, warm..warm + ROUND_TRIPS);
    wait_asleep(calls);
    let after = counted(calls);
    let [reads, writes, splices, submits, waits] =
        [0, 1, 2, 3, 4].map(|index: usize| after[index] - before[index]);
    let messages = 2 * ROUND_TRIPS;
    if engine.choice == PIPE.choice {
        // In, out, and in again to see that there is no more.
        assert_eq!([reads, writes, splices], [0, 0, 3 * messages]);
    } else if is_in_kernel(engine) {
        assert_eq!([reads, writes, splices, waits], [0; 4]);
    } else if engine.choice == URING.choice {
        assert_eq!([reads, writes, splices], [0; 3]);
    } else {
        // A UNIX stream is read again, since a short read proves nothing there.
        let unix = mix.kinds().into_iter().filter(|kind| *kind == Kind::Unix);
        let wanted = messages + ROUND_TRIPS * unix.count() as u64;
        if engine.choice == AIO.choice {
            // The results are read from the ring.
            assert_eq!([reads, writes, splices, submits], [0, 0, 0, wanted]);
            assert_eq!(calls.begun("io_getevents"), 0);
        } else {
            assert_eq!([reads, writes, splices], [wanted, messages, 0]);
        }
    }
    // A UNIX stream notifies its writer of each read (`unix_write_space`): one more wake-up. So does an MPTCP socket
    // of an acknowledgement that comes while its writer is in a call (`mptcp_release_cb`, 6.18). What a wake-up of the
    // loop reads and writes is counted above.
    let notifies_writer = |kind: &Kind| matches!(kind, Kind::Unix | Kind::Mptcp);
    let wakes = if mix.kinds().iter().any(notifies_writer) {
        2
    } else {
        1
    };
    let most = wakes * messages + looks(engine, since);
    assert!(waits <= most, "{waits} waits for {messages} messages");
}

/// How often a ring may have looked since then for sends to count.
pub(crate) fn looks(engine: &Contestant, since: Instant) -> u64 {
    if engine.choice == URING.choice {
        2 + (since.elapsed().as_millis() / RING_LOOKS.as_millis()) as u64
    } else {
        0
    }
}

/// The reads, writes, splices, submits and waits so far.
pub(crate) fn counted(calls: &mut SystemCalls) -> [u64; 5] {
    let waits = calls.sum_begun(WAITING);
    let [reads, writes, splices, submits] =
        ["recvfrom", "sendto", "splice", "io_submit"].map(|name| calls.begun(name));
    [reads, writes, splices, submits, waits]
}

pub(crate) fn bulk_goes_by_this_engine(engine: &Contestant) {
    if !available(Need::Root) {
        return;
    }
    alone(|| {
        let mut driven = DrivenLoop::counted();
        let [from_a, _] = payloads();
        let joined = join_on(&driven, engine, Mix::TCP4);
        let calls = &mut driven.calls;
        let bulk = |range: Range<u64>| {
            thread::scope(|scope| {
                scope.spawn(|| send(&joined.a, from_a, range.clone(), Pace::Steady));
                receive(&joined.b, from_a, range.clone(), Pace::Steady);
            });
        };
        // The first pipe of a process reads the user's budget from a file.
        bulk(0..SET_UP_BYTES);
        wait_asleep(calls);
        let set_up = carried(calls);
        // User space serves a sender that outruns the kernel worker.
        let round = match engine.choice {
            choice if choice == SOCKMAP.choice => SOCKMAP_ROUND_BYTES,
            _ => BULK_BYTES,
        };
        for start in (SET_UP_BYTES..SET_UP_BYTES + BULK_BYTES).step_by(round as usize) {
            bulk(start..start + round);
        }
        let splices = calls.begun("splice");
        let carried: Vec<_> = carried(calls)
            .into_iter()
            .zip(set_up)
            .map(|((name, after), (_, before))| (name, after - before))
            .collect();
        let copied_at_most =
            carried.iter().map(|(_, times)| times).sum::<u64>() * COPY.in_flight_bytes as u64;
        let (name, why) = joined.handle.engine();
        eprintln!("{name} ({why}): {splices} times splice, {carried:?}");
        match engine.choice {
            EngineChoice::Only(EngineName::Copy) => {
                assert_eq!(splices, 0);
                assert!(calls.begun("recvfrom") > 0 && calls.begun("sendto") > 0);
            }
            EngineChoice::Only(EngineName::Pipe) => {
                assert!(splices > 0);
                assert_eq!(copied_at_most, 0, "{carried:?}");
            }
            EngineChoice::Only(EngineName::Aio) => {
                assert_eq!((splices, copied_at_most), (0, 0), "{carried:?}");
                assert_eq!(calls.begun("io_getevents"), 0);
                // Read and write of a block were one call, unless the receiver's buffer was full.
                let submits = calls.begun("io_submit");
                eprintln!("{submits} times io_submit");
                assert!(submits > 0);
            }
            EngineChoice::Auto => {
                assert!(splices > 0);
                assert!(copied_at_most <= BULK_BYTES / 10, "{carried:?}");
            }
            EngineChoice::Only(EngineName::Uring) => {
                assert_eq!((splices, copied_at_most), (0, 0), "{carried:?}");
                assert!(calls.begun("io_uring_enter") > 0);
            }
            EngineChoice::Only(EngineName::Segment | EngineName::Sockmap) => {
                assert_eq!((splices, copied_at_most), (0, 0), "{carried:?}");
            }
            choice => panic!("no proof is known for {choice}"),
        }
    });
}

fn carried(calls: &mut SystemCalls) -> Vec<(&'static str, u64)> {
    CARRYING
        .into_iter()
        .map(|name| (name, calls.begun(name)))
        .collect()
}

pub(crate) fn an_idle_pair_wakes_nobody(engine: &Contestant) {
    if !available(Need::Root) {
        return;
    }
    alone(|| engine.with_each_kind(|mix| wakes_nobody_when_idle(engine, mix)));
}

fn wakes_nobody_when_idle(engine: &Contestant, mix: Mix) {
    let mut driven = DrivenLoop::counted();
    let joined = join_on(&driven, engine, mix);
    round_trips(&joined, 0..2);
    let calls = &mut driven.calls;
    // The rest of the work after a message comes once, and late on a busy machine: the ring's
    // timer, and the last read of a UNIX stream's peer, which is notified after it.
    until("the loop sleeps on", || {
        wait_at_rest(engine, calls);
        let before = calls.sum_begun(WAITING);
        thread::sleep(SLEEPS_ON);
        calls.sum_begun(WAITING) == before && calls.sum_ended(WAITING) == before - 1
    });
}
