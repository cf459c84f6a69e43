//! Which backend a connection reaches, and that what its client has sent arrives unchanged.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::Proxy;
use crate::patience::{PATIENCE, until};
use crate::server::free_port;

/// A backend of the test.
pub(super) struct Site(TcpListener);

impl Site {
    pub(super) fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("it listens"))
    }

    pub(super) fn address(&self) -> String {
        self.0.local_addr().expect("its address").to_string()
    }

    /// Whether somebody has connected.
    pub(super) fn is_called(&self) -> bool {
        self.0.set_nonblocking(true).expect("non-blocking");
        self.0.accept().is_ok()
    }

    /// The next connection.
    pub(super) fn accept(&self) -> TcpStream {
        let mut accepted = None;
        self.0.set_nonblocking(true).expect("non-blocking");
        until("somebody connects", || {
            accepted = self.0.accept().ok();
            accepted.is_some()
        });
        let (stream, _) = accepted.expect("found above");
        stream.set_nonblocking(false).expect("blocking");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }
}

pub(super) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Reads exactly what is expected.
pub(super) fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).expect("the bytes");
    assert!(
        bytes == expected,
        "other bytes: {:?}",
        String::from_utf8_lossy(&bytes)
    );
}

pub(super) fn expect_reset(stream: &mut TcpStream) {
    let error = stream.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
}

/// Both directions work, and end.
fn converse(client: &mut TcpStream, server: &mut TcpStream) {
    server.write_all(b"from the server").expect("sent");
    expect(client, b"from the server");
    client.write_all(b"more").expect("sent");
    client.shutdown(Shutdown::Write).expect("ended");
    expect(server, b"more");
    assert_eq!(server.read(&mut [0]).expect("an end"), 0);
}

fn hello(client: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../splice-route/tests/clients");
    fs::read(format!("{folder}/{client}.bin")).expect(client)
}

/// A TLS hello for `name`, made by rustls.
pub(super) fn tls_hello(name: &str, alpn: &[&str]) -> Vec<u8> {
    use std::sync::Arc;

    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = name.to_owned().try_into().expect("a name");
    let mut connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).expect("a hello");
    hello
}

/// The configuration of the README, but for its ports and its time to decide.
fn example(web: &Site, ssh: &Site, decide_within: &str) -> String {
    format!(
        r#"
[[listener]]
name = "tls"
address = "127.0.0.1:0"
decide_within = "{decide_within}"
  [[listener.route]]
  sni = ["example.org", "*.example.org"]
  backend = "web"
  [[listener.route]]
  alpn = ["h2"]
  backend = "web"
  [[listener.route]]
  http_host = ["example.net"]
  backend = "web"
  [[listener.route]]
  silent = true
  backend = "ssh"
[backend.web]
balance = "least-connections"
servers = ["{}"]
[backend.ssh]
servers = ["{}"]
"#,
        web.address(),
        ssh.address()
    )
}

#[test]
fn a_connection_goes_where_its_first_bytes_say() {
    let (web, ssh) = (Site::new(), Site::new());
    // A busy machine may stop the client between two bytes for longer than a client is waited for.
    let proxy = Proxy::run(&example(&web, &ssh, "10m"));
    let address = proxy.address("tls");
    let http = b"GET / HTTP/1.1\r\nHost: EXAMPLE.net:8080\r\n\r\nand a body";
    for first in [
        tls_hello("example.org", &[]),
        tls_hello("a.b.example.org", &[]),
        tls_hello("elsewhere.org", &["h2"]),
        http.to_vec(),
    ] {
        // At once, and byte by byte.
        for at_most in [first.len(), 1] {
            let mut client = connect(&address);
            client.set_nodelay(true).expect("no delay");
            for part in first.chunks(at_most) {
                client.write_all(part).expect("sent");
            }
            let mut server = web.accept();
            expect(&mut server, &first);
            converse(&mut client, &mut server);
        }
    }
    assert_eq!(proxy.count("tls", "joined"), 8);
    for other in [
        tls_hello("elsewhere.org", &["http/1.1"]),
        b"SSH-2.0-OpenSSH\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: example.net\r\nHost: example.net\r\n\r\n".to_vec(),
    ] {
        let mut client = connect(&address);
        client.write_all(&other).expect("sent");
        expect_reset(&mut client);
    }
    assert_eq!(proxy.count("tls", "without_route"), 3);
    // A client that waits for the server.
    let proxy = Proxy::run(&example(&web, &ssh, "300ms"));
    let mut client = connect(&proxy.address("tls"));
    let mut server = ssh.accept();
    converse(&mut client, &mut server);
    assert_eq!(proxy.count("tls", "joined"), 1);
}

