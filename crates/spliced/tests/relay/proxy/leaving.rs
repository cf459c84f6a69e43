//! Clients and servers that leave before they are joined, or soon after: nothing of them is left.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use netlab::until_at_rest;
use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};

use super::Proxy;
use super::hostile::by_name;
use super::routes::{Site, connect, expect, expect_reset, tls_hello};
use crate::patience::until;

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leave {
    Close,
    Reset,
}

const BOTH: [Leave; 2] = [Leave::Close, Leave::Reset];

fn leave(client: TcpStream, how: Leave) {
    if how == Leave::Reset {
        reset(&client);
    }
    drop(client);
}

/// The close that follows is a reset.
fn reset(stream: &TcpStream) {
    sockopt::set_socket_linger(stream, Some(Duration::ZERO)).expect("SO_LINGER");
}

/// A listening socket with a small window, small segments and a short backlog.
pub(super) fn slow_listener(backlog: i32) -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("SO_RCVBUF");
    // The sender's buffer has room for some of the segments that the receiver takes
    // (`tcp_sndbuf_expand`).
    socket.set_tcp_mss(536).expect("TCP_MAXSEG");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).expect("bound");
    socket.listen(backlog).expect("it listens");
    socket.into()
}

/// What the process holds is what it held `before`, and so are its counts.
fn nothing_is_left(proxy: &Proxy, before: usize) {
    until("nothing is counted", || {
        let status = proxy.status();
        let backend = &status["backends"][0];
        status["connections"] == 0
            && status["listeners"][0]["connections"] == 0
            && backend["queued"] == 0
            && backend["servers"][0]["connections"] == 0
    });
    proxy.relay.wait_descriptors(before);
}

fn at_servers(proxy: &Proxy) -> u64 {
    let backend = proxy.of("backends", "b");
    backend["servers"][0]["connections"]
        .as_u64()
        .expect("a count")
}

fn queued(proxy: &Proxy) -> u64 {
    proxy.of("backends", "b")["queued"]
        .as_u64()
        .expect("a count")
}

#[test]
fn while_it_decides() {
    let site = Site::new();
    let proxy = Proxy::run(&by_name(&site, "decide_within = \"10m\"", ""));
    let before = proxy.relay.descriptors();
    let hello = tls_hello("example.org", &[]);
    for (count, (how, length)) in (1..).zip([
        (Leave::Close, 0),
        (Leave::Reset, 0),
        (Leave::Close, 100),
        (Leave::Reset, 100),
    ]) {
        let mut client = connect(&proxy.address("l"));
        client.write_all(&hello[..length]).expect("sent");
        until("it is accepted", || proxy.count("l", "accepted") == count);
        leave(client, how);
        nothing_is_left(&proxy, before);
    }
}

/// Those who leave give up their place in the queue, and those who stay are served in their order.
#[test]
fn while_it_is_in_the_queue() {
    let site = Site::new();
    let proxy = Proxy::run(&by_name(
        &site,
        "",
        "max_connections_per_server = 1\nqueue_timeout = \"10m\"",
    ));
    let before = proxy.relay.descriptors();
    let address = proxy.address("l");
    let ask = |name: &str| {
        let hello = tls_hello(name, &[]);
        let mut client = connect(&address);
        client.write_all(&hello).expect("sent");
        (client, hello)
    };
    let (first, hello) = ask("example.org");
    let mut first_server = site.accept();
    expect(&mut first_server, &hello);
    let waiting: Vec<_> = (0..9)
        .map(|number| {
            let asked = ask(&format!("{number}.example.org"));
            until("it is in the queue", || queued(&proxy) == number + 1);
            asked
        })
        .collect();
    let mut stay = Vec::new();
    for (number, (client, hello)) in waiting.into_iter().enumerate() {
        match number % 3 {
            0 => stay.push((client, hello)),
            1 => leave(client, Leave::Reset),
            // It may only have said all that it has to say.
            _ => {
                client.shutdown(Shutdown::Write).expect("ended");
                stay.push((client, hello));
            }
        }
    }
    until("those that reset are gone", || queued(&proxy) == 6);
    drop((first, first_server));
    for (mut client, hello) in stay {
        let mut server = site.accept();
        expect(&mut server, &hello);
        server.write_all(b"answer").expect("sent");
        expect(&mut client, b"answer");
    }
    nothing_is_left(&proxy, before);
}

