//! Who leaves, why, and what is told of it.

use std::fs;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netlab::{Scratch, until};
use rustix::process::Signal;
use serde_json::Value;
use splice::mesh::Code;

use super::client::{Client, mesh, usual};
use crate::relay::CUT_SHORT;

by_each_engine!(
    an_idle_member_has_to_leave_and_is_told,
    the_access_log_has_a_line_for_each_member,
    a_signal_lets_members_go_and_takes_nobody_in,
    a_second_signal_cuts_members_off,
    members_that_come_and_go_fast_are_all_welcome,
    when_all_ids_are_used_clients_are_told,
    what_was_accepted_for_a_group_is_handed_out_before_the_end,
);

/// The lines of the log, once there are so many.
fn lines(path: &std::path::Path, count: usize) -> Vec<Value> {
    let mut lines = Vec::new();
    until("the lines are written", || {
        let text = fs::read_to_string(path).unwrap_or_default();
        lines = text.lines().map(str::to_owned).collect();
        lines.len() >= count
    });
    assert_eq!(lines.len(), count);
    let lines = lines.iter().map(|line| serde_json::from_str(line));
    lines.map(|line| line.expect("JSON")).collect()
}

fn an_idle_member_has_to_leave_and_is_told(engine: &str) {
    let mesh = mesh(engine, &["--idle-timeout", "1s"]);
    let [mut sender, mut receiver, mut idle] = [(); 3].map(|()| Client::new(&mesh, usual()));
    let over = Arc::new(AtomicBool::new(false));
    let talks = Arc::clone(&over);
    let talking = std::thread::spawn(move || {
        // One only sends, and the other only gets something.
        while !talks.load(Ordering::Relaxed) {
            sender.send(receiver.id, b"hello");
            assert!(receiver.frame().ends_with(b"hello"));
        }
        [sender, receiver]
    });
    assert_eq!(idle.told(), (Code::Idle, 0, 0));
    idle.is_ended();
    drop(idle);
    let line = mesh.wait_logged("member 3 has left");
    assert!(line.contains("it was idle: 0 frames sent"), "{line}");
    over.store(true, Ordering::Relaxed);
    let talkers = talking.join().expect("they talked all the time");
    for mut talker in talkers {
        assert_eq!(talker.told(), (Code::Idle, 0, 0));
        talker.is_ended();
    }
}

fn the_access_log_has_a_line_for_each_member(engine: &str) {
    let scratch = Scratch::new("mesh").expect("a directory");
    let path = scratch.path().join("access.log");
    let file = path.to_str().expect("a path");
    let mesh = mesh(engine, &["--register", "name", "--access-log", file]);
    let mut a = Client::named(&mesh, "a \"quoted\" name");
    let mut b = Client::named(&mesh, "b");
    a.send(b.id, b"hello");
    assert_eq!(b.frame().len(), 13);
    a.send(99, b"to nobody");
    assert_eq!(a.told(), (Code::Unknown, 1, 99));
    a.ask(2, 1, b"b");
    assert_eq!(a.told(), (Code::Found, 1, b.id));
    let from = a.stream.local_addr().expect("an address").to_string();
    a.stream.shutdown(Shutdown::Write).expect("shut down");
    a.is_ended();
    let line = &lines(&path, 1)[0];
    assert_eq!(line["id"], 1);
    assert_eq!(line["name"], "a \\\"quoted\\\" name");
    assert_eq!(line["client"], from);
    assert_eq!(line["outcome"], "it ended its stream");
    assert_eq!(line["engine"], engine);
    // Without the registration, which came before it was a member.
    assert_eq!(line["client_to_target_messages"], 2);
    assert_eq!(line["client_to_target_bytes"], 13 + 17 + 17);
    assert_eq!(line["client_to_target_dropped"], 1);
    assert_eq!(line["target_to_client_messages"], 0);
    // The welcome, the refusal, and the answer.
    assert_eq!(line["target_to_client_bytes"], 3 * 32);
    assert!(line["duration_ms"].as_f64().expect("a time") > 0.0);
    for absent in ["route", "backend", "server", "server_name"] {
        assert!(line.get(absent).is_none(), "{absent}");
    }
    // Logrotate, and the counters.
    let moved = scratch.path().join("moved");
    fs::rename(&path, moved).expect("renamed");
    mesh.signal(Signal::USR1);
    let line = mesh.wait_logged("the mesh so far: ");
    assert!(
        line.contains("2 members, 1 frames delivered, 1 without a destination"),
        "{line}"
    );
    mesh.wait_logged("was opened again");
    mesh.signal(Signal::TERM);
    b.is_ended();
    drop(b);
    let line = &lines(&path, 1)[0];
    assert_eq!(
        (&line["name"], &line["outcome"]),
        (&"b".into(), &"the mesh ends".into())
    );
    assert_eq!(line["target_to_client_messages"], 1);
}

