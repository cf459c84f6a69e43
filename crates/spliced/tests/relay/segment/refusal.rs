//! A client whose pair `segment` cannot translate.

use netlab::{Namespace, Need, Scratch, available};

use crate::log::Log;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay};
use crate::server::Server;

fn relay(namespace: &Namespace, listen: &str, target: &str, log: &Log) -> Relay {
    let mut command = namespace.command(BINARY);
    command
        .args(["relay", listen, target, "--engine", "segment"])
        .args(["--access-log", &log.path])
        .env_remove("SPLICED_LOG");
    Relay::spawn(&mut command)
}

/// The listener is dual-stack and the target is not, so the relay cannot refuse to start.
#[test]
fn a_client_of_the_other_family_is_reset_with_a_warning() {
    if !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("family").expect("a namespace");
    let scratch = Scratch::new("family").expect("a directory");
    let log = Log::below(&scratch);
    let server = namespace.enter(|| Server::on("[::1]:0")).expect("entered");
    let mut relay = relay(&namespace, ":0", &server.address, &log);
    let address = format!("127.0.0.1:{}", relay.port());
    // A reset that came before `connect` returns would be its error.
    relay.hold_still();
    let client = namespace.enter(|| Peer::connect(&address));
    let client = client.expect("entered");
    relay.go_on();
    client.expect_reset();
    let told = relay.wait_logged("engine segment refused it");
    let from = format!("connection 1 from {} to", client.local_address());
    for part in [
        " WARN ",
        &from,
        &server.address,
        "was reset",
        "one connection is over IPv4, the other over IPv6",
    ] {
        assert!(told.contains(part), "no {part:?} in {told:?}");
    }
    relay.terminate();
    let entries = log.entries();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0]["engine"], serde_json::Value::Null);
    assert_eq!(entries[0]["outcome"], "refused by the engine");
    let why = entries[0]["why_engine"].as_str().expect("a reason");
    assert!(why.contains("the other over IPv6"), "{why}");
}
