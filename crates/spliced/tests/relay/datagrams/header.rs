//! What the IP header of a relayed datagram says.

use std::io::{IoSliceMut, Read as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use netlab::{Namespace, Need, Scratch, available};
use nix::cmsg_space;
use nix::sys::socket::sockopt::{Ipv4RecvTtl, Ipv6RecvHopLimit, UdpGsoSegment};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use rustix::net::sockopt::{set_ip_ttl, set_ipv6_unicast_hops};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{client, inet, named, receive, socket};
use crate::log::Log;
use crate::patience::{PATIENCE, until, until_found};
use crate::relay::{BINARY, Relay};

const ENDS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

/// Has the socket report the time to live of what it receives.
pub(crate) fn reporting(socket: UdpSocket) -> UdpSocket {
    if socket.local_addr().expect("its address").is_ipv4() {
        setsockopt(&socket, Ipv4RecvTtl, &true).expect("IP_RECVTTL");
    } else {
        setsockopt(&socket, Ipv6RecvHopLimit, &true).expect("IPV6_RECVHOPLIMIT");
    }
    socket
}

fn set_ttl(socket: &UdpSocket, ttl: u8) {
    if socket.local_addr().expect("its address").is_ipv4() {
        set_ip_ttl(socket, ttl.into()).expect("IP_TTL");
    } else {
        set_ipv6_unicast_hops(socket, Some(ttl)).expect("IPV6_UNICAST_HOPS");
    }
}

/// The time to live of the next datagram that `socket` receives.
pub(crate) fn received_ttl(socket: &UdpSocket) -> i32 {
    let mut buffer = [0; 2000];
    let mut slices = [IoSliceMut::new(&mut buffer)];
    let mut control = cmsg_space!(i32);
    let fd = socket.as_raw_fd();
    let received =
        recvmsg::<SockaddrStorage>(fd, &mut slices, Some(&mut control), MsgFlags::empty());
    let received = received.expect("a datagram");
    let mut parts = received.cmsgs().expect("control messages");
    let ttl = parts.find_map(|part| match part {
        ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => Some(ttl),
        _ => None,
    });
    ttl.expect("a time to live")
}

/// The times to live at the target and back at the client, which send with 40 and 50.
fn both_ttls(end: &str, listen: &str, options: &[&str]) -> [i32; 2] {
    let target = reporting(socket(end));
    let relay = Relay::between(&format!("udp:{listen}"), &named(&target), options);
    let client = reporting(socket(end));
    let asked = format!("{}:{}", end.trim_end_matches(":0"), relay.port());
    client.connect(&asked).expect("it connects");
    set_ttl(&client, 40);
    set_ttl(&target, 50);
    client.send(b"first").expect("it is sent");
    let (_, session) = receive(&target);
    client.send(b"question").expect("it is sent");
    let at_target = received_ttl(&target);
    target.send_to(b"answer", session).expect("it is answered");
    [at_target, received_ttl(&client)]
}

#[test]
fn the_time_to_live_is_the_hosts_or_a_number_or_that_of_the_datagram_less_one() {
    for end in ENDS {
        // The default of the kernel, unless this host has another.
        let host = both_ttls(end, end, &[]);
        assert_eq!(host[0], host[1]);
        assert!(host[0] > 50, "{host:?}");
        assert_eq!(both_ttls(end, end, &["--ttl", "host"]), host);
        assert_eq!(both_ttls(end, end, &["--ttl", "7"]), [7, 7]);
        assert_eq!(both_ttls(end, end, &["--ttl", "keep"]), [39, 49]);
        // A listener on every address has datagrams of both versions.
        assert_eq!(both_ttls(end, ":0", &["--ttl", "keep"]), [39, 49]);
        assert_eq!(both_ttls(end, ":0", &["--ttl", "9"]), [9, 9]);
    }
}

#[test]
fn with_a_time_to_live_that_is_kept_everything_else_is_kept_as_well() {
    const SEGMENT: usize = 500;
    const WHOLE: usize = 7;
    for end in ENDS {
        let target = socket(end);
        let relay = Relay::between(&format!("udp:{end}"), &named(&target), &["--ttl", "keep"]);
        let client = client(&relay);
        for length in [0, 1, 1472, 65_507] {
            client.send(&vec![7; length]).expect("it is sent");
            let (received, session) = receive(&target);
            assert!(received == vec![7; length], "{length} bytes differ");
            target.send_to(&received, session).expect("it is answered");
            let (received, from) = receive(&client);
            assert!(received == vec![7; length], "{length} bytes of answer");
            assert_eq!(from, inet(&relay.address));
        }
        setsockopt(&client, UdpGsoSegment, &(SEGMENT as i32)).expect("segmentation");
        let train: Vec<u8> = (0..WHOLE * SEGMENT + 3).map(|byte| byte as u8).collect();
        client.send(&train).expect("it is sent");
        for piece in train.chunks(SEGMENT) {
            assert!(receive(&target).0 == piece, "{} bytes differ", piece.len());
        }
    }
}

#[test]
fn a_datagram_whose_time_to_live_is_used_up_is_dropped_and_counted() {
    for end in ENDS {
        let scratch = Scratch::new("used-up").expect("a directory");
        let log = Log::below(&scratch);
        let target = socket(end);
        let options = ["--ttl", "keep", "--access-log", &log.path];
        let mut relay = Relay::between(&format!("udp:{end}"), &named(&target), &options);
        let client = client(&relay);
        set_ttl(&client, 1);
        client.send(b"used up").expect("it is sent");
        set_ttl(&client, 2);
        client.send(b"question").expect("it is sent");
        let (received, session) = receive(&target);
        assert_eq!(received, b"question");
        set_ttl(&target, 1);
        target.send_to(b"used up", session).expect("it is sent");
        set_ttl(&target, 2);
        target.send_to(b"answer", session).expect("it is answered");
        assert_eq!(receive(&client).0, b"answer");
        relay.terminate();
        assert_eq!(log.entries()[0]["target_to_client_dropped"], 1);
        relay.wait_logged("to the target 1 datagram, dropped 1 (no room 0, too long 0, no way 1)");
    }
}

/// The don't-fragment bit of the next datagram to `port`, as a raw socket sees it.
fn has_bit(mut raw: &Socket, port: u16) -> bool {
    let mut packet = [0; 2000];
    until_found("a datagram to the target", || {
        let length = raw.read(&mut packet).expect("a packet");
        // An IPv4 header without options, and the port after it.
        (length >= 24 && packet[22..24] == port.to_be_bytes()).then_some(packet[6] & 0x40 != 0)
    })
}

#[test]
fn the_do_not_fragment_bit_is_set_as_configured() {
    if !available(Need::Netns) {
        return;
    }
    let host = Namespace::new("fragments").expect("a namespace");
    let [target, client] = [(); 2].map(|()| host.enter(|| socket("127.0.0.1:0")).expect("entered"));
    let raw = host.enter(|| {
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).expect("a raw socket");
        raw.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        raw
    });
    let raw = raw.expect("entered");
    let [at_target, at_client] =
        [&target, &client].map(|socket| socket.local_addr().expect("its address").port());
    for (when, is_set) in [("auto", true), ("yes", true), ("no", false)] {
        let mut inside = host.command(BINARY);
        inside
            .args(["relay", "udp:127.0.0.1:0", &named(&target)])
            .args(["--dont-fragment", when])
            .env_remove("SPLICED_LOG");
        let relay = Relay::spawn(&mut inside);
        client
            .send_to(b"question", inet(&relay.address))
            .expect("it is sent");
        let (_, session) = receive(&target);
        assert_eq!(has_bit(&raw, at_target), is_set, "{when}");
        target.send_to(b"answer", session).expect("it is answered");
        receive(&client);
        assert_eq!(has_bit(&raw, at_client), is_set, "{when}");
    }
}

