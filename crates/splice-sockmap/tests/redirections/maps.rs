//! `SockMap` and `SockHash`: what they hold.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread;

use netlab::{Need, available, until};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpTlsTx;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, socketpair};
use splice_sockmap::{Cookie, ErrorKind, FourTuple, SockHash, SockMap, SocketKind};

use crate::conversation::{KINDS, Pair};
use crate::flow::{AHEAD_BYTES, EndOf, Flow, drain, follow};
use crate::linking::converse;
use crate::payload::Payload;
use crate::pins::Pins;
use crate::tls;

#[test]
fn a_map_tells_the_cookies_of_its_members() {
    if !available(Need::Root) {
        return;
    }
    let map = SockMap::create(8).expect("a map");
    let members = KINDS.map(Pair::of);
    for (index, pair) in (1..).zip(&members) {
        map.insert(index, &pair.member).expect("inserted");
    }
    let cookies: Vec<(u32, Cookie)> = (1..)
        .zip(&members)
        .map(|(index, pair)| (index, Cookie::of(&pair.member).expect("a cookie")))
        .collect();
    assert_eq!(map.iter().collect::<Vec<_>>(), cookies);
    assert_eq!(map.cookie(2).expect("read"), Some(cookies[1].1));
    assert_eq!(map.cookie(0).expect("read"), None);

    let again = map
        .insert(1, &members[1].member)
        .expect_err("the index is taken");
    assert_eq!(again.kind(), ErrorKind::System);
    let beyond = map
        .insert(8, &members[0].member)
        .expect_err("there is no such index");
    assert_eq!(beyond.kind(), ErrorKind::System);

    assert!(map.remove(1).expect("removed"));
    assert!(!map.remove(1).expect("nothing to remove"));
    assert_eq!(map.cookie(1).expect("read"), None);
}

#[test]
fn sockets_of_each_kind_go_into_maps_of_both_types_and_out() {
    if !available(Need::Root) {
        return;
    }
    let pins = Pins::new();
    for kind in KINDS {
        for make in [Pair::of, Pair::of6] {
            goes_in_and_out(kind, &make(kind), &pins);
        }
    }
}

pub(crate) fn goes_in_and_out(kind: SocketKind, pair: &Pair, pins: &Pins) {
    let cookie = Cookie::of(&pair.member).expect("a cookie");
    let [map_name, hash_name] = ["map", "hash"].map(|of| pins.path(&format!("{of}{}", cookie.0)));
    let mut map = SockMap::create(2).expect("a map");
    let mut hash = SockHash::<Cookie>::create(2).expect("a map");
    map.pin(&map_name).expect("pinned");
    hash.pin(&hash_name).expect("pinned");
    // In both at once, and twice.
    for _ in 0..2 {
        map.insert(1, &pair.member).expect("inserted");
        hash.insert(cookie, &pair.member).expect("inserted");
        assert_eq!(map.cookie(1).expect("read"), Some(cookie), "{kind}");
        assert_eq!(hash.cookie(cookie).expect("read"), Some(cookie), "{kind}");
        let opened = SockMap::open_pinned(&map_name).expect("opened");
        assert_eq!(opened.iter().collect::<Vec<_>>(), [(1, cookie)], "{kind}");
        let opened = SockHash::<Cookie>::open_pinned(&hash_name).expect("opened");
        assert_eq!(opened.iter().collect::<Vec<_>>(), [(cookie, cookie)]);
        // Without a program nothing happens to what it sends and receives.
        converse(&pair.peer, &pair.member, !kind.is_stream(), kind.name());
        converse(&pair.member, &pair.peer, !kind.is_stream(), kind.name());
        assert!(map.remove(1).expect("removed"), "{kind}");
        assert!(opened.remove(cookie).expect("removed"), "{kind}");
        assert_eq!((map.iter().count(), hash.iter().count()), (0, 0), "{kind}");
        converse(&pair.peer, &pair.member, !kind.is_stream(), kind.name());
    }
}

