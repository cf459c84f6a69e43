//! DNS: dnsmasq behind the relay, asked by dnsperf.

use std::path::PathBuf;
use std::process::Stdio;

use netlab::{Process, Scratch};

use super::inet;
use crate::patience::until;
use crate::programs::installed;
use crate::proxy::Proxy;
use crate::relay::{Relay, output};
use crate::server::free_port;

const QUERIES: usize = 2000;

/// The header of a query with one question, and `name.test` of type A (RFC 1035).
const QUERY: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04name\x04test\x00\x00\x01\x00\x01";

/// dnsmasq, which knows the names below `test`.
fn serve(dnsmasq: PathBuf, port: u16) -> Process {
    let mut server = Process::command(dnsmasq);
    server
        .args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
        ])
        .args(["--no-hosts", "--pid-file", "--bind-interfaces", "--user="])
        .args(["--listen-address=127.0.0.1", "--address=/test/192.0.2.7"])
        .arg(format!("--port={port}"))
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    Process::spawn(&mut server).expect("dnsmasq")
}

/// What the example asks servers is answered by one, with what it expects.
#[test]
fn the_check_of_the_example_knows_a_server_that_works() {
    const EXAMPLE: &str = include_str!("../../../../../examples/dns.toml");
    let Some(dnsmasq) = installed("dnsmasq", "dnsmasq-base") else {
        return;
    };
    let health = EXAMPLE
        .lines()
        .find_map(|line| line.strip_prefix("health = "));
    let health = health.and_then(|health| health.strip_suffix(" }"));
    let health = health.expect("a check");
    let port = free_port();
    let proxy = Proxy::run(&format!(
        "[[listener]]\naddress = \"udp:127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [\"udp:127.0.0.1:{port}\"]\n\
         health = {health}, every = \"500ms\", rise = 1, fall = 1 }}\n"
    ));
    proxy.relay.wait_logged("is down: connection refused");
    let _server = serve(dnsmasq, port);
    proxy.relay.wait_logged("is up again");
}

#[test]
fn every_query_of_dnsperf_is_answered() {
    let (Some(dnsmasq), Some(dnsperf)) = (
        installed("dnsmasq", "dnsmasq-base"),
        installed("dnsperf", "dnsperf"),
    ) else {
        return;
    };
    let scratch = Scratch::new("dns").expect("a directory");
    let port = free_port();
    let _server = serve(dnsmasq, port);
    let relay = Relay::between("udp:127.0.0.1:0", &format!("udp:127.0.0.1:{port}"), &[]);
    let address = inet(&relay.address);
    let client = super::client(&relay);
    client.set_nonblocking(true).expect("non-blocking");
    until("dnsmasq answers", || {
        // Before it does, the relay passes on that nobody is there.
        client.send(QUERY).is_ok() && client.recv(&mut [0; 512]).is_ok()
    });
    let names: String = (0..QUERIES)
        .map(|number| format!("host{number}.test A\n"))
        .collect();
    let names = scratch.write("names", &names).expect("a file");
    let mut load = Process::command(dnsperf);
    load.args(["-s", &address.ip().to_string()])
        .args(["-p", &address.port().to_string()])
        // 50 sockets, and as many queries at a time: no buffer is full.
        .args(["-c", "50", "-q", "50", "-n", "1", "-d"])
        .arg(names);
    let told = output(&mut load);
    let told = String::from_utf8_lossy(&told.stdout);
    for line in [
        format!("Queries completed:    {QUERIES} (100.00%)"),
        format!("Response codes:       NOERROR {QUERIES} (100.00%)"),
    ] {
        assert!(told.contains(&line), "no {line:?} in {told}");
    }
}
