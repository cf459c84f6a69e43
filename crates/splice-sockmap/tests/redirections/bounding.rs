//! Bounds: how much may be outstanding at a target.

use std::thread;
use std::time::Duration;

use netlab::{Need, available, until};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use splice_sockmap::{Link, MapType, PassReason, Redirect, Redirections, SockMap, SocketKind};

use crate::conversation::{KINDS, Pair, put, take};
use crate::flow::{AHEAD_BYTES, EndOf, Flow, drain, follow};
use crate::linking::ends;
use crate::payload::Payload;

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// More than some messages, and less than any of the buffers holds.
const BOUND: u64 = 16 << 10;

const MESSAGE_BYTES: usize = 1000;

/// What a socket with a small send buffer has sent and its peer not read, at most.
const SENT_MOST: usize = 8 << 10;

/// The same of a VSOCK socket, which has its peer's credit, of 256 KiB (`VIRTIO_VSOCK_DEFAULT_BUF_SIZE`). The peer renews it in
/// large steps, during which the backlog grows.
const SENT_MOST_VSOCK: usize = 512 << 10;
const BOUND_VSOCK: u64 = 768 << 10;

fn bounded(redirect: Redirect, most_bytes: u64) -> Redirections {
    let loaded = Redirections::new(redirect, MapType::Hash, 8).expect("loaded");
    loaded.bounded(most_bytes)
}

fn full(link: &Link) -> u64 {
    link.counters().passed_for(PassReason::Full)
}

/// Where a message goes that is not redirected.
fn usual(redirect: Redirect, source: &Pair) -> &impl std::os::fd::AsFd {
    match redirect.is_of_sent() {
        true => &source.peer,
        false => &source.member,
    }
}

/// Sends until a message has passed for the bound. How many bytes were sent.
fn fill(from: impl std::os::fd::AsFd, link: &Link, payload: Payload, what: &str) -> u64 {
    let mut sent = 0;
    until(&format!("{what}: the target is full"), || {
        match send(
            &from,
            payload.piece(sent, MESSAGE_BYTES),
            SendFlags::DONTWAIT,
        ) {
            Ok(count) => sent += count as u64,
            Err(Errno::AGAIN) => {}
            Err(errno) => panic!("send(2): {errno}"),
        }
        full(link) > 0
    });
    sent
}

/// Nobody reads from the target. No byte is lost, and none is out of order.
#[test]
fn what_a_target_does_not_take_is_passed_beyond_its_bound() {
    if !available(Need::Root) {
        return;
    }
    for redirect in Redirect::ALL {
        for source_kind in KINDS {
            for target_kind in KINDS {
                if redirect.supports(source_kind, target_kind).is_err() {
                    continue;
                }
                // A UDP socket drops what its peer does not take, which is nobody's bound.
                if target_kind == SocketKind::Udp && !redirect.is_to_local() {
                    continue;
                }
                let what = format!("{redirect}: {source_kind} to {target_kind}");
                let redirections = bounded(redirect, BOUND);
                let (source, target) = (Pair::of(source_kind), Pair::of(target_kind));
                for of in [&target.member, &target.peer] {
                    set_socket_send_buffer_size(of, 32 << 10).expect("bounded");
                    set_socket_recv_buffer_size(of, 32 << 10).expect("bounded");
                }
                let link = redirections
                    .link(&source.member, &target.member)
                    .expect("linked");
                assert_eq!(link.outstanding().expect("looked"), Some(0), "{what}");
                let (from, to) = ends(redirect, &source, &target);
                let payload = Payload::new(31);
                let sent = fill(from, &link, payload, &what);
                let outstanding = link.outstanding().expect("looked").expect("bounded");
                assert!(outstanding <= BOUND, "{what}: {outstanding}");

                // All that was redirected, and then all that was passed, from the one message on if it is a stream.
                let (mut come, mut passed) = (Vec::new(), Vec::new());
                until(&format!("{what}: all has come"), || {
                    drain(to, &mut come);
                    drain(usual(redirect, &source), &mut passed);
                    (come.len() + passed.len()) as u64 == sent
                });
                let counters = link.counters();
                if redirect == Redirect::SendToEgress {
                    // What send(2) has refused since the target's buffer was full counts, too.
                    assert!(counters.bytes >= come.len() as u64, "{what}");
                } else {
                    assert_eq!(counters.bytes, come.len() as u64, "{what}");
                }
                assert_eq!(counters.passed_bytes, passed.len() as u64, "{what}");
                if source_kind.is_stream() {
                    payload.check(0, &come);
                    payload.check(come.len() as u64, &passed);
                }
                until(&format!("{what}: nothing is outstanding"), || {
                    link.outstanding().expect("looked") == Some(0)
                });
            }
        }
    }
}

