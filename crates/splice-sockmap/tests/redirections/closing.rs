//! Sockets that are closed, and links that are dropped, while bytes flow.

use std::sync::atomic::Ordering;
use std::thread;

use netlab::{Need, available, until};
use splice_sockmap::{MapType, Redirect, Redirections, SocketKind};

use crate::conversation::{Pair, put};
use crate::flow::{AHEAD_BYTES, EndOf, Flow, drain, follow};
use crate::payload::Payload;

/// From an ingress, where the peer decides when it sends.
const FROM_INGRESS: [Redirect; 2] = [Redirect::IngressToEgress, Redirect::IngressToLocal];

/// Kinds whose peer can send without end and lose nothing. On loopback UDP may drop what it sends too fast.
const RELIABLE: [SocketKind; 3] = [
    SocketKind::Tcp,
    SocketKind::UnixStream,
    SocketKind::UnixDatagram,
];

fn cases() -> impl Iterator<Item = (Redirect, SocketKind)> {
    FROM_INGRESS
        .into_iter()
        .flat_map(|redirect| RELIABLE.map(|kind| (redirect, kind)))
}

/// Where redirected bytes come out.
fn reader_of(redirect: Redirect, target: &Pair) -> &impl std::os::fd::AsFd {
    if redirect.is_to_local() {
        &target.member
    } else {
        &target.peer
    }
}

#[test]
fn a_dropped_link_goes_on_in_full_flow() {
    if !available(Need::Root) {
        return;
    }
    for (redirect, kind) in cases() {
        let redirections = Redirections::new(redirect, MapType::Hash, 8).expect("loaded");
        let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Tcp));
        let link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        let (payload, flow, mut come) = (Payload::new(4), Flow::default(), Vec::new());
        let reader = reader_of(redirect, &target);
        thread::scope(|scope| {
            scope.spawn(|| flow.send(&source.peer, payload));
            let _end = EndOf(&flow);
            follow(&flow, reader, &mut come, 10 * AHEAD_BYTES);
            drop((link, redirections));
            follow(&flow, reader, &mut come, 10 * AHEAD_BYTES);
        });
        until("the rest has come", || {
            drain(reader, &mut come);
            come.len() >= flow.sent.load(Ordering::Relaxed)
        });
        assert_eq!(
            come.len(),
            flow.sent.load(Ordering::Relaxed),
            "{redirect}: {kind}"
        );
        payload.check(0, &come);
    }
}

/// Its peer gets a reset, or EPIPE. What the link had redirected until then arrives, in order.
#[test]
fn what_was_redirected_outlives_a_source_that_is_closed_in_full_flow() {
    if !available(Need::Root) {
        return;
    }
    for (redirect, kind) in cases() {
        let redirections = Redirections::new(redirect, MapType::Hash, 8).expect("loaded");
        let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Tcp));
        let link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        let (payload, flow, mut come) = (Payload::new(5), Flow::default(), Vec::new());
        let reader = reader_of(redirect, &target);
        let Pair { member, peer } = source;
        thread::scope(|scope| {
            // It ends by itself: an error cuts it.
            let sender = scope.spawn(|| flow.send(&peer, payload));
            let _end = EndOf(&flow);
            follow(&flow, reader, &mut come, 10 * AHEAD_BYTES);
            // Now the target has a backlog.
            flow.allow(usize::MAX);
            let sent = flow.sent.load(Ordering::Relaxed);
            until("the sender runs", || {
                // What waits at the target is charged to a UNIX sender, which waits in its turn.
                if kind != SocketKind::Tcp {
                    drain(reader, &mut come);
                }
                flow.sent.load(Ordering::Relaxed) > sent + AHEAD_BYTES
            });
            drop(member);
            until("the sender ends", || {
                drain(reader, &mut come);
                sender.is_finished()
            });
        });
        until("what was redirected has come", || {
            drain(reader, &mut come);
            come.len() as u64 >= link.counters().bytes
        });
        assert_eq!(
            come.len() as u64,
            link.counters().bytes,
            "{redirect}: {kind}"
        );
        payload.check(0, &come);
    }
}

/// What it has not taken is lost with it. All that comes later is for the source's own reader.
#[test]
fn a_source_reads_again_once_its_target_is_closed_in_full_flow() {
    if !available(Need::Root) {
        return;
    }
    for redirect in FROM_INGRESS {
        let redirections = Redirections::new(redirect, MapType::Hash, 8).expect("loaded");
        let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
        let link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        let (payload, flow, mut come) = (Payload::new(6), Flow::default(), Vec::new());
        let mut passed = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| flow.send(&source.peer, payload));
            let _end = EndOf(&flow);
            follow(
                &flow,
                reader_of(redirect, &target),
                &mut come,
                10 * AHEAD_BYTES,
            );
            payload.check(0, &come);
            drop(target);
            let allowed = flow.sent.load(Ordering::Relaxed) + 10 * AHEAD_BYTES;
            flow.allow(allowed);
            until("the rest is with the source", || {
                drain(&source.member, &mut passed);
                let sent = flow.sent.load(Ordering::Relaxed);
                let all = link.counters().bytes + passed.len() as u64;
                sent >= allowed && all == sent as u64
            });
        });
        let counters = link.counters();
        let sent = flow.sent.load(Ordering::Relaxed) as u64;
        assert_eq!(counters.bytes + counters.passed_bytes, sent, "{redirect}");
        assert!(counters.bytes >= come.len() as u64, "{redirect}");
        payload.check(counters.bytes, &passed);
        put(&source.peer, payload.piece(sent, 100));
        until("it still reads", || {
            drain(&source.member, &mut passed);
            counters.bytes + passed.len() as u64 == sent + 100
        });
        payload.check(counters.bytes, &passed);
    }
}
