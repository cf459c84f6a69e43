//! The access log at a syslog daemon and at the journal. The test is both.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use netlab::{PATIENCE, Scratch, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::log::Log;
use crate::peer::Peer;
use crate::proxy::Proxy;
use crate::relay::Relay;
use crate::server::{Answering, Server, ask};

/// More than a receiver that does not read has room for (`net.unix.max_dgram_qlen` is 512 at most by default) and those
/// that may wait.
const TOO_MANY_CLIENTS: u64 = 17_000;

struct Stage {
    scratch: Scratch,
    server: Answering,
}

impl Stage {
    fn new() -> Self {
        Self {
            scratch: Scratch::new("receiver").expect("a directory"),
            server: Server::new().answering(),
        }
    }

    fn path(&self) -> PathBuf {
        self.scratch.path().join("socket")
    }

    /// A receiver from now on, after the last one has ended.
    fn receiver(&self) -> UnixDatagram {
        let _ = fs::remove_file(self.path());
        let receiver = UnixDatagram::bind(self.path()).expect("bound");
        receiver
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
        receiver
    }

    /// The last receiver ends. A process that another test starts has its descriptor, too, until it executes its program.
    fn end(&self, receiver: UnixDatagram) {
        let probe = UnixDatagram::unbound().expect("a socket");
        probe.connect(self.path()).expect("connected");
        drop(receiver);
        until("it is gone", || probe.send(b"?").is_err());
    }

    /// A relay that logs to `kind` at the socket.
    fn relay(&self, kind: &str, options: &[&str]) -> Relay {
        let place = format!("{kind}:unix:{}", self.path().display());
        let options = [&["--access-log", &place], options].concat();
        Relay::to(&self.server.address, &options)
    }
}

fn visit(relay: &Relay, number: u64) {
    ask(&Peer::connect(&relay.address), number, 10, 20);
}

fn receive(receiver: &UnixDatagram) -> String {
    let mut message = vec![0; 1 << 16];
    let length = receiver.recv(&mut message).expect("a message");
    message.truncate(length);
    String::from_utf8(message).expect("UTF-8")
}

/// The line that a message of syslog carries.
fn line(message: &str) -> Value {
    let (_, line) = message.split_once(" access - ").expect("a header");
    serde_json::from_str(line).expect("JSON")
}

#[test]
fn syslog_gets_a_message_for_each_session() {
    let stage = Stage::new();
    let receiver = stage.receiver();
    let mut relay = stage.relay("syslog:local3", &[]);
    for id in 1..=3 {
        visit(&relay, id);
        let message = receive(&receiver);
        // local3 is 19, and "informational" 6.
        let header: Vec<_> = message.split(' ').take(7).collect();
        let ["<158>1", time, host, "spliced", process, "access", "-"] = header[..] else {
            panic!("{message}");
        };
        humantime::parse_rfc3339(time).expect("RFC 3339");
        assert!(!host.is_empty());
        assert_eq!(process, relay.id().to_string());
        assert_eq!(line(&message)["id"], id);
    }
    relay.terminate();
}

#[test]
fn the_journal_gets_an_entry_for_each_session() {
    let stage = Stage::new();
    let receiver = stage.receiver();
    let fields = "id,client,server,why_engine,engine";
    let mut relay = stage.relay(
        "journald",
        &["--engine", "copy", "--access-log-fields", fields],
    );
    let client = Peer::connect(&relay.address);
    ask(&client, 1, 10, 20);
    let address = client.local_address();
    drop(client);
    let server = &stage.server.address;
    let entry = receive(&receiver);
    let mut lines: Vec<_> = entry.lines().collect();
    lines.sort_unstable();
    let message = format!(
        r#"MESSAGE={{"id":1,"client":"{address}","server":"{server}","why_engine":"asked for by name","engine":"copy"}}"#
    );
    let expected = [
        &*message,
        "PRIORITY=6",
        &format!("SPLICED_CLIENT={address}"),
        "SPLICED_ENGINE=copy",
        "SPLICED_ID=1",
        &format!("SPLICED_SERVER={server}"),
        "SPLICED_WHY_ENGINE=asked for by name",
        "SYSLOG_IDENTIFIER=spliced",
    ];
    assert_eq!(lines, expected);
    relay.terminate();
}