#[test]
fn a_hash_has_keys_of_any_bytes() {
    if !available(Need::Root) {
        return;
    }
    let hash = SockHash::<[u8; 6]>::create(2).expect("a map");
    let [one, other, third] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
    hash.insert(*b"source", &one.member).expect("inserted");
    hash.insert(*b"target", &other.member).expect("inserted");
    let full = hash
        .insert(*b"beyond", &third.member)
        .expect_err("the map is full");
    assert!(full.to_string().contains("no room"), "{full}");
    let mut keys: Vec<[u8; 6]> = hash.iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert_eq!(keys, [*b"source", *b"target"]);
    assert!(hash.remove(*b"source").expect("removed"));
    assert!(!hash.remove(*b"source").expect("nothing to remove"));

    let numbers = SockHash::<u64>::create(1).expect("a map");
    numbers.insert(7, &one.member).expect("inserted");
    assert_eq!(numbers.iter().map(|(key, _)| key).collect::<Vec<_>>(), [7]);
}

/// The same addresses are another connection in another network namespace, and IPv4 is IPv4 on a socket of IPv6.
#[test]
fn a_hash_has_keys_of_cookies_and_of_addresses() {
    if !available(Need::Root) {
        return;
    }
    let pair = Pair::of(SocketKind::Tcp);
    let cookie = Cookie::of(&pair.member).expect("a cookie");
    let by_cookie = SockHash::<Cookie>::create(2).expect("a map");
    by_cookie.insert(cookie, &pair.member).expect("inserted");
    assert_eq!(by_cookie.cookie(cookie).expect("read"), Some(cookie));
    assert_eq!(by_cookie.iter().collect::<Vec<_>>(), [(cookie, cookie)]);

    let by_addresses = SockHash::<FourTuple>::create(8).expect("a map");
    let [tuple, reversed] =
        [&pair.member, &pair.peer].map(|end| FourTuple::of(end).expect("addresses"));
    assert_eq!(
        (tuple.local, tuple.remote),
        (reversed.remote, reversed.local)
    );
    by_addresses.insert(tuple, &pair.member).expect("inserted");
    assert_eq!(by_addresses.cookie(tuple).expect("read"), Some(cookie));
    assert_eq!(by_addresses.cookie(reversed).expect("read"), None);
    let mut elsewhere = tuple;
    elsewhere.namespace += 1;
    assert_eq!(by_addresses.cookie(elsewhere).expect("read"), None);
    assert_eq!(by_addresses.iter().collect::<Vec<_>>(), [(tuple, cookie)]);

    let both = TcpListener::bind("[::]:0").expect("a listener");
    let port = both.local_addr().expect("bound").port();
    let client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let (server, _) = both.accept().expect("accepted");
    let [client, server] = [&client, &server].map(|end| FourTuple::of(end).expect("addresses"));
    assert_eq!((client.local, client.remote), (server.remote, server.local));
    let unix = Pair::of(SocketKind::UnixStream);
    let error = FourTuple::of(&unix.member).expect_err("it has no such addresses");
    assert_eq!(error.kind(), ErrorKind::System);
}

#[test]
fn a_closed_socket_leaves_its_maps() {
    if !available(Need::Root) {
        return;
    }
    for kind in KINDS {
        let hash = SockHash::<u64>::create(1).expect("a map");
        let pair = Pair::of(kind);
        hash.insert(1, &pair.member).expect("inserted");
        drop(pair.member);
        until(&format!("the {kind} socket leaves"), || {
            hash.cookie(1).expect("read").is_none()
        });
    }
}

/// No program sees its bytes, so there is no verdict to be lost.
#[test]
fn a_member_of_a_map_without_a_program_leaves_in_full_flow_without_losing_a_byte() {
    const TIMES: u32 = 50;
    if !available(Need::Root) {
        return;
    }
    let pair = Pair::of(SocketKind::Tcp);
    let (payload, flow, mut come) = (Payload::new(12), Flow::default(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| flow.send(&pair.peer, payload));
        let _end = EndOf(&flow);
        for time in 0..TIMES {
            let map = SockMap::create(1).expect("a map");
            let hash = SockHash::<u32>::create(1).expect("a map");
            map.insert(0, &pair.member).expect("inserted");
            hash.insert(7, &pair.member).expect("inserted");
            follow(&flow, &pair.member, &mut come, AHEAD_BYTES);
            // By turns removed, and dropped with its map.
            if time % 2 == 0 {
                assert!(map.remove(0).expect("removed"));
                drop(hash);
            } else {
                drop(map);
                assert!(hash.remove(7).expect("removed"));
            }
            follow(&flow, &pair.member, &mut come, AHEAD_BYTES);
        }
    });
    until("the rest has come", || {
        drain(&pair.member, &mut come);
        come.len() >= flow.sent.load(Ordering::Relaxed)
    });
    assert_eq!(come.len(), flow.sent.load(Ordering::Relaxed));
    payload.check(0, &come);
}

