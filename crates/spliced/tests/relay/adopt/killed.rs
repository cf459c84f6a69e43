//! Processes of spliced that are killed while sockets are adopted.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::flow::in_full_flow;
use super::owner::Owner;
use crate::patience::{until, until_found};
use crate::relay::Relay;

/// Some adoptions have not begun by then, and in some the exchange is under way.
const LONGEST_LIFE_US: u64 = 60_000;

/// A random number below `limit`.
fn random(limit: u64) -> u64 {
    RandomState::new().hash_one(0) % limit
}

/// The process that gives the sockets back if `adopt` is killed.
fn keeper_of(adopt: &Relay) -> Pid {
    let id = adopt.id();
    until_found("the keeper", || {
        let threads = adopt.threads();
        let mut children = threads.iter().filter_map(|thread| {
            fs::read_to_string(format!("/proc/{id}/task/{thread}/children")).ok()
        });
        children.find_map(|text| Pid::from_raw(text.split_whitespace().next()?.parse().ok()?))
    })
}

fn is_gone(process: Pid) -> bool {
    !fs::exists(format!("/proc/{}", process.as_raw_nonzero())).expect("/proc")
}

/// Kills `rounds` adoptions at random moments, in full flow both ways. Everything is compared with what was sent.
fn kill_in_full_flow(owner: &Owner, rounds: usize) {
    in_full_flow(owner, |wait_further| {
        for round in 0..rounds {
            let is_adopted = round % 2 == 0;
            let mut adopt = match is_adopted {
                true => owner.adopt(),
                false => Relay::spawn_silent(owner.adopting().stdout(Stdio::null())),
            };
            thread::sleep(Duration::from_micros(random(LONGEST_LIFE_US)));
            adopt.signal(Signal::KILL);
            // Its keeper has standard error, too.
            adopt.wait_end();
            assert!(owner.has_its_sockets());
            let given_back = adopt.lines_logged("its keeper gives them back");
            assert!(!is_adopted || given_back == 1);
            wait_further();
        }
        let mut adopt = owner.adopt();
        wait_further();
        adopt.terminate();
    });
    owner.client.end_stream();
    owner.server.expect_end();
}

#[test]
fn an_adoption_that_is_killed_loses_nothing() {
    // One after the other: haproxy ends connections that are idle.
    for start in [Owner::socat, Owner::nginx, Owner::haproxy] {
        let Some(owner) = start() else {
            continue;
        };
        kill_in_full_flow(&owner, 20);
    }
}

#[test]
#[ignore = "soak: 200 kills of each owner's adoption"]
fn adoptions_that_are_killed_lose_nothing() {
    // One after the other: haproxy ends connections that are idle.
    for start in [Owner::socat, Owner::nginx, Owner::haproxy] {
        let Some(owner) = start() else {
            continue;
        };
        kill_in_full_flow(&owner, 200);
    }
}

#[test]
fn an_adoption_whose_keeper_is_killed_gives_the_sockets_back() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    in_full_flow(&owner, |wait_further| {
        let mut adopt = owner.adopt();
        wait_further();
        kill_process(keeper_of(&adopt), Signal::KILL).expect("killed");
        assert!(adopt.wait_end().success());
        adopt.wait_logged("because of the end of its keeper");
        assert!(owner.has_its_sockets());
        wait_further();
    });
}

/// A clean end would make what is missing look complete.
#[test]
fn with_both_processes_killed_both_connections_are_reset() {
    let Some(mut owner) = Owner::socat() else {
        return;
    };
    let adopt = owner.adopt();
    owner.expect_both_ways();
    let keeper = keeper_of(&adopt);
    // So that neither does anything when the other one ends.
    adopt.hold_still();
    kill_process(keeper, Signal::STOP).expect("stopped");
    kill_process(keeper, Signal::KILL).expect("killed");
    adopt.signal(Signal::KILL);
    owner.server.expect_reset();
    owner.client.expect_reset();
    until("the keeper is gone", || is_gone(keeper));
    let ended = owner
        .process
        .wait_at_most(crate::patience::PATIENCE)
        .expect("waited");
    assert!(ended.is_some(), "the owner sees the end of its stand-ins");
}
