//! Redirects that are attached to maps of their caller's.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use netlab::{Need, available, until};
use splice_sockmap::{
    Attachment, Container, Cookie, ErrorKind, FourTuple, Lease, Link, Redirect, SockHash, SockMap,
    SocketKind,
};

use crate::conversation::{KINDS, Pair, put, take};
use crate::flow::{AHEAD_BYTES, EndOf, Flow, drain, follow};
use crate::linking::{converse, ends};
use crate::payload::Payload;
use crate::pins::Pins;

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A map of either type, with indices as keys.
pub(crate) trait Own: Container<Key = u32> + Sized {
    fn attached(entries: u32, redirect: Redirect) -> Attachment<Self>;
    fn leased(lease: &Lease, entries: u32, redirect: Redirect) -> Attachment<Self>;
    fn members(&self) -> Vec<(u32, Cookie)>;
    fn remove_from(&self, key: u32) -> bool;
}

impl Own for SockMap {
    fn attached(entries: u32, redirect: Redirect) -> Attachment<Self> {
        let attached = Self::create(entries).and_then(|map| map.attach(redirect));
        attached.expect("attached")
    }

    fn leased(lease: &Lease, entries: u32, redirect: Redirect) -> Attachment<Self> {
        let attached = Self::create(entries).and_then(|map| map.attach_leased(lease, redirect));
        attached.expect("attached")
    }

    fn members(&self) -> Vec<(u32, Cookie)> {
        self.iter().collect()
    }

    fn remove_from(&self, key: u32) -> bool {
        self.remove(key).expect("removed")
    }
}

impl Own for SockHash<u32> {
    fn attached(entries: u32, redirect: Redirect) -> Attachment<Self> {
        let attached = Self::create(entries).and_then(|map| map.attach(redirect));
        attached.expect("attached")
    }

    fn leased(lease: &Lease, entries: u32, redirect: Redirect) -> Attachment<Self> {
        let attached = Self::create(entries).and_then(|map| map.attach_leased(lease, redirect));
        attached.expect("attached")
    }

    fn members(&self) -> Vec<(u32, Cookie)> {
        self.iter().collect()
    }

    fn remove_from(&self, key: u32) -> bool {
        self.remove(key).expect("removed")
    }
}

/// The whole cycle under a key of the caller's: in, redirected, out.
fn cycle<M: Container<Key: std::fmt::Debug + PartialEq>>(
    attachment: &Attachment<M>,
    key: M::Key,
    redirect: Redirect,
    (source, target): (&Pair, &Pair),
    (source_kind, target_kind): (SocketKind, SocketKind),
) -> Link {
    let what = format!("{redirect}: {source_kind} to {target_kind}");
    let linked = attachment.link(key, &source.member, &target.member);
    let link = linked.unwrap_or_else(|error| panic!("{what}: {error}"));
    let cookie = Cookie::of(&source.member).expect("a cookie");
    assert_eq!(attachment.cookie(key).expect("read"), Some(cookie));
    assert_eq!(attachment.iter().collect::<Vec<_>>(), [(key, cookie)]);
    let (from, to) = ends(redirect, source, target);
    let keeps_borders = !source_kind.is_stream() && !target_kind.is_stream();
    converse(from, to, keeps_borders, &what);
    assert!(link.counters().messages > 0, "{what}");
    link
}

#[test]
fn a_redirect_works_on_a_map_of_the_callers_for_each_pair_of_kinds() {
    if !available(Need::Root) {
        return;
    }
    for redirect in Redirect::ALL {
        works_for_each_pair_of_kinds::<SockMap>(redirect);
        works_for_each_pair_of_kinds::<SockHash<u32>>(redirect);
    }
}

fn works_for_each_pair_of_kinds<M: Own>(redirect: Redirect) {
    for source_kind in KINDS {
        // A map of one socket, since a message that a UNIX socket has received does not tell so.
        let attachment = M::attached(1, redirect);
        for target_kind in KINDS {
            let (source, target) = (Pair::of(source_kind), Pair::of(target_kind));
            if redirect.supports(source_kind, target_kind).is_err() {
                let error = attachment
                    .link(0, &source.member, &target.member)
                    .expect_err("it is not supported");
                assert_eq!(error.kind(), ErrorKind::UnsupportedSocket);
                assert_eq!(attachment.iter().count(), 0);
                continue;
            }
            let kinds = (source_kind, target_kind);
            let mut link = cycle(&attachment, 0, redirect, (&source, &target), kinds);
            if source_kind == SocketKind::UnixStream {
                drop(source.peer);
            }
            link.leave(&source.member, PATIENCE).expect("it leaves");
            assert_eq!(attachment.iter().count(), 0);
        }
    }
}

