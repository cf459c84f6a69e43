//! Ends that do not speak every option of TCP.

use netlab::{Lab, Namespace, Need, available};
use splice::ForwardEnd;

use crate::forgery::{ACK, CWR, ECE, SYN, Watch};
use crate::stage::{Stage, payload, pour};

/// What a host is told not to speak, or to speak.
const CUSTOMS: [(&str, &str); 4] = [
    ("tcp_timestamps", "0"),
    ("tcp_window_scaling", "0"),
    ("tcp_sack", "0"),
    ("tcp_ecn", "1"),
];

fn converse(stage: &Stage, bytes: usize) {
    let (mut client, mut server) = stage.connect();
    let (up, down) = (payload(bytes, 5), payload(bytes, 6));
    pour(server.try_clone().expect("a clone"), &mut client, &down);
    pour(client.try_clone().expect("a clone"), &mut server, &up);
    drop((client, server));
    let ended = stage.next_ended();
    assert_eq!(ended.end, ForwardEnd::EndOfStream, "{ended:?}");
    assert_eq!(ended.client_to_server_bytes, bytes as u64, "{ended:?}");
    assert_eq!(ended.server_to_client_bytes, bytes as u64, "{ended:?}");
}

#[test]
fn ends_may_do_without_options() {
    type Host = fn(&Lab) -> &Namespace;
    const HOSTS: [&[Host]; 3] = [&[Lab::client], &[Lab::server], &[Lab::client, Lab::server]];
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    for hosts in HOSTS {
        for (name, value) in CUSTOMS {
            let name = format!("net.ipv4.{name}");
            let hosts = || hosts.iter().map(|host| host(&stage.lab));
            let usual: Vec<_> = hosts()
                .map(|host| host.sysctl(&name).expect("read").expect("a value"))
                .collect();
            for host in hosts() {
                host.set_sysctl(&name, value).expect("set");
            }
            converse(&stage, 1 << 20);
            // A connection that follows at once.
            converse(&stage, 100);
            for (host, usual) in hosts().zip(&usual) {
                host.set_sysctl(&name, usual).expect("set");
            }
        }
    }
    assert!(stage.is_unknown_to_the_socket());
}

/// Both ends hear that the other one does ECN (RFC 3168, 6.1.1).
#[test]
fn ecn_is_agreed_on_from_end_to_end() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let hosts = [stage.lab.client(), stage.lab.server()];
    for host in hosts {
        host.set_sysctl("net.ipv4.tcp_ecn", "1").expect("set");
    }
    let [at_client, at_server] = hosts.map(Watch::on);
    let (client, server) = stage.connect();
    let [of_listener, of_relay] = [&client, &server].map(|stream| {
        let end = stream.peer_addr().expect("an address");
        end.port()
    });
    let heard = [
        at_client.handshake_from(of_listener),
        at_server.handshake_from(of_relay),
    ];
    assert_eq!(heard, [SYN | ACK | ECE, SYN | ECE | CWR]);
    drop((client, server));
}