/// Half a hello is never taken for silence, nor for a hello without a name.
#[test]
fn a_hello_that_does_not_come_in_time_is_reset() {
    let (web, ssh) = (Site::new(), Site::new());
    let proxy = Proxy::run(&example(&web, &ssh, "300ms"));
    let address = proxy.address("tls");
    let hello = tls_hello("example.org", &[]);
    for length in [1, 5, 100, hello.len() - 1] {
        // The time counts from accept. The bytes are there by then, or the client could be a silent one.
        proxy.relay.hold_still();
        let mut client = connect(&address);
        client.write_all(&hello[..length]).expect("sent");
        proxy.relay.go_on();
        expect_reset(&mut client);
    }
    proxy.relay.wait_logged("was not complete in time");
}

/// HTTP by host, and everything else to another server.
fn http_and_others(http: &Site, others: &Site, decide_within: &str) -> Proxy {
    Proxy::run(&format!(
        r#"
[[listener]]
name = "l"
address = "127.0.0.1:0"
decide_within = "{decide_within}"
[[listener.route]]
http_host = ["example.org"]
backend = "http"
[[listener.route]]
sni = ["example.org"]
backend = "http"
[[listener.route]]
backend = "others"
[backend.http]
servers = ["{}"]
[backend.others]
servers = ["{}"]
"#,
        http.address(),
        others.address()
    ))
}

#[test]
fn what_is_no_http_goes_to_the_default_at_once() {
    let (http, others) = (Site::new(), Site::new());
    let proxy = http_and_others(&http, &others, "10m");
    let address = proxy.address("l");
    for first in [
        &b"0 hello\r\n"[..],
        b"CNXN\0\0\0\x01\0\0\x10\0",
        b"{\"jsonrpc\":",
        b"*1\r\n$4\r\nPING\r\n",
        b"HELLO world\r\n",
        &tls_hello("elsewhere.org", &[]),
    ] {
        // At once, and byte by byte.
        for at_most in [first.len(), 1] {
            let mut client = connect(&address);
            client.set_nodelay(true).expect("no delay");
            for part in first.chunks(at_most) {
                client.write_all(part).expect("sent");
            }
            let mut server = others.accept();
            expect(&mut server, first);
            converse(&mut client, &mut server);
        }
    }
    // Nothing follows the end of the stream.
    let mut client = connect(&address);
    client.write_all(b"HELLO").expect("sent");
    client.shutdown(Shutdown::Write).expect("ended");
    let mut server = others.accept();
    expect(&mut server, b"HELLO");
    assert_eq!(server.read(&mut [0]).expect("an end"), 0);
    server.write_all(b"answer").expect("sent");
    expect(&mut client, b"answer");
}

#[test]
fn what_may_become_http_goes_to_the_default_at_the_deadline() {
    let (http, others) = (Site::new(), Site::new());
    let proxy = http_and_others(&http, &others, "300ms");
    let address = proxy.address("l");
    // The time counts from accept. The bytes are there by then, or the client could be a silent one.
    let send = |first: &[u8]| {
        proxy.relay.hold_still();
        let mut client = connect(&address);
        client.write_all(first).expect("sent");
        proxy.relay.go_on();
        client
    };
    let hello = tls_hello("example.org", &[]);
    let halves = [
        &b""[..],
        b"HELLO",
        b"HELLO world",
        b"\r\nHELLO",
        b"CNXN....",
        b"0 hello",
        b"GET /",
        b"GET key",
        b"G",
        b"FOO /",
        b"PROPFIND",
        b"REPORT h",
        b"\r\n",
        b"\n\n",
        b"GET / HTTP/1.1\r\nHost: other.org\r\n",
        &hello[..1],
        &hello[..hello.len() - 1],
    ];
    for first in halves {
        let mut client = send(first);
        let mut server = others.accept();
        expect(&mut server, first);
        converse(&mut client, &mut server);
    }
    assert_eq!(proxy.count("l", "without_route"), 0);
    // Nor does it matter what they could become once the client has ended its stream.
    let proxy = http_and_others(&http, &others, "10m");
    for half in halves {
        let mut client = connect(&proxy.address("l"));
        client.write_all(half).expect("sent");
        client.shutdown(Shutdown::Write).expect("ended");
        let mut server = others.accept();
        expect(&mut server, half);
        assert_eq!(server.read(&mut [0]).expect("an end"), 0);
        server.write_all(b"answer").expect("sent");
        expect(&mut client, b"answer");
    }
}

