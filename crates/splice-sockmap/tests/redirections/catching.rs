//! Ways in: connections that a control group's program catches.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use netlab::{ControlGroup, Need, available, until, until_found};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recv};
use splice_sockmap::{
    Catcher, Caught, Cookie, Filter, MapType, Redirect, Redirections, SocketKind,
};

use crate::conversation::{Pair, is_empty, messages, put, take};

fn cookie(socket: impl AsFd) -> Cookie {
    Cookie::of(socket).expect("a cookie")
}

fn is_readable(catcher: &Catcher) -> bool {
    let mut polled = [PollFd::new(catcher, PollFlags::IN)];
    poll(&mut polled, Some(&Default::default())).expect("polled") == 1
}

#[test]
fn connections_of_the_group_are_caught_and_linked() {
    if !available(Need::Root) {
        return;
    }
    let group = ControlGroup::new("catcher").expect("a control group");
    let catcher = Catcher::attach(&group, 64).expect("attached");
    assert!(catcher.next().is_none() && !is_readable(&catcher));
    let outside = Pair::of(SocketKind::Tcp);
    let make = || [Pair::of(SocketKind::Tcp), Pair::of6(SocketKind::Tcp)];
    let [source, target] = group.enter(make).expect("entered");

    until("it tells", || is_readable(&catcher));
    let caught: Vec<Caught> = std::iter::from_fn(|| catcher.next()).collect();
    // Both ends of both connections.
    assert_eq!(caught.len(), 4, "{caught:?}");
    for pair in [&source, &target] {
        for (socket, is_active) in [(&pair.member, false), (&pair.peer, true)] {
            let stream = TcpStream::from(socket.try_clone().expect("a duplicate"));
            let of = caught
                .iter()
                .find(|of| of.cookie == cookie(socket))
                .expect("caught");
            assert_eq!(of.local, stream.local_addr().expect("an address"));
            assert_eq!(of.remote, stream.peer_addr().expect("an address"));
            assert_eq!(of.is_active, is_active, "{of:?}");
        }
    }

    for map_type in [MapType::Map, MapType::Hash] {
        let redirections =
            Redirections::new(Redirect::IngressToEgress, map_type, 8).expect("loaded");
        // Another source for each type: a source has one link.
        let (from, to) = match map_type {
            MapType::Map => (&source, &target),
            MapType::Hash => (&target, &source),
        };
        let [one, other] = [cookie(&from.member), cookie(&to.member)];
        let _link = catcher.link(&redirections, one, other).expect("linked");
        put(&from.peer, b"hello");
        assert_eq!(take(&to.peer), b"hello");
        let twice = catcher
            .link(&redirections, one, other)
            .expect_err("it has a link");
        assert!(twice.to_string().contains("has a link already"), "{twice}");
        let stranger = cookie(&outside.member);
        let error = catcher
            .link(&redirections, stranger, other)
            .expect_err("not caught");
        assert!(
            error.to_string().contains("source was not caught"),
            "{error}"
        );
        let error = catcher
            .link(&redirections, other, stranger)
            .expect_err("not caught");
        assert!(
            error.to_string().contains("target was not caught"),
            "{error}"
        );
    }
    assert_eq!(catcher.missed(), 0);
}

#[test]
fn bytes_that_came_before_and_targets_that_nobody_accepted_keep_from_linking() {
    if !available(Need::Root) {
        return;
    }
    let group = ControlGroup::new("catcher").expect("a control group");
    let catcher = Catcher::attach(&group, 64).expect("attached");
    let redirections =
        Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8).expect("loaded");
    let make = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let waiting = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        (Pair::of(SocketKind::Tcp), listener, waiting)
    };
    let (source, listener, waiting) = group.enter(make).expect("entered");
    let member = cookie(&source.member);
    let unaccepted = until_found("it is caught", || {
        let of = catcher.next()?;
        (of.local == waiting.peer_addr().expect("an address")).then_some(of.cookie)
    });
    let error = catcher
        .link(&redirections, member, unaccepted)
        .expect_err("not accepted");
    assert!(error.to_string().contains("nobody has accepted"), "{error}");
    let (accepted, _) = listener.accept().expect("accepted");
    assert_eq!(cookie(&accepted), unaccepted);

    put(&source.peer, b"early");
    until("they have come", || !is_empty(&source.member));
    let link = || catcher.link(&redirections, member, unaccepted);
    let error = link().expect_err("bytes wait");
    assert!(error.to_string().contains("came before"), "{error}");
    assert_eq!(take(&source.member), b"early");
    let _link = link().expect("linked");
    put(&source.peer, b"late");
    assert_eq!(take(&waiting), b"late");
}