#[test]
fn a_pinned_map_outlives_its_descriptor() {
    if !available(Need::Root) {
        return;
    }
    let pins = Pins::new();
    let pair = Pair::of(SocketKind::Tcp);
    let mut map = SockHash::<u32>::create(4).expect("a map");
    map.pin(pins.path("sockets")).expect("pinned");
    map.insert(3, &pair.member).expect("inserted");
    drop(map);
    let opened = SockHash::<u32>::open_pinned(pins.path("sockets")).expect("opened");
    let cookie = Cookie::of(&pair.member).expect("a cookie");
    assert_eq!(opened.cookie(3).expect("read"), Some(cookie));
    let mut map = SockMap::create(4).expect("a map");
    map.pin(pins.path("indices")).expect("pinned");
    map.insert(2, &pair.member).expect("inserted");
    drop(map);
    let indices = SockMap::open_pinned(pins.path("indices")).expect("opened");
    assert_eq!(indices.iter().collect::<Vec<_>>(), [(2, cookie)]);
    assert!(indices.remove(2).expect("removed"));

    for (error, said) in [
        (
            SockHash::<u64>::open_pinned(pins.path("sockets")).map(drop),
            "its keys have 4 bytes, and not 8",
        ),
        (
            SockMap::open_pinned(pins.path("sockets")).map(drop),
            "it is no SOCKMAP",
        ),
        (
            SockMap::open_pinned(pins.path("nothing")).map(drop),
            "No such file",
        ),
    ] {
        let error = error.expect_err("it cannot be opened").to_string();
        assert!(error.contains(said), "{error}");
    }
    let twice = SockMap::create(1).expect("a map").pin(pins.path("sockets"));
    assert!(
        twice
            .expect_err("the name is taken")
            .to_string()
            .contains("File exists")
    );
}

#[test]
fn what_a_map_does_not_take_is_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    let map = SockMap::create(1).expect("a map");
    let refused = |socket: &OwnedFd| {
        let error = map.insert(0, socket).expect_err("it cannot be inserted");
        assert_eq!(error.kind(), ErrorKind::UnsupportedSocket, "{error}");
        error.to_string()
    };
    let file = OwnedFd::from(File::open("/dev/null").expect("a file"));
    assert!(refused(&file).contains("no socket"));
    let (seqpacket, _peer) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a pair");
    assert!(refused(&seqpacket).contains("UNIX SOCK_SEQPACKET"));
    let unconnected = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )
    .expect("a socket");
    assert!(refused(&unconnected).contains("neither ESTABLISHED nor LISTEN"));
    let ended = Pair::of(SocketKind::Tcp);
    drop(ended.peer);
    until("its end is known", || {
        refused(&ended.member).contains("a peer may have closed it")
    });
}

/// The kernel's release: 7 and 2 of 7.2.13.
fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split('.')
        .map(|number| number.parse().expect("a number"));
    (
        numbers.next().expect("major"),
        numbers.next().expect("minor"),
    )
}

/// What each kernel does when TLS in the kernel meets a map, in either order.
#[test]
#[ignore = "kernel: needs kTLS; make test-kernels runs it"]
fn a_socket_with_tls_and_a_map_exclude_one_another() {
    let map = SockMap::create(1).expect("a map");
    let first = Pair::of(SocketKind::Tcp);
    tls::stack(&first.member).expect("kTLS");
    let error = map.insert(0, &first.member).expect_err("it has a ULP");
    assert_eq!(error.kind(), ErrorKind::UnsupportedSocket);
    assert!(
        error.to_string().contains("upper layer protocol"),
        "{error}"
    );

    let second = Pair::of(SocketKind::Tcp);
    map.insert(0, &second.member).expect("inserted");
    tls::stack(&second.member).expect("the ULP alone is accepted");
    let keyed = setsockopt(&second.member, TcpTlsTx, &tls::keys());
    // Linux 7.2 refuses keys for a member (do_tls_setsockopt_conf), and so do stable releases to which that was ported
    // back, such as 6.1.192.
    println!("Linux {:?}: keys for a member: {keyed:?}", release());
    let allowed: &[_] = match release() {
        newer if newer >= (7, 2) => &[Err(nix::errno::Errno::EINVAL)],
        _ => &[Err(nix::errno::Errno::EINVAL), Ok(())],
    };
    assert!(allowed.contains(&keyed), "{keyed:?} on {:?}", release());
}
