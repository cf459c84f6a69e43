//! Connections that fill the table of a relay that forwards, and do nothing else.
//!
//! Neither end has a socket: the limit of open files is far below the number of connections. Both ends have addresses
//! that nobody has, and shake hands by raw segments. All clients begin with the same number, and so do all servers, so
//! that each segment is known before anything has come.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netlab::{Lab, Namespace};
use socket2::{Domain, Protocol, Socket, Type};

use crate::forward::{FIRST_CROWD_PORT, said};
use crate::relay::Relay;
use crate::site::{OWN_PORTS, PATIENCE, Site};

/// In the network between client and relay.
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 77);

/// In the network between relay and server.
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 77);

/// So many ports of that server. With one more, and the server of the measured connection, the table of the library
/// would be full (`SLOTS` of `kernel/segment/forward`).
const SERVERS: u16 = 13;

/// The numbers of the first segments.
const CLIENT_SEQ: u32 = 1_000;
const SERVER_SEQ: u32 = 2_000;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// IPPROTO_RAW: the packet brings its IP header (raw(7)).
const RAW: i32 = 255;

const TCP: u8 = 6;
/// A TCP header without options, and an IPv4 header before it.
const SEGMENT_BYTES: usize = 20;
const PACKET_BYTES: usize = 20 + SEGMENT_BYTES;

/// How often to ask the relay how many there are.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where the relay sends what is for an address of the crowd: nobody's, so that both ends drop it before they look.
/// Without an entry, segments would wait for a neighbour, and their sender for them.
const NOBODY: &str = "02:00:00:00:00:77";

/// How the crowd comes together.
#[derive(Debug)]
pub(crate) struct Crowd;

impl Crowd {
    /// All of them: every port that the relay has towards each of the servers.
    pub(crate) const CONNECTIONS: usize =
        SERVERS as usize * (OWN_PORTS.end - OWN_PORTS.start) as usize;

    /// What the relay is told so that the crowd can come.
    pub(crate) fn arguments() -> [String; 4] {
        let (crowd, at) = ("--crowd".into(), "--crowd-at".into());
        [crowd, SERVERS.to_string(), at, SERVER.to_string()]
    }

    /// Opens all connections through `relay`, and waits until it has them.
    pub(crate) fn gather(site: &Site, relay: &Relay) -> Result<()> {
        let open = |from: &Namespace| from.enter(Raw::open)?;
        let (client, server) = (open(site.lab.client())?, open(site.lab.server())?);
        leads_nowhere(site, CLIENT, Lab::TO_CLIENT)?;
        leads_nowhere(site, SERVER, Lab::TO_SERVER)?;
        for port in (FIRST_CROWD_PORT..).take(SERVERS.into()) {
            let relay_near = SocketAddrV4::new(Lab::RELAY_V4, port);
            let server_at = SocketAddrV4::new(SERVER, port);
            for own in OWN_PORTS {
                let client_at = SocketAddrV4::new(CLIENT, own);
                client.send(client_at, relay_near, SYN, CLIENT_SEQ, 0)?;
            }
            // Which client has which port does not matter.
            for own in OWN_PORTS {
                let relay_far = SocketAddrV4::new(Lab::RELAY_FAR_V4, own);
                let ack = CLIENT_SEQ + 1;
                server.send(server_at, relay_far, SYN | ACK, SERVER_SEQ, ack)?;
            }
            for own in OWN_PORTS {
                let client_at = SocketAddrV4::new(CLIENT, own);
                let (seq, ack) = (CLIENT_SEQ + 1, SERVER_SEQ + 1);
                client.send(client_at, relay_near, ACK, seq, ack)?;
            }
        }
        let all = said(Self::CONNECTIONS);
        let (mut last, mut since) = (relay.said(), Instant::now());
        while last != all {
            ensure!(
                since.elapsed() < PATIENCE,
                "a crowd of {} is not complete, and nothing has changed for {} s: {last}",
                Self::CONNECTIONS,
                PATIENCE.as_secs()
            );
            thread::sleep(LOOK_EVERY);
            let now = relay.said();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }
}

fn leads_nowhere(site: &Site, address: Ipv4Addr, device: &str) -> Result<()> {
    let mut command = site.lab.relay().command("ip");
    command.args(["neighbour", "replace", &address.to_string()]);
    command.args(["lladdr", NOBODY, "nud", "permanent", "dev", device]);
    let status = command.status().context("cannot run ip")?;
    ensure!(status.success(), "ip refuses a neighbour on {device}");
    Ok(())
}

/// Sends segments without a connection.
struct Raw(Socket);

impl Raw {
    fn open() -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)));
        Ok(Self(socket.context("cannot open a raw socket")?))
    }

    /// Sends a segment with no payload and no options.
    fn send(
        &self,
        from: SocketAddrV4,
        to: SocketAddrV4,
        flags: u8,
        seq: u32,
        ack: u32,
    ) -> Result<()> {
        let mut packet = Vec::with_capacity(PACKET_BYTES);
        // Version and header length. The kernel fills in the length, the identification and the checksum.
        packet.extend([0x45, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend([64, TCP, 0, 0]);
        packet.extend(from.ip().octets());
        packet.extend(to.ip().octets());
        let mut segment = [0; SEGMENT_BYTES];
        segment[..2].copy_from_slice(&from.port().to_be_bytes());
        segment[2..4].copy_from_slice(&to.port().to_be_bytes());
        segment[4..8].copy_from_slice(&seq.to_be_bytes());
        segment[8..12].copy_from_slice(&ack.to_be_bytes());
        // Five words of header; a window of 64 KiB.
        segment[12..16].copy_from_slice(&[0x50, flags, 0xff, 0xff]);
        let checksum = checksum([*from.ip(), *to.ip()], &segment);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(segment);
        self.0
            .send_to(&packet, &SocketAddrV4::new(*to.ip(), 0).into())
            .context("a raw segment did not go out")?;
        Ok(())
    }
}

/// Of a segment between two addresses (RFC 9293, 3.1), whose own field is zero.
fn checksum(ends: [Ipv4Addr; 2], segment: &[u8; SEGMENT_BYTES]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        let pairs = bytes.chunks_exact(2);
        pairs
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum()
    };
    let addresses: u32 = ends.iter().map(|end| words(&end.octets())).sum();
    let sum = addresses + u32::from(TCP) + SEGMENT_BYTES as u32 + words(segment);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}
