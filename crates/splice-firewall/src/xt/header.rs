//! The fixed part of an iptables rule.

use crate::known::{Answer, Known};
use crate::segment::{DeviceAt, Family, Segment, SegmentEnd, TCP};
use crate::xt::info::Info;

/// The addresses, devices and protocol that a rule tests (`struct ipt_ip`, `struct ip6t_ip6`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    source: Masked,
    destination: Masked,
    input: Masked,
    output: Masked,
    /// `None` for any.
    protocol: Option<u16>,
    /// IPv4: only fragments after the first.
    of_fragments: bool,
    inverted: u8,
}

/// An address or a device name, with a mask. An IPv4 address is the first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Masked {
    value: [u8; 16],
    mask: [u8; 16],
}

/// `IPT_INV_*`, which are also `IP6T_INV_*`.
mod inverted {
    pub(super) const INPUT: u8 = 0x01;
    pub(super) const OUTPUT: u8 = 0x02;
    pub(super) const SOURCE: u8 = 0x08;
    pub(super) const DESTINATION: u8 = 0x10;
    pub(super) const FRAGMENT: u8 = 0x20;
    pub(super) const PROTOCOL: u8 = 0x40;
}

/// `IPT_F_*`.
mod ipv4_flag {
    pub(super) const FRAGMENT: u8 = 0x01;
    pub(super) const GOTO: u8 = 0x02;
}

/// `IP6T_F_*`. `IP6T_F_TOS` is not among them: `ip6_packet_match` (Linux 6.18) ignores it.
mod ipv6_flag {
    pub(super) const PROTOCOL: u8 = 0x01;
    pub(super) const GOTO: u8 = 0x04;
}

impl Header {
    /// Decodes the header, and whether the rule's jump is a goto.
    pub(crate) fn decode(family: Family, entry: Info<'_>) -> Option<(Self, bool)> {
        match family {
            Family::Ipv4 => Self::decode_ipv4(entry),
            Family::Ipv6 => Self::decode_ipv6(entry),
        }
    }

    fn decode_ipv4(entry: Info<'_>) -> Option<(Self, bool)> {
        let address = |at, mask| {
            Some(Masked {
                value: padded(*entry.bytes(at)?),
                mask: padded(*entry.bytes(mask)?),
            })
        };
        let flags = entry.u8(82)?;
        let protocol = entry.u16(80)?;
        let header = Self {
            source: address(0, 8)?,
            destination: address(4, 12)?,
            input: Masked::decode(entry, 16, 48)?,
            output: Masked::decode(entry, 32, 64)?,
            protocol: (protocol != 0).then_some(protocol),
            of_fragments: flags & ipv4_flag::FRAGMENT != 0,
            inverted: entry.u8(83)?,
        };
        Some((header, flags & ipv4_flag::GOTO != 0))
    }

    fn decode_ipv6(entry: Info<'_>) -> Option<(Self, bool)> {
        let flags = entry.u8(131)?;
        let protocol = entry.u16(128)?;
        let asks_protocol = flags & ipv6_flag::PROTOCOL != 0 && protocol != 0;
        let header = Self {
            source: Masked::decode(entry, 0, 32)?,
            destination: Masked::decode(entry, 16, 48)?,
            input: Masked::decode(entry, 64, 96)?,
            output: Masked::decode(entry, 80, 112)?,
            protocol: asks_protocol.then_some(protocol),
            of_fragments: false,
            // ip6_packet_match ignores this bit.
            inverted: entry.u8(132)? & !inverted::FRAGMENT,
        };
        Some((header, flags & ipv6_flag::GOTO != 0))
    }

    /// Whether it matches every packet.
    pub(crate) fn is_unconditional(&self) -> bool {
        let masks = [self.source, self.destination, self.input, self.output];
        masks.iter().all(|masked| masked.mask == [0; 16])
            && self.protocol.is_none()
            && !self.of_fragments
            && self.inverted == 0
    }

    /// As `ip_packet_match` and `ip6_packet_match`.
    pub(crate) fn holds(&self, segment: &Segment<'_>) -> Answer {
        let address = |end: &SegmentEnd, masked: &Masked, bit: u8| {
            masked.holds(&segment.address(end)).invert_if(self.is(bit))
        };
        let device = |device: DeviceAt<'_>, masked: &Masked, bit: u8| {
            masked.holds(&name(device)).invert_if(self.is(bit))
        };
        let protocol = match self.protocol {
            None => Answer::Yes,
            Some(protocol) => {
                Answer::from(protocol == TCP.into()).invert_if(self.is(inverted::PROTOCOL))
            }
        };
        let fragment = Answer::from(!self.of_fragments).invert_if(self.is(inverted::FRAGMENT));
        address(segment.source(), &self.source, inverted::SOURCE)
            .and(address(
                segment.destination(),
                &self.destination,
                inverted::DESTINATION,
            ))
            .and(device(segment.in_device(), &self.input, inverted::INPUT))
            .and(device(segment.out_device(), &self.output, inverted::OUTPUT))
            .and(protocol)
            .and(fragment)
    }

    fn is(&self, bit: u8) -> bool {
        self.inverted & bit != 0
    }
}

impl Masked {
    /// Clears the bits outside of the mask, as the kernel ignores them (`ifname_compare_aligned`,
    /// `ipv6_masked_addr_cmp`): the value of `eth+` contains the `+`.
    fn decode(entry: Info<'_>, value: usize, mask: usize) -> Option<Self> {
        let mut value: [u8; 16] = *entry.bytes(value)?;
        let mask: [u8; 16] = *entry.bytes(mask)?;
        for (value, mask) in value.iter_mut().zip(mask) {
            *value &= mask;
        }
        Some(Self { value, mask })
    }

    fn holds(&self, known: &Known) -> Answer {
        known.and_xor(&self.mask, &[]).equals(&self.value)
    }
}

/// The name of a device, padded with zeros. Without a device the kernel compares with an empty name.
fn name(device: DeviceAt<'_>) -> Known {
    match device {
        DeviceAt::None => Known::bytes(&[0; 16]),
        DeviceAt::Unknown => Known::unknown(16),
        DeviceAt::Known(device) => {
            let mut name = [0; 16];
            for (to, from) in name.iter_mut().zip(device.name.bytes()) {
                *to = from;
            }
            Known::bytes(&name)
        }
    }
}

fn padded(address: [u8; 4]) -> [u8; 16] {
    let mut padded = [0; 16];
    padded[..4].copy_from_slice(&address);
    padded
}
