//! Sessions that end early: with all their answers, or to make room.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use netlab::{Namespace, Need, Process, Scratch, available};
use serde_json::Value;

use super::crowd::Crowd;
use super::{Over, client, inet, named, receive, socket};
use crate::log::Log;
use crate::patience::until;
use crate::relay::{BINARY, Relay, command as spliced, output};

/// So few that they are soon used again, or used up (`net.ipv4.ip_local_port_range`).
const FEW_PORTS: &str = "40000 40003";

/// How many sockets of a listener may rest at least.
pub(super) const RESTING: usize = 1024;

#[test]
fn a_session_ends_soon_once_it_has_the_answers_that_are_expected() {
    for replies in [0, 1, 2] {
        let scratch = Scratch::new("replies").expect("a directory");
        let log = Log::below(&scratch);
        let target = socket("127.0.0.1:0");
        let number = replies.to_string();
        let options = ["--replies", &number, "--access-log", &log.path];
        let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &options);
        let [unanswered, answered] = [(); 2].map(|()| client(&relay));
        let ask = |client: &UdpSocket, answers: usize| {
            client.send(b"question").expect("it is sent");
            let (_, session) = receive(&target);
            for _ in 0..answers {
                target.send_to(b"answer", session).expect("it is answered");
                receive(client);
            }
            session
        };
        if replies > 0 {
            ask(&unanswered, replies - 1);
        }
        let session = ask(&answered, replies);
        // It is one session as long as questions come.
        assert_eq!(ask(&answered, replies), session);
        until("the session ends", || !log.entries().is_empty());
        let entries = log.entries();
        let own = answered.local_addr().expect("its address").to_string();
        assert_eq!(entries.len(), 1, "{entries:?}");
        assert_eq!(entries[0]["client"], own);
        assert_eq!(entries[0]["outcome"], "answered");
        assert_eq!(entries[0]["client_to_target_datagrams"], 2);
        assert_eq!(entries[0]["target_to_client_datagrams"], 2 * replies);
    }
}

#[test]
fn a_client_displaces_its_own_longest_idle_session_and_no_other() {
    let scratch = Scratch::new("per-client").expect("a directory");
    let log = Log::below(&scratch);
    let target = socket("127.0.0.1:0");
    let options = [
        "--max-sessions-per-client",
        "2",
        "--threads",
        "1",
        "--access-log",
        &log.path,
    ];
    let mut relay = Relay::between("udp:127.0.0.1:0", &named(&target), &options);
    let other = socket("127.0.0.2:0");
    let clients = [0, 1, 2].map(|_| client(&relay));
    other.connect(inet(&relay.address)).expect("it connects");
    let send = |client: &UdpSocket| {
        client.send(b"question").expect("it is sent");
        receive(&target).1
    };
    let of_other = send(&other);
    let first = send(&clients[0]);
    send(&clients[1]);
    // The first is now the one of its client that was used last.
    assert_eq!(send(&clients[0]), first);
    send(&clients[2]);
    until("a session ends", || !log.entries().is_empty());
    let displaced = clients[1].local_addr().expect("its address").to_string();
    assert_eq!(log.entries()[0]["client"], displaced);
    let outcome = "displaced by a new session of its client";
    assert_eq!(log.entries()[0]["outcome"], outcome);
    assert_eq!(send(&clients[0]), first);
    assert_eq!(send(&other), of_other);
    assert_eq!(log.entries().len(), 1);
    relay.terminate();
    relay.wait_logged("4 sessions, 1 of them displaced; to the target 7 datagrams");
}

