//! Who belongs to whom.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use netlab::{Lab, Need, available, until, until_at_rest};
use splice::bypass::{Reason, State};

use crate::random::Random;
use crate::stage::{Stage, connect, connect_to};

#[test]
fn the_same_addresses_and_ports_in_two_pairs_of_namespaces_do_not_mix() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let twin = Lab::new().expect("a lab");
    let running = stage.start();
    let [near, far] = &stage.groups;
    let to: SocketAddr = (Lab::SERVER_V4, 7000).into();
    let from: SocketAddr = (Lab::CLIENT_V4, 7001).into();
    let mut all: Vec<_> = [&stage.lab, &twin]
        .map(|lab| {
            let bind = || TcpListener::bind(to).expect("a listener");
            let listener = far.enter(|| lab.server().enter(bind)).expect("entered");
            let listener = listener.expect("entered");
            connect_to((near, lab.client()), &listener, to, Some(from))
        })
        .into();
    let mut randoms = [8, 9].map(Random::of_run);
    until("both are redirected", || {
        for (ends, random) in all.iter_mut().zip(&mut randoms) {
            ends.converse(random, 20, 1000);
        }
        let status = stage.status();
        let redirected = (status.connections.iter()).filter(|of| {
            of.state == State::Redirected
                && of.client.is_some_and(|end| end.redirected_messages > 0)
        });
        redirected.count() == 2
    });
    for _ in 0..50 {
        for (ends, random) in all.iter_mut().zip(&mut randoms) {
            ends.converse(random, 4, 1000);
        }
    }
    running.stop();
}

#[test]
fn connections_that_are_older_than_the_bypass_are_redirected() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let mut random = Random::of_run(31);
    let mut all: Vec<_> = [Lab::SERVER_V4.into(), Lab::SERVER_V6.into()]
        .map(|to: IpAddr| stage.connect(to))
        .into();
    // Their sequence numbers are far from the first ones when they are looked at.
    for ends in &mut all {
        ends.converse(&mut random, 200, 30_000);
    }
    let running = stage.start();
    for ends in &mut all {
        stage.until_redirected(ends);
        ends.converse(&mut random, 200, 1000);
    }
    running.stop();
    for ends in &mut all {
        ends.converse(&mut random, 20, 1000);
    }
}

#[test]
fn loopback_is_redirected_and_a_peer_outside_is_left_alone() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let [near, far] = &stage.groups;
    let client = stage.lab.client();
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let mut inside = connect((near, client), (far, client), loopback);
    stage.until_redirected(&mut inside);

    // Its server is in no covered group.
    let bind = || TcpListener::bind((Lab::SERVER_V4, 0)).expect("a listener");
    let listener = stage.lab.server().enter(bind).expect("entered");
    let to = listener.local_addr().expect("bound");
    let mut outside = connect_to((near, client), &listener, to, None);
    outside.converse(&mut Random::of_run(10), 200, 100);
    until_at_rest(Duration::from_millis(300), || stage.status().members);
    assert_eq!(stage.status().members, 2);
    let of = stage.connection(&outside).expect("it is there");
    assert_eq!(of.state, State::Alone);
    running.stop();
}

#[test]
fn rules_choose() {
    if !available(Need::Root) {
        return;
    }
    for (allow, deny, is_taken) in [
        ("net:198.18.0.0/15", "port:1", true),
        ("port:1", "port:2", false),
        ("net:0.0.0.0/0", "uid:0", false),
    ] {
        let stage = Stage::new();
        let mut options = stage.options();
        options.rules.allow = vec![allow.parse().expect("a rule")];
        options.rules.deny = vec![deny.parse().expect("a rule")];
        let running = crate::stage::Running::start(&options);
        let mut ends = stage.connect(Lab::SERVER_V4);
        if is_taken {
            stage.until_redirected(&mut ends);
        } else {
            until("it is refused", || {
                ends.converse(&mut Random::of_run(11), 20, 100);
                let of = stage.connection(&ends).expect("it is there");
                of.state == State::Tcp && of.reason == Some(Reason::Rule)
            });
            assert_eq!(stage.status().members, 0);
        }
        running.stop();
    }
}
