//! Clients that are slow, many, or write what no client writes.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use netlab::{Scratch, until_at_rest};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use super::Proxy;
use super::routes::{Site, connect, expect, expect_reset, tls_hello};
use crate::patience::until;

/// One listener, `l`, which sends `example.org` to one server.
pub(super) fn by_name(site: &Site, listener: &str, backend: &str) -> String {
    format!(
        r#"
[[listener]]
name = "l"
address = "127.0.0.1:0"
{listener}
[[listener.route]]
sni = ["example.org", "*.example.org"]
backend = "b"
[[listener.route]]
http_host = ["example.org", "*.example.org"]
backend = "b"
[backend.b]
servers = ["{}"]
{backend}
"#,
        site.address()
    )
}

/// Lets this process have `wanted` descriptors beside those of other tests, if the hard limit allows it, and
/// returns how many it may have.
pub(crate) fn allow_descriptors(wanted: u64) -> u64 {
    const OTHER_TESTS: u64 = 4096;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = (wanted + OTHER_TESTS).min(maximum.unwrap_or(u64::MAX));
    if current.is_some_and(|current| current < most) {
        let more = Rlimit {
            current: Some(most),
            maximum,
        };
        setrlimit(Resource::Nofile, more).expect("RLIMIT_NOFILE");
    }
    most - OTHER_TESTS
}

/// The memory of the process that `count` clients take, each of which has sent `bytes`.
fn cost_of_each(proxy: &Proxy, count: usize, bytes: &[u8]) -> u64 {
    let address = proxy.address("l");
    let descriptors = proxy.relay.descriptors();
    let connections = || proxy.of("listeners", "l")["connections"].as_u64();
    let before = proxy.relay.resident_bytes();
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = connect(&address);
        client.write_all(bytes).expect("sent");
        clients.push(client);
    }
    until("all are accepted", || connections() == Some(count as u64));
    until_at_rest(Duration::from_millis(300), || proxy.relay.resident_bytes());
    let growth = proxy.relay.resident_bytes().saturating_sub(before);
    drop(clients);
    until("all are gone", || connections() == Some(0));
    proxy.relay.wait_descriptors(descriptors);
    growth / count as u64
}

/// What each costs is bounded by 4 KiB and what it has sent. The sockets' memory is the kernel's.
#[test]
fn ten_thousand_half_sent_hellos_cost_little_memory() {
    const CLIENTS: u64 = 10_000;
    let count = allow_descriptors(CLIENTS).min(CLIENTS) as usize;
    let site = Site::new();
    let hello = tls_hello("example.org", &[]);
    let long = format!("GET / HTTP/1.1\r\nX-Padding: {}", "x".repeat(5000));
    for bytes in [
        &b""[..],
        &hello[..1],
        &hello[..hello.len() - 1],
        long.as_bytes(),
    ] {
        // A process of its own, since freed memory is used again.
        let proxy = Proxy::run(&by_name(&site, "decide_within = \"10m\"", ""));
        let cost = cost_of_each(&proxy, count, bytes);
        let came = bytes.len() as u64;
        println!("{count} clients that have sent {came} bytes take {cost} bytes each");
        assert!(
            cost <= came + 4096,
            "{cost} bytes for each that has sent {came}"
        );
    }
}

/// The deadline counts from accept, so a byte now and then does not extend it.
#[test]
fn silence_and_a_dribble_are_reset_at_the_deadline() {
    let site = Site::new();
    let proxy = Proxy::run(&by_name(&site, "decide_within = \"1s\"", ""));
    let address = proxy.address("l");
    let mut silent = connect(&address);
    let mut dribbling = connect(&address);
    // One thread writes and reads: the kernel tells of a reset once, to the next call of either kind.
    let every = Some(Duration::from_millis(100));
    dribbling.set_read_timeout(every).expect("a timeout");
    let hello = tls_hello("example.org", &[]);
    let reset = hello.iter().find_map(|byte| {
        let written = dribbling.write_all(&[*byte]);
        let read = written.and_then(|()| dribbling.read(&mut [0]));
        match read.expect_err("an end, or an answer") {
            // Time for the next byte.
            error if error.kind() == ErrorKind::WouldBlock => None,
            error => Some(error.kind()),
        }
    });
    assert_eq!(reset, Some(ErrorKind::ConnectionReset));
    expect_reset(&mut silent);
    assert_eq!(proxy.count("l", "without_route"), 2);
    assert_eq!(proxy.count("l", "joined"), 0);
}

