//! Limits of listeners and clients.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Process, Scratch};
use rustix::io::Errno;

use super::Proxy;
use super::routes::{Site, connect, expect};
use crate::forbidden_call::ForbiddenCall;
use crate::patience::{PATIENCE, until};
use crate::peer::Peer;

fn limited(limits: &str, site: &Site) -> Proxy {
    Proxy::run(&configuration(limits, site))
}

fn configuration(limits: &str, site: &Site) -> String {
    format!(
        r#"
[[listener]]
name = "all"
address = "127.0.0.1:0"
{limits}
[[listener.route]]
backend = "b"
[backend.b]
servers = ["{}"]
"#,
        site.address()
    )
}

#[test]
fn a_client_over_its_connections_is_reset_and_counted() {
    let site = Site::new();
    let proxy = limited("max_connections_per_client = 2", &site);
    let address = proxy.address("all");
    let clients: Vec<_> = (0..2).map(|_| connect(&address)).collect();
    until("both are joined", || proxy.count("all", "joined") == 2);
    Peer::is_reset_by(&address);
    assert_eq!(proxy.count("all", "client_connections"), 1);
    proxy.relay.wait_logged("max_connections_per_client");
    drop(clients);
    drop((site.accept(), site.accept()));
    until("a place is free", || {
        proxy.of("listeners", "all")["connections"] == 0
    });
    let mut client = connect(&address);
    client.write_all(b"x").expect("sent");
    expect(&mut site.accept(), b"x");
}

#[test]
fn a_client_over_its_rate_is_reset_and_counted() {
    let site = Site::new();
    let proxy = limited("new_connections_per_client = 3", &site);
    let address = proxy.address("all");
    // They are accepted, and so counted, at once, however long it takes them to connect.
    proxy.relay.hold_still();
    let _clients: Vec<_> = (0..20).map(|_| connect(&address)).collect();
    proxy.relay.go_on();
    until("the others are counted", || {
        let refused = proxy.count("all", "client_rate");
        refused > 0 && refused + proxy.count("all", "joined") == 20
    });
    proxy.relay.wait_logged("new_connections_per_client");
}

#[test]
fn over_the_limit_of_a_listener_clients_wait_in_the_backlog() {
    let site = Site::new();
    let proxy = limited("max_connections = 1", &site);
    let address = proxy.address("all");
    let first = connect(&address);
    let first_server = site.accept();
    let mut second = TcpStream::connect(&address).expect("in the backlog");
    second.write_all(b"second").expect("sent");
    proxy.relay.wait_logged("(max-connections) is reached");
    drop((first, first_server));
    expect(&mut site.accept(), b"second");
}

/// Each direction; `auto` has a test of its own (`source.rs`).
#[test]
fn every_engine_of_sockets_keeps_to_a_rate() {
    const BYTES_PER_SECOND: u64 = 4_000_000;
    const BYTES: u64 = 4_000_000;
    /// What may leave at once: ten segments of loopback's MTU (`TCP_INIT_CWND`), with the doubling of the
    /// slow start.
    const BURST_BYTES: u64 = 2 * 10 * 65_536;
    let least = Duration::from_secs_f64((BYTES - BURST_BYTES) as f64 / BYTES_PER_SECOND as f64);
    for engine in ["copy", "pipe", "uring", "sockmap"] {
        let site = Site::new();
        let proxy = limited(
            &format!("rate = {BYTES_PER_SECOND}\nengine = \"{engine}\""),
            &site,
        );
        let client = connect(&proxy.address("all"));
        let server = site.accept();
        for (from, to) in [(&client, &server), (&server, &client)] {
            let begun = Instant::now();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut bytes = io::repeat(7).take(BYTES);
                    io::copy(&mut bytes, &mut &*from).expect("sent")
                });
                let moved = io::copy(&mut Read::take(to, BYTES), &mut io::sink());
                assert_eq!(moved.expect("received"), BYTES);
            });
            let took = begun.elapsed();
            assert!(took >= least, "{engine}: {took:?}");
        }
    }
}

#[test]
fn a_connection_whose_rate_cannot_be_kept_is_reset_and_counted() {
    let forbidden = ForbiddenCall::PACING_RATE;
    for (forbidden, why) in [
        (
            forbidden,
            "its rate cannot be kept: cannot set SO_MAX_PACING_RATE",
        ),
        // As of a socket with Multipath TCP.
        (
            forbidden.failing_with(Errno::OPNOTSUPP),
            "Multipath TCP has none; use TCP",
        ),
    ] {
        let Some(mut command) = forbidden.spliced(Process::command("perl")) else {
            return;
        };
        let site = Site::new();
        let proxy = Proxy::start(&configuration("rate = \"1MB\"", &site), &mut command);
        Peer::is_reset_by(&proxy.address("all"));
        proxy.relay.wait_logged(why);
        assert_eq!(proxy.count("all", "without_server"), 1);
        assert!(!site.is_called(), "nothing is said to the server");
    }
}

/// The socket of this client has no rate, and that of its server does not take one.
#[test]
fn nobody_is_granted_what_has_no_rate() {
    let Some(mut command) = ForbiddenCall::PACING_RATE.spliced(Process::command("perl")) else {
        return;
    };
    let site = Site::new();
    let scratch = Scratch::new("limits").expect("a directory");
    let path = scratch.path().join("socks");
    let proxy = Proxy::start(
        &format!(
            "[[listener]]\nname = \"all\"\naddress = \"unix:{}\"\nrate = \"1MB\"\n\
             [[listener.route]]\nsocks = {{ allow = [\"127.0.0.0/8:*\"] }}",
            path.display()
        ),
        &mut command,
    );
    let mut client = UnixStream::connect(&path).expect("connected");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let port = site
        .address()
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse::<u16>().ok());
    let mut request = b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01".to_vec();
    request.extend(port.expect("a port").to_be_bytes());
    client.write_all(&request).expect("sent");
    let mut answer = Vec::new();
    client
        .read_to_end(&mut answer)
        .expect("an answer and the end");
    // A method, and a general failure (RFC 1928, 6).
    assert_eq!(answer[..4], *b"\x05\x00\x05\x01");
    assert_eq!(proxy.count("all", "without_server"), 1);
    assert!(!site.is_called());
}
