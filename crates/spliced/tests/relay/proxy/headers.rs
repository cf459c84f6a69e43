//! The PROXY protocol, in and out.

use std::io::{Read, Write};

use super::Proxy;
use super::routes::{Site, connect, expect, expect_reset, tls_hello};
use crate::peer::Peer;

fn configuration(listener: &str, backend: &str, site: &Site) -> String {
    format!(
        r#"
[[listener]]
name = "all"
address = "127.0.0.1:0"
{listener}
[backend.b]
servers = ["{}"]
{backend}
"#,
        site.address()
    )
}

const ANY: &str = "[[listener.route]]\nbackend = \"b\"";

#[test]
fn a_required_header_is_swallowed_and_its_client_decides() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(
        "proxy_protocol = \"require\"\ntrusted = [\"127.0.0.0/8\"]\n[[listener.route]]\n\
         client = [\"192.0.2.0/24\"]\nbackend = \"b\"",
        "send_proxy = \"v1\"",
        &site,
    ));
    let mut client = connect(&proxy.address("all"));
    client
        .write_all(b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\nrest")
        .expect("sent");
    let mut server = site.accept();
    expect(
        &mut server,
        b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\nrest",
    );
    for wrong in [
        &b"PROXY TCP4 192.0.3.7 198.51.100.1 4000 443\r\n"[..],
        b"PROXY TCP4 224.0.0.1 198.51.100.1 4000 443\r\n",
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 192.0.2.7\r\n",
    ] {
        let mut client = connect(&proxy.address("all"));
        client.write_all(wrong).expect("sent");
        expect_reset(&mut client);
    }
}

#[test]
fn a_sender_that_is_not_trusted_is_reset() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(
        &format!("proxy_protocol = \"require\"\ntrusted = [\"192.0.2.0/24\"]\n{ANY}"),
        "",
        &site,
    ));
    Peer::is_reset_by(&proxy.address("all"));
    proxy
        .relay
        .wait_logged("is not trusted to send PROXY headers");
}

#[test]
fn without_the_setting_a_header_is_the_clients() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(ANY, "", &site));
    let mut client = connect(&proxy.address("all"));
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n";
    client.write_all(header).expect("sent");
    expect(&mut site.accept(), header);
}

#[test]
fn version_2_tells_the_name_and_a_unique_id() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(
        "[[listener.route]]\nsni = \"example.org\"\nbackend = \"b\"",
        "send_proxy = \"v2\"",
        &site,
    ));
    let hello = tls_hello("example.org", &[]);
    let mut client = connect(&proxy.address("all"));
    client.write_all(&hello).expect("sent");
    let mut server = site.accept();
    let mut fixed = [0; 16];
    server.read_exact(&mut fixed).expect("a header");
    assert_eq!(fixed[..14], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([fixed[14], fixed[15]]))];
    server.read_exact(&mut rest).expect("its rest");
    let local = client.local_addr().expect("an address");
    assert_eq!(rest[..4], [127, 0, 0, 1]);
    assert_eq!(rest[8..10], local.port().to_be_bytes());
    let authority = [&[2, 0, 11][..], b"example.org"].concat();
    assert!(
        rest.windows(authority.len()).any(|part| part == authority),
        "{rest:?}"
    );
    assert!(rest[12..].windows(2).any(|part| part == [5, 0]), "{rest:?}");
    expect(&mut server, &hello);
}
