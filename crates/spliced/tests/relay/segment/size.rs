//! Segments that are larger than the other side accepts: the relay's sockets announce a smaller MSS.

use netlab::{Lab, Namespace, Need, available};

use super::carry;
use super::hop::Hop;
use crate::server::Server;

const BYTES: u64 = 32 << 20;

fn set_mtu(namespace: &Namespace, device: &str, mtu: u32) {
    let done = namespace
        .command("ip")
        .args(["link", "set", device, "mtu", &mtu.to_string()])
        .status();
    assert!(done.expect("ip").success());
}

/// The most common deployment: an MTU of 64 KiB on lo, and of 1500 bytes towards the client.
#[test]
fn a_server_on_this_host_is_spliced_with_a_client_elsewhere() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    for (listen, own) in [
        (Lab::RELAY_V4.to_string(), "127.0.0.1".into()),
        (Lab::RELAY_V4.to_string(), Lab::RELAY_FAR_V4.to_string()),
        (format!("[{}]", Lab::RELAY_V6), "[::1]".into()),
    ] {
        let server = Server::in_namespace(lab.relay(), &format!("{own}:0"));
        let hop = Hop::in_namespace(lab.relay(), &format!("{listen}:0"), &server.address);
        carry(lab.client(), &[&hop], &server, BYTES);
    }
}

/// The client is on this host, the server is not.
#[test]
fn a_client_on_this_host_is_spliced_with_a_server_elsewhere() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let server = Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
    let hop = Hop::in_namespace(lab.relay(), "127.0.0.1:0", &server.address);
    carry(lab.relay(), &[&hop], &server, BYTES);
}

#[test]
fn jumbo_frames_on_one_side_are_spliced_with_standard_frames_on_the_other() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let server = Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
    for (client_mtu, server_mtu) in [(9000, 1500), (1500, 9000)] {
        for (namespace, device, mtu) in [
            (lab.client(), Lab::TO_RELAY, client_mtu),
            (lab.relay(), Lab::TO_CLIENT, client_mtu),
            (lab.relay(), Lab::TO_SERVER, server_mtu),
            (lab.server(), Lab::TO_RELAY, server_mtu),
        ] {
            set_mtu(namespace, device, mtu);
        }
        let hop = Hop::in_namespace(
            lab.relay(),
            &format!("{}:0", Lab::RELAY_V4),
            &server.address,
        );
        carry(lab.client(), &[&hop], &server, BYTES);
    }
}