#[test]
fn a_message_that_never_ends_is_reset() {
    /// More than all buffers on the way hold.
    const MOST_BYTES: usize = 64 << 20;
    let site = Site::new();
    let proxy = Proxy::run(&by_name(&site, "decide_within = \"10m\"", ""));
    let hello = tls_hello("example.org", &[]);
    // A record of 16 KiB, and the handshake message goes on in the next one.
    let mut record = vec![22, 3, 1, 64, 0];
    record.extend([b'x'; 16 << 10]);
    let mut first_record = record.clone();
    first_record[5..9].copy_from_slice(&[1, 0, 255, 255]);
    first_record[9..11].copy_from_slice(&hello[9..11]);
    for (begin, more) in [
        (&first_record[..], &record[..]),
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n", b"X: y\r\n"),
        (b"GET /", b"x"),
    ] {
        let mut client = connect(&proxy.address("l"));
        let mut sent = begin.len();
        let more = more.repeat((16usize << 10).div_ceil(more.len()));
        let mut result = client.write_all(begin);
        while result.is_ok() && sent < MOST_BYTES {
            result = client.write_all(&more);
            sent += more.len();
        }
        let error = result.expect_err("it takes bytes without end");
        assert!(
            matches!(
                error.kind(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            ),
            "{error}"
        );
    }
    assert_eq!(proxy.count("l", "without_route"), 3);
}

#[test]
fn a_crowd_leaves_at_most_one_line_a_second() {
    const CLIENTS: u64 = 300;
    let site = Site::new();
    let start = Instant::now();
    let proxy = Proxy::run(&by_name(&site, "decide_within = \"100ms\"", ""));
    let address = proxy.address("l");
    let half = &tls_hello("example.org", &[])[..100];
    let one = || {
        let mut client = TcpStream::connect(&address)?;
        client.write_all(half)?;
        Ok(client)
    };
    // On a busy machine it may be reset before it reads. The kernel tells of a reset once.
    let is_reset = |client: io::Result<TcpStream>| match client {
        Ok(mut client) => expect_reset(&mut client),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| one()).collect();
    clients.into_iter().for_each(is_reset);
    assert_eq!(proxy.count("l", "without_route"), CLIENTS);
    proxy.relay.wait_logged("was reset");
    let lines = proxy.relay.lines_logged("was reset") as u64;
    assert!(
        (1..=start.elapsed().as_secs() + 1).contains(&lines),
        "{lines} lines"
    );
    until("the others are told of", || {
        is_reset(one());
        proxy.relay.lines_logged("more like it since") > 0
    });
}

/// Nothing that a client writes reaches a terminal as it is.
#[test]
fn what_clients_write_controls_no_terminal() {
    const EVIL: &[u8] = b"\x1b[31m\r\x07\n\x9b\xe2\x80\xae";
    let site = Site::new();
    let scratch = Scratch::new("evil").expect("a directory");
    let log = scratch.path().join("access.json");
    let socket = scratch.path().join("socket");
    let listener = format!("access_log = \"{}\"", log.display());
    let configuration = by_name(&site, &listener, "").replace(
        "[backend.b]",
        &format!(
            r#"
[[listener.route]]
socks = {{ allow = ["192.0.2.1:80"] }}
[[listener.route]]
connect = {{ allow = ["192.0.2.1:80"] }}
[[listener]]
name = "unix"
address = "unix:{}"
access_log = "{}"
decide_within = "100ms"
[[listener.route]]
sni = "example.org"
backend = "b"
[backend.b]"#,
            socket.display(),
            log.display()
        ),
    );
    let proxy = Proxy::run(&configuration);
    let name = "a".repeat(EVIL.len());
    let mut hello = tls_hello(&format!("{name}.example.org"), &[]);
    let at = hello
        .windows(name.len())
        .position(|part| part == name.as_bytes())
        .expect("the name");
    hello[at..at + EVIL.len()].copy_from_slice(EVIL);
    let around = |before: &[u8], after: &[u8]| [before, EVIL, after].concat();
    let mut socks = vec![4, 1, 0, 80, 0, 0, 0, 1, 0];
    socks.extend(around(b"", b".example.org\0"));
    let written = [
        hello,
        around(b"GET / HTTP/1.1\r\nHost: ", b".example.org\r\n\r\n"),
        around(b"GET /", b" HTTP/1.1\r\nHost: example.com\r\n\r\n"),
        around(b"CONNECT ", b".example.org:80 HTTP/1.1\r\n\r\n"),
        socks,
        around(b"SSH-2.0-", b"\r\n"),
    ];
    for bytes in &written {
        let mut client = connect(&proxy.address("l"));
        client.write_all(bytes).expect("sent");
        // Reset, or an answer and an end.
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
    }
    // The name of a client's UNIX socket is the client's choice.
    let evil_path = scratch.path().join(String::from_utf8_lossy(EVIL).as_ref());
    let client = unix_client(&evil_path, &socket);
    let mut client = std::os::unix::net::UnixStream::from(client);
    let _ = client.read(&mut [0]);
    let mut lines = String::new();
    until("all are logged", || {
        lines = fs::read_to_string(&log).unwrap_or_default();
        lines.lines().count() == written.len() + 1
    });
    let shown = |text: &str| text.chars().any(|it| it.is_control() || it == '\u{202e}');
    for line in lines.lines() {
        assert!(!shown(line), "{line:?}");
        let entry: Value = serde_json::from_str(line).expect("JSON");
        for (key, value) in entry.as_object().expect("an object") {
            assert!(!value.as_str().is_some_and(shown), "{key}: {value}");
        }
    }
    assert!(lines.contains("[31m"), "{lines}");
    for sign in ["\u{1b}", "\u{202e}", "\u{9b}", "\r"] {
        assert_eq!(proxy.relay.lines_logged(sign), 0);
    }
}

fn unix_client(from: &std::path::Path, to: &std::path::Path) -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, socket};

    let client = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    bind(&client, &SocketAddrUnix::new(from).expect("a path")).expect("bound");
    connect(&client, &SocketAddrUnix::new(to).expect("a path")).expect("connected");
    client
}