/// Asks the target once by so many clients, one after the other, each of which gets through.
fn ask_once_each(options: &[&str], clients: usize, sessions: usize, outcome: &str) {
    let scratch = Scratch::new("threads").expect("a directory");
    let log = Log::below(&scratch);
    let target = socket("127.0.0.1:0");
    let options = [options, &["--threads", "8", "--access-log", &log.path]].concat();
    let mut relay = Relay::between("udp:127.0.0.1:0", &named(&target), &options);
    let clients: Vec<_> = (0..clients).map(|_| client(&relay)).collect();
    for (number, client) in clients.iter().enumerate() {
        client.send(&[number as u8]).expect("it is sent");
        assert_eq!(receive(&target).0, [number as u8]);
    }
    let displaced = clients.len() - sessions;
    until("as many are left as may be", || {
        log.entries().len() == displaced
    });
    let entries = log.entries();
    assert!(entries.iter().all(|entry| entry["outcome"] == outcome));
    relay.terminate();
    assert_eq!(log.entries().len(), clients.len());
    assert_eq!(relay.lines_logged("datagram was dropped"), 0);
}

#[test]
fn a_new_client_displaces_sessions_of_other_threads() {
    let options = ["--max-sessions", "4"];
    ask_once_each(&options, 100, 4, "displaced by a new client");
}

#[test]
fn a_client_displaces_its_own_sessions_of_other_threads() {
    let options = ["--max-sessions-per-client", "3"];
    let outcome = "displaced by a new session of its client";
    ask_once_each(&options, 50, 3, outcome);
}

#[test]
fn without_a_free_descriptor_a_new_client_displaces_a_session() {
    const LIMIT: usize = 60;
    let scratch = Scratch::new("descriptors").expect("a directory");
    let log = Log::below(&scratch);
    let target = socket("127.0.0.1:0");
    let control = scratch.path().join("control");
    let control = control.to_str().expect("UTF-8");
    let mut command = Process::command("prlimit");
    command
        .arg(format!("--nofile={LIMIT}:{LIMIT}"))
        .args([BINARY, "relay", "udp:127.0.0.1:0", &named(&target)])
        .args(["--threads", "1", "--access-log", &log.path])
        .arg("--control")
        .arg(control)
        .env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut command);
    let clients: Vec<_> = (0..2 * LIMIT).map(|_| client(&relay)).collect();
    for (number, client) in clients.iter().enumerate() {
        client.send(&[number as u8]).expect("it is sent");
        assert_eq!(receive(&target).0, [number as u8]);
    }
    relay.wait_logged("has used up RLIMIT_NOFILE (60 descriptors); a new client displaces");
    until("others were displaced", || log.entries().len() >= LIMIT);
    let outcome = "displaced by a new client";
    let entries = log.entries();
    assert!(entries.iter().all(|entry| entry["outcome"] == outcome));
    // A try without a descriptor is no session of the server.
    let table = output(&mut spliced(&["backends", "--json", "--control", control]));
    let backends: Value = serde_json::from_slice(&table.stdout).expect("JSON");
    let server = &backends["backends"][0]["servers"][0];
    assert_eq!(server["total"], clients.len(), "{backends}");
}

#[test]
fn without_a_free_port_a_new_client_displaces_a_session() {
    const CLIENTS: u8 = 12;
    if !available(Need::Netns) {
        return;
    }
    let host = Namespace::new("few-ports").expect("a namespace");
    let target = host.enter(|| {
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", FEW_PORTS).expect("the range");
        socket("127.0.0.1:7001")
    });
    let target = target.expect("the namespace");
    let mut inside = host.command(BINARY);
    inside.args(["relay", "udp:127.0.0.1:7000", "udp:127.0.0.1:7001"]);
    inside.args(["--threads", "1"]).env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut inside);
    for number in 1..=CLIENTS {
        let client = host.enter(|| socket(&format!("127.0.0.{number}:5000")));
        let client = client.expect("the namespace");
        client.connect(inet(&relay.address)).expect("it connects");
        client.send(&[number]).expect("it is sent");
        let (question, session) = receive(&target);
        assert_eq!(question, [number]);
        target.send_to(&[number], session).expect("it is answered");
        assert_eq!(receive(&client).0, [number]);
    }
    relay.wait_logged("(net.ipv4.ip_local_port_range); a new client displaces");
}

#[test]
fn a_flood_of_forged_addresses_ends_no_conversation_and_fills_no_memory() {
    flood(20_000);
}

