//! A file of packets in the format pcapng (draft-ietf-opsawg-pcapng), with messages as TCP segments.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use splice::bypass::{Captured, Message};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

// Options, by the block that has them.
const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TIME_RESOLUTION: u16 = 9;
const STATISTICS_END: u16 = 3;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;
const PACKET_FLAGS: u16 = 2;

/// LINKTYPE_RAW: packets begin with their IP header.
const RAW: u16 = 101;

/// Timestamps are in units of 10^-9 s.
const NANOSECONDS: u8 = 9;

const TCP_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const PROTOCOL_TCP: u8 = 6;
const HOPS: u8 = 64;
const PUSH_AND_ACK: u8 = 0x18;
const ACK: u8 = 0x10;

/// More than a message that is not bulk has; with its headers it fits into the length of an IPv4 packet.
const SEGMENT_MOST: usize = 65_000;

/// The file.
pub(super) struct File<W> {
    output: W,
    block: Vec<u8>,
    /// One moment by both clocks. If somebody sets the other one meanwhile, the messages stay in order.
    began: (SystemTime, Instant),
}

impl<W: Write> File<W> {
    /// Begins it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn begin(output: W, snap_bytes: u32) -> io::Result<Self> {
        let mut file = Self {
            output,
            block: Vec::new(),
            began: (SystemTime::now(), Instant::now()),
        };
        let mut body = Vec::new();
        body.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0, and a section whose length is not known.
        body.extend([1u16, 0].map(u16::to_le_bytes).concat());
        body.extend(u64::MAX.to_le_bytes());
        let version = concat!("spliced ", env!("CARGO_PKG_VERSION"));
        option(&mut body, SECTION_APPLICATION, version.as_bytes());
        end_of_options(&mut body);
        file.put(SECTION_HEADER, &body)?;

        body.clear();
        body.extend([RAW, 0].map(u16::to_le_bytes).concat());
        let headers = (IPV6_BYTES + TCP_BYTES) as u32;
        body.extend((snap_bytes + headers).to_le_bytes());
        option(&mut body, INTERFACE_NAME, b"spliced-bypass");
        option(&mut body, INTERFACE_TIME_RESOLUTION, &[NANOSECONDS]);
        end_of_options(&mut body);
        file.put(INTERFACE_DESCRIPTION, &body)?;
        Ok(file)
    }

    /// Adds a message: a segment, or several if it is long.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn add(&mut self, message: &Message<'_>) -> io::Result<()> {
        let bytes = message.bytes as usize;
        let mut begin = 0;
        while begin < bytes {
            let end = bytes.min(begin + SEGMENT_MOST);
            let captured = message.payload.len();
            let segment = Segment {
                message,
                sequence: message.sequence.wrapping_add(begin as u32),
                length: end - begin,
                payload: &message.payload[begin.min(captured)..end.min(captured)],
                is_last: end == bytes,
            };
            self.segment(&segment)?;
            begin = end;
        }
        Ok(())
    }

    /// Ends it, with what was captured.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn finish(mut self, captured: Captured) -> io::Result<()> {
        let now = self.timestamp(Instant::now());
        let mut body = Vec::new();
        body.extend(0u32.to_le_bytes());
        body.extend(now);
        option(&mut body, STATISTICS_END, &now);
        let received = captured.messages + captured.lost;
        option(&mut body, STATISTICS_RECEIVED, &received.to_le_bytes());
        option(&mut body, STATISTICS_DROPPED, &captured.lost.to_le_bytes());
        end_of_options(&mut body);
        self.put(INTERFACE_STATISTICS, &body)?;
        self.flush()
    }

    /// Hands everything to the reader.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Its high half first, each half in the order of the file.
    fn timestamp(&self, at: Instant) -> [u8; 8] {
        let (began, began_at) = self.began;
        let later = at.saturating_duration_since(began_at);
        let earlier = began_at.saturating_duration_since(at);
        let since = (began + later).duration_since(UNIX_EPOCH);
        let since = since.unwrap_or(Duration::ZERO).saturating_sub(earlier);
        // Until the year 2554.
        let ns = since.as_nanos() as u64;
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&((ns >> 32) as u32).to_le_bytes());
        bytes[4..].copy_from_slice(&(ns as u32).to_le_bytes());
        bytes
    }

    fn segment(&mut self, of: &Segment<'_>) -> io::Result<()> {
        let mut packet = of.headers();
        let whole = packet.len() + of.length;
        packet.extend(of.payload);
        let mut body = Vec::new();
        body.extend(0u32.to_le_bytes());
        body.extend(self.timestamp(of.message.at));
        body.extend(
            [packet.len(), whole]
                .map(|of| (of as u32).to_le_bytes())
                .concat(),
        );
        body.extend(&packet);
        pad(&mut body);
        if !of.message.is_redirected {
            option(&mut body, COMMENT, b"over TCP");
        }
        // Outbound: captured where it was sent.
        option(&mut body, PACKET_FLAGS, &2u32.to_le_bytes());
        end_of_options(&mut body);
        self.put(ENHANCED_PACKET, &body)
    }

    /// Writes a block, whose body has a length that 4 divides.
    fn put(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let length = (body.len() as u32 + 12).to_le_bytes();
        self.block.clear();
        self.block.extend(kind.to_le_bytes());
        self.block.extend(length);
        self.block.extend(body);
        self.block.extend(length);
        self.output.write_all(&self.block)
    }
}

