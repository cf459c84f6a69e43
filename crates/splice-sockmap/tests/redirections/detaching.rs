//! Redirects that are detached from maps of their caller's, and whose sources stay there.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use netlab::{Need, available, until};
use nix::libc;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use rustix::thread::gettid;
use splice_sockmap::{
    Attachment, Cookie, ErrorKind, Link, Redirect, SockHash, SockMap, SocketKind,
};

use crate::attaching::Own;
use crate::conversation::{KINDS, Pair, put, take};
use crate::flow::{AHEAD_BYTES, EndOf, Flow, drain, follow};
use crate::linking::{converse, ends};
use crate::payload::Payload;

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn cookie(of: &Pair) -> Cookie {
    Cookie::of(&of.member).expect("a cookie")
}

fn linked<M: Own>(attachment: &Attachment<M>, key: u32, source: &Pair, target: &Pair) -> Link {
    let linked = attachment.link(key, &source.member, &target.member);
    linked.unwrap_or_else(|error| panic!("{error}"))
}

/// The map with the sources in it.
fn detached<M: Own>(attachment: Attachment<M>, links: Vec<(&mut Link, &Pair)>) -> M {
    let links = links
        .into_iter()
        .map(|(link, source)| (link, &source.member));
    let detached = attachment.detach(links, PATIENCE);
    detached.unwrap_or_else(|failed| panic!("{}", failed.1))
}

#[test]
fn sources_of_each_kind_stay_in_the_map_as_plain_sockets() {
    if !available(Need::Root) {
        return;
    }
    for redirect in Redirect::ALL {
        for source_kind in KINDS {
            for target_kind in KINDS {
                if redirect.supports(source_kind, target_kind).is_ok() {
                    let kinds = (source_kind, target_kind);
                    is_plain_afterwards::<SockMap>(redirect, kinds);
                    is_plain_afterwards::<SockHash<u32>>(redirect, kinds);
                }
            }
        }
    }
}

fn is_plain_afterwards<M: Own>(
    redirect: Redirect,
    (source_kind, target_kind): (SocketKind, SocketKind),
) {
    let what = format!("{redirect}: {source_kind} to {target_kind}");
    let attachment = M::attached(1, redirect);
    let (source, target) = (Pair::of(source_kind), Pair::of(target_kind));
    let mut link = linked(&attachment, 0, &source, &target);
    let (from, to) = ends(redirect, &source, &target);
    put(from, b"redirected");
    assert_eq!(take(to), b"redirected", "{what}");
    let must_end = source_kind == SocketKind::UnixStream;
    if must_end {
        shutdown(&source.peer, Shutdown::Write).expect("ended");
    }
    let map = detached(attachment, vec![(&mut link, &source)]);
    // The kernel removes a UNIX stream when its peer ends it.
    let stays: &[(u32, Cookie)] = match must_end {
        true => &[],
        false => &[(0, cookie(&source))],
    };
    assert_eq!(map.members(), stays, "{what}");
    assert_eq!(link.counters().messages, 1, "{what}");

    // Each goes to its own peer again, both ways.
    converse(&source.member, &source.peer, false, &what);
    if !must_end {
        converse(&source.peer, &source.member, false, &what);
    }
    converse(&target.member, &target.peer, false, &what);
    converse(&target.peer, &target.member, false, &what);
    assert_eq!(link.counters().messages, 1, "{what}");
    assert_eq!(map.remove_from(0), !stays.is_empty(), "{what}");
    converse(&source.member, &source.peer, false, &what);
}

/// One peer sends without end, another has nothing to say. What was redirected and what came afterwards is the stream.
#[test]
fn a_redirect_is_detached_in_full_flow_without_losing_a_byte() {
    if !available(Need::Root) {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        loses_nothing_in_full_flow::<SockMap>(redirect);
        loses_nothing_in_full_flow::<SockHash<u32>>(redirect);
    }
}

fn loses_nothing_in_full_flow<M: Own>(redirect: Redirect) {
    let attachment = M::attached(8, redirect);
    let [source, target, silent] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
    let mut link = linked(&attachment, 5, &source, &target);
    let mut of_silent = linked(&attachment, 2, &silent, &target);
    let (payload, flow, mut all) = (Payload::new(41), Flow::default(), Vec::new());
    let reader = ends(redirect, &source, &target).1;
    let map = thread::scope(|scope| {
        scope.spawn(|| flow.send(&source.peer, payload));
        let _end = EndOf(&flow);
        follow(&flow, reader, &mut all, 10 * AHEAD_BYTES);
        let is_over = AtomicBool::new(false);
        let map = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drain(reader, &mut all);
                    flow.allow(all.len() + AHEAD_BYTES);
                    thread::yield_now();
                }
            });
            let links = vec![(&mut link, &source), (&mut of_silent, &silent)];
            let map = detached(attachment, links);
            is_over.store(true, Ordering::Relaxed);
            map
        });
        let redirected = link.counters().bytes as usize;
        until("the last redirected byte has come", || {
            drain(reader, &mut all);
            all.len() >= redirected
        });
        assert_eq!(all.len(), redirected, "{redirect}");
        follow(&flow, &source.member, &mut all, 10 * AHEAD_BYTES);
        map
    });
    until("the rest has come", || {
        drain(&source.member, &mut all);
        all.len() >= flow.sent.load(Ordering::Relaxed)
    });
    payload.check(0, &all);
    let mut members = map.members();
    members.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(members, [(2, cookie(&silent)), (5, cookie(&source))]);
    put(&silent.peer, b"to its reader");
    assert_eq!(take(&silent.member), b"to its reader");
}