/// All four marks of congestion, both ways (RFC 3168).
#[test]
fn congestion_marks_are_kept_both_ways_with_and_without_a_kept_time_to_live() {
    for end in ENDS {
        for options in [&[][..], &["--ttl", "keep"]] {
            let target = socket(end);
            let relay = Relay::between(&format!("udp:{end}"), &named(&target), options);
            let client = client(&relay);
            for mark in 0..4 {
                let session = marked(&client, None, &target, mark);
                marked(&target, Some(session), &client, mark);
            }
        }
    }
}

/// Sends a datagram with `mark` through the relay, and expects it at the other end. Returns who has sent it there.
fn marked(from: &UdpSocket, to: Option<SocketAddr>, at: &UdpSocket, mark: u32) -> SocketAddr {
    let is_ipv4 = from.local_addr().expect("its address").is_ipv4();
    let options = SockRef::from(from);
    match is_ipv4 {
        true => options.set_tos_v4(mark),
        false => options.set_tclass_v6(mark),
    }
    .expect("it is marked");
    let state = UdpSocketState::new(at.into()).expect("its options");
    match to {
        Some(to) => from.send_to(b"marked", to),
        None => from.send(b"marked"),
    }
    .expect("it is sent");
    let mut buffer = [0u8; 64];
    let mut meta = [RecvMeta::default()];
    until("it arrives", || {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        state.recv(at.into(), &mut slices, &mut meta).is_ok()
    });
    assert_eq!(meta[0].ecn, EcnCodepoint::from_bits(mark as u8), "{mark}");
    at.set_nonblocking(false).expect("blocking");
    meta[0].addr
}
