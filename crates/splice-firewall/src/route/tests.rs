use std::net::{SocketAddrV6, UdpSocket};
use std::os::fd::OwnedFd;

use netlab::{Namespace, Need, available};
use netlink_packet_core::{NLMSG_ERROR, NetlinkBuffer};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::*;

/// `RTM_NEWROUTE`.
const NEW_ROUTE: u16 = 24;

/// A kernel that answers the next request with a message.
fn answering(kind: u16, payload: &[u8]) -> (Routes, OwnedFd) {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a pair");
    let mut message = vec![0; 16];
    {
        let mut header = NetlinkBuffer::new(&mut message);
        header.set_length((16 + payload.len()) as u32);
        header.set_message_type(kind);
        header.set_sequence_number(1);
    }
    message.extend(payload);
    send(&theirs, &message, SendFlags::empty()).expect("sent");
    (Routes(Socket::of(ours)), theirs)
}

#[test]
fn only_the_kernel_says_that_there_is_no_route() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
    let is_local_from = |from, kind, payload: &[u8]| {
        let (mut routes, _kernel) = answering(kind, payload);
        routes.is_local(address, from).ok()
    };
    let is_local = |kind, payload: &[u8]| is_local_from(None, kind, payload);
    for errno in [
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::ACCESS,
        Errno::INVAL,
    ] {
        let payload = (-errno.raw_os_error()).to_ne_bytes();
        assert_eq!(is_local(NLMSG_ERROR, &payload), Some(false), "{errno}");
    }
    for errno in [Errno::PERM, Errno::NOBUFS, Errno::NOMEM] {
        let payload = (-errno.raw_os_error()).to_ne_bytes();
        assert_eq!(is_local(NLMSG_ERROR, &payload), None, "{errno}");
    }
    let no_such_source = (-Errno::INVAL.raw_os_error()).to_ne_bytes();
    let from = Some(address);
    assert_eq!(is_local_from(from, NLMSG_ERROR, &no_such_source), None);
    // An acknowledgement, and what is too short for a route.
    assert_eq!(is_local(NLMSG_ERROR, &[0; 4]), None);
    assert_eq!(is_local(NEW_ROUTE, &[0; 8]), None);
    let mut route = [0; 12];
    assert_eq!(is_local(NEW_ROUTE, &route), Some(false));
    route[KIND_AT] = rtn::LOCAL;
    assert_eq!(is_local(NEW_ROUTE, &route), Some(true));
}

#[test]
fn the_loopback_address_is_found_and_leads_to_lo() -> io::Result<()> {
    let mut routes = Routes::new()?;
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    assert!(routes.addresses()?.contains(&(1, loopback)));
    let expected = Route {
        device: 1,
        source: loopback,
        next_hop: Some(loopback),
        encapsulates: false,
        mtu: None,
    };
    assert_eq!(routes.to(loopback)?, Some(expected));
    for loopback in [loopback, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        for from in [None, Some((loopback, 81).into())] {
            assert!(routes.is_local((loopback, 80).into(), from)?);
        }
    }
    // For documentation (RFC 5737, RFC 3849).
    for address in ["203.0.113.1:80", "[2001:db8::1]:80"] {
        let address = address.parse().map_err(io::Error::other)?;
        assert!(!routes.is_local(address, None)?, "{address}");
    }
    Ok(())
}

/// Routers have the same one on each interface, and so may their neighbours.
#[test]
fn a_link_local_address_is_one_of_its_interface() -> io::Result<()> {
    if !available(Need::Netns) {
        return Ok(());
    }
    let here = Namespace::new("linklocal").map_err(io::Error::other)?;
    for arguments in [
        "link add one type veth peer name two",
        "link set one up",
        "link set two up",
        "addr add fe80::1/64 dev one nodad",
    ] {
        let added = here.command("ip").args(arguments.split(' ')).status()?;
        assert!(added.success(), "ip {arguments}");
    }
    let is_local = |device| -> io::Result<bool> {
        let mut routes = Routes::new()?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let scope = name_to_index(&socket, device)?;
        let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        routes.is_local(SocketAddrV6::new(ip, 53, 0, scope).into(), None)
    };
    for (device, expected) in [("one", true), ("two", false)] {
        let is_local = here.enter(|| is_local(device)).map_err(io::Error::other)?;
        assert_eq!(is_local?, expected, "{device}");
    }
    Ok(())
}