/// Two sockets, each the other's target, as a proxy has them.
#[test]
fn both_directions_of_a_pair_are_detached_together() {
    if !available(Need::Root) {
        return;
    }
    let attachment = SockMap::attached(2, Redirect::IngressToEgress);
    let (one, other) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let mut there = linked(&attachment, 0, &one, &other);
    let mut back = linked(&attachment, 1, &other, &one);
    converse(&one.peer, &other.peer, false, "there");
    converse(&other.peer, &one.peer, false, "back");
    let map = detached(attachment, vec![(&mut there, &one), (&mut back, &other)]);
    for pair in [&one, &other] {
        converse(&pair.peer, &pair.member, false, "to its own reader");
        converse(&pair.member, &pair.peer, false, "to its own peer");
    }
    // An empty map can have another redirect.
    assert!(map.remove_from(0) && map.remove_from(1));
    let attachment = map.attach(Redirect::IngressToLocal).expect("attached");
    let _link = linked(&attachment, 1, &one, &other);
    put(&one.peer, b"to the other's reader");
    assert_eq!(take(&other.member), b"to the other's reader");
}

#[test]
fn a_redirect_that_cannot_be_detached_is_as_it_was() {
    if !available(Need::Root) {
        return;
    }
    let fails = |attachment: Attachment<SockMap>, links: Vec<(&mut Link, &Pair)>| {
        let links = links.into_iter().map(|(link, of)| (link, &of.member));
        let (attachment, error) = *attachment
            .detach(links, Duration::ZERO)
            .expect_err("it cannot be detached");
        assert_eq!(error.kind(), ErrorKind::System);
        (attachment, error.to_string())
    };
    let attachment = SockMap::attached(4, Redirect::IngressToLocal);
    let [source, other, target] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
    let mut link = linked(&attachment, 0, &source, &target);
    put(&source.peer, b"unread");
    until("it is with the target", || link.counters().messages == 1);
    until("it waits for its reader", || {
        recv(&target.member, &mut [0; 1][..], RecvFlags::PEEK).is_ok()
    });
    let (attachment, why) = fails(attachment, vec![(&mut link, &source)]);
    assert!(why.contains("nobody has read"), "{why}");
    assert_eq!(take(&target.member), b"unread");

    let strange = SockMap::attached(4, Redirect::IngressToLocal);
    let mut of_others = linked(&strange, 0, &other, &target);
    let links = vec![(&mut link, &source), (&mut of_others, &other)];
    let (attachment, why) = fails(attachment, links);
    assert!(why.contains("not one of this attachment"), "{why}");
    of_others.leave(&other.member, PATIENCE).expect("it leaves");

    drop(linked(&attachment, 3, &other, &target));
    let (attachment, why) = fails(attachment, vec![(&mut link, &source)]);
    assert!(why.contains("1 of its sources come with no link"), "{why}");

    // All is as it was, and a source that is closed keeps nothing.
    for of in [&source, &other] {
        put(&of.peer, b"redirected");
        assert_eq!(take(&target.member), b"redirected");
    }
    drop(other);
    let map = detached(attachment, vec![(&mut link, &source)]);
    assert_eq!(map.members(), [(0, cookie(&source))]);
    put(&source.peer, b"to its reader");
    assert_eq!(take(&source.member), b"to its reader");
}

/// The kernel keeps what it knows of a member for as long as a thread sleeps in a read.
#[test]
fn a_thread_that_sleeps_in_a_read_of_a_source_reads_what_comes_afterwards() {
    if !available(Need::Root) {
        return;
    }
    for redirect in Redirect::ALL {
        let attachment = SockMap::attached(1, redirect);
        let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
        let mut link = linked(&attachment, 0, &source, &target);
        let thread_id = AtomicI32::new(0);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                thread_id.store(gettid().as_raw_pid(), Ordering::Relaxed);
                let mut buffer = [0; 64];
                loop {
                    match recv(&source.member, &mut buffer[..], RecvFlags::empty()) {
                        // A read that began while there was a program returns so when it is woken up.
                        Err(Errno::AGAIN) => {}
                        read => return read.map(|(_, length)| buffer[..length].to_vec()),
                    }
                }
            });
            until("it sleeps", || is_asleep(thread_id.load(Ordering::Relaxed)));
            let map = detached(attachment, vec![(&mut link, &source)]);
            assert_eq!(map.members(), [(0, cookie(&source))]);
            put(&source.member, b"to its peer");
            assert_eq!(take(&source.peer), b"to its peer", "{redirect}");
            put(&source.peer, b"to its reader");
            until("it has read", || reader.is_finished());
            let read = reader.join().expect("joined");
            assert_eq!(read, Ok(b"to its reader".to_vec()), "{redirect}");
        });
        converse(&source.member, &source.peer, false, "plain");
    }
}

/// Whether a thread of this process waits in recvfrom(2).
fn is_asleep(thread: i32) -> bool {
    let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
    let number = call.split(' ').next().unwrap_or_default();
    number == libc::SYS_recvfrom.to_string()
}

/// The kernel takes established connections only.
#[test]
fn a_source_whose_peer_has_ended_its_stream_is_plain_and_not_in_the_map() {
    if !available(Need::Root) {
        return;
    }
    let attachment = SockMap::attached(1, Redirect::IngressToEgress);
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let mut link = linked(&attachment, 0, &source, &target);
    put(&source.peer, b"redirected");
    assert_eq!(take(&target.peer), b"redirected");
    shutdown(&source.peer, Shutdown::Write).expect("ended");
    until("its end has come", || {
        recv(&source.member, &mut [0; 1][..], RecvFlags::DONTWAIT) == Ok((0, 0))
    });
    let map = detached(attachment, vec![(&mut link, &source)]);
    assert_eq!(map.members(), []);
    put(&source.member, b"to its peer");
    assert_eq!(take(&source.peer), b"to its peer");
}