/// The one that is called may be gone before it takes the place.
#[test]
fn when_many_leave_the_queue_at_once_the_others_are_served() {
    let site = Site::new();
    let proxy = Proxy::run(&by_name(
        &site,
        "",
        "max_connections_per_server = 1\nqueue_timeout = \"10m\"",
    ));
    let before = proxy.relay.descriptors();
    let address = proxy.address("l");
    let hello = tls_hello("example.org", &[]);
    for _ in 0..20 {
        let mut clients: Vec<_> = (0..8)
            .map(|_| {
                let mut client = connect(&address);
                client.write_all(&hello).expect("sent");
                client
            })
            .collect();
        until("all but one wait", || queued(&proxy) == 7);
        let mut last = clients.pop().expect("eight");
        // The first has the place, and it may be any of them.
        for client in clients {
            leave(client, Leave::Reset);
        }
        last.shutdown(Shutdown::Write).expect("ended");
        // Those that had the place for a moment end at once.
        let mut answered = false;
        while !answered {
            let mut server = site.accept();
            let mut bytes = Vec::new();
            let came = server.read_to_end(&mut bytes);
            answered = came.is_ok() && bytes == hello && server.write_all(b"answer").is_ok();
        }
        expect(&mut last, b"answer");
        drop(last);
        nothing_is_left(&proxy, before);
    }
}

/// The time in the queue does not count as the servers' time to answer.
#[test]
fn the_queue_takes_nothing_from_the_time_to_connect() {
    let listener = slow_listener(8);
    let address = listener.local_addr().expect("its address").to_string();
    let site = Site::new();
    let configuration = by_name(
        &site,
        "",
        "max_connections_per_server = 1\nqueue_timeout = \"10m\"\nconnect_timeout = \"2s\"",
    );
    let proxy = Proxy::run(&configuration.replace(&site.address(), &address));
    let request = request_of(LONG_BYTES);
    let mut first = connect(&proxy.address("l"));
    first
        .write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
        .expect("sent");
    let (first_server, _) = listener.accept().expect("a connection");
    let mut second = connect(&proxy.address("l"));
    second.write_all(&request).expect("sent");
    until("it is in the queue", || queued(&proxy) == 1);
    thread::sleep(Duration::from_millis(2100));
    drop((first, first_server));
    let (mut server, _) = listener.accept().expect("a connection");
    // Its first bytes do not fit in at once.
    thread::sleep(Duration::from_millis(200));
    expect(&mut server, &request);
}

#[test]
fn while_it_connects() {
    let listener = slow_listener(0);
    let address = listener.local_addr().expect("its address").to_string();
    let site = Site::new();
    let configuration = by_name(&site, "", "connect_timeout = \"2s\"");
    let proxy = Proxy::run(&configuration.replace(&site.address(), &address));
    let before = proxy.relay.descriptors();
    // The backlog is full, so the server answers nobody.
    let _in_the_backlog = connect(&address);
    let hello = tls_hello("example.org", &[]);
    for how in BOTH {
        let mut client = connect(&proxy.address("l"));
        client.write_all(&hello).expect("sent");
        until("it connects", || at_servers(&proxy) == 1);
        assert_eq!(proxy.count("l", "joined"), 0);
        leave(client, how);
        nothing_is_left(&proxy, before);
    }
    assert_eq!(proxy.count("l", "joined"), 0);
}

/// Nearly as much as a listener reads before it decides.
const LONG_BYTES: usize = 60 << 10;

/// More than the buffer of the connection to a slow server takes at once.
const TOO_MUCH_BYTES: usize = 1000 << 10;

fn request_of(padding_bytes: usize) -> Vec<u8> {
    let padding = "x".repeat(padding_bytes);
    format!("GET / HTTP/1.1\r\nHost: example.org\r\nX: {padding}\r\n\r\n").into_bytes()
}

