//! The PROXY protocol, in and out.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use netlab::Scratch;

use super::Proxy;
use super::routes::{Site, connect, expect, expect_reset, tls_hello};
use crate::patience::until;
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
fn a_header_that_came_during_a_stall_counts_although_the_time_is_over() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(
        &format!("{FROM_ANYWHERE}\ndecide_within = \"3s\"\n{ANY}"),
        "",
        &site,
    ));
    let mut client = connect(&proxy.address("all"));
    client.write_all(b"PROXY ").expect("sent");
    until("it is accepted", || proxy.count("all", "accepted") == 1);
    proxy.relay.hold_still();
    client
        .write_all(b"TCP4 192.0.2.7 198.51.100.1 4000 443\r\nrest")
        .expect("sent");
    thread::sleep(Duration::from_secs(3));
    proxy.relay.go_on();
    expect(&mut site.accept(), b"rest");
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

/// What was held back is summed up as what it is.
#[test]
fn resets_for_headers_for_first_bytes_and_for_want_of_a_route_are_told_apart() {
    let site = Site::new();
    let require = "proxy_protocol = \"require\"\ntrusted = [\"127.0.0.0/8\"]\n";
    let by_name = "[[listener.route]]\nsni = \"a.test\"\nbackend = \"b\"";
    for (listener, first, what) in [
        (
            format!("{require}{ANY}"),
            &b"no header at all\r\n"[..],
            "for their PROXY header",
        ),
        (
            format!("{require}{ANY}"),
            b"PROXY TCP4 nonsense\r\n",
            "for their PROXY header",
        ),
        (
            by_name.to_owned(),
            b"\x16\x03\x01\x00\x01\x01\x17\x03\x01\x00\x01\x00",
            "for what the client sent first",
        ),
        (by_name.to_owned(), b"no TLS\r\n", "for want of a route"),
    ] {
        let mut proxy = Proxy::run(&configuration(&listener, "", &site));
        let address = proxy.address("all");
        let words = format!("connections that were reset {what} (");
        // Within a second, so that all but the first are held back.
        for _ in 0..5 {
            let mut client = connect(&address);
            client.write_all(first).expect("sent");
            expect_reset(&mut client);
        }
        proxy.relay.signal(rustix::process::Signal::TERM);
        proxy.relay.wait_end();
        let logged = proxy.relay.logged();
        assert!(
            logged.iter().any(|line| line.contains(&words)),
            "{words} {logged:#?}"
        );
    }
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

/// Reads a header of version 2 for a connection over IPv4: its addresses and fields.
fn read_over_ipv4(server: &mut TcpStream) -> Vec<u8> {
    let mut fixed = [0; 16];
    server.read_exact(&mut fixed).expect("a header");
    assert_eq!(fixed[..14], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([fixed[14], fixed[15]]))];
    server.read_exact(&mut rest).expect("its rest");
    rest
}

/// A header of version 2 with these bytes behind its length.
fn version_2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("a short header");
    let start = [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family]].concat();
    [&start, &length.to_be_bytes()[..], rest].concat()
}

const FROM_ANYWHERE: &str = "proxy_protocol = \"require\"\ntrusted = [\"127.0.0.0/8\"]";
const ADDRESSES: &[u8] = b"\xc0\x00\x02\x07\xc6\x33\x64\x01\x0f\xa0\x01\xbb";

#[test]
fn what_a_trusted_sender_tells_is_passed_on() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(
        &format!("{FROM_ANYWHERE}\n[[listener.route]]\nsni = \"example.org\"\nbackend = \"b\""),
        "send_proxy = \"v2\"",
        &site,
    ));
    let hello = tls_hello("example.org", &[]);
    let through = |fields: &[u8]| {
        let header = version_2(0x21, 0x11, &[ADDRESSES, fields].concat());
        let mut client = connect(&proxy.address("all"));
        client
            .write_all(&[&header, &*hello].concat())
            .expect("sent");
        let mut server = site.accept();
        let rest = read_over_ipv4(&mut server);
        assert_eq!(rest[..12], *ADDRESSES);
        expect(&mut server, &hello);
        rest[12..].to_vec()
    };
    let name = [&[2, 0, 11][..], b"example.org"].concat();
    // An identity, TLS at the first proxy, and what only others understand; padding is dropped.
    let id = b"\x05\0\x07upriver";
    let others = b"\x20\0\x05\x01\0\0\0\0\xea\0\x04\x01vpc";
    let fields = [&id[..], others, b"\x04\0\x01\0"].concat();
    assert_eq!(through(&fields), [&name[..], id, others].concat());
    // The name that the first proxy has seen, which may not be that of the hello behind it.
    let outer = b"\x02\0\x0douter.example";
    assert_eq!(
        through(&[outer, &id[..]].concat()),
        [&id[..], outer].concat()
    );
    // Made only where none came, and a new one for each connection.
    let made = [through(b""), through(b"")];
    for fields in &made {
        assert_eq!(fields[..name.len()], name);
        assert_eq!(fields[name.len()..][..2], [5, 0]);
    }
    assert_ne!(made[0], made[1]);
}

