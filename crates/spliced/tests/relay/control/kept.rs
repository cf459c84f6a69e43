//! Live sessions of relays whose threads keep them to themselves, and of echoes.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use netlab::Scratch;
use rustix::net::{SendFlags, send};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{answers, curl};
use crate::datagrams::{client, receive, socket};
use crate::log::Log;
use crate::patience::{until, until_found};
use crate::payload::Payload;
use crate::peer::{End, Over, Peer};
use crate::relay::{Relay, command, output};
use crate::seqpacket;
use crate::usage::failure;

/// More than a thread tells of before others have their turn.
const MANY: usize = 600;

/// A control socket, which is not there yet.
struct Control {
    scratch: Scratch,
    socket: PathBuf,
}

impl Control {
    fn new() -> Self {
        let scratch = Scratch::new("control").expect("a directory");
        let socket = scratch.path().join("control");
        Self { scratch, socket }
    }

    fn path(&self) -> &str {
        self.socket.to_str().expect("UTF-8")
    }

    fn sessions(&self, query: &str) -> Vec<Value> {
        let path = format!("http://x/v1/sessions{query}");
        let (status, mut answer) = curl(&self.socket, &[&path]);
        assert_eq!(status, "200", "{answer}");
        let sessions = answer["sessions"].as_array_mut().expect("a list");
        std::mem::take(sessions)
    }

    fn only(&self) -> Value {
        match <[Value; 1]>::try_from(self.sessions("")) {
            Ok([only]) => only,
            Err(others) => panic!("{others:?}"),
        }
    }

    /// What its listener has counted.
    fn counts(&self) -> Value {
        let (_, told) = curl(&self.socket, &["http://x/v1/status"]);
        told["listeners"][0]["counts"].clone()
    }

    /// `spliced kill` of a session, and of one that is not there.
    fn kill(&self, id: &Value) {
        let id = id.to_string();
        let killed = output(command(&["kill", &id]).args(["--control", self.path()]));
        assert!(killed.status.success(), "{killed:?}");
        let none = failure(
            command(&["kill", "4711"]).args(["--control", self.path()]),
            1,
        );
        assert!(none.contains("there is no session 4711"), "{none}");
    }
}

/// A question of `client`, which `target` answers.
fn exchange(client: &UdpSocket, target: &UdpSocket) -> SocketAddr {
    client.send(b"question").expect("it is sent");
    let (question, from) = receive(target);
    assert_eq!(question, b"question");
    target.send_to(b"answer", from).expect("it is sent");
    assert_eq!(receive(client).0, b"answer");
    from
}

#[test]
fn sessions_of_datagrams_are_shown_and_ended() {
    let control = Control::new();
    let log = Log::below(&control.scratch);
    let target = socket("127.0.0.1:0");
    let host_and_port = target.local_addr().expect("its address").to_string();
    let address = format!("udp:{host_and_port}");
    let options = [
        "--threads",
        "2",
        "--control",
        control.path(),
        "--access-log",
        &log.path,
    ];
    let relay = Relay::between("udp:127.0.0.1:0", &address, &options);
    answers(&control.socket);
    assert!(control.sessions("").is_empty());
    let first = client(&relay);
    let before = exchange(&first, &target);
    let told = control.only();
    let own = first.local_addr().expect("its address").to_string();
    for (field, value) in [
        ("client", json!(own)),
        ("target", json!(address)),
        ("backend", json!(address)),
        ("server", json!(address)),
        ("listener", json!("udp:127.0.0.1:0")),
        ("phase", json!("relaying")),
        ("engine", json!("copy")),
        ("client_to_target_bytes", json!(8)),
        ("target_to_client_bytes", json!(6)),
        ("client_to_target_datagrams", json!(1)),
        ("target_to_client_datagrams", json!(1)),
        ("client_to_target_dropped", json!(0)),
    ] {
        assert_eq!(told[field], value, "{field} of {told}");
    }
    let (_, alone) = curl(
        &control.socket,
        &[&format!("http://x/v1/sessions/{}", told["id"])],
    );
    assert_eq!(alone["client"], told["client"]);
    let table = output(&mut command(&["sessions", "--control", control.path()]));
    let table = String::from_utf8(table.stdout).expect("text");
    let [heads, cells] = [0, 1].map(|line| table.lines().nth(line).unwrap_or_default());
    assert!(heads.contains(" DROPPED  WHY"), "{table}");
    assert!(cells.contains(" 0  no other engine"), "{table}");
    let more: Vec<_> = (0..MANY).map(|_| client(&relay)).collect();
    for client in &more {
        exchange(client, &target);
    }
    let ids: Vec<_> = control
        .sessions("")
        .iter()
        .map(|one| one["id"].clone())
        .collect();
    assert_eq!(ids, (1..=MANY + 1).map(|id| json!(id)).collect::<Vec<_>>());
    assert_eq!(control.sessions(&format!("?client={own}")).len(), 1);
    for server in [&*address, &host_and_port, "127.0.0.1"] {
        let told = control.sessions(&format!("?server={server}&target={server}"));
        assert_eq!(told.len(), MANY + 1, "{server}");
    }
    assert!(control.sessions("?server=127.0.0.2").is_empty());
    assert_eq!(
        control.counts(),
        json!({"accepted": MANY + 1, "joined": MANY + 1})
    );
    let shown = output(command(&["sessions"]).args(["--control", control.path()]));
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(
        shown.contains(&own) && shown.lines().count() == MANY + 2,
        "{shown}"
    );
    control.kill(&told["id"]);
    assert_eq!(control.sessions("").len(), MANY);
    let ended = until_found("it is logged", || log.entries().into_iter().next());
    assert_eq!(ended["outcome"], "ended by an operator");
    assert_eq!(ended["client"], own);
    // Nobody can tell a client of UDP: its next datagram begins another one.
    assert_ne!(exchange(&first, &target), before);
    assert_eq!(control.sessions("").len(), MANY + 1);
}

