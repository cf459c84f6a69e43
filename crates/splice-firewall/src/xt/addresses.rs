//! `-m iprange` and `-m addrtype`.

use crate::known::Answer;
use crate::segment::{Family, Segment, SegmentEnd};
use crate::xt::Info;

/// `struct xt_iprange_mtinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges {
    source: (Address, Address),
    destination: (Address, Address),
    flags: u8,
}

/// `union nf_inet_addr`, of which IPv4 has the first four bytes.
type Address = [u8; 16];

/// `IPRANGE_*`.
mod iprange {
    pub(super) const SOURCE: u8 = 1 << 0;
    pub(super) const DESTINATION: u8 = 1 << 1;
    pub(super) const SOURCE_INVERTED: u8 = 1 << 4;
    pub(super) const DESTINATION_INVERTED: u8 = 1 << 5;
}

impl Ranges {
    pub(super) fn decode(info: Info<'_>) -> Option<Self> {
        Some(Self {
            source: (*info.bytes(0)?, *info.bytes(16)?),
            destination: (*info.bytes(32)?, *info.bytes(48)?),
            flags: info.u8(64)?,
        })
    }

    /// As `iprange_mt4` and `iprange_mt6`.
    pub(super) fn holds(&self, segment: &Segment<'_>) -> Answer {
        let ask = |asked: u8, inverted: u8, end: &SegmentEnd, (from, to): &(Address, Address)| {
            if self.flags & asked == 0 {
                return Answer::Yes;
            }
            segment
                .address(end)
                .lies_within(from, to)
                .invert_if(self.flags & inverted != 0)
        };
        ask(
            iprange::SOURCE,
            iprange::SOURCE_INVERTED,
            segment.source(),
            &self.source,
        )
        .and(ask(
            iprange::DESTINATION,
            iprange::DESTINATION_INVERTED,
            segment.destination(),
            &self.destination,
        ))
    }
}

/// `struct xt_addrtype_info` and `_v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressTypes {
    source: Types,
    destination: Types,
    /// Only addresses of the packet's device are local.
    of_device: bool,
}

/// The accepted types of an address: `XT_ADDRTYPE_*`; an empty mask accepts all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Types {
    mask: u16,
    inverted: bool,
}

/// `XT_ADDRTYPE_*` in a mask.
mod types {
    pub(super) const UNSPEC: u16 = 1 << 0;
    pub(super) const UNICAST: u16 = 1 << 1;
    pub(super) const LOCAL: u16 = 1 << 2;
    pub(super) const ANYCAST: u16 = 1 << 4;
    pub(super) const MULTICAST: u16 = 1 << 5;
    pub(super) const UNREACHABLE: u16 = 1 << 7;
    pub(super) const PROHIBIT: u16 = 1 << 8;
    /// Types that need a route lookup in `match_type6`.
    pub(super) const OF_ROUTE: u16 = LOCAL | ANYCAST | UNREACHABLE | PROHIBIT;
}

/// `XT_ADDRTYPE_*` in `flags`.
mod flags {
    pub(super) const INVERT_SOURCE: u32 = 0x1;
    pub(super) const INVERT_DESTINATION: u32 = 0x2;
    /// `XT_ADDRTYPE_LIMIT_IFACE_IN` and `_OUT`.
    pub(super) const LIMIT: u32 = 0x4 | 0x8;
}

impl AddressTypes {
    pub(super) fn decode_0(info: Info<'_>) -> Option<Self> {
        Some(Self {
            source: Types {
                mask: info.u16(0)?,
                inverted: info.u32(4)? != 0,
            },
            destination: Types {
                mask: info.u16(2)?,
                inverted: info.u32(8)? != 0,
            },
            of_device: false,
        })
    }

    pub(super) fn decode_1(info: Info<'_>) -> Option<Self> {
        let flags = info.u32(4)?;
        Some(Self {
            source: Types {
                mask: info.u16(0)?,
                inverted: flags & flags::INVERT_SOURCE != 0,
            },
            destination: Types {
                mask: info.u16(2)?,
                inverted: flags & flags::INVERT_DESTINATION != 0,
            },
            of_device: flags & flags::LIMIT != 0,
        })
    }

    /// As `addrtype_mt_v0` and `addrtype_mt_v1`.
    pub(super) fn holds(&self, segment: &Segment<'_>) -> Answer {
        self.ask(&self.source, segment.source(), segment)
            .and(self.ask(&self.destination, segment.destination(), segment))
    }

    fn ask(&self, asked: &Types, end: &SegmentEnd, segment: &Segment<'_>) -> Answer {
        if asked.mask == 0 {
            return Answer::Yes;
        }
        let is_local = match end.is_local {
            // It may belong to another device.
            Answer::Yes if self.of_device => Answer::Maybe,
            answer => answer,
        };
        match segment.family() {
            Family::Ipv4 => ipv4(asked.mask, is_local),
            Family::Ipv6 => ipv6(asked.mask, is_local),
        }
        .invert_if(asked.inverted)
    }
}

/// An address has exactly one type (`inet_dev_addr_type`): an end of a connection is local or unicast.
fn ipv4(mask: u16, is_local: Answer) -> Answer {
    let within = |bit: u16| Answer::from(mask & bit != 0);
    match is_local {
        Answer::Yes => within(types::LOCAL),
        Answer::No => within(types::UNICAST),
        Answer::Maybe if within(types::LOCAL) == within(types::UNICAST) => within(types::LOCAL),
        Answer::Maybe => Answer::Maybe,
    }
}

/// As `match_type6`: every local address is also unicast, and one of the types that were looked up must
/// match.
fn ipv6(mask: u16, is_local: Answer) -> Answer {
    if mask & (types::MULTICAST | types::UNSPEC) != 0 {
        return Answer::No;
    }
    if mask & types::OF_ROUTE == 0 {
        return Answer::Yes;
    }
    let local = is_local.and((mask & types::LOCAL != 0).into());
    let others = mask & types::OF_ROUTE & !types::LOCAL;
    local.or(if others == 0 {
        Answer::No
    } else {
        Answer::Maybe
    })
}
