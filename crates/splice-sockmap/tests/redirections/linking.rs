//! Links: what goes where, and what is refused.

use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Barrier;
use std::thread;

use netlab::{Need, available, until};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use splice_base::release::Release;
use splice_base::socket_option::memory;
use splice_sockmap::{ErrorKind, MapType, Redirect, Redirections, SocketKind};

use crate::conversation::{KINDS, Pair, is_empty, messages, put, take};
use crate::flow::drain;

/// More than any pair needs to show that a byte is lost, and few enough for every pair of kinds.
const MESSAGES: usize = 40;

/// Well below what any of the sockets holds unread.
const MOST_BYTES: usize = 2 << 10;

/// Where a redirect takes messages from, and where it puts them.
pub(crate) fn ends<'a>(
    redirect: Redirect,
    source: &'a Pair,
    target: &'a Pair,
) -> (&'a OwnedFd, &'a OwnedFd) {
    let from = if redirect.is_of_sent() {
        &source.member
    } else {
        &source.peer
    };
    let to = if redirect.is_to_local() {
        &target.member
    } else {
        &target.peer
    };
    (from, to)
}

/// Each message goes and comes before the next, so that borders that are kept show.
pub(crate) fn converse(from: impl AsFd, to: impl AsFd, keeps_borders: bool, what: &str) {
    for message in messages(MESSAGES, MOST_BYTES, 1) {
        put(&from, &message);
        let mut come = take(&to);
        while !keeps_borders && come.len() < message.len() {
            come.extend(take(&to));
        }
        assert!(
            come == message,
            "{what}: {} of {} bytes",
            come.len(),
            message.len()
        );
    }
    assert!(is_empty(&to), "{what}: too much has come");
}

#[test]
fn what_goes_in_comes_out_for_each_redirect_and_pair_of_kinds() {
    if !available(Need::Root) {
        return;
    }
    for redirect in Redirect::ALL {
        for map_type in [MapType::Map, MapType::Hash] {
            let redirections = Redirections::new(redirect, map_type, 64).expect("loaded");
            for source_kind in KINDS {
                for target_kind in KINDS {
                    let is_supported = redirect.supports(source_kind, target_kind).is_ok();
                    for make in [Pair::of, Pair::of6] {
                        let (source, target) = (make(source_kind), make(target_kind));
                        let what = format!("{redirect}: {source_kind} to {target_kind}");
                        let linked = redirections.link(&source.member, &target.member);
                        if !is_supported {
                            let error = linked.expect_err("it is not supported");
                            assert_eq!(error.kind(), ErrorKind::UnsupportedSocket, "{what}");
                            let failure = redirect.supports(source_kind, target_kind);
                            let failure = failure.expect_err("it is not supported");
                            for part in [failure.as_str(), redirect.decided_by(failure)] {
                                assert!(error.to_string().contains(part), "{what}: {error}");
                            }
                            // Nothing is lost: the source works as before.
                            let (sender, reader) = if redirect.is_of_sent() {
                                (&source.member, &source.peer)
                            } else {
                                (&source.peer, &source.member)
                            };
                            converse(sender, reader, false, &what);
                            continue;
                        }
                        let link = linked.unwrap_or_else(|error| panic!("{what}: {error}"));
                        let (from, to) = ends(redirect, &source, &target);
                        let keeps_borders = !source_kind.is_stream() && !target_kind.is_stream();
                        converse(from, to, keeps_borders, &what);
                        let counters = link.counters();
                        let bytes: usize =
                            messages(MESSAGES, MOST_BYTES, 1).iter().map(Vec::len).sum();
                        assert_eq!(counters.bytes, bytes as u64, "{what}");
                        assert_eq!(counters.passed_messages, 0, "{what}");
                    }
                }
            }
        }
    }
}

/// A socket of a kind, that need not be connected: a pair is refused by its kinds, before anything is asked of the sockets.
fn any_socket(kind: SocketKind) -> Option<OwnedFd> {
    let of = match kind {
        SocketKind::VsockStream => SockType::Stream,
        SocketKind::VsockSeqpacket => SockType::SeqPacket,
        _ => return Some(Pair::of(kind).member),
    };
    // The kernel would load a module.
    let protocols = fs::read_to_string("/proc/net/protocols").expect("a table");
    if !protocols.contains("AF_VSOCK") {
        return None;
    }
    let made = socket(AddressFamily::Vsock, of, SockFlag::SOCK_CLOEXEC, None);
    Some(made.expect("a VSOCK socket"))
}

