//! iperf3: a control connection and a data connection.

use std::path::Path;
use std::process::Stdio;

use netlab::Process;
use serde_json::Value;

use super::{ENGINES, Host, installed, run};
use crate::relay::Relay;
use crate::server::free_port;

const BYTES: u64 = 64 << 20;

/// A running server and its address.
pub(super) fn serve(iperf3: &Path, host: &Host<'_>) -> (Process, String) {
    let port = free_port().to_string();
    let mut server = host.command(iperf3);
    server
        .args(["--server", "--bind", &host.ip.to_string(), "--port", &port])
        .stdout(Stdio::null())
        // iperf3 logs an error for a connection that only tests whether it listens.
        .stderr(Stdio::null());
    let server = Process::spawn(&mut server).expect("iperf3");
    let address = format!("{}:{port}", host.ip);
    host.wait_listening(&address);
    (server, address)
}

/// Measures to `address` and, with `--reverse`, from there.
pub(super) fn measure(
    iperf3: &Path,
    host: &Host<'_>,
    address: &str,
    bytes: u64,
    direction: &[&str],
) {
    let (ip, port) = address.rsplit_once(':').expect("a port");
    let mut client = host.command(iperf3);
    client
        .args(["--client", ip, "--json", "--port", port])
        .args(["--bytes", &bytes.to_string()])
        .args(direction);
    let report: Value = serde_json::from_str(&run(&mut client)).expect("JSON");
    let end = &report["end"];
    let sent = end["sum_sent"]["bytes"].as_u64().expect("a count");
    let received = end["sum_received"]["bytes"].as_u64().expect("a count");
    assert!(sent >= bytes, "{sent}");
    // The server stops counting when the control connection reports that all is sent.
    assert!((bytes / 2..=sent).contains(&received), "{received}");
}

#[test]
fn iperf3_measures_through_the_relay_in_both_directions() {
    let Some(iperf3) = installed("iperf3", "iperf3") else {
        return;
    };
    let (_server, target) = serve(&iperf3, &Host::HERE);
    for engine in ENGINES {
        for direction in [&[][..], &["--reverse"]] {
            let relay = Relay::to(&target, &["--engine", engine]);
            let before = relay.descriptors();
            measure(&iperf3, &Host::HERE, &relay.address, BYTES, direction);
            relay.wait_descriptors(before);
        }
    }
}
