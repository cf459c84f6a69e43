//! `spliced adopt --pid P`: the sockets of a process.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd as _;

use serde_json::Value;

use super::owner::Owner;
use crate::patience::{until, until_found};
use crate::relay::{command, output};
use crate::usage::failure;

pub(super) fn listed(pid: u32) -> Value {
    let output = output(&mut command(&[
        "adopt",
        "--pid",
        &pid.to_string(),
        "--json",
    ]));
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn table(pid: u32) -> String {
    let output = output(&mut command(&["adopt", "--pid", &pid.to_string()]));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_two_sides_of_a_relay_are_found() {
    for owner in [Owner::socat(), Owner::nginx()].into_iter().flatten() {
        let pid = owner.process.id();
        let [first, second] = owner.numbers();
        // Nothing tells them apart from others yet.
        assert_eq!(listed(pid)["pairs"], serde_json::json!([]));
        owner.expect_both_ways();
        owner.client.send(crate::payload::Payload::new(1), 0, 10);
        owner.server.expect(crate::payload::Payload::new(1), 0, 10);
        let list = until_found("the pair is proposed", || {
            let list = listed(pid);
            (list["pairs"] != serde_json::json!([])).then_some(list)
        });
        let mut pair = [&list["pairs"][0][0], &list["pairs"][0][1]].map(Value::as_u64);
        pair.sort();
        let mut numbers = [first, second].map(|number| Some(u64::from(number)));
        numbers.sort();
        assert_eq!(pair, numbers, "{list}");
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("its name");
        assert_eq!(list["name"], name.trim_end());
        let sockets = list["sockets"].as_array().expect("sockets");
        let to_client = sockets.iter().find(|socket| socket["fd"] == first);
        let to_client = to_client.expect("it is listed");
        assert_eq!(to_client["peer"], owner.client.local_address());
        assert_eq!(to_client["refused"], Value::Null);
        assert_eq!(to_client["read_bytes"], 100_010);
        until("the table proposes a command", || {
            let [one, other] = numbers.map(Option::unwrap_or_default);
            let table = table(pid);
            [[one, other], [other, one]].iter().any(|[one, other]| {
                table.contains(&format!(
                    "spliced adopt --pid {pid} --fd {one} --fd {other}"
                ))
            })
        });
    }
}

#[test]
fn bytes_that_wait_in_the_queue_are_shown() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let payload = crate::payload::Payload::new(3);
    owner.fill_towards_the_server(payload);
    let [first, _] = owner.numbers();
    let list = listed(owner.process.id());
    let sockets = list["sockets"].as_array().expect("sockets");
    let waits =
        |socket: &&Value| socket["fd"] == first && socket["unread_bytes"].as_u64() > Some(0);
    assert!(sockets.iter().any(|socket| waits(&socket)), "{list}");
}

#[test]
fn each_socket_has_the_reason_why_it_cannot_be_adopted() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let table = table(std::process::id());
    for (number, why) in [
        (
            listener.as_raw_fd(),
            "is a listening socket; name a connected one",
        ),
        (
            udp.as_raw_fd(),
            "is no TCP socket, and only TCP counts what its owner has read and written",
        ),
    ] {
        let line = table
            .lines()
            .find(|line| line.starts_with(&format!("{number} ")));
        let line = line.unwrap_or_else(|| panic!("{number} is missing: {table}"));
        assert!(line.contains("no: ") && line.contains(why), "{line}");
    }
}

#[test]
fn a_process_that_is_not_there_is_no_list() {
    let sentence = failure(&mut command(&["adopt", "--pid", "4000000000"]), 2);
    assert!(
        sentence.contains("there is no process 4000000000"),
        "{sentence}"
    );
    let sentence = failure(&mut command(&["adopt", "--pid", "1", "--pid", "1"]), 2);
    assert!(sentence.contains("give --pid once"), "{sentence}");
    // kthreadd.
    if std::fs::read_to_string("/proc/2/status").is_ok_and(|it| it.contains("\nKthread:\t1\n")) {
        let sentence = failure(&mut command(&["adopt", "--pid", "2"]), 2);
        assert!(
            sentence.ends_with("is a thread of the kernel"),
            "{sentence}"
        );
    }
}