/// One listener for each kind of condition, before one for other clients and one for silence.
#[test]
fn half_a_message_takes_the_route_by_address_at_the_deadline() {
    let (first, by_address) = (Site::new(), Site::new());
    let hello = tls_hello("example.org", &["h2"]);
    let half_hello = &hello[..hello.len() - 1];
    let cases: [(&str, &[u8]); 15] = [
        ("sni = [\"example.org\"]", half_hello),
        ("sni = [\"none\"]", half_hello),
        ("alpn = [\"h2\"]", half_hello),
        ("tls_version = [\"1.3\"]", half_hello),
        ("protocol = \"tls\"", half_hello),
        ("http_host = [\"example.org\"]", b"GET key"),
        ("http_method = [\"GET\"]", b"GE"),
        ("http_path = [\"/\"]", b"GET / HTTP/1.1\r\n"),
        ("protocol = \"http1\"", b"PROPFIND"),
        ("protocol = \"http2\"", b"PRI * HTTP/2.0\r\n"),
        ("protocol = \"postgres\"", b"\0\0\0\x08\x04"),
        ("protocol = \"ssh\"", b"SSH-"),
        ("protocol = \"rdp\"", b"\x03\0"),
        ("starts_with = [\"EHLO\"]", b"EHL"),
        ("starts_with = [\"GET k\"]", b"GET "),
    ];
    let decide = |last: &str| {
        let listeners = cases.iter().enumerate().map(|(number, (condition, _))| {
            format!(
                "[[listener]]\nname = \"l{number}\"\naddress = \"127.0.0.1:0\"\ndecide_within = \"300ms\"\n\
                 [[listener.route]]\n{condition}\nbackend = \"first\"\n\
                 [[listener.route]]\nsilent = true\nbackend = \"first\"\n\
                 [[listener.route]]\nclient = [\"192.0.2.0/24\"]\nbackend = \"first\"\n{last}"
            )
        });
        let backends = [("first", &first), ("by_address", &by_address)]
            .map(|(name, site)| format!("[backend.{name}]\nservers = [\"{}\"]\n", site.address()));
        Proxy::run(&[listeners.collect::<String>(), backends.concat()].concat())
    };
    // The time counts from accept. The bytes are there by then, or the client could be a silent one.
    let send = |proxy: &Proxy, number: usize, bytes: &[u8]| {
        let address = proxy.address(&format!("l{number}"));
        proxy.relay.hold_still();
        let mut client = connect(&address);
        client.write_all(bytes).expect("sent");
        proxy.relay.go_on();
        client
    };
    let proxy =
        decide("[[listener.route]]\nlocal_address = [\"127.0.0.0/8\"]\nbackend = \"by_address\"\n");
    for (number, (_, bytes)) in cases.iter().enumerate() {
        let mut client = send(&proxy, number, bytes);
        let mut server = by_address.accept();
        expect(&mut server, bytes);
        converse(&mut client, &mut server);
    }
    // Without such a route the connection ends.
    let proxy = decide("");
    for (number, (_, bytes)) in cases.iter().enumerate() {
        expect_reset(&mut send(&proxy, number, bytes));
    }
    assert!(!first.is_called());
}