#[test]
#[ignore = "soak: takes a minute"]
fn a_flood_of_200_000_addresses_ends_no_conversation_and_fills_no_memory() {
    flood(200_000);
}

/// Addresses that are used once, each of which the target answers, and clients that have a conversation.
fn flood(forged: u32) {
    /// With those of the clients, fewer than the target's buffer holds.
    const AT_ONCE: u32 = 100;
    const HONEST: usize = 20;
    const MOST: usize = 1000;
    const MEMORY_BYTES: u64 = 16 << 20;
    let target = socket("127.0.0.1:0");
    let most = MOST.to_string();
    let options = ["--max-sessions", &most, "--threads", "2"];
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &options);
    let before = relay.descriptors();
    let crowd = Crowd::of(inet(&relay.address));
    let clients: Vec<_> = (0..HONEST).map(|_| client(&relay)).collect();
    let (received, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        // It answers with the address that it was asked from.
        scope.spawn(|| {
            let mut buffer = [0; 64];
            target.set_nonblocking(true).expect("non-blocking");
            while !is_over.load(Ordering::Relaxed) {
                match target.recv_from(&mut buffer) {
                    Ok((_, from)) => {
                        // The session may have made room.
                        let _ = target.send_to(from.to_string().as_bytes(), from);
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        // The other thread ends after a failure as well.
        let _over = Over(&is_over);
        let mut sessions: HashMap<usize, Vec<u8>> = HashMap::new();
        let mut asked = 0;
        let mut ask_all = |sessions: &mut HashMap<usize, Vec<u8>>| {
            for client in &clients {
                client.send(b"question").expect("it is sent");
            }
            for (number, client) in clients.iter().enumerate() {
                let session = receive(client).0;
                let first = sessions.entry(number).or_insert_with(|| session.clone());
                assert_eq!(*first, session, "client {number} has another session");
            }
            asked += HONEST as u64;
        };
        ask_all(&mut sessions);
        ask_all(&mut sessions);
        let mut memory = 0;
        for start in (0..forged).step_by(AT_ONCE as usize) {
            (start..start + AT_ONCE).for_each(|number| crowd.send(number, b"forged"));
            ask_all(&mut sessions);
            let sent = u64::from(start + AT_ONCE);
            until("the flood has arrived", || {
                received.load(Ordering::Relaxed) >= sent
            });
            if start == AT_ONCE * 10 {
                memory = relay.resident_bytes();
            }
            // The bound is kept by each thread, which may open one while the other does.
            assert!(relay.all_descriptors() <= before + MOST + RESTING + 8);
        }
        assert!(relay.resident_bytes() < memory + MEMORY_BYTES);
    });
}

/// The port of a session rests when it has ended: an answer that comes late is nobody's.
#[test]
fn a_late_answer_reaches_no_other_client() {
    const CLIENTS: u8 = 30;
    if !available(Need::Netns) {
        return;
    }
    let host = Namespace::new("late-answers").expect("a namespace");
    let target = host.enter(|| {
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", FEW_PORTS).expect("the range");
        socket("127.0.0.1:7001")
    });
    let target = target.expect("the namespace");
    let mut inside = host.command(BINARY);
    let listen = "udp:127.0.0.1:7000";
    let arguments = ["relay", listen, "udp:127.0.0.1:7001", "--max-sessions", "1"];
    inside.args(arguments).args(["--threads", "1"]);
    let relay = Relay::spawn(inside.env_remove("SPLICED_LOG"));
    let mut late: Option<(u8, SocketAddr)> = None;
    for number in 1..=CLIENTS {
        let client = host.enter(|| socket(&format!("127.0.0.{number}:5000")));
        let client = client.expect("the namespace");
        client.connect(inet(&relay.address)).expect("it connects");
        client.send(&[number]).expect("it is sent");
        let (question, session) = receive(&target);
        assert_eq!(question, [number]);
        if let Some((other, session)) = late.replace((number, session)) {
            target.send_to(&[other], session).expect("it is sent");
        }
        target.send_to(&[number], session).expect("it is answered");
        assert_eq!(receive(&client).0, [number]);
    }
}