fn a_signal_lets_members_go_and_takes_nobody_in(engine: &str) {
    let mut mesh = mesh(engine, &["--register", "name"]);
    let mut member = Client::named(&mesh, "member");
    let mut silent = Client::stranger(&mesh, usual());
    // It was accepted: clients are taken one after the other.
    let last = Client::named(&mesh, "last");
    mesh.signal(Signal::TERM);
    silent.is_ended();
    member.is_ended();
    // What is said to the mesh meanwhile does not keep it.
    member.ask(2, 1, b"last");
    drop(member);
    mesh.wait_logged("member 1 has left, the mesh ends");
    drop(last);
    assert_eq!(mesh.wait_end().code(), Some(0));
    mesh.wait_logged("the mesh is over: 2 members");
}

fn a_second_signal_cuts_members_off(engine: &str) {
    let mut mesh = mesh(engine, &["--register", "name"]);
    let _stays = Client::named(&mesh, "stays");
    mesh.signal_until_it_ends(Signal::TERM);
    assert_eq!(mesh.wait_end().code(), Some(CUT_SHORT));
}

/// Places rest when their members have left, and clients wait in the backlog meanwhile.
fn members_that_come_and_go_fast_are_all_welcome(engine: &str) {
    /// Many more than there are places.
    const TIMES: usize = 400;
    let mesh = mesh(engine, &["--members", "1"]);
    for time in 0..TIMES {
        let mut client = Client::stranger(&mesh, usual());
        client.welcome();
        if time % 2 == 0 {
            let socket = socket2::SockRef::from(&client.stream);
            socket
                .set_linger(Some(std::time::Duration::ZERO))
                .expect("set");
        }
    }
}

fn when_all_ids_are_used_clients_are_told(engine: &str) {
    let arguments = [
        "mesh",
        "127.0.0.1:0",
        "--frame",
        "u32be@0",
        "--destination",
        "u8@4",
        "--engine",
        engine,
    ];
    let mesh = crate::relay::Relay::spawn(&mut crate::relay::command(&arguments));
    let framing = super::framing("u32be@0", "u8@4");
    for id in 1..=255 {
        assert_eq!(Client::new(&mesh, framing).id, id);
    }
    let mut late = Client::stranger(&mesh, framing);
    assert_eq!(late.notice().code, Code::NoRoom);
    late.is_ended();
}

fn what_was_accepted_for_a_group_is_handed_out_before_the_end(engine: &str) {
    const RECEIVERS: usize = 40;
    const FRAMES: u32 = 200;
    // Nobody reads before the end.
    let mut mesh = mesh(engine, &["--groups", "1", "--member-bytes", "67108864"]);
    let everyone = u64::from(u32::MAX);
    let mut sender = Client::new(&mesh, usual());
    let mut receivers: Vec<_> = (0..RECEIVERS)
        .map(|_| Client::new(&mesh, usual()))
        .collect();
    for number in 0..FRAMES {
        sender.send(everyone, &number.to_be_bytes());
    }
    // The last one comes when all were accepted. Then its sender goes.
    sender.ask(2, 1, b"nobody");
    sender.stream.shutdown(Shutdown::Write).expect("shut down");
    until("the first is handed out", || {
        let mut byte = [0];
        receivers[0]
            .stream
            .peek(&mut byte)
            .is_ok_and(|count| count > 0)
    });
    mesh.signal(Signal::TERM);
    for receiver in &mut receivers {
        for number in 0..FRAMES {
            let frame = receiver.frame();
            assert_eq!(frame[8..], number.to_be_bytes());
        }
        receiver.is_ended();
    }
    drop((sender, receivers));
    assert!(mesh.wait_end().success());
}
