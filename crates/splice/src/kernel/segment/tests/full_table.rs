//! Flows when the table has no free slot.

use super::forged_segments::forged;
use super::*;
use crate::kernel::segment::flow_slots::TIME_WAIT_LEAST;

/// At 5200 connections a second, the flows that ended in the last three seconds would keep all slots.
#[test]
fn an_ended_pair_gives_its_slot_to_a_new_one() {
    const NEXT: i32 = -1;
    const REDIRECT: i32 = 7;
    const SYN: u8 = 2;
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let datapath = datapath_in(&lab);
    datapath.keep_slots(1);
    let device = devices(lab.relay())[0];
    let verdict = |packet: &[u8]| {
        let fed = lab.relay().enter(|| datapath.feed_on(device, packet));
        fed.expect("entered").expect("run")
    };
    let mut before: Option<Vec<u8>> = None;
    for number in 0..3 {
        let (client, server, handle) = spliced_across(&lab, &splicer);
        if let Some(before) = before {
            // A late segment of the previous flow is now left to the kernel.
            assert_eq!(verdict(&before), NEXT);
        }
        let [from, to] = [client.local_addr(), client.peer_addr()].map(|end| end.expect("an end"));
        let packet = forged(from, to, 0, SYN);
        assert_eq!(verdict(&packet), REDIRECT);
        before = Some(packet);
        drop(client);
        drop(server);
        assert_eq!(moved(&ended(&handle)), [5, 5], "{number}");
        let ended_at = Instant::now();
        netlab::until("it may give up its slot", || {
            ended_at.elapsed() > TIME_WAIT_LEAST
        });
    }
}

/// A flow that has not ended keeps its slot.
#[test]
fn a_pair_without_a_slot_is_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, first) = spliced_lab();
    let datapath = datapath_in(&lab);
    datapath.keep_slots(1);
    let second = spliced_across(&lab, &splicer);
    let (_client, _server, handle) = Connected::across(&lab).join(&splicer, &by_name());
    let why = why_refused(&handle);
    assert!(why.contains("no slot is left"), "{why}");
    for (client, server, _) in [first, second] {
        ping(&client, &server);
    }
}

/// `auto` leaves a pair without a slot to its sockets, and splices the next one once there is a slot.
#[test]
fn a_pair_of_auto_without_a_slot_is_copied() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    datapath_in(&lab).keep_slots(1);
    let (near, far, second) = spliced_across(&lab, &splicer);
    let join = || {
        let joined = Connected::across(&lab).join(&splicer, &by_volume(5));
        ping(&joined.0, &joined.1);
        joined
    };
    let (client, server, copied) = join();
    netlab::until("it finds no slot", || {
        copied.engine().1.contains("no slot is left")
    });
    assert_eq!(copied.engine().0, EngineName::Copy);
    ping(&client, &server);
    drop((near, far));
    ended(&second);
    let ended_at = Instant::now();
    netlab::until("it may give up its slot", || {
        ended_at.elapsed() > TIME_WAIT_LEAST
    });
    let (_near, _far, next) = join();
    netlab::until("the next one is spliced", || {
        next.engine().0 == EngineName::Segment
    });
    ping(&client, &server);
    drop((client, server));
    let outcome = ended(&copied);
    assert_eq!(
        (outcome.engine, moved(&outcome)),
        (EngineName::Copy, [15, 15])
    );
}
