//! iperf3: two connections, one to talk about what the other one does.

use std::process::Stdio;

use netlab::Process;
use serde_json::Value;

use super::{ENGINES, installed, run, wait_listening};
use crate::relay::Relay;
use crate::server::free_port;

#[test]
fn iperf3_measures_through_it_in_both_directions() {
    const BYTES: u64 = 64 << 20;
    let Some(iperf3) = installed("iperf3", "iperf3") else {
        return;
    };
    let port = free_port().to_string();
    let mut server = Process::command(&iperf3);
    server
        .args(["--server", "--bind", "127.0.0.1", "--port", &port])
        .stdout(Stdio::null())
        // It complains about whoever only looks whether it listens.
        .stderr(Stdio::null());
    let _server = Process::spawn(&mut server).expect("iperf3");
    let target = format!("127.0.0.1:{port}");
    wait_listening(&target);
    for engine in ENGINES {
        for direction in [&[][..], &["--reverse"]] {
            let relay = Relay::to(&target, &["--engine", engine]);
            let before = relay.descriptors();
            let mut client = Process::command(&iperf3);
            client
                .args(["--client", "127.0.0.1", "--json", "--port", relay.port()])
                .args(["--bytes", &BYTES.to_string()])
                .args(direction);
            let report: Value = serde_json::from_str(&run(&mut client)).expect("JSON");
            let end = &report["end"];
            let sent = end["sum_sent"]["bytes"].as_u64().expect("a count");
            let received = end["sum_received"]["bytes"].as_u64().expect("a count");
            assert!(sent >= BYTES, "{engine}: {sent}");
            // It stops counting when its other connection says that all is sent.
            assert!(
                (BYTES / 2..=sent).contains(&received),
                "{engine}: {received}"
            );
            relay.wait_descriptors(before);
        }
    }
}
