//! Ways out: nothing is lost, and nothing is removed in full flow.

use std::hash::{DefaultHasher, Hasher as _};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use netlab::{Need, available, until};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{RecvFlags, recv, shutdown};
use splice_sockmap::{MapType, Redirect, Redirections, SocketKind};

use crate::conversation::{Pair, is_empty, put, take};
use crate::flow::{AHEAD_BYTES, EndOf, Flow, drain};
use crate::linking::ends;
use crate::payload::Payload;

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn redirections(redirect: Redirect) -> Redirections {
    Redirections::new(redirect, MapType::Hash, 8).expect("loaded")
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A peer sends without end. Its bytes go to the target while there is a link, and to the source's reader while there
/// is none. Put together they are the stream.
#[test]
fn a_source_in_full_flow_leaves_without_losing_a_byte() {
    if !available(Need::Root) {
        return;
    }
    const TIMES: usize = 10;
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        let redirections = redirections(redirect);
        let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
        let reader = if redirect.is_to_local() {
            &target.member
        } else {
            &target.peer
        };
        let payload = Payload::new(3);
        let flow = Flow::default();
        let mut all = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| flow.send(&source.peer, payload));
            // Else a failure would wait for the sender for ever.
            let _end = EndOf(&flow);
            for _ in 0..TIMES {
                // A link needs a moment in which nothing waits.
                until("the sender waits", || {
                    drain(&source.member, &mut all);
                    flow.waits_at(all.len())
                });
                let mut link = redirections
                    .link(&source.member, &target.member)
                    .expect("linked");
                let before = all.len();
                until("much was redirected", || {
                    drain(reader, &mut all);
                    flow.allow(all.len() + AHEAD_BYTES);
                    all.len() - before > 20 * AHEAD_BYTES
                });
                let has_left = AtomicBool::new(false);
                let left = thread::scope(|scope| {
                    scope.spawn(|| {
                        while !has_left.load(Ordering::Relaxed) {
                            drain(reader, &mut all);
                            flow.allow(all.len() + AHEAD_BYTES);
                            thread::yield_now();
                        }
                    });
                    let left = link.leave(&source.member, PATIENCE);
                    has_left.store(true, Ordering::Relaxed);
                    left
                });
                left.expect("it leaves");
                let redirected = link.counters().bytes as usize;
                until("the last redirected byte has come", || {
                    drain(reader, &mut all);
                    all.len() - before >= redirected
                });
                assert_eq!(all.len() - before, redirected, "{redirect}");
            }
        });
        until("the rest has come", || {
            drain(&source.member, &mut all);
            all.len() >= flow.sent.load(Ordering::Relaxed)
        });
        assert_eq!(all.len(), flow.sent.load(Ordering::Relaxed), "{redirect}");
        payload.check(0, &all);
        assert_eq!(
            hash_of(&all),
            hash_of(&payload.bytes(all.len())),
            "{redirect}"
        );
    }
}

/// Its peer gets a reset. What the link had redirected until then arrives, in order, and nothing was left to its reader.
#[test]
fn what_was_redirected_outlives_a_source_that_is_disconnected_in_full_flow() {
    if !available(Need::Root) {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        let redirections = redirections(redirect);
        let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
        let reader = ends(redirect, &source, &target).1;
        let mut link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        let (payload, flow) = (Payload::new(11), Flow::default());
        flow.allow(usize::MAX);
        let mut come = Vec::new();
        thread::scope(|scope| {
            let sender = scope.spawn(|| flow.send(&source.peer, payload));
            let _end = EndOf(&flow);
            until("much was redirected", || {
                drain(reader, &mut come);
                come.len() > 20 * AHEAD_BYTES
            });
            let has_left = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !has_left.load(Ordering::Relaxed) {
                        drain(reader, &mut come);
                        thread::yield_now();
                    }
                });
                let left = link.disconnect(&source.member, PATIENCE);
                has_left.store(true, Ordering::Relaxed);
                left.expect("disconnected");
            });
            // Its connection is cut.
            sender.join().expect("the sender");
        });
        let counters = link.counters();
        until("what was redirected has come", || {
            drain(reader, &mut come);
            come.len() as u64 >= counters.bytes
        });
        assert_eq!(come.len() as u64, counters.bytes, "{redirect}");
        assert_eq!(counters.passed_messages, 0, "{redirect}");
        payload.check(0, &come);
    }
}

#[test]
fn unread_bytes_keep_a_link() {
    if !available(Need::Root) {
        return;
    }
    let redirections = redirections(Redirect::IngressToLocal);
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let mut link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    put(&source.peer, b"unread");
    until("it has come", || !is_empty(&target.member));
    let busy = link
        .leave(&source.member, Duration::ZERO)
        .expect_err("unread");
    assert!(busy.to_string().contains("read them first"), "{busy}");
    assert_eq!(take(&target.member), b"unread");
    link.leave(&source.member, PATIENCE).expect("it leaves");
    put(&source.peer, b"to the reader");
    assert_eq!(take(&source.member), b"to the reader");
}

