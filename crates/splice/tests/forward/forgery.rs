//! Packets that their senders did not send.

use std::io::Read;
use std::net::{SocketAddr, SocketAddrV4, TcpStream};

use netlab::Namespace;
use socket2::{Domain, Protocol, Socket, Type};

use crate::stage::Stage;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;
pub(crate) const ECE: u8 = 64;
pub(crate) const CWR: u8 = 128;

/// `IPPROTO_RAW`: the packet has its IP header already.
const WITH_HEADER: i32 = 255;

/// The bytes of an IPv4 header, and of one of TCP, without options.
const HEADER_BYTES: usize = 20;

/// Sends what looks like the packets of a stage's client or server. IPv4 only.
pub(crate) struct Forger {
    at_client: Socket,
    at_server: Socket,
    watch: Watch,
}

/// Gets a copy of all segments that come in at a namespace.
pub(crate) struct Watch(Socket);

/// What each end sends next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) client: u32,
    pub(crate) server: u32,
}

impl Forger {
    pub(crate) fn beside(stage: &Stage) -> Self {
        Self {
            at_client: raw(stage.client_side(), WITH_HEADER.into()),
            at_server: raw(stage.server_side(), WITH_HEADER.into()),
            watch: Watch::on(stage.client_side()),
        }
    }

    /// Where both ends of a connection are once `talk` is over. The server has to have the last word, and to have got
    /// all before that.
    pub(crate) fn numbers(&self, client: &TcpStream, talk: impl FnOnce()) -> Numbers {
        self.watch.segments().for_each(drop);
        talk();
        let ends = [client.local_addr(), client.peer_addr()];
        let [near, far] = ends.map(|end| end.expect("an address").port());
        let with_payload = |seen: &Seen| seen.ports == [far, near] && seen.payload != 0;
        let last = self.watch.segments().filter(with_payload).last();
        let last = last.expect("the server's last word");
        Numbers {
            client: last.ack,
            server: last.seq.wrapping_add(last.payload),
        }
    }

    pub(crate) fn send_as_client(&self, packet: &[u8]) {
        send(&self.at_client, packet);
    }

    pub(crate) fn send_as_server(&self, packet: &[u8]) {
        send(&self.at_server, packet);
    }
}

/// A segment that has come in.
struct Seen {
    /// Its sender's, and its receiver's.
    ports: [u16; 2],
    seq: u32,
    ack: u32,
    flags: u8,
    payload: u32,
}

impl Watch {
    pub(crate) fn on(namespace: &Namespace) -> Self {
        let socket = raw(namespace, Protocol::TCP);
        socket.set_nonblocking(true).expect("set");
        // Room for a flood; what the kernel keeps to itself is more than enough then.
        let _ = socket.set_recv_buffer_size(16 << 20);
        Self(socket)
    }

    /// The source ports of SYNs to a port that have come since the last look.
    pub(crate) fn syns_to(&self, port: u16) -> impl Iterator<Item = u16> {
        let are_they = move |seen: &Seen| seen.flags & (SYN | ACK) == SYN && seen.ports[1] == port;
        self.segments().filter(are_they).map(|seen| seen.ports[0])
    }

    /// The flags of the last SYN from a port.
    pub(crate) fn handshake_from(&self, port: u16) -> u8 {
        let is_it = |seen: &Seen| seen.flags & SYN != 0 && seen.ports[0] == port;
        let syn = self.segments().filter(is_it).last();
        syn.expect("a handshake").flags
    }

    fn segments(&self) -> impl Iterator<Item = Seen> {
        std::iter::from_fn(|| {
            let mut packet = [0; 2048];
            let length = (&self.0).read(&mut packet).ok()?;
            let segment = &packet[HEADER_BYTES..length];
            let port = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
            let word = |at: usize| u32::from(port(at)) << 16 | u32::from(port(at + 2));
            Some(Seen {
                ports: [port(0), port(2)],
                seq: word(4),
                ack: word(8),
                flags: segment[13],
                payload: segment.len() as u32 - u32::from(segment[12] >> 4) * 4,
            })
        })
    }
}

fn raw(namespace: &Namespace, protocol: Protocol) -> Socket {
    let made = namespace.enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(protocol)));
    made.expect("entered").expect("a raw socket")
}

fn send(socket: &Socket, packet: &[u8]) {
    let to: [u8; 4] = packet[16..20].try_into().expect("an address");
    let to = SocketAddr::from((to, 0));
    socket.send_to(packet, &to.into()).expect("sent");
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => panic!("{address} is not IPv4"),
    }
}

/// A segment without payload, as far as its receiver is to see it.
#[derive(Clone, Debug)]
pub(crate) struct Forged {
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) ip_options: &'static [u8],
    pub(crate) tcp_options: &'static [u8],
    /// The field of IPv4 that has the flags and the offset of a fragment.
    pub(crate) fragment: u16,
    pub(crate) payload: &'static [u8],
}

impl Forged {
    pub(crate) fn new(flags: u8, [seq, ack]: [u32; 2]) -> Self {
        Self {
            flags,
            seq,
            ack,
            ip_options: &[],
            tcp_options: &[],
            fragment: 0,
            payload: &[],
        }
    }

    pub(crate) fn packet(&self, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        let [from, to] = [from, to].map(v4);
        let header_words = (HEADER_BYTES + self.tcp_options.len()) / 4;
        let mut segment = Vec::new();
        segment.extend(from.port().to_be_bytes());
        segment.extend(to.port().to_be_bytes());
        segment.extend(self.seq.to_be_bytes());
        segment.extend(self.ack.to_be_bytes());
        segment.extend([
            (header_words as u8) << 4,
            self.flags,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
        ]);
        segment.extend(self.tcp_options);
        segment.extend(self.payload);
        let mut pseudo = Vec::new();
        pseudo.extend(from.ip().octets());
        pseudo.extend(to.ip().octets());
        pseudo.extend([0, 6]);
        pseudo.extend((segment.len() as u16).to_be_bytes());
        pseudo.extend(&segment);
        segment[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
        ip(6, [from, to], (self.ip_options, self.fragment), &segment)
    }
}

/// A router says that a segment from `from` to `to` was too long.
pub(crate) fn too_big(from: SocketAddr, to: SocketAddr, seq: u32, mtu: u16) -> Vec<u8> {
    let mut quoted = Forged::new(ACK, [seq, 0]).packet(from, to);
    // Else it would have been short enough.
    quoted[2..4].copy_from_slice(&(mtu + 1).to_be_bytes());
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(quoted);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let [from, to] = [from, to].map(v4);
    ip(1, [to, from], (&[], 0), &message)
}

/// A packet. The kernel writes its length and checksum (raw(7)), but not those of a quoted one.
fn ip(
    protocol: u8,
    [from, to]: [SocketAddrV4; 2],
    (options, fragment): (&[u8], u16),
    message: &[u8],
) -> Vec<u8> {
    let header = HEADER_BYTES + options.len();
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(((header + message.len()) as u16).to_be_bytes());
    packet.extend([0, 7]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    packet.extend(options);
    packet.extend(message);
    packet
}

/// RFC 1071
fn checksum(bytes: &[u8]) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut sum: u32 = pairs
        .iter()
        .map(|pair| u32::from(u16::from_be_bytes(*pair)))
        .sum();
    sum += rest.first().map_or(0, |last| u32::from(*last) << 8);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
