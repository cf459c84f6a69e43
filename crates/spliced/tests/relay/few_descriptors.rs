//! A start with few descriptors.

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

fn start_with(spare: usize, server: &str, control: &str) -> Start {
    let limit = limit_with(spare);
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
    ask(&client, spare as u64, BYTES, BYTES);
    drop(client);
    if !splices {
        let told = relay.wait_logged(short);
        let has = format!("of the {limit} file descriptors that the process may have");
        let should_have = format!("raise RLIMIT_NOFILE to {} (", limit + 92);
        // With none at all it cannot even ask.
        let has_none = told.contains("the process has no file descriptors left");
        assert!(
            has_none || told.contains(&has) && told.contains(&should_have),
            "{told}"
        );
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
    let starts: Vec<_> = TRIED
        .map(|spare| start_with(spare, &server.address, control))
        .collect();
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
    server.finish();
}