/// The kernel keeps what a target does not take. With the target out of the map it would be dropped.
#[test]
fn a_link_does_not_leave_a_target_that_is_full() {
    if !available(Need::Root) {
        return;
    }
    /// More than both sockets' buffers can hold once they are bounded.
    const BYTES: u64 = 2 << 20;
    let redirections = redirections(Redirect::IngressToEgress);
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    set_socket_recv_buffer_size(&target.peer, 64 << 10).expect("bounded");
    set_socket_send_buffer_size(&target.member, 64 << 10).expect("bounded");
    let mut link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    let payload = Payload::new(4);
    let mut sent = 0;
    while sent < BYTES {
        let piece = payload.piece(sent, 64 << 10);
        put(&source.peer, piece);
        sent += piece.len() as u64;
    }
    until("all was redirected", || link.counters().bytes == sent);
    let short = Duration::from_millis(20);
    let late = link.leave(&source.member, short).expect_err("it is full");
    assert_eq!(
        late.os_error().and_then(Errno::from_io_error),
        Some(Errno::TIMEDOUT),
        "{late}"
    );

    // The link is as it was.
    put(&source.peer, payload.piece(sent, 100));
    sent += 100;
    let mut come = Vec::new();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut come = Vec::new();
            while (come.len() as u64) < sent {
                come.extend(take(&target.peer));
            }
            come
        });
        link.leave(&source.member, PATIENCE).expect("it leaves");
        come = reader.join().expect("the reader");
    });
    payload.check(0, &come);
    assert_eq!(come.len() as u64, sent);
}

#[test]
fn a_unix_stream_leaves_after_its_end() {
    if !available(Need::Root) {
        return;
    }
    let redirections = redirections(Redirect::IngressToEgress);
    let (source, target) = (Pair::of(SocketKind::UnixStream), Pair::of(SocketKind::Tcp));
    let mut link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    let open = link
        .leave(&source.member, PATIENCE)
        .expect_err("it may send");
    assert!(open.to_string().contains("end the stream first"), "{open}");
    put(&source.peer, b"the last");
    assert_eq!(take(&target.peer), b"the last");
    shutdown(&source.peer, rustix::net::Shutdown::Write).expect("ended");
    link.leave(&source.member, PATIENCE).expect("it leaves");
    assert_eq!(take(&source.member), b"");
}

#[test]
fn what_has_left_can_be_linked_again_and_disconnected() {
    if !available(Need::Root) {
        return;
    }
    let redirections = redirections(Redirect::IngressToEgress);
    let source = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let friend = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let address = source.local_addr().expect("bound");
    source
        .connect(friend.local_addr().expect("bound"))
        .expect("connected");
    let target = Pair::of(SocketKind::Udp);
    for _ in 0..3 {
        let mut link = redirections.link(&source, &target.member).expect("linked");
        friend.send_to(b"redirected", address).expect("sent");
        assert_eq!(take(&target.peer), b"redirected");
        link.leave(&source, PATIENCE).expect("it leaves");
        friend.send_to(b"read", address).expect("sent");
        assert_eq!(take(&source), b"read");
    }
    let mut link = redirections.link(&source, &target.member).expect("linked");
    link.disconnect(&source, PATIENCE).expect("disconnected");
    let error = source.peer_addr().expect_err("it has no peer");
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);

    let (tcp, other) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let mut link = redirections
        .link(&tcp.member, &other.member)
        .expect("linked");
    link.disconnect(&tcp.member, PATIENCE)
        .expect("disconnected");
    until("its peer is reset", || {
        recv(&tcp.peer, &mut [0; 1][..], RecvFlags::DONTWAIT) == Err(Errno::CONNRESET)
    });
    let (unix, other) = (Pair::of(SocketKind::UnixStream), Pair::of(SocketKind::Tcp));
    let mut link = redirections
        .link(&unix.member, &other.member)
        .expect("linked");
    let error = link.disconnect(&unix.member, PATIENCE).expect_err("UNIX");
    assert!(
        error.to_string().contains("cannot be disconnected"),
        "{error}"
    );
}

#[test]
fn dropped_links_of_closed_sources_give_their_room_back() {
    if !available(Need::Root) {
        return;
    }
    for map_type in [MapType::Map, MapType::Hash] {
        let redirections =
            Redirections::new(Redirect::IngressToEgress, map_type, 2).expect("loaded");
        let target = Pair::of(SocketKind::Tcp);
        for _ in 0..5 {
            let source = Pair::of(SocketKind::Tcp);
            drop(
                redirections
                    .link(&source.member, &target.member)
                    .expect("linked"),
            );
            put(&source.peer, b"redirected");
            assert_eq!(take(&target.peer), b"redirected", "{map_type:?}");
        }
    }
}

/// Each link of a UNIX source has maps and programs of its own.
#[test]
fn dropped_links_of_closed_unix_sources_keep_few_descriptors() {
    const LINKS: usize = 100;
    // Of sources, targets and redirections.
    const LEAST_MAPS: usize = 3;
    if !available(Need::Root) {
        return;
    }
    let redirections = redirections(Redirect::IngressToEgress);
    let target = Pair::of(SocketKind::Tcp);
    let maps = || {
        let open = std::fs::read_dir("/proc/self/fd")
            .expect("a list")
            .flatten();
        let links = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links
            .filter(|to| to.to_string_lossy().contains("bpf-map"))
            .count()
    };
    let before = maps();
    for _ in 0..LINKS {
        let source = Pair::of(SocketKind::UnixStream);
        let link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        drop((link, source));
    }
    // Other tests of this process have maps, too.
    let left = maps().saturating_sub(before);
    assert!(
        left < LEAST_MAPS * LINKS / 2,
        "{left} descriptors of maps are open"
    );
}

#[test]
fn a_source_with_a_filter_of_its_own_keeps_it() {
    if !available(Need::Root) {
        return;
    }
    let redirections = redirections(Redirect::IngressToEgress);
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let socket = socket2::Socket::from(source.member.try_clone().expect("a duplicate"));
    // One instruction: accept everything (BPF_RET | BPF_K).
    let accept = [socket2::SockFilter::new(0x06, 0, 0, u32::MAX)];
    socket.attach_filter(&accept).expect("attached");
    let mut link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    let error = link.leave(&source.member, PATIENCE).expect_err("a filter");
    assert!(error.to_string().contains("detach it first"), "{error}");
    socket.detach_filter().expect("detached");
    link.leave(&source.member, PATIENCE).expect("it leaves");
}
