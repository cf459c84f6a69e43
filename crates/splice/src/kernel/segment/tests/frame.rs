//! Ethernet frames with a TCP segment that no socket has sent.

use std::net::{IpAddr, SocketAddr};

use netlab::Lab;

use super::run;

/// Of the relay's devices in such a lab, a locally administered one: the program takes what is sent to its host.
const HARDWARE_ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Gives the relay's devices the address that frames are sent to.
pub(super) fn take_frames(lab: &Lab) {
    let [one, .., last] = HARDWARE_ADDRESS;
    for device in [Lab::TO_CLIENT, Lab::TO_SERVER] {
        let address = format!("link set {device} address {one:02x}:0:0:0:0:{last:02x}");
        run(lab.relay(), "ip", &address);
    }
}

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
/// Of the checksum in a TCP header.
const CHECKSUM: std::ops::Range<usize> = 16..18;

/// What the checksum of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    Right,
    Wrong,
    /// A device is still to compute it: it holds the sum of the pseudo-header.
    Unfinished,
}

/// A segment from one address to another.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// TSval and TSecr.
    pub(super) timestamps: Option<[u32; 2]>,
    pub(super) payload: Vec<u8>,
    pub(super) checksum: Checksum,
}

impl Frame {
    /// One without options and payload.
    pub(super) fn new([from, to]: [SocketAddr; 2], [seq, ack]: [u32; 2], flags: u8) -> Self {
        Self {
            from,
            to,
            seq,
            ack,
            flags,
            window: u16::MAX,
            timestamps: None,
            payload: Vec::new(),
            checksum: Checksum::Right,
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some([tsval, tsecr]) = self.timestamps {
            options.extend([1, 1, 8, 10]);
            options.extend(tsval.to_be_bytes());
            options.extend(tsecr.to_be_bytes());
        }
        let mut segment = Vec::new();
        segment.extend(self.from.port().to_be_bytes());
        segment.extend(self.to.port().to_be_bytes());
        segment.extend(self.seq.to_be_bytes());
        segment.extend(self.ack.to_be_bytes());
        segment.extend([((TCP_BYTES + options.len()) as u8 / 4) << 4, self.flags]);
        segment.extend(self.window.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend(options);
        segment.extend(&self.payload);
        let checksum = match self.checksum {
            Checksum::Right => !sum(self.from.ip(), self.to.ip(), &segment),
            Checksum::Wrong => !sum(self.from.ip(), self.to.ip(), &segment) ^ 0x5555,
            Checksum::Unfinished => folded(pseudo(self.from.ip(), self.to.ip(), segment.len())),
        };
        segment[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        let mut frame = HARDWARE_ADDRESS.to_vec();
        frame.extend([0; 6]);
        match (self.from, self.to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                let length = (IPV4_BYTES + segment.len()) as u16;
                frame.extend([8, 0, 0x45, 0]);
                frame.extend(length.to_be_bytes());
                frame.extend([0, 0, 0, 0, 64, 6, 0, 0]);
                frame.extend(from.ip().octets());
                frame.extend(to.ip().octets());
                let checksum = !folded(words(&frame[ETHERNET_BYTES..]));
                frame[ETHERNET_BYTES + 10..ETHERNET_BYTES + 12]
                    .copy_from_slice(&checksum.to_be_bytes());
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((segment.len() as u16).to_be_bytes());
                frame.extend([6, 64]);
                frame.extend(from.ip().octets());
                frame.extend(to.ip().octets());
            }
            _ => panic!("one version of IP"),
        }
        frame.extend(segment);
        frame
    }

    /// Where TCP begins in it.
    fn headers(&self) -> usize {
        ETHERNET_BYTES
            + match self.from {
                SocketAddr::V4(_) => IPV4_BYTES,
                SocketAddr::V6(_) => IPV6_BYTES,
            }
    }

    /// Whether a receiver finds its checksum right. One that is still to be computed is so by chance in 1 of 65 536.
    pub(super) fn sums_up(&self) -> bool {
        let segment = &self.bytes()[self.headers()..];
        sum(self.from.ip(), self.to.ip(), segment) == u16::MAX
    }

    /// The same segment as it is in `frame`: what became of it.
    pub(super) fn read(&self, frame: &[u8]) -> Self {
        let segment = &frame[self.headers()..];
        let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().expect("four"));
        Self {
            seq: word(4),
            ack: word(8),
            flags: segment[13],
            window: u16::from_be_bytes([segment[14], segment[15]]),
            timestamps: self.timestamps.map(|_| [word(24), word(28)]),
            ..self.clone()
        }
    }
}

/// The frame of a segment whose packet `change` gives another form.
pub(super) fn in_frame(frame: &Frame, change: impl FnOnce(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let bytes = frame.bytes();
    let (header, packet) = bytes.split_at(ETHERNET_BYTES);
    [header, &change(packet)].concat()
}

/// RFC 9293, 3.1.
pub(super) fn sum(from: IpAddr, to: IpAddr, segment: &[u8]) -> u16 {
    folded(pseudo(from, to, segment.len()) + words(segment))
}

pub(super) fn pseudo(from: IpAddr, to: IpAddr, length: usize) -> u32 {
    let address = |ip| match ip {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    address(from) + address(to) + 6 + length as u32
}

pub(super) fn words(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
    bytes.chunks(2).map(word).map(u32::from).sum()
}

pub(super) fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
