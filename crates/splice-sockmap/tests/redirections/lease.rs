//! Leases: what is pinned passes everything once its owner is gone, and the next owner clears it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use netlab::{BpfFileSystem, Need, available, until};
use splice_sockmap::{
    ErrorKind, Lease, MapType, PassReason, Redirect, Redirections, SockHash, SockMap, SocketKind,
};

use crate::attaching::Own;
use crate::conversation::{KINDS, Pair, put, take};
use crate::flow::{AHEAD_BYTES, EndOf, Flow, drain, follow};
use crate::linking::ends;
use crate::payload::Payload;

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// No test lasts so long.
const FOR_LONG: Duration = Duration::from_secs(3600);

/// Over as soon as it is looked at.
const AT_ONCE: Duration = Duration::from_nanos(1);

struct Place {
    file_system: BpfFileSystem,
}

impl Place {
    fn new() -> Self {
        let file_system = BpfFileSystem::new("lease").expect("a BPF file system");
        Self { file_system }
    }

    fn directory(&self) -> PathBuf {
        self.file_system.path().join("lease")
    }

    fn take(&self, stale_after: Duration) -> Lease {
        Lease::take(self.directory(), stale_after).expect("taken")
    }

    fn sets(&self) -> usize {
        fs::read_dir(self.directory()).map_or(0, |entries| entries.flatten().count())
    }
}

#[test]
fn a_lease_holds_while_it_is_beaten_and_leaves_nothing() {
    if !available(Need::Root) {
        return;
    }
    let place = Place::new();
    for redirect in Redirect::ALL {
        for map_type in MapType::ALL {
            let lease = place.take(FOR_LONG);
            assert_eq!(lease.left_behind(), 0);
            let leased = Redirections::leased(&lease, redirect, map_type, 4).expect("loaded");
            let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
            let mut link = leased.link(&source.member, &target.member).expect("linked");
            let (from, to) = ends(redirect, &source, &target);
            assert!(lease.beat());
            put(from, b"redirected");
            assert_eq!(take(to), b"redirected", "{redirect}");
            link.leave(&source.member, PATIENCE).expect("it leaves");
            assert_eq!(place.sets(), 1);
            lease.release(PATIENCE).expect("released");
            assert!(!place.directory().exists());
        }
    }
}

#[test]
fn a_lease_that_has_lapsed_passes_everything_for_good() {
    if !available(Need::Root) {
        return;
    }
    let place = Place::new();
    for redirect in Redirect::ALL {
        for kind in KINDS {
            if redirect.supports(kind, SocketKind::Tcp).is_err() {
                continue;
            }
            let lease = place.take(AT_ONCE);
            let leased = Redirections::leased(&lease, redirect, MapType::Hash, 4).expect("loaded");
            let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Tcp));
            let link = leased.link(&source.member, &target.member).expect("linked");
            let usual = match redirect.is_of_sent() {
                true => &source.peer,
                false => &source.member,
            };
            // The coarse clock of the program has to get past the first heartbeat.
            let mut lapsed = 0;
            until("it lapses", || {
                put(ends(redirect, &source, &target).0, b"a message");
                lapsed = link.counters().passed_for(PassReason::Lapsed);
                lapsed > 0
            });
            assert_eq!(take(usual), b"a message", "{redirect}: {kind}");
            assert!(!lease.beat(), "another has to be taken");
            put(ends(redirect, &source, &target).0, b"another");
            assert_eq!(take(usual), b"another", "{redirect}: {kind}");
            drop((source, target, link, leased));
            lease.release(PATIENCE).expect("released");
        }
    }
}

/// A reader takes what was redirected to it before what came over its connection. So it must not be redirected to again.
#[test]
fn a_lease_that_lapses_in_full_flow_loses_nothing_and_keeps_the_order() {
    if !available(Need::Root) {
        return;
    }
    const STALE: Duration = Duration::from_secs(3);
    let place = Place::new();
    let lease = place.take(STALE);
    let leased =
        Redirections::leased(&lease, Redirect::SendToLocal, MapType::Hash, 4).expect("loaded");
    let pair = Pair::of(SocketKind::Tcp);
    let link = leased.link(&pair.member, &pair.peer).expect("linked");
    let (payload, flow, mut come) = (Payload::new(21), Flow::default(), Vec::new());
    let is_owner_alive = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while is_owner_alive.load(Ordering::Relaxed) {
                assert!(lease.beat());
                thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(|| flow.send(&pair.member, payload));
        let _end = EndOf(&flow);
        follow(&flow, &pair.peer, &mut come, 20 * AHEAD_BYTES);
        assert_eq!(link.counters().passed_messages, 0);
        is_owner_alive.store(false, Ordering::Relaxed);
        until("the lease lapses", || {
            follow(&flow, &pair.peer, &mut come, AHEAD_BYTES);
            link.counters().passed_for(PassReason::Lapsed) > 0
        });
        let redirected = link.counters().messages;
        follow(&flow, &pair.peer, &mut come, 20 * AHEAD_BYTES);
        assert_eq!(link.counters().messages, redirected);
    });
    until("the rest has come", || {
        drain(&pair.peer, &mut come);
        come.len() >= flow.sent.load(Ordering::Relaxed)
    });
    payload.check(0, &come);
}

