//! Datagrams that reach nobody, and whether their link knows of them.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use netlab::{Need, available, until};
use rustix::net::{RecvFlags, recv};
use splice_base::socket_option::memory;
use splice_sockmap::{Link, MapType, Redirect, Redirections, SockHash, SocketKind};

use crate::conversation::{Pair, put, take};
use crate::linking::ends;

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn lost(link: &Link, source: &Pair) -> u64 {
    let lost = link.lost(&source.member).expect("told");
    lost.expect("it is a source of datagrams")
}

/// More than a bound of one byte allows.
const MESSAGE: [u8; 2] = [7; 2];

/// How many of them can be read now. A member of a map gives several at once, if they fit.
fn drain(socket: impl AsFd) -> u64 {
    let mut message = [0; MESSAGE.len()];
    let mut count = 0;
    while recv(&socket, &mut message, RecvFlags::DONTWAIT).is_ok() {
        count += 1;
    }
    count
}

/// The kernel takes a target for broken once it has failed to send, as a UDP socket does after an ICMP error.
#[test]
fn datagrams_for_a_target_that_has_failed_are_counted() {
    if !available(Need::Root) {
        return;
    }
    const MESSAGES: u64 = 20;
    for source_kind in [SocketKind::Udp, SocketKind::UnixDatagram] {
        for map_type in MapType::ALL {
            let redirections =
                Redirections::new(Redirect::IngressToEgress, map_type, 2).expect("loaded");
            let (source, target) = (Pair::of(source_kind), Pair::of(SocketKind::Udp));
            let mut link = redirections
                .link(&source.member, &target.member)
                .expect("linked");
            put(&source.peer, b"taken");
            assert_eq!(take(&target.peer), b"taken");
            assert_eq!(lost(&link, &source), 0, "{source_kind}");
            drop(target.peer);
            until("the target has failed", || {
                put(&source.peer, b"lost");
                lost(&link, &source) > 0
            });
            let before = lost(&link, &source);
            for _ in 0..MESSAGES {
                put(&source.peer, b"lost");
            }
            until("the program has seen them", || {
                lost(&link, &source) == before + MESSAGES
            });
            // Those that it drops by itself are counted for themselves.
            put(&source.peer, b"");
            until("it is dropped", || link.counters().empty_messages == 1);
            assert_eq!(lost(&link, &source), before + MESSAGES, "{source_kind}");
            // It would keep what it cannot send for as long as it is open.
            drop(target.member);
            link.leave(&source.member, PATIENCE).expect("it leaves");
            assert_eq!(lost(&link, &source), before + MESSAGES, "{source_kind}");
        }
    }
}

#[test]
fn what_a_full_queue_of_the_source_drops_is_counted_and_a_stream_has_no_count() {
    if !available(Need::Root) {
        return;
    }
    let load = || Redirections::new(Redirect::IngressToEgress, MapType::Hash, 2).expect("loaded");
    let redirections = load().bounded(1);
    let (source, target) = (Pair::of(SocketKind::Udp), Pair::of(SocketKind::Udp));
    rustix::net::sockopt::set_socket_recv_buffer_size(&source.member, 4 << 10).expect("set");
    let link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    // None fits into the bound, so each is passed until the queue is full.
    let mut sent = 0;
    until("its queue is full", || {
        put(&source.peer, &MESSAGE);
        sent += 1;
        lost(&link, &source) > 3
    });
    assert_eq!(drain(&source.member) + lost(&link, &source), sent);

    let redirections = load();
    for kind in [SocketKind::Tcp, SocketKind::UnixStream] {
        let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Udp));
        let link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        assert_eq!(link.lost(&source.member).expect("told"), None, "{kind}");
        let other = link.lost(&target.member).expect_err("it is another");
        assert!(
            other.to_string().contains("not the source of the link"),
            "{other}"
        );
    }
}

/// How often a source leaves while its peer sends.
const TIMES: usize = 40;

/// Few enough for every queue on their way.
const AT_ONCE: u64 = 100;

/// Sends while `leave` runs, which returns what its link has counted. Each datagram is then at one of both readers, or the
/// kernel has counted it with the source.
fn leaves_without_a_secret(
    what: &str,
    (source, target): (&Pair, &(impl AsFd + Sync)),
    leave: impl FnOnce() -> u64 + Send,
) -> u64 {
    let dropped = || memory(&source.member).expect("told").dropped_packets as u64;
    let (mut come, before) = (0, dropped());
    let counted = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for _ in 0..AT_ONCE {
                put(&source.peer, &MESSAGE);
            }
        });
        let leaving = scope.spawn(leave);
        // A UNIX socket waits for its reader.
        while !(sender.is_finished() && leaving.is_finished()) {
            come += drain(target) + drain(&source.member);
            thread::yield_now();
        }
        leaving.join().expect("it has left")
    });
    until(&format!("{what}: each has come or was dropped"), || {
        come += drain(target) + drain(&source.member);
        come + dropped() - before >= AT_ONCE
    });
    let lost = dropped() - before;
    assert_eq!(come + lost, AT_ONCE, "{what}");
    // A thread that was interrupted while it sent may have its datagram dropped when the link has long left.
    assert!(
        (lost.saturating_sub(1)..=lost).contains(&counted),
        "{what}: {counted} of {lost}"
    );
    lost
}

#[test]
fn each_datagram_that_comes_while_its_source_leaves_has_come_or_is_counted() {
    if !available(Need::Root) {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        for kind in [SocketKind::Udp, SocketKind::UnixDatagram] {
            let what = format!("{redirect}: {kind}");
            let redirections = Redirections::new(redirect, MapType::Hash, 2).expect("loaded");
            let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Udp));
            let to = ends(redirect, &source, &target).1;
            let mut counted = 0;
            for _ in 0..TIMES {
                let mut link = redirections
                    .link(&source.member, &target.member)
                    .expect("linked");
                counted += leaves_without_a_secret(&what, (&source, to), || {
                    let left = link.leave(&source.member, PATIENCE);
                    left.unwrap_or_else(|error| panic!("{what}: {error}"));
                    lost(&link, &source)
                });
            }
            println!("{what}: {counted} of {} lost", TIMES as u64 * AT_ONCE);
        }
    }
}

#[test]
fn each_datagram_that_comes_while_its_redirect_is_detached_has_come_or_is_counted() {
    if !available(Need::Root) {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        let (source, target) = (Pair::of(SocketKind::Udp), Pair::of(SocketKind::Udp));
        let to = ends(redirect, &source, &target).1;
        for _ in 0..TIMES {
            let map = SockHash::<u32>::create(2).expect("a map");
            let attachment = map.attach(redirect).expect("attached");
            let mut link = attachment
                .link(1, &source.member, &target.member)
                .expect("linked");
            leaves_without_a_secret(redirect.name(), (&source, to), || {
                let left = attachment.detach([(&mut link, &source.member)], PATIENCE);
                let map = left.unwrap_or_else(|failed| panic!("{redirect}: {}", failed.1));
                assert!(map.remove(1).expect("removed"));
                lost(&link, &source)
            });
        }
    }
}
