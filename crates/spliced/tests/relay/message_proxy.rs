//! `spliced run` with listeners of messages (`SOCK_SEQPACKET`).

use std::os::fd::OwnedFd;

use netlab::Scratch;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use rustix::process::Signal;
use serde_json::Value;

use crate::log::Log;
use crate::patience::{until, until_found};
use crate::payload::Payload;
use crate::proxy::Proxy;
use crate::seqpacket::{accepted, at, connected, message, server_at, try_connect};

/// A listener `l` with keys of its own, and the backend `b` with the servers of these names and keys.
fn configuration(scratch: &Scratch, listener: &str, servers: &[&str], backend: &str) -> String {
    let servers: Vec<_> = servers.iter().map(|name| at(scratch, name)).collect();
    format!(
        "[[listener]]\nname = \"l\"\naddress = {:?}\n{listener}\n[[listener.route]]\nbackend = \"b\"\n[backend.b]\n\
         servers = {servers:?}\n{backend}\n",
        at(scratch, "relay")
    )
}

fn say(from: &OwnedFd, to: &OwnedFd, text: &[u8]) {
    send(from, text, SendFlags::empty()).expect("it is sent");
    assert!(message(to) == text, "{} bytes differ", text.len());
}

/// What the status says of the server at this place of backend `b`.
fn server(proxy: &Proxy, place: usize) -> Value {
    proxy.of("backends", "b")["servers"][place].clone()
}

#[test]
fn messages_keep_their_boundaries() {
    let scratch = Scratch::new("messages").expect("a directory");
    let log = Log::below(&scratch);
    let target = server_at(&scratch, "one");
    let keys = format!("access_log = {:?}", log.path);
    let mut proxy = Proxy::run(&configuration(&scratch, &keys, &["one"], ""));
    assert_eq!(proxy.address("l"), at(&scratch, "relay"));
    let client = connected(&scratch);
    let far = accepted(&target);
    for (salt, size) in (0..).zip([1, 0, 64, 4096, 65_536, 0, 150_000]) {
        let text = Payload::new(salt).bytes(size);
        say(&client, &far, &text);
        say(&far, &client, &text);
    }
    shutdown(&client, Shutdown::Write).expect("the end");
    assert!(message(&far).is_empty());
    say(&far, &client, b"after");
    drop(far);
    assert!(message(&client).is_empty());
    let entry = until_found("it is logged", || log.entries().into_iter().next());
    for (field, value) in [
        ("client_to_target_messages", 7.into()),
        ("target_to_client_messages", 8.into()),
        ("client_to_target_bytes", 219_697.into()),
        ("listener", Value::from("l")),
        ("backend", "b".into()),
        ("server", at(&scratch, "one").into()),
        ("target", at(&scratch, "one").into()),
        ("engine", "copy".into()),
        (
            "why_engine",
            "no other engine takes its kind of socket".into(),
        ),
        ("outcome", "end of stream".into()),
    ] {
        assert_eq!(entry[field], value, "{field} of {entry}");
    }
    proxy.relay.terminate();
    assert!(!scratch.path().join("relay").exists());
}

#[test]
fn clients_take_turns_by_weight_and_pass_over_a_server_that_is_gone() {
    let scratch = Scratch::new("messages").expect("a directory");
    let [one, other] = ["one", "other"].map(|name| server_at(&scratch, name));
    let text = configuration(&scratch, "", &["gone", "one", "other"], "").replace(
        &format!("{:?}", at(&scratch, "one")),
        &format!("{{ address = {:?}, weight = 3 }}", at(&scratch, "one")),
    );
    let proxy = Proxy::run(&text);
    let clients: Vec<_> = (0..8).map(|_| connected(&scratch)).collect();
    until("all are connected", || {
        proxy.of("listeners", "l")["connections"] == 8
            && [1, 2].map(|place| server(&proxy, place)["connections"].as_u64())
                == [Some(6), Some(2)]
    });
    let far: Vec<_> = [(&one, 6), (&other, 2)]
        .into_iter()
        .flat_map(|(server, count)| (0..count).map(move |_| accepted(server)))
        .collect();
    // Each reaches exactly one.
    for (number, client) in (0..).zip(&clients) {
        send(client, &[number], SendFlags::empty()).expect("it is sent");
    }
    let mut numbers: Vec<_> = far.iter().map(|far| message(far)[0]).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..8).collect::<Vec<u8>>());
}

