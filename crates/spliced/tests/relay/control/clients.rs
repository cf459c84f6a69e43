//! Many clients of one process: what they hold, and whom they keep out.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use netlab::{Process, Scratch, until_at_rest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::orders::to;
use super::{answers, curl, relay_to_nobody};
use crate::patience::{PATIENCE, until};
use crate::relay::{BINARY, Relay, command, limit_with};
use crate::server::Server;

/// As docs/control.md says.
const CLIENTS_MOST: usize = 256;

/// Far more than a thread needs from one system call to the next.
const AT_REST: Duration = Duration::from_millis(200);

/// The number of descriptors at one moment (`proc_fd_getattr`, since Linux 6.2): reading the directory takes longer than
/// clients come and go. Those count that accept(2) has reserved.
fn descriptors(relay: &Relay) -> usize {
    let of_process = fs::metadata(format!("/proc/{}/fd", relay.id()));
    of_process.expect("its descriptors").len() as usize
}

/// A client that has asked, and reads nothing.
fn ask(socket: &Path, path: &str) -> UnixStream {
    let mut client = UnixStream::connect(socket).expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    // It may have had to make room for another one.
    let _ = client.write_all(request.as_bytes());
    client
}

/// The answer to one that reads: curl writes it into a pipe, which would have to be read, too. `None` if there is no room
/// for it.
fn get(socket: &Path, path: &str) -> Option<String> {
    let mut client = UnixStream::connect(socket).expect("connected");
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    client.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.0 200 OK").then_some(answer)
}

#[test]
fn clients_that_come_back_hold_no_more_than_there_are_seats() {
    const AT_ONCE: usize = 8;
    const EACH: usize = 1500;
    let (_scratch, socket, relay) = relay_to_nobody();
    relay.descriptors();
    // The thread that has made the socket is on its way to accept(2).
    let before = until_at_rest(AT_REST, || descriptors(&relay));
    let most = thread::scope(|scope| {
        let clients = [(); AT_ONCE].map(|()| {
            scope.spawn(|| {
                for _ in 0..EACH {
                    ask(&socket, "/v1/process");
                }
            })
        });
        let mut most = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            most = most.max(descriptors(&relay));
        }
        most
    });
    assert!(most > before, "none was seen");
    // The last one has been accepted, and waits for a seat.
    let allowed = before + CLIENTS_MOST + 1;
    assert!(most <= allowed, "{most} of {allowed}");
}

#[test]
fn readers_who_read_nothing_hold_little_and_keep_nobody_out_who_gives_orders() {
    const SESSIONS: usize = 400;
    let scratch = Scratch::new("control").expect("a directory");
    let [socket, for_reading] = ["sock", "read"].map(|name| scratch.path().join(name));
    let server = Server::new();
    let text = format!(
        "[process]\ncontrol = \"sock\"\ncontrol_read = \"read\"\n{}",
        to(&server)
    );
    let file = scratch.write("c.toml", &text).expect("written");
    let file = file.to_str().expect("UTF-8");
    let relay = Relay::spawn(&mut command(&["run", "--config", file]));
    answers(&socket);
    answers(&for_reading);
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let near = TcpStream::connect(&relay.address).expect("connected");
            (near, server.accept())
        })
        .collect();
    let all = || get(&socket, "/v1/sessions").expect("an answer");
    let row = "\"listener\":\"l\"";
    until("all are there", || all().matches(row).count() == SESSIONS);
    let length = all().len();
    let before = relay.resident_bytes();
    let deaf: Vec<_> = (0..CLIENTS_MOST)
        .map(|_| ask(&for_reading, "/v1/sessions"))
        .collect();
    let _deaf_too = [(); 4].map(|()| ask(&socket, "/v1/sessions"));
    // Orders and questions of those who may order are not behind theirs.
    let (status, _) = curl(&socket, &["-X", "POST", "http://x/v1/reload"]);
    assert_eq!(status, "200");
    assert_eq!(all().matches(row).count(), SESSIONS);
    let path = socket.to_str().expect("UTF-8");
    let killed = crate::relay::output(&mut command(&["kill", "1", "--control", path]));
    assert!(killed.status.success(), "{killed:?}");
    // Whoever has an answer and does not read it makes room for somebody who does.
    until("another reader is answered", || {
        get(&for_reading, "/v1/process").is_some()
    });
    let grown = relay.resident_bytes().saturating_sub(before);
    assert!(
        grown < (CLIENTS_MOST * length / 2) as u64,
        "{grown} bytes for answers of {length}"
    );
    drop((deaf, sessions));
}

#[test]
fn a_client_that_does_not_read_its_answer_is_disconnected() {
    let (_scratch, socket, _relay) = relay_to_nobody();
    let client = UnixStream::connect(&socket).expect("connected");
    client.set_nonblocking(true).expect("set");
    let request = b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n";
    // More answers than fit into its socket. Part of a request may be sent, which ends nothing.
    until("no more is taken", || (&client).write(request).is_err());
    until("it is disconnected", || {
        let mut ended = [PollFd::new(&client, PollFlags::empty())];
        let at_once = Timespec::default();
        poll(&mut ended, Some(&at_once)).is_ok() && ended[0].revents().contains(PollFlags::HUP)
    });
    let mut answers = Vec::new();
    let _ = (&client).read_to_end(&mut answers);
    assert!(answers.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

/// Connections of clients have taken all of them, and others wait for more.
#[test]
fn a_process_without_descriptors_is_asked_and_given_orders() {
    const CLIENTS: usize = 200;
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let path = socket.to_str().expect("UTF-8");
    let server = Server::new();
    let limit = limit_with(100);
    let mut limited = Process::command("prlimit");
    limited
        .arg(format!("--nofile={limit}:{limit}"))
        .arg(BINARY)
        .args(["relay", "127.0.0.1:0", &server.address])
        .args(["--engine", "copy", "--control", path])
        .env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut limited);
    answers(&socket);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| TcpStream::connect(&relay.address).expect("connected"))
        .collect();
    relay.wait_logged("RLIMIT_NOFILE (");
    for _ in 0..20 {
        // At the same time, and one after the other.
        let asked = [(); 3].map(|()| UnixStream::connect(&socket).expect("connected"));
        for mut client in asked {
            let patience = Some(PATIENCE);
            client.set_read_timeout(patience).expect("set");
            client
                .write_all(b"GET /v1/status HTTP/1.0\r\n\r\n")
                .expect("asked");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("an answer");
            assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
        }
    }
    // Nor do those who ask for nothing keep them, of whom there are more than are served at once.
    let _silent: Vec<_> = (0..30)
        .map(|_| UnixStream::connect(&socket).expect("connected"))
        .collect();
    let killed = crate::relay::output(&mut command(&["kill", "1", "--control", path]));
    assert!(killed.status.success(), "{killed:?}");
    drop(clients);
}
