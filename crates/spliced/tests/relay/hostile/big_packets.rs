//! Super-packets of more than 64 KiB (BIG TCP). Their header has no room for their length, and says 0. Before Linux 7.0 one
//! of IPv6 tells it in an option, which its segments do not have.

use std::thread;

use netlab::{Lab, Namespace, Need, available};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};

use super::bad_network::nft;
use super::path_mtu::{CONNECTIONS, move_some};
use super::routes::expect_spliced;
use super::stage::{IN_ORDER, Stage};
use crate::patience::until;

/// Little enough for an emulated machine.
const BYTES: u64 = 16 << 20;
/// Of a super-packet.
const MOST_BYTES: u32 = 180_000;

const COUNT: &str = "table inet big {
    counter big {}
    chain output {
        type filter hook output priority 0;
        meta l4proto tcp meta length > 65600 counter name big
    }
}";

/// `RTM_SETLINK`, `NLM_F_REQUEST | NLM_F_ACK`, and the attributes of a device's name and its longest super-packets
/// (`IFLA_GSO_MAX_SIZE`, which is that of IPv6, and `IFLA_GSO_IPV4_MAX_SIZE`, since Linux 6.3).
const SET_LINK: u16 = 19;
const ACKNOWLEDGED_REQUEST: u16 = 1 | 4;
const NAME: u16 = 3;
const LONGEST: u16 = 41;
const LONGEST_IPV4: u16 = 63;
/// `struct nlmsghdr` and `struct ifinfomsg`.
const HEADER_BYTES: u32 = 16;
const LINK_BYTES: usize = 16;

/// An attribute of netlink, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Lets a device send super-packets of both families that are so long. Debian 12's ip(8) does not know those of IPv4.
fn let_send(namespace: &Namespace, device: &str, bytes: u32) {
    let payload = [
        vec![0; LINK_BYTES],
        attribute(NAME, &[device.as_bytes(), &[0]].concat()),
        attribute(LONGEST, &bytes.to_ne_bytes()),
        attribute(LONGEST_IPV4, &bytes.to_ne_bytes()),
    ]
    .concat();
    let mut message = (HEADER_BYTES + payload.len() as u32).to_ne_bytes().to_vec();
    message.extend_from_slice(&SET_LINK.to_ne_bytes());
    message.extend_from_slice(&ACKNOWLEDGED_REQUEST.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&payload);
    let set = || -> Result<i32, Errno> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::NETLINK, kind, flags, None)?;
        connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        send(&socket, &message, SendFlags::empty())?;
        let mut answer = [0; 1 << 10];
        recv(&socket, &mut answer, RecvFlags::empty())?;
        // `struct nlmsgerr` begins behind the header.
        let error = answer[HEADER_BYTES as usize..].first_chunk();
        Ok(i32::from_ne_bytes(*error.expect("longer")))
    };
    let answer = namespace.enter(set).expect("entered");
    assert_eq!(answer, Ok(0), "{device} of {}", namespace.name());
}

/// Each of their segments is as long as the path takes.
fn super_packets_are_big(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    let lab = stage.lab();
    for (namespace, device) in [
        (lab.client(), Lab::TO_RELAY),
        (lab.server(), Lab::TO_RELAY),
        (lab.relay(), Lab::TO_CLIENT),
        (lab.relay(), Lab::TO_SERVER),
    ] {
        let_send(namespace, device, MOST_BYTES);
    }
    nft(lab.client().command("nft").arg(COUNT));
    let connections = stage.connect(CONNECTIONS);
    // How long they become is for the sender to decide, by its congestion window and its pacing.
    until("one of more than 64 KiB is sent", || {
        thread::scope(|scope| {
            for connection in &connections {
                scope.spawn(|| move_some(connection, BYTES));
            }
        });
        let list = ["list", "counter", "inet", "big", "big"];
        let counted = nft(lab.client().command("nft").args(list));
        !counted.contains("packets 0 ")
    });
    drop(connections);
    stage.expect_ended(CONNECTIONS, IN_ORDER);
    expect_spliced(stage);
}

with_each_engine!(super_packets_are_big);