#[test]
fn each_cell_that_is_not_supported_is_refused_with_the_reason_and_the_kernels_function() {
    if !available(Need::Root) {
        return;
    }
    let mut refused = Vec::new();
    for redirect in Redirect::ALL {
        let redirections = Redirections::new(redirect, MapType::Hash, 1).expect("loaded");
        for source_kind in SocketKind::ALL {
            for target_kind in SocketKind::ALL {
                let Err(failure) = redirect.supports(source_kind, target_kind) else {
                    continue;
                };
                let what = format!("{redirect}: {source_kind} to {target_kind}");
                let (Some(source), Some(target)) =
                    (any_socket(source_kind), any_socket(target_kind))
                else {
                    println!("left out, there is no VSOCK: {what}");
                    continue;
                };
                let error = redirections
                    .link(&source, &target)
                    .expect_err("it is not supported");
                assert_eq!(error.kind(), ErrorKind::UnsupportedSocket, "{what}");
                let function = redirect.decided_by(failure);
                let reason = format!(
                    "{redirect} does not support {source_kind} to {target_kind}: {failure} ({function})"
                );
                assert!(error.to_string().contains(&reason), "{error}");
                refused.push((redirect, source_kind, target_kind));
            }
        }
    }
    let of_vsock = |(_, source, target): &(Redirect, SocketKind, SocketKind)| {
        !KINDS.contains(source) || !KINDS.contains(target)
    };
    // 36 cells less 4, 1, 36 and 24; of those with VSOCK, none is supported but to an egress.
    let (vsock, others): (Vec<_>, Vec<_>) = refused.into_iter().partition(of_vsock);
    assert_eq!(others.len(), 12 + 15);
    assert!([0, 20 + 20 + 12].contains(&vsock.len()), "{vsock:?}");
}

#[test]
fn messages_on_their_way_to_an_egress_keep_their_borders() {
    if !available(Need::Root) {
        return;
    }
    let redirections =
        Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8).expect("loaded");
    for [source_kind, target_kind] in [
        [SocketKind::Udp, SocketKind::Udp],
        [SocketKind::Udp, SocketKind::UnixDatagram],
        [SocketKind::UnixDatagram, SocketKind::Udp],
        [SocketKind::UnixDatagram, SocketKind::UnixDatagram],
    ] {
        let (source, target) = (Pair::of(source_kind), Pair::of(target_kind));
        let _link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        // Beyond 16 KiB a UNIX datagram is in several pieces of memory (SKB_MAX_ALLOC).
        for message in messages(20, 60_000, 2) {
            put(&source.peer, &message);
            assert!(
                take(&target.peer) == message,
                "{source_kind} to {target_kind}"
            );
        }
    }
}

#[test]
fn bytes_that_came_before_the_link_are_left_to_their_reader() {
    if !available(Need::Root) {
        return;
    }
    let redirections =
        Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8).expect("loaded");
    for kind in KINDS {
        let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Tcp));
        put(&source.peer, b"early");
        until("it has come", || !is_empty(&source.member));
        let error = redirections
            .link(&source.member, &target.member)
            .expect_err("bytes wait");
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.to_string().contains("read them first"), "{error}");
        assert_eq!(take(&source.member), b"early");
        let _link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        put(&source.peer, b"late");
        assert_eq!(take(&target.peer), b"late", "{kind}");
    }
}

#[test]
fn links_are_as_many_as_asked_for_and_a_source_has_one() {
    if !available(Need::Root) {
        return;
    }
    for map_type in [MapType::Map, MapType::Hash] {
        let redirections =
            Redirections::new(Redirect::IngressToLocal, map_type, 2).expect("loaded");
        let [one, other, third, target] = [(); 4].map(|()| Pair::of(SocketKind::Tcp));
        let _first = redirections
            .link(&one.member, &target.member)
            .expect("linked");
        let twice = redirections
            .link(&one.member, &target.member)
            .expect_err("it has a link");
        assert!(twice.to_string().contains("has a link already"), "{twice}");
        let _second = redirections
            .link(&other.member, &target.member)
            .expect("linked");
        let full = redirections
            .link(&third.member, &target.member)
            .expect_err("full");
        assert!(full.to_string().contains("2 links already"), "{full}");
        put(&one.peer, b"one");
        assert_eq!(take(&target.member), b"one");
        put(&other.peer, b"other");
        assert_eq!(take(&target.member), b"other");
    }
}

#[test]
fn of_two_threads_that_link_a_source_one_succeeds() {
    const ROUNDS: usize = 50;
    if !available(Need::Root) {
        return;
    }
    for map_type in [MapType::Map, MapType::Hash] {
        let redirections =
            Redirections::new(Redirect::IngressToEgress, map_type, 8).expect("loaded");
        for round in 0..ROUNDS {
            let [source, one, other] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
            let start = Barrier::new(2);
            let link = |target: &Pair| {
                start.wait();
                redirections.link(&source.member, &target.member)
            };
            let links = thread::scope(|scope| {
                let first = scope.spawn(|| link(&one));
                let second = link(&other);
                [first.join().expect("no panic"), second]
            });
            let target = match &links {
                [Ok(_), Err(_)] => &one,
                [Err(_), Ok(_)] => &other,
                links => panic!("round {round}: {links:?}"),
            };
            put(&source.peer, b"to one of them");
            assert_eq!(take(&target.peer), b"to one of them", "round {round}");
        }
    }
}