#[test]
fn the_next_owner_clears_what_a_dead_one_has_left() {
    if !available(Need::Root) {
        return;
    }
    let place = Place::new();
    for redirect in [Redirect::SendToLocal, Redirect::SendToEgress] {
        let dead = place.take(FOR_LONG);
        let leased = Redirections::leased(&dead, redirect, MapType::Hash, 4).expect("loaded");
        let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
        let link = leased.link(&source.member, &target.member).expect("linked");
        let second = Lease::take(place.directory(), FOR_LONG).expect_err("it is taken");
        assert_eq!(second.kind(), ErrorKind::System);
        assert!(
            second.to_string().contains("another process has the lease"),
            "{second}"
        );
        let (from, to) = ends(redirect, &source, &target);
        put(from, b"unread");
        // Whatever the process had goes, and the pins stay.
        drop((dead, leased, link));
        assert_eq!(place.sets(), 1);
        if redirect.is_to_local() {
            let heir = place.take(FOR_LONG);
            assert_eq!(heir.left_behind(), 1, "its bytes are unread");
        }
        assert_eq!(take(to), b"unread");
        let heir = place.take(FOR_LONG);
        assert_eq!((heir.left_behind(), place.sets()), (0, 0));

        // Both are plain sockets, and can be linked again.
        put(from, b"to its peer");
        assert_eq!(take(&source.peer), b"to its peer");
        let leased = Redirections::leased(&heir, redirect, MapType::Map, 4).expect("loaded");
        let mut link = leased
            .link(&source.member, &target.member)
            .expect("linked again");
        put(from, b"again");
        assert_eq!(take(to), b"again");
        link.leave(&source.member, PATIENCE).expect("it leaves");
        heir.release(PATIENCE).expect("released");
    }
}

/// Removed, it would lose what has its verdict at this moment.
#[test]
fn sources_that_receive_stay_until_they_are_closed_and_lose_nothing() {
    if !available(Need::Root) {
        return;
    }
    let place = Place::new();
    for kind in [SocketKind::Tcp, SocketKind::UnixStream] {
        let dead = place.take(FOR_LONG);
        let leased = Redirections::leased(&dead, Redirect::IngressToEgress, MapType::Map, 4);
        let leased = leased.expect("loaded");
        let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Tcp));
        let link = leased.link(&source.member, &target.member).expect("linked");
        put(&source.peer, b"redirected");
        assert_eq!(take(&target.peer), b"redirected", "{kind}");
        drop((dead, leased, link));
        let heir = place.take(FOR_LONG);
        assert_eq!(heir.left_behind(), 1, "{kind}");
        let error = heir.release(Duration::ZERO).expect_err("it is open");
        assert!(
            error.to_string().contains("sources that are open"),
            "{error}"
        );
        put(&source.peer, b"to its reader");
        assert_eq!(take(&source.member), b"to its reader", "{kind}");
        drop(source);
        until("it is gone", || place.take(FOR_LONG).left_behind() == 0);
        place.take(FOR_LONG).release(PATIENCE).expect("released");
        assert!(!place.directory().exists());
    }
}

/// The keys are the caller's, and the next owner does not know them.
#[test]
fn a_lease_on_a_map_of_the_callers_holds_lapses_and_is_cleared() {
    if !available(Need::Root) {
        return;
    }
    for redirect in Redirect::ALL {
        lapses_and_is_cleared::<SockMap>(redirect);
        lapses_and_is_cleared::<SockHash<u32>>(redirect);
    }
}

fn lapses_and_is_cleared<M: Own>(redirect: Redirect) {
    let place = Place::new();
    let dead = place.take(FOR_LONG);
    let attachment = M::leased(&dead, 8, redirect);
    let [source, target, other] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
    let link = attachment.link(5, &source.member, &target.member);
    let link = link.expect("linked");
    let mut gone = attachment
        .link(7, &other.member, &target.member)
        .expect("linked");
    gone.leave(&other.member, PATIENCE).expect("it leaves");
    let (from, to) = ends(redirect, &source, &target);
    put(from, b"redirected");
    assert_eq!(take(to), b"redirected", "{redirect}");

    // Whatever the process had goes, and the pins stay.
    drop((dead, attachment, link));
    assert_eq!(place.sets(), 1);
    let usual = match redirect.is_of_sent() {
        true => &source.peer,
        false => &source.member,
    };
    let heir = place.take(FOR_LONG);
    // What receives stays, and passes, until it is closed.
    let is_left = usize::from(!redirect.is_of_sent());
    assert_eq!((heir.left_behind(), place.sets()), (is_left, is_left));
    put(from, b"not redirected");
    assert_eq!(take(usual), b"not redirected", "{redirect}");
    drop((heir, source));
    until("all is cleared", || place.take(FOR_LONG).left_behind() == 0);
    place.take(FOR_LONG).release(PATIENCE).expect("released");
    assert!(!place.directory().exists());

    // By its own heartbeat, too.
    let lease = place.take(AT_ONCE);
    let attachment = M::leased(&lease, 8, redirect);
    let source = Pair::of(SocketKind::Tcp);
    let link = attachment.link(3, &source.member, &target.member);
    let link = link.expect("linked");
    until("it lapses", || {
        put(ends(redirect, &source, &target).0, b"a message");
        link.counters().passed_for(PassReason::Lapsed) > 0
    });
}

