//! What a program does not redirect: it passes, and is counted by its reason.

use std::time::Duration;

use netlab::{Need, available};
use rustix::net::sockopt::socket_error;
use rustix::net::{Shutdown, shutdown};
use splice_sockmap::{MapType, PassReason, Redirect, Redirections, SocketKind};

use crate::conversation::{KINDS, Pair, put, take};

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_datagram_that_is_too_long_goes_to_the_sources_reader_and_an_empty_one_nowhere() {
    if !available(Need::Root) {
        return;
    }
    let redirections =
        Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8).expect("loaded");
    let (source, target) = (
        Pair::of(SocketKind::UnixDatagram),
        Pair::of(SocketKind::Udp),
    );
    let link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    let too_long = vec![7; 65_508];
    put(&source.peer, &[]);
    put(&source.peer, &too_long);
    put(&source.peer, b"fits");
    assert_eq!(take(&target.peer), b"fits");
    assert!(take(&source.member) == too_long);
    let counters = link.counters();
    assert_eq!((counters.messages, counters.passed_messages), (1, 1));
    assert_eq!(counters.passed_for(PassReason::TooLong), 1);
    assert_eq!(counters.empty_messages, 1);
}

#[test]
fn what_a_closed_target_does_not_take_goes_to_the_sources_reader() {
    if !available(Need::Root) {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        let redirections = Redirections::new(redirect, MapType::Hash, 8).expect("loaded");
        for kind in KINDS {
            let (source, target) = (Pair::of(kind), Pair::of(SocketKind::Tcp));
            let link = redirections
                .link(&source.member, &target.member)
                .expect("linked");
            drop(target);
            put(&source.peer, b"to nobody");
            assert_eq!(take(&source.member), b"to nobody", "{redirect}: {kind}");
            let counters = link.counters();
            assert_eq!(counters.passed_bytes, 9);
            assert_eq!(counters.passed_for(PassReason::TargetGone), 1);
        }
    }
}

/// Its program stays, since it is a target of another link. The program has no link of it any more.
#[test]
fn what_a_source_sends_after_it_has_left_is_passed_and_counted() {
    if !available(Need::Root) {
        return;
    }
    let sent = Redirections::new(Redirect::SendToLocal, MapType::Hash, 8).expect("loaded");
    let received = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8).expect("loaded");
    let [source, reader, other] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
    let _stays = received
        .link(&other.member, &source.member)
        .expect("linked");
    let mut link = sent.link(&source.member, &reader.member).expect("linked");
    put(&source.member, b"redirected");
    assert_eq!(take(&reader.member), b"redirected");
    link.leave(&source.member, PATIENCE).expect("it leaves");
    assert_eq!(sent.passed_without_link(), 0);
    put(&source.member, b"to its peer");
    assert_eq!(take(&source.peer), b"to its peer");
    assert_eq!(sent.passed_without_link(), 1);
}

/// Redirected, the FIN of a source would be an empty datagram to some targets, and break others for good (`EPIPE`).
#[test]
fn the_end_of_a_source_reaches_its_own_reader_and_no_target() {
    if !available(Need::Root) {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        for kind in KINDS {
            for map_type in [MapType::Map, MapType::Hash] {
                let redirections = Redirections::new(redirect, map_type, 8).expect("loaded");
                let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(kind));
                let link = redirections
                    .link(&source.member, &target.member)
                    .expect("linked");
                let reader = match redirect.is_to_local() {
                    true => &target.member,
                    false => &target.peer,
                };
                put(&source.peer, b"the last");
                assert_eq!(take(reader), b"the last", "{redirect}: {kind}");
                shutdown(&source.peer, Shutdown::Write).expect("ended");
                assert_eq!(take(&source.member), b"", "{redirect}: {kind}");

                // What a worker had to send would come before this.
                put(&target.member, b"of the target");
                assert_eq!(take(&target.peer), b"of the target", "{redirect}: {kind}");
                put(&target.peer, b"of its peer");
                assert_eq!(take(&target.member), b"of its peer", "{redirect}: {kind}");
                let error = socket_error(&target.member).expect("read");
                assert_eq!(error, Ok(()), "{redirect}: {kind}");
                let counters = link.counters();
                assert_eq!((counters.messages, counters.passed_messages), (1, 0));
            }
        }
    }
}
