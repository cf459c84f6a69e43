//! A chain of relays on one host, each a process of its own.

use netlab::{Lab, Namespace, Need, available};

use super::carry;
use super::hop::Hop;
use crate::server::Server;

const BYTES: u64 = 32 << 20;

/// A chain from `client` through two relays in `host`, which listen on `ip`, to a server at `server_ip` in
/// `far`. Which BPF program sees a segment first depends on which relay had a connection first.
fn carry_over_two(
    client: &Namespace,
    host: &Namespace,
    ip: &str,
    far: &Namespace,
    server_ip: &str,
) {
    for second_stands_first in [false, true] {
        let server = Server::in_namespace(far, &format!("{server_ip}:0"));
        let second = Hop::in_namespace(host, "127.0.0.1:0", &server.address);
        let first = Hop::in_namespace(host, &format!("{ip}:0"), second.address());
        if second_stands_first {
            second.stand(host, &server);
        }
        carry(client, &[&first, &second], &server, BYTES);
    }
}

#[test]
fn two_relays_on_lo_are_spliced() {
    if !available(Need::Root) {
        return;
    }
    let host = Namespace::new("row").expect("a namespace");
    carry_over_two(&host, &host, "127.0.0.1", &host, "127.0.0.1");
}

#[test]
fn two_relays_between_a_remote_client_and_a_local_server_are_spliced() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let relay_ip = Lab::RELAY_V4.to_string();
    carry_over_two(
        lab.client(),
        lab.relay(),
        &relay_ip,
        lab.relay(),
        "127.0.0.1",
    );
}

#[test]
fn two_relays_between_a_remote_client_and_a_remote_server_are_spliced() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let (relay_ip, server_ip) = (Lab::RELAY_V4.to_string(), Lab::SERVER_V4.to_string());
    carry_over_two(
        lab.client(),
        lab.relay(),
        &relay_ip,
        lab.server(),
        &server_ip,
    );
}
