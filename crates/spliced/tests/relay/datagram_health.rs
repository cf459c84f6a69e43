//! Active checks of servers of datagrams.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use netlab::Scratch;

use crate::datagrams::{client_of, receive, socket};
use crate::log::Log;
use crate::patience::{until, until_found};
use crate::proxy::Proxy;

/// Every check counts, and the next one comes in `every`.
fn checked(server: &str, health: &str, every: &str, more: &str) -> Proxy {
    Proxy::run(&configuration(server, health, every, more, "reset"))
}

fn configuration(server: &str, health: &str, every: &str, more: &str, on_down: &str) -> String {
    format!(
        "[[listener]]\nname = \"l\"\naddress = \"udp:127.0.0.1:0\"\n{more}\n[[listener.route]]\n\
         backend = \"b\"\n[backend.b]\nservers = [\"{server}\"]\non_down = \"{on_down}\"\n\
         health = {{ {health}, every = \"{every}\", rise = 1, fall = 1 }}\n"
    )
}

fn name(server: &UdpSocket) -> String {
    format!("udp:{}", server.local_addr().expect("its address"))
}

fn is_up(proxy: &Proxy) -> bool {
    proxy.of("backends", "b")["servers"][0]["usable"] == true
}

const EXPECTS: &str = "send = \"ping\", expect = \"hex:70 6F 6E 67\"";

#[test]
fn a_server_is_down_until_it_answers_what_is_expected() {
    let server = socket("127.0.0.1:0");
    let proxy = checked(&name(&server), EXPECTS, "1s", "");
    let (question, from) = receive(&server);
    assert_eq!(question, b"ping");
    server.send_to(b"pang", from).expect("it is answered");
    proxy
        .relay
        .wait_logged("is down: it does not answer what is expected");
    assert!(!is_up(&proxy));
    let (_, from) = receive(&server);
    server.send_to(b"a pong", from).expect("it is answered");
    proxy.relay.wait_logged("is up again");
    // From here on it is silent.
    proxy
        .relay
        .wait_logged("is down: a check was not answered within 1s");
}

#[test]
fn without_an_answer_that_is_expected_only_a_refusal_counts() {
    let server = socket("127.0.0.1:0");
    let address = name(&server);
    let proxy = checked(&address, "send = \"ping\"", "50ms", "");
    for _ in 0..5 {
        assert_eq!(receive(&server).0, b"ping");
    }
    assert!(is_up(&proxy));
    drop(server);
    proxy.relay.wait_logged("is down: connection refused");
    let _server = socket(address.strip_prefix("udp:").expect("its kind"));
    proxy.relay.wait_logged("is up again");
}

/// A client with a session at `server`, which has answered all checks so far.
fn open_session(proxy: &Proxy, server: &UdpSocket) -> UdpSocket {
    let client = client_of(&proxy.address("l"));
    client.send(b"question").expect("it is sent");
    loop {
        let (received, from) = receive(server);
        match &received[..] {
            b"ping" => drop(server.send_to(b"pong", from)),
            _ => return client,
        }
    }
}

#[test]
fn the_sessions_of_a_server_that_is_down_end_if_they_are_to() {
    let scratch = Scratch::new("datagram-health").expect("a directory");
    let log = Log::below(&scratch);
    let server = socket("127.0.0.1:0");
    let more = format!("access_log = {:?}", log.path);
    let proxy = checked(&name(&server), EXPECTS, "1s", &more);
    let _client = open_session(&proxy, &server);
    // It is silent from here on.
    until("the session ends", || {
        log.entries()
            .first()
            .is_some_and(|entry| entry["outcome"] == "its server went down")
    });
}

#[test]
fn a_reload_that_wants_it_ends_the_sessions_of_a_server_that_is_down() {
    let scratch = Scratch::new("datagram-health").expect("a directory");
    let log = Log::below(&scratch);
    let server = socket("127.0.0.1:0");
    let more = format!("access_log = {:?}\nidle_timeout = \"1h\"", log.path);
    let text = |on_down| configuration(&name(&server), EXPECTS, "1s", &more, on_down);
    let proxy = Proxy::run(&text("keep"));
    let _client = open_session(&proxy, &server);
    proxy.relay.wait_logged("is down: a check was not answered");
    let told = proxy.sessions();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(proxy.reload(&text("reset")).status.success());
    let ended = until_found("the session ends", || log.entries().into_iter().next());
    assert_eq!(ended["outcome"], "its server went down");
    assert_eq!(ended["id"], told[0]["id"]);
    assert!(proxy.sessions().is_empty());
}

#[test]
fn a_unix_server_is_checked() {
    let scratch = Scratch::new("unix-health").expect("a directory");
    let path = scratch.path().join("server");
    let server = UnixDatagram::bind(&path).expect("it is bound");
    let address = format!("unixgram:{}", path.display());
    let proxy = checked(&address, EXPECTS, "1s", "");
    let mut question = [0; 10];
    let (length, from) = server.recv_from(&mut question).expect("a check");
    assert_eq!(&question[..length], b"ping");
    server.send_to_addr(b"pong", &from).expect("it is answered");
    // Before the next check.
    drop(server);
    proxy.relay.wait_logged("is down: connection refused");
    fs::remove_file(&path).expect("its file");
    let server = UnixDatagram::bind(&path).expect("it is bound");
    let (_, from) = server.recv_from(&mut question).expect("a check");
    server.send_to_addr(b"pong", &from).expect("it is answered");
    proxy.relay.wait_logged("is up again");
}
