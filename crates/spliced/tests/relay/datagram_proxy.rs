//! `spliced run` with listeners of datagrams.

mod bounds;
mod circles;
mod coming_back;
mod telling;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;

use netlab::Scratch;
use rustix::process::Signal;
use serde_json::Value;

use crate::datagrams::{receive, socket};
use crate::log::Log;
use crate::metrics::reading::Reading;
use crate::patience::{until, until_found};
use crate::peer::Peer;
use crate::proxy::Proxy;
use crate::server::Server;

/// A listener `l` with keys of its own, and the backend `b` with these servers and keys.
fn configuration(servers: &[&UdpSocket], listener: &str, backend: &str) -> String {
    let servers: Vec<_> = servers.iter().map(|server| name(server)).collect();
    format!(
        "drain_timeout = \"30s\"\n[[listener]]\nname = \"l\"\naddress = \"udp:127.0.0.1:0\"\n{listener}\n\
         [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = {servers:?}\n{backend}\n"
    )
}

fn name(server: &UdpSocket) -> String {
    format!("udp:{}", server.local_addr().expect("its address"))
}

/// A client of the listener `l`.
fn client(proxy: &Proxy) -> UdpSocket {
    let address = proxy.address("l");
    let address = address.strip_prefix("udp:").expect("a UDP socket");
    let client = socket("127.0.0.1:0");
    client.connect(address).expect("it connects");
    client.set_nonblocking(true).expect("non-blocking");
    client
}

fn servers<const COUNT: usize>() -> [UdpSocket; COUNT] {
    std::array::from_fn(|_| {
        let server = socket("127.0.0.1:0");
        server.set_nonblocking(true).expect("non-blocking");
        server
    })
}

