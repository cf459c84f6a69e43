//! `-m tcp` and `-m multiport`.

use crate::known::{Answer, Known};
use crate::segment::{Segment, SegmentEnd};
use crate::xt::Info;

/// `struct xt_tcp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    source: Range,
    destination: Range,
    /// A required TCP option; 0 for none.
    option: u8,
    flags_mask: u8,
    flags: u8,
    inverted: u8,
}

/// `XT_TCP_INV_*`.
mod inverted {
    pub(super) const SOURCE: u8 = 0x01;
    pub(super) const DESTINATION: u8 = 0x02;
    pub(super) const FLAGS: u8 = 0x04;
    pub(super) const OPTION: u8 = 0x08;
}

/// The offset of the flags in a TCP header.
const FLAGS_OFFSET: usize = 13;

impl Tcp {
    pub(super) fn decode(info: Info<'_>) -> Option<Self> {
        Some(Self {
            source: Range(info.u16(0)?, info.u16(2)?),
            destination: Range(info.u16(4)?, info.u16(6)?),
            option: info.u8(8)?,
            flags_mask: info.u8(9)?,
            flags: info.u8(10)?,
            inverted: info.u8(11)?,
        })
    }

    /// As `tcp_mt`.
    pub(super) fn holds(&self, segment: &Segment<'_>) -> Answer {
        let inverted = |bit: u8| self.inverted & bit != 0;
        let source = self.source.has(segment.source());
        let destination = self.destination.has(segment.destination());
        let flags = segment
            .transport_header
            .part(FLAGS_OFFSET, 1)
            .and_xor(&[self.flags_mask], &[0])
            .equals(&[self.flags]);
        // The options of a segment are unknown, and so is the inverse.
        let option = match self.option {
            0 => Answer::Yes,
            _ => Answer::Maybe.invert_if(inverted(inverted::OPTION)),
        };
        source
            .invert_if(inverted(inverted::SOURCE))
            .and(destination.invert_if(inverted(inverted::DESTINATION)))
            .and(flags.invert_if(inverted(inverted::FLAGS)))
            .and(option)
    }
}

/// `struct xt_multiport_v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Multiport {
    side: Side,
    ranges: Vec<Range>,
    inverted: bool,
}

/// `enum xt_multiport_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
    Either,
}

impl Multiport {
    pub(super) fn decode(info: Info<'_>) -> Option<Self> {
        let side = match info.u8(0)? {
            0 => Side::Source,
            1 => Side::Destination,
            2 => Side::Either,
            _ => return None,
        };
        let ports: &[u8; 2 * MOST_PORTS] = info.bytes(2)?;
        let starts_range: &[u8; MOST_PORTS] = info.bytes(2 + 2 * MOST_PORTS)?;
        let count = usize::from(info.u8(1)?);
        let ports: Vec<u16> = ports
            .chunks_exact(2)
            .take(count)
            .map(|port| u16::from_ne_bytes([port[0], port[1]]))
            .collect();
        let mut ranges = Vec::new();
        let mut at = 0;
        while let Some(from) = ports.get(at) {
            if starts_range[at] != 0 {
                at += 1;
            }
            // iptables writes no range without an end.
            ranges.push(Range(*from, *ports.get(at)?));
            at += 1;
        }
        Some(Self {
            side,
            ranges,
            inverted: info.u8(2 + 3 * MOST_PORTS)? != 0,
        })
    }

    /// As `multiport_mt`.
    pub(super) fn holds(&self, segment: &Segment<'_>) -> Answer {
        let any = |end: &SegmentEnd| {
            self.ranges
                .iter()
                .fold(Answer::No, |any, range| any.or(range.has(end)))
        };
        match self.side {
            Side::Source => any(segment.source()),
            Side::Destination => any(segment.destination()),
            Side::Either => any(segment.source()).or(any(segment.destination())),
        }
        .invert_if(self.inverted)
    }
}

/// `XT_MULTI_PORTS`.
const MOST_PORTS: usize = 15;

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range(u16, u16);

impl Range {
    fn has(self, end: &SegmentEnd) -> Answer {
        let port: Known = Segment::port(end);
        port.lies_within(&self.0.to_be_bytes(), &self.1.to_be_bytes())
    }
}