/// A part of a message.
struct Segment<'a> {
    message: &'a Message<'a>,
    sequence: u32,
    length: usize,
    /// What was captured of it.
    payload: &'a [u8],
    is_last: bool,
}

impl Segment<'_> {
    fn ends(&self) -> [SocketAddr; 2] {
        let Message { client, server, .. } = *self.message;
        match self.message.is_of_client {
            true => [client, server],
            false => [server, client],
        }
    }

    /// Of IP and TCP, with right checksums if all of the payload is there.
    fn headers(&self) -> Vec<u8> {
        let [from, to] = self.ends();
        let mut tcp = Vec::with_capacity(TCP_BYTES);
        tcp.extend([from.port(), to.port()].map(u16::to_be_bytes).concat());
        let numbers = [self.sequence, self.message.acknowledged];
        tcp.extend(numbers.map(u32::to_be_bytes).concat());
        let flags = if self.is_last { PUSH_AND_ACK } else { ACK };
        tcp.extend([((TCP_BYTES / 4) << 4) as u8, flags]);
        // The largest window; then the checksum, and no urgent data.
        tcp.extend([u16::MAX, 0, 0].map(u16::to_be_bytes).concat());
        let length = TCP_BYTES + self.length;
        let mut headers = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, length),
            (from, to) => ipv6(as_ipv6(from), as_ipv6(to), length),
        };
        if self.payload.len() == self.length {
            let addresses = match headers.len() {
                IPV6_BYTES => &headers[8..40],
                _ => &headers[12..20],
            };
            let mut sum = Sum::default();
            sum.add(addresses);
            sum.add(&(length as u32).to_be_bytes());
            sum.add(&[0, PROTOCOL_TCP]);
            sum.add(&tcp);
            sum.add(self.payload);
            tcp[16..18].copy_from_slice(&sum.checksum());
        }
        headers.extend(tcp);
        headers
    }
}

fn as_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, length: usize) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((20 + length as u16).to_be_bytes());
    // No identification; not to be fragmented.
    header.extend([0, 0, 0x40, 0, HOPS, PROTOCOL_TCP, 0, 0]);
    header.extend([from, to].map(|of| of.octets()).concat());
    let mut sum = Sum::default();
    sum.add(&header);
    header[10..12].copy_from_slice(&sum.checksum());
    header
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, length: usize) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((length as u16).to_be_bytes());
    header.extend([PROTOCOL_TCP, HOPS]);
    header.extend([from, to].map(|of| of.octets()).concat());
    header
}

/// The checksum of RFC 1071. All parts but the last have an even length.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(2) {
            let low = word.get(1).copied().unwrap_or(0);
            self.0 += u64::from(u16::from_be_bytes([word[0], low]));
        }
    }

    fn checksum(&self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend([code, value.len() as u16].map(u16::to_le_bytes).concat());
    body.extend(value);
    pad(body);
}

fn end_of_options(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}
