//! What `spliced status` says of a server.

use std::fs;
use std::os::unix::fs::chown;

use netlab::{Need, Process, Scratch, available};
use serde_json::Value;

use super::{answers, relay_to_nobody};
use crate::doctor::{NOBODY, for_anybody};
use crate::patience::until_found;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay, command, limit_with, output};
use crate::server::Server;

/// It has no checks and no other server beside it, so that it stays in use.
#[test]
fn a_server_that_refuses_every_client_has_a_reason_and_a_time() {
    let (_scratch, socket, relay) = relay_to_nobody();
    let path = socket.to_str().expect("UTF-8");
    Peer::connect(&relay.address).expect_reset();
    let shown = |arguments: &[&str]| {
        let output = output(command(arguments).args(["--control", path]));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let error = until_found("it is told", || {
        let told: Value = serde_json::from_str(&shown(&["status", "--json"])).expect("JSON");
        let server = &told[0]["backends"][0]["servers"][0];
        assert_eq!(
            (&server["state"], &server["why"]),
            (&"not checked".into(), &Value::Null)
        );
        let error = server["last_error"].clone();
        (!error.is_null()).then_some(error)
    });
    assert_eq!(error["error"], "connection refused");
    let time = error["time"].as_str().expect("a time");
    humantime::parse_rfc3339(time).expect("RFC 3339");
    let table = shown(&["status"]);
    let row = table.lines().last().expect("a server");
    assert!(
        row.contains("  last error ") && row.ends_with(" ago: connection refused"),
        "{table}"
    );
}

#[test]
fn a_process_without_rights_says_that_it_copies_and_what_to_do() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("control").expect("a directory");
    let spliced = for_anybody(&scratch);
    let run = scratch.path().join("run");
    fs::create_dir(&run).expect("made");
    let nobody = NOBODY.parse().ok();
    chown(&run, nobody, nobody).expect("given away");
    let start = |engine: &str| {
        let socket = run.join(engine);
        let mut relay = Process::command("setpriv");
        relay
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"])
            .arg(&spliced)
            .args([
                "relay",
                "127.0.0.1:0",
                "127.0.0.1:9",
                "--engine",
                engine,
                "--control",
            ])
            .arg(&socket)
            .env_remove("SPLICED_LOG");
        let relay = Relay::spawn(&mut relay);
        answers(&socket);
        let status = output(command(&["status", "--control"]).arg(&socket));
        (relay, String::from_utf8(status.stdout).expect("text"))
    };
    let (relay, status) = start("auto");
    let why = relay.wait_logged(
        "WARN connections are copied and not spliced: engine segment cannot be used: ",
    );
    for remedy in [
        "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
        "run it as root, or give it ",
    ] {
        assert!(why.contains(remedy), "{why}");
    }
    let line =
        "\ncopied and not spliced: engine segment cannot be used: this process lacks CAP_BPF";
    assert!(status.contains(line), "{status}");
    // Whoever asks for no more is not told.
    let (relay, status) = start("copy");
    assert!(!status.contains("copied"), "{status}");
    assert_eq!(relay.lines_logged("copied"), 0);
}

/// CAP_SYS_ADMIN stands for it where programs are loaded, but not where packet filters and routes are read.
#[test]
fn a_process_without_cap_net_admin_says_so_and_not_that_filters_are_in_the_way() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let mut relay = Process::command("setpriv");
    relay
        .args([
            "--bounding-set",
            "-net_admin",
            "--inh-caps",
            "-net_admin",
            "--",
        ])
        .arg(BINARY)
        .args(["relay", "127.0.0.1:0", "127.0.0.1:9", "--control"])
        .arg(&socket)
        .env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut relay);
    let why = relay.wait_logged(
        "WARN connections are copied and not spliced: engine segment cannot be used: this process lacks CAP_NET_ADMIN; ",
    );
    assert!(
        why.contains("run it as root, or give it CAP_NET_ADMIN (setcap"),
        "{why}"
    );
    answers(&socket);
    let status = output(command(&["status", "--control"]).arg(&socket));
    let status = String::from_utf8(status.stdout).expect("text");
    let line = "\ncopied and not spliced: engine segment cannot be used: this process lacks CAP_NET_ADMIN; ";
    assert!(status.contains(line), "{status}");
    let mut named = Process::command("setpriv");
    named
        .args([
            "--bounding-set",
            "-net_admin",
            "--inh-caps",
            "-net_admin",
            "--",
        ])
        .arg(BINARY)
        .args(["relay", "127.0.0.1:0", "127.0.0.1:9", "--engine", "segment"]);
    let refused = output(&mut named);
    let said = String::from_utf8(refused.stderr).expect("text");
    assert!(
        !refused.status.success() && said.contains("lacks CAP_NET_ADMIN"),
        "{said}"
    );
}

#[test]
fn a_limit_of_descriptors_that_keeps_segment_from_being_loaded_is_told_once() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let server = Server::new();
    // Enough for the relay and its connections.
    let limit = limit_with(36);
    let mut relay = Process::command("prlimit");
    relay
        .arg(format!("--nofile={limit}:{limit}"))
        .arg(BINARY)
        .args([
            "relay",
            "127.0.0.1:0",
            &server.address,
            "--threads",
            "1",
            "--control",
        ])
        .arg(&socket)
        .env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut relay);
    answers(&socket);
    let shown = || {
        let status = output(command(&["status", "--control"]).arg(&socket));
        String::from_utf8(status.stdout).expect("text")
    };
    let line = relay.wait_logged(" WARN connections are copied and not spliced: ");
    let enough = line
        .split_once("raise RLIMIT_NOFILE to ")
        .expect("advice")
        .1;
    let enough: usize = enough
        .split_once(' ')
        .expect("a number")
        .0
        .parse()
        .expect("a number");
    assert!(limit < enough && enough < limit + 92, "{enough} of {limit}");
    let why = format!(
        "engine segment cannot be used: of the {limit} file descriptors that the process may have (RLIMIT_NOFILE), fewer than \
         92 are free: 60 for the program and 32 for connections; raise RLIMIT_NOFILE to {enough} (ulimit -n, or LimitNOFILE= \
         of its service)"
    );
    let line = format!(" WARN connections are copied and not spliced: {why}");
    for _ in 0..2 {
        let near = Peer::connect(&relay.address);
        let far = server.accept();
        relay.wait_logged(&line);
        assert!(shown().contains(&format!("\ncopied and not spliced: {why}\n")));
        near.write_number(1);
        assert_eq!(far.read_number(), 1);
    }
    assert_eq!(relay.lines_logged(&line), 1);
}