#[test]
fn an_address_that_a_sender_does_not_know_is_no_reason_for_a_reset() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(
        &format!("{FROM_ANYWHERE}\n{ANY}"),
        "send_proxy = \"v2\"",
        &site,
    ));
    let through = |header: &[u8]| {
        let mut client = connect(&proxy.address("all"));
        client.write_all(&[header, b"rest"].concat()).expect("sent");
        let mut server = site.accept();
        let mut rest = read_over_ipv4(&mut server);
        expect(&mut server, b"rest");
        let fields = rest.split_off(12);
        (rest, fields, client)
    };
    // The destination.
    let nowhere = b"\xc0\x00\x02\x07\0\0\0\0\x0f\xa0\x01\xbb";
    assert_eq!(through(&version_2(0x21, 0x11, nowhere)).0, nowhere);
    let line = b"PROXY TCP4 192.0.2.7 0.0.0.0 4000 443\r\n";
    assert_eq!(through(line).0, nowhere);
    // Datagrams, and a family that nobody knows: the connection's own addresses, and the fields.
    let id = b"\x05\0\x02id";
    let v6 = [b"\x20\x01\x0d\xb8".repeat(8), vec![0, 1, 0, 2]].concat();
    for (family, addresses) in [
        (0x00, &b""[..]),
        (0x12, ADDRESSES),
        (0x22, &v6),
        (0x32, &[b'a'; 216]),
    ] {
        let header = version_2(0x21, family, &[addresses, id].concat());
        let (addresses, fields, client) = through(&header);
        let port = client.local_addr().expect("an address").port();
        assert_eq!(addresses[..8], [127, 0, 0, 1, 127, 0, 0, 1], "{family:x}");
        assert_eq!(addresses[8..10], port.to_be_bytes(), "{family:x}");
        assert_eq!(fields, id, "{family:x}");
    }
    // Addresses of a family that nobody knows are no fields, whatever they look like.
    for leftover in [
        &b"\x03\0\0\x05\xc6\x33\x64\x01\0\x01\0\x02"[..],
        &[0; 12],
        &[0xff; 12],
    ] {
        let (addresses, fields, _client) = through(&version_2(0x21, 0x00, leftover));
        assert_eq!(addresses[..8], [127, 0, 0, 1, 127, 0, 0, 1]);
        // The one that is made here, and nothing else.
        assert_eq!(fields[..2], [5, 0]);
        assert_eq!(fields.len(), 3 + usize::from(fields[2]));
    }
    for wrong in [
        // The client has to be somebody.
        version_2(0x21, 0x11, b"\0\0\0\0\xc0\x00\x02\x07\x0f\xa0\x01\xbb"),
        version_2(0x21, 0x12, &ADDRESSES[1..]),
        version_2(0x21, 0x42, ADDRESSES),
    ] {
        let mut client = connect(&proxy.address("all"));
        client.write_all(&wrong).expect("sent");
        expect_reset(&mut client);
    }
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
    let rest = read_over_ipv4(&mut server);
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

/// A UNIX socket has no addresses that many receivers take. Nor do all take a PROXY header without a family.
#[test]
fn a_client_without_addresses_is_told_by_a_local_header() {
    let site = Site::new();
    let directory = Scratch::new("proxy-header").expect("a directory");
    let path = directory.path().join("socket");
    let listening = format!("unix:{}", path.display());
    for (listener, sent, expected) in [
        ("", &b""[..], None),
        (
            "proxy_protocol = \"require\"\ntrusted = [\"127.0.0.0/8\"]\n",
            &version_2(0x21, 0x00, b"\x05\0\x02id"),
            Some(b"\x05\0\x02id"),
        ),
    ] {
        let configuration =
            configuration(&format!("{listener}{ANY}"), "send_proxy = \"v2\"", &site);
        let proxy = Proxy::run(&configuration.replace("127.0.0.1:0", &listening));
        let mut client = UnixStream::connect(&path).expect("connected");
        client.write_all(&[sent, b"rest"].concat()).expect("sent");
        let mut server = site.accept();
        let mut fixed = [0; 16];
        server.read_exact(&mut fixed).expect("a header");
        assert_eq!(fixed[..14], *b"\r\n\r\n\0\r\nQUIT\n\x20\x00");
        let mut fields = vec![0; usize::from(u16::from_be_bytes([fixed[14], fixed[15]]))];
        server.read_exact(&mut fields).expect("its fields");
        match expected {
            Some(expected) => assert_eq!(fields, expected),
            None => assert_eq!(fields[..2], [5, 0]),
        }
        expect(&mut server, b"rest");
        drop(proxy);
    }
}

#[test]
fn the_access_log_has_what_names_a_connection_in_other_logs() {
    let site = Site::new();
    let directory = Scratch::new("proxy-header").expect("a directory");
    let path = directory.path().join("access.json");
    let proxy = Proxy::run(&configuration(
        &format!(
            "{FROM_ANYWHERE}\naccess_log = \"{}\"\n{ANY}",
            path.display()
        ),
        "send_proxy = \"v2\"",
        &site,
    ));
    for (lines, (fields, expected)) in (1..).zip([
        (&b"\x05\0\x07upriver"[..], Some("upriver")),
        // Hostile text.
        (b"\x05\0\x04a\n\xff\"", Some("a\\n\\xff\\\"")),
        // That which is made here, and sent.
        (b"\x05\0\0", None),
    ]) {
        let header = version_2(0x21, 0x11, &[ADDRESSES, fields].concat());
        let mut client = connect(&proxy.address("all"));
        client.write_all(&header).expect("sent");
        let mut server = site.accept();
        let rest = read_over_ipv4(&mut server);
        drop((client, server));
        let mut log = String::new();
        until("it is logged", || {
            log = fs::read_to_string(&path).unwrap_or_default();
            log.ends_with('\n') && log.lines().count() == lines
        });
        let line = log.lines().last().expect("a line");
        let entry: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let sent = rest[12 + 3..].escape_ascii().to_string();
        assert_eq!(entry["unique_id"], expected.unwrap_or(&sent));
        assert_eq!(entry["unique_id"], sent);
    }
}