/// Redirected bytes would be read before those that came over the connection.
#[test]
fn two_caught_peers_are_linked_once_everything_is_read() {
    if !available(Need::Root) {
        return;
    }
    let group = ControlGroup::new("catcher").expect("a control group");
    let catcher = Catcher::attach(&group, 64).expect("attached");
    let redirections = Redirections::new(Redirect::SendToLocal, MapType::Hash, 8).expect("loaded");
    for make in [Pair::of, Pair::of6] {
        let Pair { member, peer } = group.enter(|| make(SocketKind::Tcp)).expect("entered");
        put(&member, b"first");
        let link = || catcher.link(&redirections, cookie(&member), cookie(&peer));
        let error = link().expect_err("unread");
        assert!(
            error.to_string().contains("redirected ones first"),
            "{error}"
        );
        assert_eq!(take(&peer), b"first");
        let linked = link().expect("linked");
        put(&member, b"second");
        assert_eq!(take(&peer), b"second");
        assert_eq!(linked.counters().messages, 1);
    }
}

/// Each link is made while bytes come: those before it go to the source's reader, all others to the target.
#[test]
fn a_link_in_full_flow_loses_no_byte() {
    const ROUNDS: u64 = 30;
    const LAST: &[u8] = b"the last of them";
    if !available(Need::Root) {
        return;
    }
    let group = ControlGroup::new("catcher").expect("a control group");
    let catcher = Catcher::attach(&group, 64).expect("attached");
    let redirections =
        Redirections::new(Redirect::IngressToEgress, MapType::Hash, 64).expect("loaded");
    for round in 0..ROUNDS {
        let make = || [Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp)];
        let [source, target] = group.enter(make).expect("entered");
        let cookies = [&source.member, &target.member].map(cookie);
        let is_linked = AtomicBool::new(false);
        let (sent, mut come) = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = Vec::new();
                let mut send = |message: &[u8]| {
                    put(&source.peer, message);
                    sent.extend_from_slice(message);
                };
                while !is_linked.load(Ordering::Acquire) {
                    for message in messages(20, 100, round) {
                        send(&message);
                    }
                }
                send(LAST);
                sent
            });
            let mut come = Vec::new();
            let _link = until_found("it is linked", || {
                let mut bytes = [0; 4096];
                while let Ok((_, length @ 1..)) =
                    recv(&source.member, &mut bytes[..], RecvFlags::DONTWAIT)
                {
                    come.extend_from_slice(&bytes[..length]);
                }
                catcher.link(&redirections, cookies[0], cookies[1]).ok()
            });
            is_linked.store(true, Ordering::Release);
            (sender.join().expect("sent"), come)
        });
        while !come.ends_with(LAST) {
            come.extend(take(&target.peer));
        }
        assert!(
            come == sent,
            "round {round}: {} of {} bytes",
            come.len(),
            sent.len()
        );
    }
}

#[test]
fn what_has_no_room_is_counted() {
    if !available(Need::Root) {
        return;
    }
    let group = ControlGroup::new("catcher").expect("a control group");
    let catcher = Catcher::attach(&group, 1).expect("attached");
    let _pairs = group.enter(|| Pair::of(SocketKind::Tcp)).expect("entered");
    until("one end is missed", || catcher.missed() == 1);
    assert!(catcher.next().is_some() && catcher.next().is_none());
}

/// Connections to two servers, of which one has IPv6 sockets for IPv4 connections.
#[test]
fn only_what_passes_the_filter_is_caught() {
    if !available(Need::Root) {
        return;
    }
    let group = ControlGroup::new("catcher").expect("a control group");
    // An accepted socket belongs to its listener's group.
    let listen = || {
        let four = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let six = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a listener");
        (four, six)
    };
    let (four, six) = group.enter(listen).expect("entered");
    let [four_port, six_port] =
        [&four, &six].map(|listener| listener.local_addr().expect("an address").port());
    let v4 = IpAddr::from(Ipv4Addr::LOCALHOST);
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    let all = Filter::default();
    // Each connection has an accepted end, whose local port is the server's, and a connected one.
    for (filter, ends) in [
        (all, 6),
        (
            Filter {
                local_port: Some(four_port),
                ..all
            },
            1,
        ),
        (
            Filter {
                remote_port: Some(six_port),
                ..all
            },
            2,
        ),
        (
            Filter {
                local_ip: Some(v4),
                ..all
            },
            4,
        ),
        (
            Filter {
                remote_ip: Some(v6),
                ..all
            },
            2,
        ),
        (
            Filter {
                local_ip: Some(v4),
                local_port: Some(six_port),
                ..all
            },
            1,
        ),
        (
            Filter {
                local_ip: Some(v6),
                remote_ip: Some(v4),
                ..all
            },
            0,
        ),
        (
            Filter {
                remote_ip: Some(Ipv4Addr::new(127, 0, 0, 2).into()),
                ..all
            },
            0,
        ),
    ] {
        let catcher = Catcher::attach_filtered(&group, 64, &filter).expect("attached");
        let connect = |address: (IpAddr, u16), listener: &TcpListener| {
            let near = TcpStream::connect(address).expect("connected");
            let (far, _) = listener.accept().expect("accepted");
            (near, far)
        };
        let _connections = group
            .enter(|| {
                [
                    connect((v4, four_port), &four),
                    connect((v4, six_port), &six),
                    connect((v6, six_port), &six),
                ]
            })
            .expect("entered");
        // The program has run when connect(2) and accept(2) have returned.
        let caught = std::iter::from_fn(|| catcher.next()).count();
        assert_eq!(caught, ends, "{filter:?}");
    }
}