/// Lines wait for it, and none is lost.
#[test]
fn a_receiver_may_come_late_and_be_started_again() {
    let stage = Stage::new();
    let mut relay = stage.relay("syslog", &[]);
    let line_of_it = relay.wait_logged("the access log cannot be written");
    assert!(
        line_of_it.contains("start the syslog daemon"),
        "{line_of_it}"
    );
    visit(&relay, 1);
    let receiver = stage.receiver();
    assert_eq!(line(&receive(&receiver))["id"], 1);
    relay.wait_logged("is being written again; no line was lost");
    // It is there again before the next line.
    stage.end(receiver);
    let receiver = stage.receiver();
    visit(&relay, 2);
    assert_eq!(line(&receive(&receiver))["id"], 2);
    assert_eq!(relay.lines_logged("the access log cannot be written"), 1);
    // The old one is still open, but another one is asked for.
    let next = stage.receiver();
    relay.signal(Signal::USR1);
    relay.wait_logged("was opened again");
    visit(&relay, 3);
    assert_eq!(line(&receive(&next))["id"], 3);
    drop(receiver);
    stage.end(next);
    visit(&relay, 4);
    until("it is told again", || {
        relay.lines_logged("the access log cannot be written") == 2
    });
    // Nobody takes the last line.
    relay.signal(Signal::TERM);
    relay.wait_logged("lost its last line: it cannot be written");
    relay.wait_end();
}

#[test]
fn a_receiver_that_is_full_stops_nobody_and_the_loss_is_counted() {
    let stage = Stage::new();
    let receiver = stage.receiver();
    let mut relay = stage.relay("syslog", &[]);
    for number in 1..=TOO_MANY_CLIENTS {
        visit(&relay, number);
    }
    let mut received = 0;
    let lost = loop {
        receiver.set_nonblocking(true).expect("non-blocking");
        let came = receiver.recv(&mut [0; 1 << 16]).is_ok();
        received += u64::from(came);
        if !came && relay.lines_logged("is being written again") > 0 {
            let told = relay.wait_logged("is being written again");
            let (_, told) = told.split_once("again; ").expect("the loss");
            break told.split(' ').next().and_then(|count| count.parse().ok());
        }
    };
    let lost: u64 = lost.expect("a number");
    assert!(lost > 0);
    assert_eq!(received + lost, TOO_MANY_CLIENTS);
    visit(&relay, 0);
    receiver.set_nonblocking(false).expect("blocking");
    assert_eq!(line(&receive(&receiver))["id"], TOO_MANY_CLIENTS + 1);
    relay.terminate();
}

/// Those who were there before still write to the former one.
#[test]
fn a_reload_moves_the_log_of_new_sessions() {
    let stage = Stage::new();
    let receiver = stage.receiver();
    let file = Log::below(&stage.scratch);
    let configuration = |place: &str| {
        format!(
            "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\naccess_log = \"{place}\"\n\
             [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = \"{}\"\n",
            stage.server.address
        )
    };
    let proxy = Proxy::run(&configuration(&file.path));
    let before = Peer::connect(&proxy.address("l"));
    until("it is accepted", || proxy.count("l", "joined") == 1);
    let syslog = format!("syslog:unix:{}", stage.path().display());
    let output = proxy.reload(&configuration(&syslog));
    assert!(output.status.success(), "{output:?}");
    let after = Peer::connect(&proxy.address("l"));
    ask(&after, 2, 10, 20);
    drop(after);
    assert_eq!(line(&receive(&receiver))["id"], 2);
    ask(&before, 1, 10, 20);
    drop(before);
    until("it is logged", || !file.entries().is_empty());
    let ids: Vec<_> = file
        .entries()
        .iter()
        .map(|entry| entry["id"].clone())
        .collect();
    assert_eq!(ids, [1]);
}