#[test]
fn a_source_of_another_redirect_is_refused() {
    if !available(Need::Root) {
        return;
    }
    let load = || Redirections::new(Redirect::IngressToEgress, MapType::Hash, 2).expect("loaded");
    let (first, second) = (load(), load());
    let [source, target] = [(); 2].map(|()| Pair::of(SocketKind::Tcp));
    let _link = first.link(&source.member, &target.member).expect("linked");
    let error = second
        .link(&source.member, &target.member)
        .expect_err("it has a program");
    assert!(error.to_string().contains("another program"), "{error}");
}

/// Its own datagrams take all the room that it has, so the redirected ones have to wait.
///
/// On 6.12.117 a non-blocking reader gets EAGAIN for good: `udp_bpf_recvmsg` takes what waits for the worker for
/// something to be read, and looks at nothing else.
#[test]
fn a_udp_reader_with_a_full_queue_gets_what_is_redirected_to_it_too() {
    let stalls = Release::here().is_some_and(|release| release.series() < (6, 18));
    if stalls || !available(Need::Root) {
        return;
    }
    let redirections =
        Redirections::new(Redirect::IngressToLocal, MapType::Map, 8).expect("loaded");
    for kind in [SocketKind::Udp, SocketKind::UnixStream] {
        let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Udp));
        set_socket_recv_buffer_size(&target.member, 16 << 10).expect("bounded");
        for _ in 0..60 {
            put(&target.peer, &[1; 16]);
        }
        let link = redirections
            .link(&source.member, &target.member)
            .expect("linked");
        for _ in 0..10 {
            put(&source.peer, &[2; 16]);
        }
        until("all was redirected", || link.counters().bytes == 160);
        let mut come = Vec::new();
        until(&format!("{kind}: the redirected ones have come"), || {
            drain(&target.member, &mut come);
            come.iter().filter(|byte| **byte == 2).count() == 160
        });
        let own = come.iter().filter(|byte| **byte == 1).count() / 16;
        let dropped = memory(&target.member).expect("read").dropped_packets;
        assert_eq!(own + dropped, 60, "{kind}");
    }
}

/// A socket can take datagrams from many peers, and stay with its own.
#[test]
fn an_unconnected_udp_source_redirects_what_anybody_sends() {
    if !available(Need::Root) {
        return;
    }
    let redirections =
        Redirections::new(Redirect::IngressToEgress, MapType::Map, 8).expect("loaded");
    let source = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let target = Pair::of(SocketKind::Udp);
    let _link = redirections.link(&source, &target.member).expect("linked");
    for _ in 0..3 {
        let client = UdpSocket::bind("127.0.0.1:0").expect("bound");
        client
            .send_to(b"hello", source.local_addr().expect("bound"))
            .expect("sent");
        assert_eq!(take(&target.peer), b"hello");
    }
}

/// The kernel would count its bytes as read twice: its reader would miss as many of the next ones.
#[test]
fn a_tcp_socket_does_not_redirect_to_itself_what_it_would_read_anyway() {
    if !available(Need::Root) {
        return;
    }
    let redirections =
        Redirections::new(Redirect::IngressToLocal, MapType::Hash, 8).expect("loaded");
    let tcp = Pair::of(SocketKind::Tcp);
    let same = tcp.member.try_clone().expect("a duplicate");
    let error = redirections
        .link(&tcp.member, &same)
        .expect_err("it is the same socket");
    assert_eq!(error.kind(), ErrorKind::UnsupportedSocket);
    assert!(error.to_string().contains("tcp_bpf_recvmsg"), "{error}");
    put(&tcp.peer, b"as before");
    assert_eq!(take(&tcp.member), b"as before");

    let udp = Pair::of(SocketKind::Udp);
    let mut link = redirections.link(&udp.member, &udp.member).expect("linked");
    put(&udp.peer, b"to itself");
    assert_eq!(take(&udp.member), b"to itself");
    assert_eq!(link.counters().messages, 1);
    let patience = std::time::Duration::from_secs(30);
    link.leave(&udp.member, patience).expect("it leaves");
    put(&udp.peer, b"without");
    assert_eq!(take(&udp.member), b"without");
}

/// Redirected bytes would be read before those that came over the connection.
#[test]
fn a_source_is_linked_to_its_own_peer_once_that_has_read_everything() {
    if !available(Need::Root) {
        return;
    }
    let redirections = Redirections::new(Redirect::SendToLocal, MapType::Hash, 8).expect("loaded");
    for make in [Pair::of, Pair::of6] {
        let Pair { member, peer } = make(SocketKind::Tcp);
        put(&member, b"first");
        let error = redirections.link(&member, &peer).expect_err("unread");
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(
            error.to_string().contains("redirected ones first"),
            "{error}"
        );
        assert_eq!(take(&peer), b"first");
        let link = redirections.link(&member, &peer).expect("linked");
        put(&member, b"second");
        assert_eq!(take(&peer), b"second");
        assert_eq!(link.counters().messages, 1);
        // The target may have to read over its own connection if that is another one.
        let other = make(SocketKind::Tcp);
        put(&other.peer, b"waits");
        let stranger = make(SocketKind::Tcp);
        redirections
            .link(&stranger.member, &other.member)
            .expect("linked");
    }
}