#[test]
fn while_a_slow_server_gets_the_first_bytes() {
    let listener = slow_listener(8);
    let address = listener.local_addr().expect("its address").to_string();
    let site = Site::new();
    let configuration = by_name(
        &site,
        "first_bytes_limit = \"1MiB\"",
        "connect_timeout = \"3s\"",
    );
    let proxy = Proxy::run(&configuration.replace(&site.address(), &address));
    let before = proxy.relay.descriptors();
    let request = request_of(TOO_MUCH_BYTES);
    for how in BOTH {
        let mut client = connect(&proxy.address("l"));
        client.write_all(&request).expect("sent");
        let (mut server, _) = listener.accept().expect("a connection");
        until_at_rest(Duration::from_millis(100), || at_servers(&proxy));
        assert_eq!(proxy.count("l", "joined"), 0, "all bytes fit in");
        leave(client, how);
        // A client that closes may wait for an answer, so that one has its time.
        nothing_is_left(&proxy, before);
        let error = server.read_to_end(&mut Vec::new()).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    // The server leaves.
    let mut client = connect(&proxy.address("l"));
    client.write_all(&request).expect("sent");
    let (server, _) = listener.accept().expect("a connection");
    until("it is the client's", || at_servers(&proxy) == 1);
    reset(&server);
    drop(server);
    expect_reset(&mut client);
    nothing_is_left(&proxy, before);
    // The server never reads.
    let mut client = connect(&proxy.address("l"));
    client.write_all(&request).expect("sent");
    let _server = listener.accept().expect("a connection");
    expect_reset(&mut client);
    proxy.relay.wait_logged("does not take the first bytes");
    nothing_is_left(&proxy, before);
}

#[test]
fn a_server_resets_before_its_first_byte() {
    let site = Site::new();
    let proxy = Proxy::run(&by_name(&site, "", ""));
    let before = proxy.relay.descriptors();
    let hello = tls_hello("example.org", &[]);
    let mut client = connect(&proxy.address("l"));
    client.write_all(&hello).expect("sent");
    let mut server = site.accept();
    expect(&mut server, &hello);
    reset(&server);
    drop(server);
    expect_reset(&mut client);
    nothing_is_left(&proxy, before);
    assert_eq!(proxy.of("backends", "b")["servers"][0]["failures"], 1);
}

#[test]
fn a_server_never_answers() {
    let site = Site::new();
    let proxy = Proxy::run(&by_name(&site, "idle_timeout = \"500ms\"", ""));
    let before = proxy.relay.descriptors();
    let hello = tls_hello("example.org", &[]);
    let send = || {
        let mut client = connect(&proxy.address("l"));
        client.write_all(&hello).expect("sent");
        let mut server = site.accept();
        expect(&mut server, &hello);
        (client, server)
    };
    let (mut client, _server) = send();
    expect_reset(&mut client);
    nothing_is_left(&proxy, before);
    for how in BOTH {
        let (client, _server) = send();
        leave(client, how);
        nothing_is_left(&proxy, before);
    }
}

#[test]
fn an_end_right_behind_the_first_bytes_is_passed_on() {
    let site = Site::new();
    let by_bytes = by_name(&site, "", "");
    // One route without a matcher: a second one would never be reached.
    let at_once = by_bytes
        .replace("sni = [\"example.org\", \"*.example.org\"]\n", "")
        .replace(
            "[[listener.route]]\nhttp_host = [\"example.org\", \"*.example.org\"]\nbackend = \"b\"\n",
            "",
        );
    let with_header = by_name(&site, "", "send_proxy = \"v1\"");
    let hello = tls_hello("example.org", &[]);
    for configuration in [by_bytes, at_once, with_header] {
        let proxy = Proxy::run(&configuration);
        let before = proxy.relay.descriptors();
        for first in [&hello[..], &request_of(LONG_BYTES)] {
            let mut client = connect(&proxy.address("l"));
            client.write_all(first).expect("sent");
            client.shutdown(Shutdown::Write).expect("ended");
            let mut server = site.accept();
            let mut came = Vec::new();
            server.read_to_end(&mut came).expect("an end");
            assert!(came.ends_with(first), "{} bytes", came.len());
            server.write_all(b"answer").expect("sent");
            drop(server);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).expect("an end");
            assert_eq!(answer, b"answer");
        }
        nothing_is_left(&proxy, before);
    }
}
