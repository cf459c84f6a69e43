//! A start with few descriptors.

use std::collections::BTreeSet;

use netlab::{Need, Process, Scratch, available};

use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay, limit_with};
use crate::server::{Server, ask};

/// More than `auto` copies before it tries the engine `segment`.
const BYTES: u64 = 100_000;
/// The first ones are too few for a loop, the last ones enough for everything.
const TRIED: std::ops::Range<usize> = 4..125;

/// It served a client, or why it did not start.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    Serves { splices: bool },
    Refused,
}

/// `advice` gets the limit that it asks for where it does not splice.
fn start_with(limit: usize, server: &str, control: &str, advice: &mut BTreeSet<usize>) -> Start {
    // util-linux; it becomes the program.
    let mut command = Process::command("prlimit");
    command
        .arg(format!("--nofile={limit}:{limit}"))
        .args([
            BINARY,
            "relay",
            "127.0.0.1:0",
            server,
            "--threads",
            "2",
            "--control",
            control,
        ])
        .env_remove("SPLICED_LOG");
    let mut relay = Relay::spawn_silent(&mut command);
    until("it listens or ends", || {
        relay.lines_logged("listening on ") > 0 || !relay.is_running()
    });
    let short = " WARN connections are copied and not spliced: engine segment cannot be used: ";
    let splices = relay.lines_logged(short) == 0;
    if !relay.is_running() {
        let status = relay.wait_end().code();
        let why: Vec<_> = relay
            .logged()
            .into_iter()
            .filter(|line| !line.contains(short))
            .collect();
        // 127 is the dynamic linker's, which opens libraries.
        assert!(matches!(status, Some(1 | 127)), "{limit}: {status:?}");
        assert_eq!(why.len(), 1, "{limit}: {why:?}");
        return Start::Refused;
    }
    let line = relay.wait_logged("listening on ");
    let address = line.split_once("listening on ").expect("found above").1;
    let (address, _) = address.split_once(", ").expect("where it listens");
    let client = Peer::connect(address);
    ask(&client, limit as u64, BYTES, BYTES);
    drop(client);
    if !splices {
        let told = relay.wait_logged(short);
        let has = format!("of the {limit} file descriptors that the process may have");
        // With none at all it cannot even ask.
        let has_none = told.contains("the process has no file descriptors left");
        assert!(has_none || told.contains(&has), "{told}");
        if !has_none {
            let asked = told
                .split_once("raise RLIMIT_NOFILE to ")
                .expect("advice")
                .1;
            let asked = asked.split_once(' ').expect("a number").0;
            advice.insert(asked.parse().expect("a number"));
        }
        assert_eq!(relay.lines_logged(short), 1);
    }
    relay.terminate();
    Start::Serves { splices }
}

/// However few there are: it serves clients, with whatever engine there is room for, or it says in a sentence why it does not
/// start.
#[test]
fn every_start_serves_a_client_or_refuses_in_one_sentence() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("few").expect("a directory");
    let control = scratch.path().join("sock");
    let control = control.to_str().expect("UTF-8");
    let server = Server::new().answering();
    let mut advice = BTreeSet::new();
    let mut start = |limit| start_with(limit, &server.address, control, &mut advice);
    let starts: Vec<_> = TRIED.map(|spare| start(limit_with(spare))).collect();
    let all = [
        Start::Refused,
        Start::Serves { splices: false },
        Start::Serves { splices: true },
    ];
    // More descriptors never make it worse.
    let order = |start: &Start| all.iter().position(|one| one == start);
    assert!(starts.iter().map(order).is_sorted(), "{starts:?}");
    for one in all {
        assert!(starts.contains(&one), "{one:?}: {starts:?}");
    }
    // Whoever does as it says has what it is about.
    assert!(!advice.is_empty());
    for limit in advice {
        let start = start_with(limit, &server.address, control, &mut BTreeSet::new());
        assert_eq!(start, Start::Serves { splices: true }, "{limit}");
    }
    server.finish();
}
