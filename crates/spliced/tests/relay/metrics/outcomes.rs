//! How sessions end, what state servers are in, and what goes wrong.

use std::fs;
use std::net::TcpStream;

use netlab::{Process, Scratch};

use super::reading::{Reading, wait_for};
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay, command, limit_with, output};
use crate::server::Server;

/// A process that runs a configuration with a control socket.
struct Stage {
    scratch: Scratch,
    socket: String,
    relay: Relay,
}

impl Stage {
    fn of(text: &str) -> Self {
        let scratch = Scratch::new("metrics").expect("a directory");
        let path = scratch.write("c.toml", text).expect("written");
        let socket = scratch.path().join("sock");
        let socket = socket.to_str().expect("UTF-8").to_owned();
        let path = path.to_str().expect("UTF-8");
        let run = ["run", "--config", path, "--control", &socket];
        let relay = Relay::spawn(&mut command(&run));
        wait_for(&socket);
        Self {
            scratch,
            socket,
            relay,
        }
    }

    fn has(&self, name: &str, labels: &[(&str, &str)], count: u64) {
        until(&format!("{name} {labels:?} is {count}"), || {
            Reading::at(&self.socket).sum(name, labels) == count
        });
    }

    fn ended(&self, outcome: &str, count: u64) {
        let labels = [("listener", "l"), ("outcome", outcome)];
        self.has("spliced_sessions_ended_total", &labels, count);
    }

    /// The command has this result.
    fn order(&self, arguments: &[&str], succeeds: bool) {
        let arguments = [arguments, &["--control", &self.socket]].concat();
        let output = output(&mut command(&arguments));
        assert_eq!(output.status.success(), succeeds, "{output:?}");
    }
}

#[test]
fn each_end_has_its_outcome_and_no_counter_falls_with_a_reload() {
    let server = Server::new();
    let text = |listener: &str| {
        format!(
            "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n{listener}\n\
             [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = [\"{}\"]\n",
            server.address
        )
    };
    let stage = Stage::of(&text(""));
    let join = || {
        let near = Peer::connect(&stage.relay.address);
        let far = server.accept();
        near.write_number(1);
        assert_eq!(far.read_number(), 1);
        (near, far)
    };
    let (near, far) = join();
    near.reset();
    stage.ended("reset_by_client", 1);
    drop(far);
    let (near, far) = join();
    far.reset();
    stage.ended("reset_by_target", 1);
    drop(near);
    let (near, far) = join();
    stage.order(&["kill", "3"], true);
    stage.ended("killed", 1);
    drop((near, far));
    // rate() does not see what a series begins with.
    for outcome in ["no_server", "queue_full", "queue_timeout"] {
        let series = format!("outcome=\"{outcome}\"");
        let before = Reading::at(&stage.socket).counters();
        let of_outcome: Vec<_> = before
            .iter()
            .filter(|(name, _)| name.contains(&series))
            .collect();
        assert!(!of_outcome.is_empty(), "{before:?}");
        assert!(
            of_outcome.iter().all(|(_, count)| **count == 0.0),
            "{of_outcome:?}"
        );
    }
    stage.order(&["drain", &server.address], true);
    let state = |state| {
        [
            ("backend", "b"),
            ("server", &*server.address),
            ("state", state),
        ]
    };
    stage.has("spliced_server_state", &state("drained"), 1);
    stage.has("spliced_server_state", &state("not_checked"), 0);
    Peer::is_reset_by(&stage.relay.address);
    stage.ended("no_server", 1);
    stage.order(&["undrain", &server.address], true);
    stage.has("spliced_server_state", &state("not_checked"), 1);
    stage.order(&["weigh", &server.address, "7"], true);
    stage.has("spliced_server_weight", &state("not_checked")[..2], 7);
    let before = Reading::at(&stage.socket);
    let file = stage.scratch.path().join("c.toml");
    fs::write(&file, text("max_connections_per_client = 1")).expect("written");
    stage.order(&["reload"], true);
    Reading::at(&stage.socket).expect_no_less(&before);
    let pair = join();
    Peer::is_reset_by(&stage.relay.address);
    stage.ended("client_connections", 1);
    // While a session lives, its listener is removed, and comes back.
    let before = Reading::at(&stage.socket);
    let other = text("").replace("\"l\"", "\"m\"");
    fs::write(&file, other).expect("written");
    stage.order(&["reload"], true);
    Reading::at(&stage.socket).expect_no_less(&before);
    fs::write(&file, text("")).expect("written");
    stage.order(&["reload"], true);
    Reading::at(&stage.socket).expect_no_less(&before);
    drop(pair);
    stage.ended("end_of_stream", 1);
    fs::write(&file, "nonsense").expect("written");
    stage.order(&["reload"], false);
    let reloads = |result| [("result", result)];
    stage.has("spliced_config_reloads_total", &reloads("success"), 3);
    stage.has("spliced_config_reloads_total", &reloads("failure"), 1);
    stage.has("spliced_config_last_reload_successful", &[], 0);
    let reading = Reading::at(&stage.socket);
    let started = reading.sum("process_start_time_seconds", &[]);
    let name = "spliced_config_last_reload_success_timestamp_seconds";
    assert!(reading.sum(name, &[]) >= started);
    assert_eq!(reading.sum("spliced_server_connections_total", &[]), 4);
    assert_eq!(reading.sum("spliced_draining", &[]), 0);
}

#[test]
fn those_who_wait_for_a_server_are_counted() {
    let server = Server::new();
    let stage = Stage::of(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [\"{}\"]\nmax_connections_per_server = 1\nqueue = 2\n",
        server.address
    ));
    let first = (Peer::connect(&stage.relay.address), server.accept());
    let length = [("backend", "b")];
    stage.has("spliced_backend_queue_length", &length, 0);
    let waiting = [(); 2].map(|()| Peer::connect(&stage.relay.address));
    stage.has("spliced_backend_queue_length", &length, 2);
    let alive = [("listener", "l"), ("backend", "b"), ("engine", "none")];
    stage.has("spliced_sessions_active", &alive, 2);
    Peer::is_reset_by(&stage.relay.address);
    stage.ended("queue_full", 1);
    drop((first, waiting));
    stage.has("spliced_backend_queue_length", &length, 0);
}

#[test]
fn clients_that_cannot_be_accepted_are_counted_and_the_metrics_still_answer() {
    let scratch = Scratch::new("metrics").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let server = Server::new();
    let limit = limit_with(100);
    let mut limited = Process::command("prlimit");
    limited
        .arg(format!("--nofile={limit}:{limit}"))
        .arg(BINARY)
        .args(["relay", "127.0.0.1:0", &server.address])
        .args(["--engine", "copy", "--control", socket])
        .env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut limited);
    wait_for(socket);
    let clients: Vec<_> = (0..200)
        .map(|_| TcpStream::connect(&relay.address).expect("connected"))
        .collect();
    until("it is counted", || {
        let reading = Reading::at(socket);
        let errors = [("listener", "127.0.0.1:0"), ("reason", "descriptors")];
        assert_eq!(reading.sum("process_max_fds", &[]), limit as u64);
        reading.sum("spliced_accept_errors_total", &errors) > 0
            && reading.sum("process_open_fds", &[]) + 10 > limit_with(0) as u64
    });
    drop(clients);
}