#[test]
fn a_relay_of_datagrams_answers_up_to_its_end() {
    let control = Control::new();
    let target = socket("127.0.0.1:0");
    let address = format!("udp:{}", target.local_addr().expect("its address"));
    let options = ["--control", control.path()];
    let mut relay = Relay::between("udp:127.0.0.1:0", &address, &options);
    answers(&control.socket);
    let clients = [(); 2].map(|()| client(&relay));
    for client in &clients {
        exchange(client, &target);
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            // Otherwise they are quiet, and the relay ends.
            while !is_over.load(Ordering::Relaxed) {
                for client in &clients {
                    let _ = client.send(b"more");
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        relay.signal(Signal::TERM);
        until("it drains", || {
            let (_, process) = curl(&control.socket, &["http://x/v1/process"]);
            process["state"] == "draining"
        });
        assert_eq!(control.sessions("").len(), 2);
        control.kill(&json!(1));
        assert_eq!(control.only()["id"], 2);
        // The relay ends along with it, and answers.
        let killed = output(command(&["kill", "2"]).args(["--control", control.path()]));
        assert!(killed.status.success(), "{killed:?}");
    });
    assert_eq!(relay.wait_end().code(), Some(0));
}

#[test]
fn sessions_of_messages_are_shown_and_ended() {
    let control = Control::new();
    let log = Log::below(&control.scratch);
    let target = seqpacket::server(&control.scratch);
    let options = ["--control", control.path(), "--access-log", &log.path];
    let relay = seqpacket::relay(&control.scratch, &options);
    answers(&control.socket);
    let client = seqpacket::connected(&control.scratch);
    let far = seqpacket::accepted(&target);
    for (from, to, text) in [(&client, &far, &b"a message"[..]), (&far, &client, b"")] {
        send(from, text, SendFlags::empty()).expect("it is sent");
        assert_eq!(seqpacket::message(to), text);
    }
    let told = until_found("both are counted", || {
        let told = control.only();
        (told["target_to_client_messages"] == 1).then_some(told)
    });
    for (field, value) in [
        ("listener", json!(relay.address)),
        ("backend", json!(seqpacket::at(&control.scratch, "target"))),
        ("server", json!(seqpacket::at(&control.scratch, "target"))),
        ("phase", json!("relaying")),
        ("client_to_target_bytes", json!(9)),
        ("target_to_client_bytes", json!(0)),
        ("client_to_target_messages", json!(1)),
    ] {
        assert_eq!(told[field], value, "{field} of {told}");
    }
    let counts = control.counts();
    assert_eq!(
        (&counts["accepted"], &counts["joined"]),
        (&json!(1), &json!(1))
    );
    control.kill(&told["id"]);
    assert!(control.sessions("").is_empty());
    assert_eq!(seqpacket::message(&client), b"");
    assert_eq!(seqpacket::message(&far), b"");
    let ended = until_found("it is logged", || log.entries().into_iter().next());
    assert_eq!(ended["outcome"], "ended by an operator");
}

#[test]
fn echoes_are_shown_and_ended() {
    let control = Control::new();
    let mut echo = Relay::echo("127.0.0.1:0", &["--control", control.path()]);
    answers(&control.socket);
    let [first, second] = [(); 2].map(|()| Peer::connect(&echo.address));
    let payload = Payload::new(34);
    for client in [&first, &second] {
        client.send(payload, 0, 1000);
        client.expect(payload, 0, 1000);
    }
    let told = until_found("both are counted", || {
        let told = control.sessions("");
        let is_counted = |one: &Value| one["client_to_target_bytes"] == 1000;
        (told.len() == 2 && told.iter().all(is_counted)).then_some(told)
    });
    // Several threads accept, so either may be the first.
    let of_first = |one: &&Value| one["client"] == first.local_address();
    let told = told.iter().find(of_first).expect("the first client's");
    assert_eq!(told["phase"], "relaying");
    control.kill(&told["id"]);
    first.expect_reset();
    until("it is gone", || control.sessions("").len() == 1);
    second.end_stream();
    assert_eq!(second.read_to_end(payload, 0), (0, End::OfStream));
    until("it is gone", || control.sessions("").is_empty());
    // Nobody was cut short by its end.
    echo.terminate();
}