/// Nothing tells one client from another, and a common hash would give them all to one server.
#[test]
fn clients_without_addresses_take_turns_where_others_are_hashed() {
    let scratch = Scratch::new("messages").expect("a directory");
    let _servers = ["one", "other"].map(|name| server_at(&scratch, name));
    let keys = "balance = \"consistent\"";
    let proxy = Proxy::run(&configuration(&scratch, "", &["one", "other"], keys));
    let _clients: Vec<_> = (0..6).map(|_| connected(&scratch)).collect();
    until("each server has half of them", || {
        [0, 1].map(|place| server(&proxy, place)["connections"].as_u64()) == [Some(3), Some(3)]
    });
}

#[test]
fn a_client_waits_for_a_server_that_is_full() {
    let scratch = Scratch::new("messages").expect("a directory");
    let target = server_at(&scratch, "one");
    let keys = "max_connections_per_server = 1\nqueue_timeout = \"10m\"";
    let proxy = Proxy::run(&configuration(&scratch, "", &["one"], keys));
    let first = connected(&scratch);
    let first_far = accepted(&target);
    say(&first, &first_far, b"first");
    let second = connected(&scratch);
    // Neither is read before there is a server: the first one is not the end of the stream then, either.
    for text in [&b""[..], b"waits"] {
        send(&second, text, SendFlags::empty()).expect("it is sent");
    }
    until("it is in the queue", || {
        proxy.of("backends", "b")["queued"] == 1
    });
    // Whoever ends a session makes room.
    let sessions = proxy.sessions();
    let first_id = sessions
        .iter()
        .find(|session| session["phase"] == "relaying");
    let first_id = first_id.expect("the first one")["id"].to_string();
    assert!(proxy.ask_with(&["kill", &first_id]).status.success());
    assert!(message(&first).is_empty() && message(&first_far).is_empty());
    let second_far = accepted(&target);
    assert_eq!(message(&second_far), b"");
    assert_eq!(message(&second_far), b"waits");
}

#[test]
fn a_reload_keeps_connections_and_moves_new_clients() {
    let scratch = Scratch::new("messages").expect("a directory");
    let [one, other] = ["one", "other"].map(|name| server_at(&scratch, name));
    let with = |servers: &[&str]| configuration(&scratch, "", servers, "");
    let proxy = Proxy::run(&with(&["one"]));
    let first = connected(&scratch);
    let first_far = accepted(&one);
    assert!(proxy.reload(&with(&["other"])).status.success());
    let second = connected(&scratch);
    let second_far = accepted(&other);
    say(&second, &second_far, b"the new server");
    say(&first, &first_far, b"the former one");
    // Without its listener a connection goes on, for the drain timeout.
    let elsewhere = with(&["other"]).replace("/relay\"", "/elsewhere\"");
    assert!(proxy.reload(&elsewhere).status.success());
    assert!(try_connect(&scratch).is_err());
    say(&second_far, &second, b"goes on");
    assert!(proxy.reload(&with(&["other"])).status.success());
    let third = connected(&scratch);
    let third_far = accepted(&other);
    say(&third, &third_far, b"back again");
    let output = proxy.ask_with(&["drain", &at(&scratch, "other")]);
    assert!(output.status.success(), "{output:?}");
    say(&third, &third_far, b"drained servers keep theirs");
    assert_eq!(server(&proxy, 0)["state"], "draining");
}

#[test]
fn a_signal_leaves_connections_the_drain_timeout() {
    let scratch = Scratch::new("messages").expect("a directory");
    let target = server_at(&scratch, "one");
    let text = configuration(&scratch, "", &["one"], "");
    let mut proxy = Proxy::run(&format!("drain_timeout = \"10m\"\n{text}"));
    let client = connected(&scratch);
    let far = accepted(&target);
    say(&client, &far, b"before");
    proxy.relay.signal(Signal::TERM);
    proxy.relay.wait_logged("no longer accepting");
    until("it listens no more", || try_connect(&scratch).is_err());
    say(&far, &client, b"after");
    // Those who came last may wait in its backlog.
    drop((client, far, target));
    assert_eq!(proxy.relay.wait_end().code(), Some(0));
}

#[test]
fn checks_take_a_server_out_and_bring_it_back() {
    let scratch = Scratch::new("messages").expect("a directory");
    let one = server_at(&scratch, "one");
    let keys = "health = { tcp = true, every = \"50ms\", rise = 1, fall = 1 }";
    let proxy = Proxy::run(&configuration(&scratch, "", &["one", "other"], keys));
    let state = |place: usize, state: &str| {
        until("its state is known", || {
            server(&proxy, place)["state"] == state
        });
    };
    state(1, "down");
    let other = server_at(&scratch, "other");
    state(1, "up");
    drop((one, other));
    state(0, "down");
}