/// The kernel tells exactly what a TCP socket has sent, so a bound that is often nearly reached is not taken for reached.
#[test]
fn nothing_passes_while_the_targets_peer_keeps_up() {
    if !available(Need::Root) {
        return;
    }
    let redirections = bounded(Redirect::IngressToEgress, 4 * AHEAD_BYTES as u64);
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    let (payload, flow, mut come) = (Payload::new(34), Flow::default(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| flow.send(&source.peer, payload));
        let _end = EndOf(&flow);
        follow(&flow, &target.peer, &mut come, 100 * AHEAD_BYTES);
    });
    assert_eq!(link.counters().passed_messages, 0);
    payload.check(0, &come);
}

/// The reader, or the target's peer, is never done: at the end far more than the bound has gone through, and nothing has
/// passed. What is outstanding is told to the byte.
#[test]
fn a_target_that_is_never_empty_has_room_for_what_was_consumed() {
    if !available(Need::Root) {
        return;
    }
    for redirect in Redirect::ALL {
        for source_kind in KINDS {
            for target_kind in KINDS {
                // A UDP socket sends what it has at once.
                let is_at_once = target_kind == SocketKind::Udp && !redirect.is_to_local();
                // By its sequence numbers; its buffers hold all that is sent here.
                let is_by_number = target_kind == SocketKind::Tcp && !redirect.is_to_local();
                let is_supported = redirect.supports(source_kind, target_kind).is_ok();
                if is_supported && !is_at_once && !is_by_number {
                    keeps_up_without_an_end(redirect, source_kind, target_kind);
                }
            }
        }
    }
}

pub(crate) fn keeps_up_without_an_end(
    redirect: Redirect,
    source_kind: SocketKind,
    target_kind: SocketKind,
) {
    let what = format!("{redirect}: {source_kind} to {target_kind}");
    let (bound, sent_most, times) = match target_kind {
        SocketKind::VsockStream => (BOUND_VSOCK, SENT_MOST_VSOCK, 2),
        _ => (BOUND, SENT_MOST, 10),
    };
    let redirections = bounded(redirect, bound);
    let (source, target) = (Pair::of(source_kind), Pair::of(target_kind));
    // What its socket holds has been sent, and only the backlog behind it is outstanding.
    set_socket_send_buffer_size(&target.member, SENT_MOST / 2).expect("bounded");
    let link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    let (from, to) = ends(redirect, &source, &target);
    let (payload, mut come) = (Payload::new(34), Vec::new());
    let put_next = || {
        let sent = link.counters().bytes;
        put(from, payload.piece(sent, MESSAGE_BYTES));
        let now = sent + MESSAGE_BYTES as u64;
        until(&format!("{what}: it is redirected"), || {
            assert_eq!(
                full(&link),
                0,
                "{what}: {:?}, {:?}",
                link.outstanding(),
                link.counters()
            );
            link.counters().bytes == now
        });
    };
    let take_next = |come: &mut Vec<u8>| {
        let mut message = [0; MESSAGE_BYTES];
        until(&format!("{what}: a message is there"), || {
            let received = recv(to, &mut message[..], RecvFlags::DONTWAIT);
            received == Ok((MESSAGE_BYTES, MESSAGE_BYTES))
        });
        come.extend_from_slice(&message);
    };
    let outstanding = || {
        let told = link.outstanding().expect("looked");
        told.expect("bounded")
    };
    let is_told = |come: &[u8]| {
        let waits = link.counters().bytes - come.len() as u64;
        let told = outstanding();
        match redirect.is_to_local() {
            true => told == waits,
            false => told <= waits && told + sent_most as u64 >= waits,
        }
    };
    while outstanding() < bound / 2 {
        put_next();
    }
    for _ in 0..times * bound / MESSAGE_BYTES as u64 {
        take_next(&mut come);
        until(&format!("{what}: one is consumed"), || is_told(&come));
        put_next();
        assert_eq!(full(&link), 0, "{what}");
        until(&format!("{what}: another waits"), || is_told(&come));
        assert!(outstanding() > 0, "{what}");
    }
    while (come.len() as u64) < link.counters().bytes {
        take_next(&mut come);
        until(&format!("{what}: fewer wait"), || is_told(&come));
    }
    until(&format!("{what}: nothing is outstanding"), || {
        outstanding() == 0
    });
    payload.check(0, &come);
}