/// What a socket has got, if something.
fn got(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buffer = [0; 2048];
    match socket.recv_from(&mut buffer) {
        Ok((length, from)) => Some((buffer[..length].to_vec(), from)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        // Of an earlier datagram.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => None,
        Err(error) => panic!("{error}"),
    }
}

/// Sends a datagram, which a server answers. Returns which one, and from where it came there.
fn ask(client: &UdpSocket, servers: &[&UdpSocket]) -> (usize, SocketAddr) {
    client.send(b"question").expect("it is sent");
    let (place, from) = until_found("the question arrives", || {
        let mut servers = servers.iter().enumerate();
        servers.find_map(|(place, server)| Some((place, got(server)?.1)))
    });
    servers[place].send_to(b"answer", from).expect("it is sent");
    let answer = until_found("the answer arrives", || got(client));
    assert_eq!(answer.0, b"answer");
    (place, from)
}

/// The sum of what the metrics say.
fn reading(proxy: &Proxy) -> Reading {
    let status = proxy.status();
    Reading::at(status["socket"].as_str().expect("a path"))
}

/// Gives an order, which has to succeed.
fn post(proxy: &Proxy, path: &str) {
    let status = proxy.status();
    let socket = status["socket"].as_str().expect("a path");
    let mut socket = UnixStream::connect(socket).expect("connected");
    let request = format!("POST {path} HTTP/1.0\r\ncontent-length: 0\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("it is sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
}

/// What the status says of the server at this place of backend `b`.
fn server(proxy: &Proxy, place: usize) -> Value {
    proxy.of("backends", "b")["servers"][place].clone()
}

#[test]
fn sessions_take_turns_by_weight_and_stay() {
    let [first, second] = servers();
    let all = [&first, &second];
    let text = configuration(&all, "", "").replace(
        &format!("{:?}", name(&first)),
        &format!("{{ address = {:?}, weight = 3 }}", name(&first)),
    );
    let proxy = Proxy::run(&text);
    let clients: Vec<_> = (0..8).map(|_| client(&proxy)).collect();
    let places: Vec<_> = clients.iter().map(|client| ask(client, &all)).collect();
    let of_second = places.iter().filter(|(place, _)| *place == 1).count();
    assert_eq!(of_second, 2, "{places:?}");
    for (client, before) in clients.iter().zip(&places) {
        assert_eq!(ask(client, &all), *before);
    }
    assert_eq!(server(&proxy, 0)["connections"], 6);
    assert_eq!(server(&proxy, 1)["connections"], 2);
    assert_eq!(proxy.of("listeners", "l")["connections"], 8);
}

#[test]
fn a_server_has_no_more_sessions_than_it_may() {
    let [only] = servers();
    let proxy = Proxy::run(&configuration(
        &[&only],
        "",
        "max_connections_per_server = 1",
    ));
    let [one, other] = [client(&proxy), client(&proxy)];
    ask(&one, &[&only]);
    other.send(b"too many").expect("it is sent");
    proxy
        .relay
        .wait_logged("each server has 1 session (max_connections_per_server)");
    assert_eq!(got(&only), None);
    // A session that ends makes room.
    let id = proxy.sessions()[0]["id"].to_string();
    assert!(proxy.ask_with(&["kill", &id]).status.success());
    until("there is room", || {
        other.send(b"question").expect("it is sent");
        got(&only).is_some()
    });
}

#[test]
fn a_server_that_refuses_is_taken_out_and_comes_back() {
    let [gone, good] = servers();
    let text = configuration(&[&gone, &good], "", "");
    let address = gone.local_addr().expect("its address");
    drop(gone);
    let proxy = Proxy::run(&text);
    until("it is taken out", || {
        let client = client(&proxy);
        // One datagram is enough: what is refused goes to the other server with the next one.
        until("it is served", || {
            // The relay passes on that the other one has refused, and the next call reports it.
            let _ = client.send(b"question");
            got(&good).is_some()
        });
        server(&proxy, 0)["usable"] == false
    });
    proxy
        .relay
        .wait_logged("is taken out for 10s: Connection refused");
    let back = UdpSocket::bind(address).expect("the address is free");
    back.set_nonblocking(true).expect("non-blocking");
    until("it has a client again", || {
        let client = client(&proxy);
        client.send(b"question").expect("it is sent");
        let place = until_found("it arrives", || {
            got(&good).map(|_| 1).or_else(|| got(&back).map(|_| 0))
        });
        place == 0
    });
    assert_eq!(server(&proxy, 0)["usable"], true);
}

#[test]
fn a_reload_keeps_the_sessions_of_what_stays() {
    let [first, second] = servers();
    let text = configuration(&[&first], "", "");
    let proxy = Proxy::run(&text);
    let old = client(&proxy);
    let before = ask(&old, &[&first]);
    let with_both = configuration(&[&second, &first], "max_sessions = 1000", "");
    let added = "[[listener]]\nname = \"new\"\naddress = \"udp:127.0.0.1:0\"\n[[listener.route]]\nbackend = \"c\"\n";
    let with_new = format!(
        "{with_both}[backend.c]\nservers = {:?}\n{added}",
        name(&second)
    );
    assert!(proxy.reload(&with_new).status.success());
    assert_eq!(ask(&old, &[&first]), before);
    assert_eq!(proxy.sessions().len(), 1);
    // The new server has clients, and the new listener, too.
    until("a client comes to the new server", || {
        ask(&client(&proxy), &[&first, &second]).0 == 1
    });
    assert_eq!(proxy.of("listeners", "new")["state"], "listening");
}

#[test]
fn a_removed_listener_drains_its_sessions() {
    let scratch = Scratch::new("datagram-removal").expect("a directory");
    let log = Log::below(&scratch);
    let [only] = servers();
    let access_log = format!("access_log = {:?}", log.path);
    let text = configuration(&[&only], &access_log, "");
    let proxy = Proxy::run(&text);
    let [one, other] = [client(&proxy), client(&proxy)];
    let before = ask(&one, &[&only]);
    let kept = text.replace("udp:127.0.0.1:0", "udp:127.0.0.2:0");
    assert!(proxy.reload(&kept).status.success());
    // It is served until it is quiet, and nobody else is.
    assert_eq!(ask(&one, &[&only]), before);
    other.send(b"late").expect("it is sent");
    until("its session has ended", || log.entries().len() == 1);
    let outcome = &log.entries()[0]["outcome"];
    assert_eq!(outcome, "quiet, and its listener takes no more clients");
    assert_eq!(got(&only), None);
}

#[test]
fn a_listener_that_is_removed_with_reset_ends_its_sessions_at_once() {
    let scratch = Scratch::new("datagram-reset").expect("a directory");
    let log = Log::below(&scratch);
    let [only] = servers();
    let listener = format!("access_log = {:?}\non_remove = \"reset\"", log.path);
    let text = configuration(&[&only], &listener, "");
    let proxy = Proxy::run(&text);
    ask(&client(&proxy), &[&only]);
    let kept = text.replace("udp:127.0.0.1:0", "udp:127.0.0.2:0");
    assert!(proxy.reload(&kept).status.success());
    until("its session has ended", || log.entries().len() == 1);
    assert_eq!(log.entries()[0]["outcome"], "its listener was removed");
}

#[test]
fn a_removed_server_keeps_its_sessions_for_their_time() {
    for on_remove in ["drain", "reset"] {
        let scratch = Scratch::new("datagram-server").expect("a directory");
        let log = Log::below(&scratch);
        let [first, second] = servers();
        let access_log = format!("access_log = {:?}", log.path);
        let on_remove_key = format!("on_remove = {on_remove:?}");
        let proxy = Proxy::run(&configuration(&[&first], &access_log, &on_remove_key));
        let client = client(&proxy);
        let before = ask(&client, &[&first]);
        let without = configuration(&[&second], &access_log, &on_remove_key);
        assert!(proxy.reload(&without).status.success());
        if on_remove == "drain" {
            assert_eq!(ask(&client, &[&first, &second]), before);
            continue;
        }
        until("the session has ended", || log.entries().len() == 1);
        assert_eq!(log.entries()[0]["outcome"], "its server was removed");
        assert_eq!(ask(&client, &[&first, &second]).0, 1);
    }
}

#[test]
fn the_access_log_and_the_sessions_have_the_names_of_the_configuration() {
    let scratch = Scratch::new("datagram-names").expect("a directory");
    let log = Log::below(&scratch);
    let [only] = servers();
    let listener = format!("access_log = {:?}\nidle_timeout = \"1h\"", log.path);
    let mut proxy = Proxy::run(&configuration(&[&only], &listener, ""));
    let client = client(&proxy);
    ask(&client, &[&only]);
    let told = proxy.sessions();
    let [session] = &told[..] else {
        panic!("one session, not {told:?}");
    };
    proxy.relay.terminate();
    let entries = log.entries();
    let [entry] = &entries[..] else {
        panic!("one line, not {entries:?}");
    };
    let own = client.local_addr().expect("its address").to_string();
    for one in [session, entry] {
        assert_eq!(one["listener"], "l");
        assert_eq!(one["backend"], "b");
        assert_eq!(one["server"], name(&only));
        assert_eq!(one["route"], 1);
        assert_eq!(one["client"], own);
        assert_eq!(one["target"], name(&only));
        assert_eq!(one["client_to_target_datagrams"], 1);
        assert_eq!(one["target_to_client_bytes"], 6);
    }
    assert_eq!(entry["outcome"], "quiet, and the relay ends");
}

#[test]
fn metrics_count_sessions_and_datagrams() {
    let [only] = servers();
    // A thread displaces its own sessions only.
    let text = format!(
        "threads = 1\n{}",
        configuration(&[&only], "max_sessions = 1", "")
    );
    let proxy = Proxy::run(&text);
    ask(&client(&proxy), &[&only]);
    ask(&client(&proxy), &[&only]);
    let labels = [("listener", "l"), ("backend", "b")];
    let to = |direction| [labels[0], labels[1], ("direction", direction)];
    until("all is counted", || {
        let reading = reading(&proxy);
        reading.sum("spliced_datagrams_total", &to("client_to_target")) == 2
            && reading.sum("spliced_datagrams_total", &to("target_to_client")) == 2
    });
    let reading = reading(&proxy);
    assert_eq!(
        reading.sum("spliced_moved_bytes_total", &to("client_to_target")),
        16
    );
    assert_eq!(
        reading.sum("spliced_sessions_opened_total", &labels[..1]),
        2
    );
    assert_eq!(reading.sum("spliced_sessions_active", &labels), 1);
    let displaced = [labels[0], ("outcome", "displaced")];
    assert_eq!(reading.sum("spliced_sessions_ended_total", &displaced), 1);
    assert_eq!(
        reading.sum("spliced_listener_open_connections", &labels[..1]),
        1
    );
    assert_eq!(
        reading.sum("spliced_listener_max_connections", &labels[..1]),
        1
    );
}

#[test]
fn a_process_that_ends_tells_connections_and_sessions_apart() {
    let [one] = servers();
    let server = Server::new();
    let mut proxy = Proxy::run(&format!(
        "{}[[listener]]\nname = \"s\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"t\"\n\
         [backend.t]\nservers = {:?}\n",
        configuration(&[&one], "", ""),
        server.address
    ));
    let clients = [client(&proxy), client(&proxy)];
    for client in &clients {
        ask(client, &[&one]);
    }
    let _connection = Peer::connect(&proxy.address("s"));
    let _far = server.accept();
    proxy.relay.signal(Signal::TERM);
    proxy
        .relay
        .wait_logged("no longer accepting; 1 connection and 2 sessions left");
    proxy.relay.signal_until_it_ends(Signal::TERM);
}

#[test]
fn a_datagram_that_no_route_takes_displaces_nobody() {
    let [only] = servers();
    let limits = "max_sessions = 1\nmax_sessions_per_client = 1";
    let text = configuration(&[&only], limits, "").replace(
        "[[listener.route]]",
        "[[listener.route]]\nclient = [\"127.0.0.1\"]",
    );
    let proxy = Proxy::run(&format!("threads = 1\n{text}"));
    let first = client(&proxy);
    let before = ask(&first, &[&only]);
    let other = socket("127.0.0.2:0");
    let address = proxy.address("l");
    let address = address.strip_prefix("udp:").expect("a UDP socket");
    other.send_to(b"nowhere", address).expect("it is sent");
    proxy.relay.wait_logged("no route takes it");
    assert_eq!(ask(&first, &[&only]), before);
}

#[test]
fn datagrams_without_a_route_are_dropped_and_counted() {
    let [only] = servers();
    let text = configuration(&[&only], "", "").replace(
        "[[listener.route]]",
        "[[listener.route]]\nclient = [\"192.0.2.0/24\"]",
    );
    let proxy = Proxy::run(&text);
    client(&proxy).send(b"nowhere").expect("it is sent");
    proxy.relay.wait_logged("no route takes it");
    let dropped = [
        ("listener", "l"),
        ("direction", "client_to_target"),
        ("reason", "nowhere"),
    ];
    let name = "spliced_dropped_datagrams_total";
    until("it is counted", || reading(&proxy).sum(name, &dropped) == 1);
    assert_eq!(got(&only), None);
}

#[test]
fn a_listener_is_drained_and_undrained_by_order() {
    let [only] = servers();
    let proxy = Proxy::run(&configuration(&[&only], "", ""));
    let [one, other] = [client(&proxy), client(&proxy)];
    let before = ask(&one, &[&only]);
    post(&proxy, "/v1/listeners/l/drain");
    assert_eq!(ask(&one, &[&only]), before);
    other.send(b"late").expect("it is sent");
    until("it is empty", || {
        proxy.of("listeners", "l")["state"] == "drained"
    });
    assert_eq!(got(&only), None);
    post(&proxy, "/v1/listeners/l/undrain");
    assert_eq!(proxy.of("listeners", "l")["state"], "listening");
    ask(&other, &[&only]);
}

#[test]
fn an_orderly_end_waits_until_sessions_are_quiet() {
    let [only] = servers();
    let mut proxy = Proxy::run(&configuration(&[&only], "", ""));
    let client = client(&proxy);
    ask(&client, &[&only]);
    proxy.relay.terminate();
    let status = proxy.relay.wait_end();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_servers_of_a_listener_may_be_unix_sockets() {
    let scratch = Scratch::new("datagram-unix").expect("a directory");
    let path = scratch.path().join("log");
    let target = std::os::unix::net::UnixDatagram::bind(&path).expect("it binds");
    let text = format!(
        "[[listener]]\nname = \"l\"\naddress = \"udp:127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = \"unixgram:{}\"\n",
        path.display()
    );
    let proxy = Proxy::run(&text);
    client(&proxy).send(b"<13>a line").expect("it is sent");
    let mut line = [0; 64];
    let length = target.recv(&mut line).expect("it arrives");
    assert_eq!(&line[..length], b"<13>a line");
}

/// So that a client of a host finds the answers of the address that it has sent to.
#[test]
fn a_listener_on_every_address_answers_from_the_one_that_was_asked() {
    let [only] = servers();
    let text = configuration(&[&only], "", "").replace("udp:127.0.0.1:0", "udp::0");
    let proxy = Proxy::run(&text);
    let port = proxy.address("l");
    let port = port.rsplit(':').next().expect("a port");
    let client = socket("127.0.0.1:0");
    let asked = format!("127.0.0.7:{port}");
    client.send_to(b"question", &asked).expect("it is sent");
    let from = until_found("the question arrives", || got(&only)).1;
    only.send_to(b"answer", from).expect("it is sent");
    assert_eq!(receive(&client).1.to_string(), asked);
}