/// A route that changes, or goes, while a client sends its hello.
#[test]
fn a_client_that_waits_keeps_its_routes_over_a_reload() {
    let (old, new) = (Site::new(), Site::new());
    let listener = "decide_within = \"10m\"";
    let before = by_name(&old, listener, "");
    let hello = tls_hello("example.org", &[]);
    let renamed = |site: &Site| {
        by_name(site, listener, "")
            .replace("backend = \"b\"", "backend = \"c\"")
            .replace("[backend.b]", "[backend.c]")
    };
    for after in [
        // Other routes.
        before.replace("example.org", "example.com"),
        // Another backend, and the one before is gone.
        renamed(&new),
    ] {
        let proxy = Proxy::run(&before);
        let mut client = connect(&proxy.address("l"));
        client.write_all(&hello[..100]).expect("sent");
        until("it is accepted", || proxy.count("l", "accepted") == 1);
        let output = proxy.reload(&after);
        assert!(output.status.success(), "{output:?}");
        client.write_all(&hello[100..]).expect("sent");
        let mut server = old.accept();
        expect(&mut server, &hello);
        server.write_all(b"answer").expect("sent");
        expect(&mut client, b"answer");
    }
}

#[test]
fn a_client_that_waits_when_its_listener_goes_is_served_or_reset_as_configured() {
    let site = Site::new();
    let hello = tls_hello("example.org", &[]);
    for (on_remove, is_cut) in [("drain", false), ("reset", true)] {
        let listener = format!("on_remove = \"{on_remove}\"\ndecide_within = \"10m\"");
        let before = by_name(&site, &listener, "");
        let after = before
            .replace("127.0.0.1:0", "127.0.0.2:0")
            .replace("name = \"l\"", "name = \"other\"");
        let proxy = Proxy::run(&before);
        let mut client = connect(&proxy.address("l"));
        client.write_all(&hello[..100]).expect("sent");
        until("it is accepted", || proxy.count("l", "accepted") == 1);
        assert!(proxy.reload(&after).status.success());
        if is_cut {
            expect_reset(&mut client);
        } else {
            client.write_all(&hello[100..]).expect("sent");
            expect(&mut site.accept(), &hello);
        }
        drop::<TcpStream>(client);
        until("nobody is left", || proxy.status()["connections"] == 0);
    }
}