/// It waits for nobody, so nothing is outstanding once the kernel's worker has run.
#[test]
fn a_udp_target_has_nothing_outstanding_although_its_peer_has_not_read() {
    if !available(Need::Root) {
        return;
    }
    for source_kind in KINDS {
        let redirections = bounded(Redirect::IngressToEgress, BOUND);
        let (source, target) = (Pair::of(source_kind), Pair::of(SocketKind::Udp));
        let link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        let payload = Payload::new(35);
        let (mut sent, mut come) = (0, Vec::new());
        for _ in 0..4 * BOUND / MESSAGE_BYTES as u64 {
            put(&source.peer, payload.piece(sent, MESSAGE_BYTES));
            sent += MESSAGE_BYTES as u64;
            until(&format!("{source_kind}: it is sent"), || {
                link.counters().bytes == sent && link.outstanding().expect("looked") == Some(0)
            });
            let message = take(&target.peer);
            assert_eq!(message.len(), MESSAGE_BYTES, "{source_kind}");
            come.extend(message);
        }
        assert_eq!(full(&link), 0, "{source_kind}");
        payload.check(0, &come);
    }
}

/// Its owner gives the target what has passed, in between.
#[test]
fn a_stream_is_whole_across_full_targets() {
    const TIMES: usize = 20;
    if !available(Need::Root) {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::SendToEgress] {
        let redirections = bounded(redirect, BOUND);
        let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
        set_socket_send_buffer_size(&target.member, 32 << 10).expect("bounded");
        set_socket_recv_buffer_size(&target.peer, 32 << 10).expect("bounded");
        let link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        let (from, to) = ends(redirect, &source, &target);
        let payload = Payload::new(32);
        let (mut sent, mut seen, mut come) = (0, 0, Vec::new());
        for time in 0..TIMES {
            let before = full(&link);
            until("the target is full", || {
                if let Ok(count) = send(
                    from,
                    payload.piece(sent, MESSAGE_BYTES),
                    SendFlags::DONTWAIT,
                ) {
                    sent += count as u64;
                }
                full(&link) > before
            });
            // What is still on its way passes, too.
            until("the stream goes on", || {
                drain(to, &mut come);
                let mut passed = Vec::new();
                if link.outstanding().expect("looked") == Some(0) {
                    drain(usual(redirect, &source), &mut passed);
                    seen += passed.len() as u64;
                    let mut rest = &passed[..];
                    while !rest.is_empty() {
                        if let Ok(count) = send(&target.member, rest, SendFlags::DONTWAIT) {
                            rest = &rest[count..];
                        }
                        drain(to, &mut come);
                    }
                }
                link.resume(seen).expect("asked")
            });
            let messages = link.counters().messages;
            put(from, payload.piece(sent, MESSAGE_BYTES));
            sent += MESSAGE_BYTES as u64;
            until("it is redirected again", || {
                link.counters().messages > messages
            });
            assert!(!link.resume(seen).expect("asked"), "it is, time {time}");
        }
        until("all has come", || {
            drain(to, &mut come);
            come.len() as u64 == sent
        });
        payload.check(0, &come);
        assert!(seen >= (TIMES * MESSAGE_BYTES) as u64, "{seen}");
    }
}

