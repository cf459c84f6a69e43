//! The configurations under `examples/` do what they say, with the addresses of the test.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use netlab::{Lab, Need, available};

use super::Proxy;
use super::routes::{Site, connect, expect, expect_reset, tls_hello};
use super::source::follow_advice;
use crate::patience::until;
use crate::peer::Peer;
use crate::server::Server;

/// An example. Each of `replaced` is in it, and gives way to the text beside it.
fn example(name: &str, replaced: &[(&str, &str)]) -> String {
    let path = format!("{}/../../examples/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let mut configuration = fs::read_to_string(&path).expect(&path);
    for (text, instead) in replaced {
        assert!(configuration.contains(text), "{name} has no {text}");
        configuration = configuration.replace(text, instead);
    }
    configuration
}

fn run(name: &str, replaced: &[(&str, &str)]) -> Proxy {
    Proxy::run(&example(name, replaced))
}

/// What a client sends first reaches this site.
fn leads_to(proxy: &Proxy, listener: &str, first: &[u8], site: &Site) -> (TcpStream, TcpStream) {
    let mut client = connect(&proxy.address(listener));
    client.write_all(first).expect("sent");
    let mut server = site.accept();
    expect(&mut server, first);
    (client, server)
}

#[test]
fn tls_by_name() {
    let [shop, web] = [Site::new(), Site::new()];
    let proxy = run(
        "tls-by-name",
        &[
            ("0.0.0.0:443", "127.0.0.1:0"),
            ("10.0.0.10:443", &shop.address()),
            (
                "\"10.0.0.7:443\", \"10.0.0.8:443\"",
                &format!("\"{}\"", web.address()),
            ),
        ],
    );
    leads_to(&proxy, "tls", &tls_hello("shop.example.org", &[]), &shop);
    leads_to(&proxy, "tls", &tls_hello("www.example.org", &[]), &web);
}

#[test]
fn ssh_and_https() {
    let [web, ssh] = [Site::new(), Site::new()];
    let proxy = run(
        "ssh-and-https",
        &[
            ("0.0.0.0:443", "127.0.0.1:0"),
            ("127.0.0.1:8443", &web.address()),
            ("127.0.0.1:22", &ssh.address()),
            ("2s", "100ms"),
        ],
    );
    leads_to(&proxy, "shared", &tls_hello("example.org", &[]), &web);
    leads_to(&proxy, "shared", b"SSH-2.0-client\r\n", &ssh);
    let mut client = connect(&proxy.address("shared"));
    ssh.accept().write_all(b"SSH-2.0-server\r\n").expect("sent");
    expect(&mut client, b"SSH-2.0-server\r\n");
}

#[test]
fn http_by_host() {
    let [site, grpc] = [Site::new(), Site::new()];
    let proxy = run(
        "http-by-host",
        &[
            ("0.0.0.0:80", "127.0.0.1:0"),
            ("10.0.0.20:8080", &site.address()),
            ("10.0.0.21:9000", &grpc.address()),
        ],
    );
    leads_to(
        &proxy,
        "http",
        b"GET / HTTP/1.1\r\nHost: www.example.net\r\n\r\n",
        &site,
    );
    leads_to(
        &proxy,
        "http",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0",
        &grpc,
    );
}

#[test]
fn balance() {
    let sites: Vec<_> = (0..4).map(|_| Site::new()).collect();
    let proxy = run(
        "balance",
        &[
            ("0.0.0.0:8000", "127.0.0.1:0"),
            ("10.0.0.1:8000", &sites[0].address()),
            ("10.0.0.2:8000", &sites[1].address()),
            ("10.0.0.3:8000", &sites[2].address()),
            ("10.0.0.4:8000", &sites[3].address()),
        ],
    );
    let _clients: Vec<_> = (0..8).map(|_| connect(&proxy.address("service"))).collect();
    until("they are spread by weight, and the backup has none", || {
        let backend = proxy.of("backends", "service");
        let servers = backend["servers"].as_array().expect("servers").iter();
        let counts: Vec<_> = servers
            .map(|server| server["connections"].as_u64())
            .collect();
        counts == [Some(2), Some(2), Some(4), Some(0)]
    });
}

#[test]
fn postgres() {
    let orders = Site::new();
    let proxy = run(
        "postgres",
        &[
            ("0.0.0.0:5432", "127.0.0.1:0"),
            ("10.0.1.1:5432", &orders.address()),
            ("health = { tcp = true, every = \"1s\" }", ""),
        ],
    );
    let mut client = connect(&proxy.address("postgres"));
    client
        .write_all(&[0, 0, 0, 8, 4, 210, 22, 47])
        .expect("sent");
    expect(&mut client, b"S");
    let hello = tls_hello("orders.db.example.org", &[]);
    client.write_all(&hello).expect("sent");
    let mut server = orders.accept();
    expect(&mut server, &[0, 0, 0, 8, 4, 210, 22, 47]);
    server.write_all(b"S").expect("sent");
    expect(&mut server, &hello);
}

#[test]
fn client_address() {
    let web = Site::new();
    let proxy = run(
        "client-address",
        &[
            ("0.0.0.0:443", "127.0.0.1:0"),
            ("10.0.0.0/8", "127.0.0.0/8"),
            ("10.1.0.7:443", &web.address()),
        ],
    );
    let mut client = connect(&proxy.address("edge"));
    client
        .write_all(b"PROXY TCP4 203.0.113.9 198.51.100.1 4000 443\r\nrest")
        .expect("sent");
    let mut server = web.accept();
    let mut header = [0; 28];
    server.read_exact(&mut header).expect("a header");
    assert_eq!(header[16..24], [203, 0, 113, 9, 198, 51, 100, 1]);
    let mut client = connect(&proxy.address("edge"));
    client
        .write_all(b"PROXY TCP4 192.0.2.9 198.51.100.1 4000 443\r\nrest")
        .expect("sent");
    expect_reset(&mut client);
}

#[test]
fn forward_proxy() {
    let site = Site::new();
    let port = site
        .address()
        .rsplit_once(':')
        .expect("a port")
        .1
        .to_owned();
    let proxy = run(
        "forward-proxy",
        &[
            ("127.0.0.1:1080", "127.0.0.1:0"),
            ("\"public:443\"", "\"127.0.0.0/8:*\""),
        ],
    );
    let mut client = connect(&proxy.address("proxy"));
    let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    client.write_all(request.as_bytes()).expect("sent");
    expect(&mut client, b"HTTP/1.1 200 ");
    site.accept();
}

#[test]
fn limits() {
    let site = Site::new();
    let proxy = run(
        "limits",
        &[
            ("0.0.0.0:9000", "127.0.0.1:0"),
            ("10.0.0.30:9000", &site.address()),
        ],
    );
    let _clients: Vec<_> = (0..30).map(|_| connect(&proxy.address("public"))).collect();
    until("all are counted", || {
        let refused =
            proxy.count("public", "client_rate") + proxy.count("public", "client_connections");
        refused > 0 && refused + proxy.count("public", "joined") == 30
    });
}

#[test]
fn sticky() {
    let sites: Vec<_> = (0..3).map(|_| Site::new()).collect();
    let proxy = run(
        "sticky",
        &[
            ("0.0.0.0:6379", "127.0.0.1:0"),
            ("10.0.0.41:6379", &sites[0].address()),
            ("10.0.0.42:6379", &sites[1].address()),
            ("10.0.0.43:6379", &sites[2].address()),
        ],
    );
    let _clients: Vec<_> = (0..6).map(|_| connect(&proxy.address("cache"))).collect();
    until("all are on one server", || {
        let backend = proxy.of("backends", "cache");
        let mut servers = backend["servers"].as_array().expect("servers").iter();
        servers.any(|server| server["connections"] == 6)
    });
}

#[test]
fn transparent() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let mail = Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
    let configuration = example(
        "transparent",
        &[
            ("0.0.0.0:25", &format!("{}:0", Lab::RELAY_V4)),
            ("10.2.0.25:25", &mail.address),
        ],
    );
    follow_advice(&lab, &configuration);
    let proxy = Proxy::run_in(lab.relay(), &configuration);
    let address = proxy.address("mail");
    let near = lab.client().enter(|| Peer::connect(&address));
    let near = near.expect("entered");
    let far = mail.accept();
    let seen = far.peer_address();
    assert!(seen.starts_with(&format!("{}:", Lab::CLIENT_V4)), "{seen}");
    near.write_number(1);
    assert_eq!(far.read_number(), 1);
}