#[test]
fn keys_of_any_type_name_the_sources() {
    if !available(Need::Root) {
        return;
    }
    let redirect = Redirect::IngressToEgress;
    let kinds = (SocketKind::Tcp, SocketKind::Tcp);
    let (source, target) = (Pair::of(kinds.0), Pair::of(kinds.1));
    let leave = |mut link: Link| link.leave(&source.member, PATIENCE).expect("it leaves");
    let sockets = (&source, &target);

    let map = SockHash::<Cookie>::create(4).expect("a map");
    let by_cookie = map.attach(redirect).expect("attached");
    let key = Cookie::of(&source.member).expect("a cookie");
    leave(cycle(&by_cookie, key, redirect, sockets, kinds));

    let map = SockHash::<FourTuple>::create(4).expect("a map");
    let by_addresses = map.attach(redirect).expect("attached");
    let key = FourTuple::of(&source.member).expect("addresses");
    leave(cycle(&by_addresses, key, redirect, sockets, kinds));

    let map = SockHash::<[u8; 100]>::create(4).expect("a map");
    let by_bytes = map.attach(redirect).expect("attached");
    leave(cycle(&by_bytes, [7; 100], redirect, sockets, kinds));

    // The map's owner chooses the places of an array, too.
    let map = SockMap::create(4).expect("a map");
    let by_index = map.attach(redirect).expect("attached");
    let other = Pair::of(SocketKind::Tcp);
    let _first = by_index
        .link(3, &other.member, &target.member)
        .expect("linked");
    let taken = by_index
        .link(3, &source.member, &target.member)
        .expect_err("the key has a socket");
    assert!(
        taken.to_string().contains("the key has a socket already"),
        "{taken}"
    );
    // Whoever was there first stays.
    put(&other.peer, b"redirected");
    assert_eq!(take(&target.peer), b"redirected");
    let beyond = by_index
        .link(4, &source.member, &target.member)
        .expect_err("there is no such index");
    assert_eq!(beyond.kind(), ErrorKind::System, "{beyond}");
    converse(&source.peer, &source.member, false, "it was not linked");
    let _second = by_index
        .link(0, &source.member, &target.member)
        .expect("linked");
    let keys: Vec<u32> = by_index.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [0, 3]);
}

#[test]
fn what_a_map_of_the_callers_cannot_do_is_refused() {
    if !available(Need::Root) {
        return;
    }
    let map = SockMap::create(2).expect("a map");
    let early = Pair::of(SocketKind::Tcp);
    map.insert(0, &early.member).expect("inserted");
    let error = map
        .attach(Redirect::IngressToEgress)
        .expect_err("it has a member");
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().contains("sock_map_link"), "{error}");

    let attachment = SockHash::<u32>::attached(2, Redirect::IngressToEgress);
    for kind in [SocketKind::UnixStream, SocketKind::UnixDatagram] {
        let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Tcp));
        let error = attachment
            .link(1, &source.member, &target.member)
            .expect_err("its messages do not tell");
        assert_eq!(error.kind(), ErrorKind::UnsupportedSocket);
        assert!(error.to_string().contains("unix_read_skb"), "{error}");
        converse(&source.peer, &source.member, false, "it was not linked");
    }
}

/// The map goes with its last source, and not before.
#[test]
fn a_map_of_the_callers_that_is_dropped_in_full_flow_loses_nothing() {
    if !available(Need::Root) {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        loses_nothing_when_dropped::<SockMap>(redirect);
        loses_nothing_when_dropped::<SockHash<u32>>(redirect);
    }
}

fn loses_nothing_when_dropped<M: Own>(redirect: Redirect) {
    let attachment = M::attached(8, redirect);
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let link = attachment
        .link(5, &source.member, &target.member)
        .expect("linked");
    let (payload, flow, mut come) = (Payload::new(9), Flow::default(), Vec::new());
    let reader = ends(redirect, &source, &target).1;
    thread::scope(|scope| {
        scope.spawn(|| flow.send(&source.peer, payload));
        let _end = EndOf(&flow);
        follow(&flow, reader, &mut come, 10 * AHEAD_BYTES);
        drop((link, attachment));
        follow(&flow, reader, &mut come, 10 * AHEAD_BYTES);
    });
    until("the rest has come", || {
        drain(reader, &mut come);
        come.len() >= flow.sent.load(Ordering::Relaxed)
    });
    payload.check(0, &come);
}

#[test]
fn a_closed_source_makes_room_under_its_key() {
    if !available(Need::Root) {
        return;
    }
    makes_room_when_closed::<SockMap>();
    makes_room_when_closed::<SockHash<u32>>();
}

fn makes_room_when_closed<M: Own>() {
    let attachment = M::attached(1, Redirect::IngressToLocal);
    let target = Pair::of(SocketKind::Tcp);
    for _ in 0..5 {
        let source = Pair::of(SocketKind::Tcp);
        drop(
            attachment
                .link(0, &source.member, &target.member)
                .expect("linked"),
        );
        put(&source.peer, b"redirected");
        assert_eq!(take(&target.member), b"redirected");
    }
}

#[test]
fn a_map_of_the_callers_can_be_pinned() {
    if !available(Need::Root) {
        return;
    }
    let pins = Pins::new();
    let map = SockHash::<u32>::create(4).expect("a map");
    let mut attachment = map.attach(Redirect::IngressToEgress).expect("attached");
    attachment.pin(pins.path("sources")).expect("pinned");
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let _link = attachment
        .link(2, &source.member, &target.member)
        .expect("linked");
    let seen = SockHash::<u32>::open_pinned(pins.path("sources")).expect("opened");
    let cookie = Cookie::of(&source.member).expect("a cookie");
    assert_eq!(seen.iter().collect::<Vec<_>>(), [(2, cookie)]);
}