/// A relay that was stopped learns of its deadline before it learns of what came meanwhile (`epoll_wait` ends
/// with EINTR).
#[test]
fn what_came_during_a_stall_counts_although_the_time_is_over() {
    const DECIDE_WITHIN: Duration = Duration::from_secs(3);
    let (http, others) = (Site::new(), Site::new());
    let proxy = http_and_others(&http, &others, "3s");
    let address = proxy.address("l");
    for (accepted, (early, late)) in (1..).zip([
        (
            &b"PROPF"[..],
            &b"IND / HTTP/1.1\r\nHost: example.org\r\n\r\n"[..],
        ),
        (b"", b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"),
    ]) {
        let mut client = connect(&address);
        client.write_all(early).expect("sent");
        until("it is accepted", || {
            proxy.count("l", "accepted") == accepted
        });
        proxy.relay.hold_still();
        client.write_all(late).expect("sent");
        thread::sleep(DECIDE_WITHIN);
        proxy.relay.go_on();
        let mut server = http.accept();
        expect(&mut server, &[early, late].concat());
        converse(&mut client, &mut server);
    }
}

/// The beginning of a method is not taken for another protocol before the deadline.
#[test]
fn a_word_waits_for_what_makes_it_a_request() {
    let (http, others) = (Site::new(), Site::new());
    let proxy = http_and_others(&http, &others, "10m");
    let address = proxy.address("l");
    for word in [&b"PROPF"[..], b"HELLO", b"0", b"a.b", b"CNXN...."] {
        let mut client = connect(&address);
        client.set_nodelay(true).expect("no delay");
        client.write_all(word).expect("sent");
        thread::sleep(Duration::from_millis(50));
        let rest = b" / HTTP/1.1\r\nHost: example.org\r\n\r\n";
        client.write_all(rest).expect("sent");
        let mut server = http.accept();
        expect(&mut server, &[word, rest].concat());
        converse(&mut client, &mut server);
    }
    assert_eq!(proxy.count("l", "joined"), 5);
}

#[test]
fn unusual_requests_reach_their_server_as_they_are() {
    let (http, others) = (Site::new(), Site::new());
    let proxy = http_and_others(&http, &others, "10m");
    let fields = "X: y\r\n".repeat(1000);
    for (request, site) in [
        (
            "\r\nGET / HTTP/1.1\r\nHost: example.org\r\n\r\n".into(),
            &http,
        ),
        ("GET / HTTP/1.2\r\nHost: example.org\r\n\r\n".into(), &http),
        ("1GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".into(), &http),
        ("a.b / HTTP/1.1\r\nHost: example.org\r\n\r\n".into(), &http),
        ("$GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".into(), &http),
        (
            format!("GET / HTTP/1.1\r\n{fields}Host: example.org\r\n\r\n"),
            &http,
        ),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n".into(), &others),
        (
            "GET / HTTP/1.1\r\nHost: a!b$c~.example\r\n\r\n".into(),
            &others,
        ),
        (
            "GET / HTTP/1.1\r\nHost: m%C3%A4rz.example\r\n\r\n".into(),
            &others,
        ),
        (
            "GET / HTTP/1.1\r\nHost: %65xample%2EORG:80\r\n\r\n".into(),
            &http,
        ),
        (
            "GET / HTTP/1.1\r\nHost: example.org,other.org\r\n\r\n".into(),
            &others,
        ),
    ] {
        let request: String = request;
        let mut client = connect(&proxy.address("l"));
        client.write_all(request.as_bytes()).expect("sent");
        let mut server = site.accept();
        expect(&mut server, request.as_bytes());
        converse(&mut client, &mut server);
    }
    let many_lines = "\r\n".repeat(32 << 10) + "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
    for ambiguous in [
        "\nGET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        &many_lines,
        "GET\r/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "GET\x0c/\x0cHTTP/1.1\r\nHost: example.org\r\n\r\n",
        "FOO /\x0bHTTP/1.1\r\nHost: example.org\r\n\r\n",
        "GET /\u{85}HTTP/1.1\r\nHost: example.org\r\n\r\n",
        " GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "PRI * HTTP/2.0\r\nHost: example.org\r\n\r\n",
        "GET /\r\nHost: example.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: example.org, other.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: example.org,a\r\nHost: example.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: example.org%2f\r\n\r\n",
        "GET http://example.org/ HTTP/1.1\r\nHost:\r\n\r\n",
    ] {
        let mut client = connect(&proxy.address("l"));
        client.write_all(ambiguous.as_bytes()).expect("sent");
        expect_reset(&mut client);
    }
}

#[test]
fn a_connection_goes_where_the_address_that_it_came_to_says() {
    let sites: Vec<_> = (0..3).map(|_| Site::new()).collect();
    let port = free_port();
    let proxy = Proxy::run(&format!(
        r#"
[[listener]]
name = "all"
address = "0.0.0.0:{port}"
[[listener.route]]
local_address = "127.0.0.2"
backend = "address"
[[listener.route]]
local_address = "127.0.0.0/8"
local_port = {port}
backend = "port"
[[listener.route]]
backend = "others"
[backend.address]
servers = ["{}"]
[backend.port]
servers = ["{}"]
[backend.others]
servers = ["{}"]
"#,
        sites[0].address(),
        sites[1].address(),
        sites[2].address()
    ));
    for (ip, site) in [("127.0.0.2", 0), ("127.0.0.1", 1)] {
        let mut client = connect(&format!("{ip}:{port}"));
        client.write_all(b"hello").expect("sent");
        let mut server = sites[site].accept();
        expect(&mut server, b"hello");
        converse(&mut client, &mut server);
    }
    assert_eq!(proxy.count("all", "joined"), 2);
}

#[test]
fn protocols_are_told_apart() {
    let sites: Vec<_> = (0..5).map(|_| Site::new()).collect();
    let kinds = ["ssh", "rdp", "http2", "postgres", "http1"];
    let mut configuration = "[[listener]]\nname = \"all\"\naddress = \"127.0.0.1:0\"\n".to_owned();
    for kind in kinds {
        configuration +=
            &format!("[[listener.route]]\nprotocol = \"{kind}\"\nbackend = \"{kind}\"\n");
    }
    for (kind, site) in kinds.iter().zip(&sites) {
        configuration += &format!("[backend.{kind}]\nservers = [\"{}\"]\n", site.address());
    }
    let proxy = Proxy::run(&configuration);
    for (first, site) in [
        ("ssh", 0),
        ("rdp", 1),
        ("curl-http2", 2),
        ("psql-disable", 3),
        ("psql", 3),
        ("chromium", 4),
    ] {
        let first = hello(first);
        let mut client = connect(&proxy.address("all"));
        client.write_all(&first).expect("sent");
        let mut server = sites[site].accept();
        expect(&mut server, &first);
        converse(&mut client, &mut server);
    }
}

#[test]
fn postgresql_with_tls_goes_by_the_name_in_its_hello() {
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    let site = Site::new();
    let proxy = Proxy::run(&format!(
        r#"
[[listener]]
name = "postgres"
address = "127.0.0.1:0"
[[listener.route]]
protocol = "postgres"
sni = ["db.example.org"]
backend = "db"
[backend.db]
servers = ["{}"]
"#,
        site.address()
    ));
    let address = proxy.address("postgres");
    let hello = tls_hello("db.example.org", &[]);
    for answer in [b"S", b"N"] {
        let mut client = connect(&address);
        client.write_all(&SSL_REQUEST).expect("sent");
        expect(&mut client, b"S");
        client.write_all(&hello).expect("sent");
        let mut server = site.accept();
        expect(&mut server, &SSL_REQUEST);
        server.write_all(answer).expect("sent");
        if answer == b"S" {
            expect(&mut server, &hello);
            converse(&mut client, &mut server);
        } else {
            expect_reset(&mut client);
        }
    }
    // What is pipelined behind the request could have been put there by anybody.
    let mut client = connect(&address);
    client
        .write_all(&[&SSL_REQUEST[..], &hello].concat())
        .expect("sent");
    expect_reset(&mut client);
}

#[test]
fn a_long_first_message_reaches_the_server_whole() {
    let site = Site::new();
    let proxy = Proxy::run(&format!(
        r#"
[[listener]]
name = "http"
address = "127.0.0.1:0"
[[listener.route]]
http_path = ["/long"]
backend = "site"
[backend.site]
servers = ["{}"]
"#,
        site.address()
    ));
    let request = format!(
        "GET /long HTTP/1.1\r\nHost: a\r\nX-Padding: {}\r\n\r\n",
        "x".repeat(60 << 10)
    );
    let mut client = connect(&proxy.address("http"));
    let mut writer = client.try_clone().expect("a copy");
    let sent = request.clone();
    let writing = thread::spawn(move || writer.write_all(sent.as_bytes()).expect("sent"));
    let mut server = site.accept();
    // The server takes its time.
    thread::sleep(Duration::from_millis(50));
    expect(&mut server, request.as_bytes());
    writing.join().expect("written");
    converse(&mut client, &mut server);
}

/// The access log counts bytes that were passed on before the pair.
#[test]
fn the_access_log_has_the_name_and_every_byte() {
    let site = Site::new();
    let log = netlab::Scratch::new("proxy-log").expect("a directory");
    let path = log.path().join("access.json");
    let proxy = Proxy::run(&format!(
        r#"
[[listener]]
name = "tls"
address = "127.0.0.1:0"
access_log = "{}"
[[listener.route]]
sni = "example.org"
backend = "site"
[backend.site]
servers = ["{}"]
"#,
        path.display(),
        site.address()
    ));
    let hello = tls_hello("example.org", &[]);
    let mut client = connect(&proxy.address("tls"));
    client.write_all(&hello).expect("sent");
    let mut server = site.accept();
    expect(&mut server, &hello);
    converse(&mut client, &mut server);
    drop((client, server));
    let mut line = String::new();
    until("it is logged", || {
        line = fs::read_to_string(&path).unwrap_or_default();
        line.ends_with('\n')
    });
    let entry: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(entry["server_name"], "example.org");
    assert_eq!(entry["target"], site.address());
    assert_eq!(entry["client_to_target_bytes"], hello.len() as u64 + 4);
    assert_eq!(entry["target_to_client_bytes"], 15);
}