#[test]
fn all_sources_of_a_target_share_its_bound() {
    if !available(Need::Root) {
        return;
    }
    for kind in [SocketKind::Tcp, SocketKind::Udp, SocketKind::UnixStream] {
        let redirections = bounded(Redirect::IngressToLocal, BOUND);
        let [one, other] = [(); 2].map(|()| Pair::of(kind));
        let target = Pair::of(SocketKind::Tcp);
        let [first, second] = [&one, &other].map(|of| {
            redirections
                .link(&of.member, &target.member)
                .expect("linked")
        });
        fill(&one.peer, &first, Payload::new(33), kind.name());
        let of_first = first.counters().bytes;
        assert_eq!(
            first.outstanding().expect("looked"),
            Some(of_first),
            "{kind}"
        );
        assert_eq!(
            second.outstanding().expect("looked"),
            Some(of_first),
            "{kind}"
        );
        put(&other.peer, &[7; MESSAGE_BYTES]);
        until("it passes", || full(&second) > 0);
        let mut passed = Vec::new();
        until("it is with its reader", || {
            drain(&other.member, &mut passed);
            passed == [7; MESSAGE_BYTES]
        });
        let mut come = Vec::new();
        until("all has come", || {
            drain(&target.member, &mut come);
            come.len() as u64 == of_first
        });
        assert_eq!(second.outstanding().expect("looked"), Some(0), "{kind}");
        // One of the two goes, and the bound stays for the other.
        drop((one, first));
        if kind.is_stream() {
            assert!(second.resume(MESSAGE_BYTES as u64).expect("asked"));
        }
        put(&other.peer, b"redirected");
        assert_eq!(take(&target.member), b"redirected", "{kind}");
    }
}

/// Their links have maps of their own, and as many of them as fit elsewhere need not do.
#[test]
fn each_target_of_unix_sources_has_a_bound_beside_those_of_others() {
    if !available(Need::Root) {
        return;
    }
    let loaded = Redirections::new(Redirect::IngressToLocal, MapType::Hash, 1).expect("loaded");
    let redirections = loaded.bounded(BOUND);
    let kinds = [SocketKind::UnixDatagram, SocketKind::UnixStream].repeat(3);
    let kinds = kinds.into_iter().chain([SocketKind::Tcp]);
    let all: Vec<_> = kinds
        .map(|kind| {
            let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Tcp));
            let link = redirections
                .link(&source.member, &target.member)
                .expect("linked");
            (link, source, target)
        })
        .collect();
    for (link, source, target) in &all {
        put(&source.peer, b"redirected");
        until("it waits for its reader", || {
            link.outstanding().expect("looked") == Some(10)
        });
        assert_eq!(take(&target.member), b"redirected");
    }
}

#[test]
fn a_map_of_the_callers_has_a_bound_and_without_one_nothing_is_told() {
    if !available(Need::Root) {
        return;
    }
    let map = SockMap::create(2).expect("a map");
    let attachment = map.attach(Redirect::IngressToLocal).expect("attached");
    let [source, target, other] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
    let unbounded = attachment
        .link(0, &source.member, &target.member)
        .expect("linked");
    assert_eq!(unbounded.outstanding().expect("looked"), None);
    let attachment = attachment.bounded(10);
    let mut link = attachment
        .link(1, &other.member, &target.member)
        .expect("linked");
    put(&other.peer, b"eleven bytes");
    assert_eq!(take(&other.member), b"eleven bytes");
    assert!(link.resume(12).expect("asked"));
    put(&other.peer, b"ten bytes.");
    until("it waits for its reader", || {
        link.outstanding().expect("looked") == Some(10)
    });
    assert_eq!(take(&target.member), b"ten bytes.");
    link.leave(&other.member, PATIENCE).expect("it leaves");
    assert_eq!(link.outstanding().expect("looked"), None);
    let gone = recv(&other.member, &mut [0; 1][..], RecvFlags::DONTWAIT);
    assert_eq!(gone, Err(Errno::AGAIN));
}