#[test]
fn a_redirect_with_a_lease_is_detached_with_its_pins() {
    if !available(Need::Root) {
        return;
    }
    let place = Place::new();
    let lease = place.take(FOR_LONG);
    let attachment = SockMap::leased(&lease, 8, Redirect::IngressToEgress);
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let mut link = attachment
        .link(5, &source.member, &target.member)
        .expect("linked");
    assert_eq!(place.sets(), 1);
    let map = attachment
        .detach([(&mut link, &source.member)], PATIENCE)
        .unwrap_or_else(|failed| panic!("{}", failed.1));
    assert_eq!((place.sets(), map.iter().count()), (0, 1));
    put(&source.peer, b"to its reader");
    assert_eq!(take(&source.member), b"to its reader");
    lease.release(PATIENCE).expect("released");
}

#[test]
fn a_lease_needs_a_bpf_file_system() {
    let error = Lease::take("/tmp/no-pins", FOR_LONG).expect_err("it is none");
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().contains("mount -t bpf"), "{error}");
}

/// What is pinned and removed in an order that tells how far an owner came.
#[test]
fn what_a_killed_owner_has_pinned_or_removed_in_part_is_cleared() {
    if !available(Need::Root) {
        return;
    }
    let place = Place::new();
    let whole = {
        let lease = place.take(FOR_LONG);
        let _leased = leased(&lease);
        names_in(&place.directory().join("set-0")).len()
    };
    for gone in 0..=whole {
        let lease = place.take(FOR_LONG);
        assert_eq!(lease.left_behind(), 0, "{gone}");
        drop((leased(&lease), lease));
        let set = place.directory().join("set-0");
        // Those that are pinned last are removed first.
        for name in KEPT.iter().rev().take(gone) {
            fs::remove_file(set.join(name)).expect("it was pinned");
        }
        let heir = place.take(FOR_LONG);
        assert_eq!((heir.left_behind(), place.sets()), (0, 0), "{gone}");
    }
}

/// As they are pinned.
const KEPT: [&str; 7] = [
    "lease",
    "sources",
    "targets",
    "redirections",
    "unknown",
    "setting",
    "look",
];

fn leased(lease: &Lease) -> Redirections {
    Redirections::leased(lease, Redirect::SendToLocal, MapType::Hash, 4).expect("loaded")
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}

#[test]
fn what_another_version_has_pinned_is_left_alone_with_a_sentence() {
    if !available(Need::Root) {
        return;
    }
    let place = Place::new();
    let lease = place.take(FOR_LONG);
    drop((leased(&lease), lease));
    let set = place.directory().join("set-0");
    let word = MapHandle::from_pinned_path(set.join("lease")).expect("pinned");
    let first = 0u32.to_ne_bytes();
    let mut value = word
        .lookup(&first, MapFlags::ANY)
        .expect("read")
        .expect("there");
    // The third number of the lease is the layout.
    value[16] += 1;
    word.update(&first, &value, MapFlags::ANY).expect("written");
    let error = Lease::take(place.directory(), FOR_LONG).expect_err("it is of another version");
    let said = error.to_string();
    assert!(said.contains("set-0 is of another version"), "{said}");
    assert!(said.contains("remove it when the processes"), "{said}");
    assert_eq!(names_in(&set).len(), KEPT.len(), "nothing was removed");
    // Another map in its place.
    fs::remove_file(set.join("lease")).expect("removed");
    let mut other = SockHash::<u64>::create(4).expect("a map");
    other.pin(set.join("lease")).expect("pinned");
    let error = Lease::take(place.directory(), FOR_LONG).expect_err("it is of another version");
    let said = error.to_string();
    assert!(said.contains("set-0 is of another version"), "{said}");
}

#[test]
fn pins_of_others_in_the_directory_of_a_lease_stay() {
    if !available(Need::Root) {
        return;
    }
    let place = Place::new();
    let lease = place.take(FOR_LONG);
    let theirs = place.directory().join("of-others");
    let mut map = SockMap::create(1).expect("a map");
    map.pin(&theirs).expect("pinned");
    drop(leased(&lease));
    lease.release(PATIENCE).expect("released");
    assert_eq!(names_in(&place.directory()), ["of-others"]);
}
