//! Clients that ask for their destination: SOCKS and CONNECT.

use std::io::{Read, Write};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::Proxy;
use super::backends::Place;
use super::routes::{Site, connect, expect};
use crate::patience::until;
use crate::relay::output;

fn configuration(listener: &str, allow: &str) -> String {
    format!(
        r#"
[[listener]]
name = "proxy"
address = "127.0.0.1:0"
{listener}
[[listener.route]]
socks = {{ allow = [{allow}] }}
[[listener.route]]
connect = {{ allow = [{allow}] }}
"#
    )
}

fn proxy(allow: &str) -> Proxy {
    Proxy::run(&configuration("", allow))
}

/// Answers one HTTP request.
fn answer(site: &Site) {
    let mut client = site.accept();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(client.read(&mut byte).expect("a request"), 1);
        request.extend(byte);
    }
    client
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        .expect("answered");
}

#[test]
fn curl_reaches_what_is_allowed_by_every_protocol() {
    let site = Site::new();
    let proxy = proxy("\"127.0.0.0/8:*\"");
    let address = proxy.address("proxy");
    let port = site
        .address()
        .rsplit_once(':')
        .expect("a port")
        .1
        .to_owned();
    thread::scope(|scope| {
        for scheme in ["socks4", "socks4a", "socks5", "socks5h", "http"] {
            // Names are resolved by the client or by the proxy.
            let host = if scheme.ends_with(['a', 'h']) {
                "localhost"
            } else {
                "127.0.0.1"
            };
            let served = scope.spawn(|| answer(&site));
            let proxied = format!("{scheme}://{address}");
            let url = format!("http://{host}:{port}/");
            let told = output(
                Command::new("curl")
                    .env_clear()
                    .args(["-4", "-sS", "-p", "-x", &proxied, &url]),
            );
            assert!(
                told.status.success(),
                "{scheme}: {}",
                String::from_utf8_lossy(&told.stderr)
            );
            assert_eq!(told.stdout, b"hello", "{scheme}");
            served.join().expect("served");
        }
    });
}

#[test]
fn nothing_is_allowed_that_no_rule_names() {
    let site = Site::new();
    for allow in [
        "\"public:*\"",
        "\"*.example.org:*\", \"localhost:*\"",
        "\"10.0.0.0/8:*\"",
        "\"127.0.0.0/8:1\"",
    ] {
        let proxy = proxy(allow);
        let address = proxy.address("proxy");
        for (scheme, status) in [("socks5h", 97), ("http", 56)] {
            let proxied = format!("{scheme}://{address}");
            let url = format!(
                "http://localhost:{}/",
                site.address().rsplit_once(':').expect("a port").1
            );
            let told = output(
                Command::new("curl")
                    .env_clear()
                    .args(["-sS", "-p", "-x", &proxied, &url]),
            );
            assert_eq!(
                told.status.code(),
                Some(status),
                "{allow} {scheme}: {told:?}"
            );
        }
        assert_eq!(proxy.count("proxy", "denied"), 2);
    }
}

#[test]
fn bytes_behind_a_request_reach_the_destination() {
    let site = Site::new();
    let proxy = proxy("\"127.0.0.0/8:*\"");
    let port: u16 = site
        .address()
        .rsplit_once(':')
        .and_then(|it| it.1.parse().ok())
        .expect("a port");
    let connect_request = format!(
        "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\nfirst",
        site.address()
    );
    let socks4 = [
        &[4, 1][..],
        &port.to_be_bytes(),
        &[127, 0, 0, 1, 0],
        b"first",
    ]
    .concat();
    let socks5 = [
        &[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..],
        &port.to_be_bytes(),
        b"first",
    ]
    .concat();
    for (request, answers) in [
        (
            format!("\r\n{connect_request}").into_bytes(),
            &b"HTTP/1.1 200 "[..],
        ),
        (connect_request.into_bytes(), b"HTTP/1.1 200 "),
        (socks4, b"\0\x5a"),
        (socks5, b"\x05\0\x05\0\0\x01"),
    ] {
        for at_most in [request.len(), 1] {
            let mut client = connect(&proxy.address("proxy"));
            client.set_nodelay(true).expect("no delay");
            for part in request.chunks(at_most) {
                client.write_all(part).expect("sent");
            }
            let mut server = site.accept();
            expect(&mut server, b"first");
            expect(&mut client, answers);
        }
    }
}

#[test]
fn a_connect_that_is_wrong_is_told_so_and_takes_no_later_route() {
    let (site, others) = (Site::new(), Site::new());
    let proxy = Proxy::run(&format!(
        "{}[[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = [\"{}\"]\n",
        configuration("", "\"127.0.0.0/8:*\""),
        others.address()
    ));
    let place = site.address();
    let nine = "\r\n".repeat(9);
    for start in [
        "\nCONNECT ",
        "CONNECT\t",
        "CONNECT\r",
        "CONNECT\x0b",
        " CONNECT ",
        "\rCONNECT ",
        &format!("{nine}CONNECT "),
    ] {
        let request = format!("{start}{place} HTTP/1.1\r\nHost: {place}\r\n\r\n");
        let mut client = connect(&proxy.address("proxy"));
        client.write_all(request.as_bytes()).expect("sent");
        expect(&mut client, b"HTTP/1.1 400 ");
    }
    assert_eq!(proxy.count("proxy", "joined"), 0);
}

#[test]
fn a_request_that_came_during_a_stall_counts_although_the_time_is_over() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(
        "decide_within = \"3s\"",
        "\"127.0.0.0/8:*\"",
    ));
    let request = format!(
        "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\nfirst",
        site.address()
    );
    let (early, late) = request.split_at(20);
    let mut client = connect(&proxy.address("proxy"));
    client.write_all(early.as_bytes()).expect("sent");
    until("it is accepted", || proxy.count("proxy", "accepted") == 1);
    proxy.relay.hold_still();
    client.write_all(late.as_bytes()).expect("sent");
    thread::sleep(Duration::from_secs(3));
    proxy.relay.go_on();
    expect(&mut site.accept(), b"first");
    expect(&mut client, b"HTTP/1.1 200 ");
}

#[test]
fn a_destination_that_refuses_is_told_in_the_clients_language() {
    // No other test may listen there meanwhile.
    let nobody = Place::new();
    let place = nobody.address();
    let port: u16 = place
        .rsplit_once(':')
        .and_then(|it| it.1.parse().ok())
        .expect("a port");
    let proxy = proxy("\"127.0.0.0/8:*\"");
    let socks5 = [
        &[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..],
        &port.to_be_bytes(),
    ]
    .concat();
    for (request, told) in [
        (
            format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n").into_bytes(),
            &b"HTTP/1.1 502 "[..],
        ),
        (socks5, b"\x05\0\x05\x05"),
    ] {
        let mut client = connect(&proxy.address("proxy"));
        client.write_all(&request).expect("sent");
        expect(&mut client, told);
        let mut rest = Vec::new();
        client
            .read_to_end(&mut rest)
            .expect("the end of the stream");
    }
}
