//! Dropping the owner of a pair closes both of its ends.

use std::thread;

use splice::{Endpoint, EventLoop, Handle, Reason};

use crate::rule::reset::tells_reset;
use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::payload::Payload;
use crate::support::peer::Peer;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{
    Ending, Pace, receive, receive_to_end, receive_until_cut, send, send_until_blocked,
};

fn assert_cut(mix: Mix, [a, b]: [&Peer; 2], positions: [u64; 2]) {
    let [from_a, from_b] = payloads();
    let [a_tells, b_tells] = tells_reset(mix);
    for (peer, payload, from, tells) in [
        (a, from_b, positions[0], a_tells),
        (b, from_a, positions[1], b_tells),
    ] {
        let (_, ending) = receive_until_cut(peer, payload, from);
        assert!(
            ending == Ending::Reset || !tells,
            "{peer:?} saw a clean end"
        );
    }
}

pub(crate) fn dropping_the_handle(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        send(&a, from_a, 0..100, Pace::Steady);
        receive(&b, from_a, 0..100, Pace::Steady);
        drop(handle);
        assert_cut(mix, [&a, &b], [0, 100]);
    });
}

pub(crate) fn dropping_the_handle_of_a_stalled_pair(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        if mix.may_lose_reset() {
            return;
        }
        let Joined { a, b, handle } = relay.join(mix);
        thread::scope(|scope| {
            scope.spawn(|| send_until_blocked(&a, from_a, 0, 64 << 20));
            send_until_blocked(&b, from_b, 0, 64 << 20);
        });
        drop(handle);
        assert_cut(mix, [&a, &b], [0, 0]);
    });
}

pub(crate) fn dropping_the_handle_at_once(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_mix(|mix| {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        send(&a, from_a, 0..100, Pace::Steady);
        drop(relay.join_sockets(near, far));
        assert_cut(mix, [&a, &b], [0, 0]);
    });
}

pub(crate) fn dropping_the_splicer(engine: &Contestant) {
    let relay = Relay::new(engine);
    let pairs: Vec<_> = engine
        .mixes()
        .into_iter()
        .map(|mix| (mix, relay.join(mix)))
        .collect();
    drop(relay);
    for (mix, Joined { a, b, handle }) in pairs {
        assert_eq!(outcome(&handle).reason, Reason::Shutdown);
        assert_cut(mix, [&a, &b], [0, 0]);
    }
}

pub(crate) fn dropping_the_event_loop(engine: &Contestant) {
    let Relay { options, .. } = Relay::new(engine);
    let mut event_loop = EventLoop::new().unwrap();
    let remote = event_loop.remote();
    let mut joined = Vec::new();
    for mix in engine.mixes() {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        let [near, far] = [near, far].map(|fd| Endpoint::new(fd).unwrap());
        let handle: Handle = event_loop.join(near, far, &options).unwrap();
        joined.push((mix, a, b, handle));
    }
    drop(event_loop);
    for (mix, a, b, handle) in joined {
        assert_eq!(outcome(&handle).reason, Reason::Shutdown);
        assert_cut(mix, [&a, &b], [0, 0]);
    }
    assert!(remote.run(|_| {}).is_err());
}

pub(crate) fn detaching_the_handle(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b]: [Payload; 2] = payloads();
    let bytes = 2 << 20;
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        handle.detach();
        thread::scope(|scope| {
            for (from, to, payload) in [(&a, &b, from_a), (&b, &a, from_b)] {
                scope.spawn(move || {
                    send(from, payload, 0..bytes, Pace::Steady);
                    from.end_stream();
                });
                scope.spawn(move || receive_to_end(to, payload, 0..bytes, Pace::Steady));
            }
        });
    });
}
