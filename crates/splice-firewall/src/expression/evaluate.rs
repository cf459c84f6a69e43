//! Evaluates an expression for a segment.

use super::{
    Comparison, Data, Expression, META_L4PROTO, META_MARK, META_NFPROTO, Register, Short, Source,
    Target,
};
use crate::action::Action;
use crate::known::{Answer, Known, MOST_BYTES};
use crate::segment::{Device, DeviceAt, Family, Segment, SegmentEnd, TCP};

/// All registers, while a rule is evaluated.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    value: [u8; MOST_BYTES],
    known: [u8; MOST_BYTES],
}

impl Registers {
    /// Empty registers. A rule reads only registers that it has set, so the next rule can reuse them.
    pub(crate) fn new() -> Self {
        Self {
            value: [0; MOST_BYTES],
            known: [0; MOST_BYTES],
        }
    }

    fn get(&self, from: Register, length: usize) -> Known {
        let from = usize::from(from);
        let mut part = Known::unknown(0);
        part.set(self.value.get(from..), self.known.get(from..), length);
        part
    }

    /// A load fills whole registers of 4 bytes (`nft_reg_store8`, `_store16`).
    fn set(&mut self, to: Register, value: &Known) {
        let to = usize::from(to);
        let end = (to + value.len().next_multiple_of(4)).min(MOST_BYTES);
        let length = value.len().min(end.saturating_sub(to));
        let Some(filled) = to.checked_add(length).filter(|filled| *filled <= end) else {
            return;
        };
        self.value[to..filled].copy_from_slice(&value.value()[..length]);
        self.known[to..filled].copy_from_slice(&value.mask()[..length]);
        self.value[filled..end].fill(0);
        self.known[filled..end].fill(0xff);
    }

    fn forget(&mut self, from: Register) {
        let from = usize::from(from);
        // The source's length is not known; no load fills more than 16 bytes.
        for at in from..(from + 16).min(MOST_BYTES) {
            (self.value[at], self.known[at]) = (0, 0);
        }
    }
}

/// The result of an expression.
pub(crate) struct Evaluated {
    /// Whether the rule continues.
    pub(crate) goes_on: Answer,
    /// Further actions: verdicts of a map, side effects of its elements.
    pub(crate) actions: Vec<(Answer, Action)>,
}

impl Expression {
    pub(crate) fn evaluate(&self, segment: &Segment<'_>, registers: &mut Registers) -> Evaluated {
        let mut actions = Vec::new();
        let goes_on = match self {
            Self::Immediate { to, value } => {
                registers.set(*to, &Known::bytes(value));
                Answer::Yes
            }
            Self::Compare { from, how, value } => {
                compare(&registers.get(*from, value.len()), *how, value)
            }
            Self::Ask {
                what,
                is_equal,
                value,
            } => what.is(value, segment).invert_if(!is_equal),
            Self::Range {
                from,
                low,
                high,
                inverted,
            } => registers
                .get(*from, low.len())
                .lies_within(low, high)
                .invert_if(*inverted),
            Self::MaskXor { from, to, and, xor } => {
                let value = registers.get(*from, and.len()).and_xor(and, xor);
                registers.set(*to, &value);
                Answer::Yes
            }
            Self::Swap {
                from,
                to,
                length,
                size,
            } => {
                let value = registers.get(*from, usize::from(*length));
                registers.set(*to, &swapped(&value, usize::from(*size)));
                Answer::Yes
            }
            Self::Lookup {
                from,
                to,
                set,
                inverted,
            } => {
                let (found, hit) = set.look_up(&registers.get(*from, set.key_bytes));
                for (answer, element) in &found {
                    if let Some(effect) = &element.effect {
                        actions.push((*answer, Action::Effect(effect.clone())));
                    }
                    if let (Some(Target::Verdict), Some(Data::Verdict(action))) =
                        (to, &element.data)
                    {
                        actions.push((*answer, action.clone()));
                    }
                }
                if let Some(Target::Register(to)) = to {
                    match found.as_slice() {
                        [(Answer::Yes, element)] => match &element.data {
                            Some(Data::Value(value)) => registers.set(*to, &Known::bytes(value)),
                            _ => registers.forget(*to),
                        },
                        _ => registers.forget(*to),
                    }
                }
                hit.invert_if(*inverted)
            }
            Self::Load { to, what } => what.load_into(registers, *to, segment),
            Self::Absent => Answer::No,
        };
        Evaluated { goes_on, actions }
    }
}

fn compare(found: &Known, how: Comparison, value: &[u8]) -> Answer {
    let zero = [0; MOST_BYTES];
    match how {
        Comparison::Equal => found.equals(value),
        Comparison::NotEqual => found.equals(value).not(),
        Comparison::LessOrEqual => found.lies_within(&zero, value),
        Comparison::Greater => found.lies_within(&zero, value).not(),
        Comparison::GreaterOrEqual => found.lies_within(value, &[0xff; MOST_BYTES]),
        Comparison::Less => found.lies_within(value, &[0xff; MOST_BYTES]).not(),
    }
}

fn swapped(value: &Known, size: usize) -> Known {
    if cfg!(target_endian = "big") {
        return *value;
    }
    let swap = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.chunks_mut(size).for_each(<[u8]>::reverse);
        bytes
    };
    Known::masked(&swap(value.value()), &swap(value.mask()))
}

/// Keys of `NFT_META_*` (`nft_meta_get_eval`, 6.18).
mod meta {
    pub(super) const PROTOCOL: u32 = 1;
    pub(super) const IIF: u32 = 4;
    pub(super) const OIF: u32 = 5;
    pub(super) const IIFNAME: u32 = 6;
    pub(super) const OIFNAME: u32 = 7;
    pub(super) const IIFTYPE: u32 = 8;
    pub(super) const OIFTYPE: u32 = 9;
    pub(super) const PKTTYPE: u32 = 19;
    pub(super) const SECPATH: u32 = 25;
    pub(super) const SDIF: u32 = 33;
    pub(super) const SDIFNAME: u32 = 34;
}

/// `NFT_CT_*`.
mod ct {
    pub(super) const STATE: u32 = 0;
    pub(super) const DIRECTION: u32 = 1;
    pub(super) const STATUS: u32 = 2;
    pub(super) const L3PROTOCOL: u32 = 7;
    pub(super) const PROTOCOL: u32 = 10;
    /// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
    pub(super) const ESTABLISHED: u32 = 1 << 1;
    /// `IPS_SEEN_REPLY` and `IPS_CONFIRMED`: an established connection has both.
    pub(super) const STATUS_BITS: u32 = 1 << 1 | 1 << 3;
}

/// `enum nft_fib_result` and `enum nft_fib_flags`.
mod fib {
    pub(super) const OIF: u32 = 1;
    pub(super) const OIFNAME: u32 = 2;
    pub(super) const ADDRTYPE: u32 = 3;
    pub(super) const SADDR: u32 = 1;
    pub(super) const DADDR: u32 = 1 << 1;
    pub(super) const MARK: u32 = 1 << 2;
    pub(super) const IIF: u32 = 1 << 3;
    pub(super) const PRESENT: u32 = 1 << 5;
    /// `RTN_UNICAST`, `RTN_LOCAL`.
    pub(super) const UNICAST: u32 = 1;
    pub(super) const LOCAL: u32 = 2;
}

/// `IFNAMSIZ`.
const NAME_BYTES: usize = 16;

fn number(value: u32) -> Known {
    Known::bytes(&value.to_ne_bytes())
}

fn name(device: &Device) -> Known {
    let mut name = [0; NAME_BYTES];
    for (to, from) in name.iter_mut().zip(device.name.bytes()) {
        *to = from;
    }
    Known::bytes(&name)
}

/// `NFPROTO_IPV4`, `NFPROTO_IPV6`.
fn protocol_family(segment: &Segment<'_>) -> u8 {
    match segment.family() {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    }
}

impl Source {
    fn load_into(&self, registers: &mut Registers, to: Register, segment: &Segment<'_>) -> Answer {
        match self.load(segment) {
            Some(value) => {
                registers.set(to, &value);
                Answer::Yes
            }
            // If there is nothing to load, the kernel ends the rule.
            None => {
                registers.forget(to);
                Answer::Maybe
            }
        }
    }

    /// Whether it equals these bytes.
    pub(crate) fn is(&self, value: &Short, segment: &Segment<'_>) -> Answer {
        let (header, offset) = match self {
            Self::NetworkHeader { offset, .. } => (&segment.network_header, *offset),
            Self::TransportHeader { offset, .. } => (&segment.transport_header, *offset),
            Self::Meta(META_NFPROTO) => {
                return (value.bytes() == [protocol_family(segment)]).into();
            }
            Self::Meta(META_L4PROTO) => return (value.bytes() == [TCP]).into(),
            _ => {
                return match self.load(segment) {
                    Some(found) => found.part(0, value.bytes().len()).equals(value.bytes()),
                    None => Answer::Maybe,
                };
            }
        };
        let (bits, mask) = value.bits();
        header.equals_at(offset, bits, mask)
    }

    /// The loaded value. `None` if it is unknown, or if there is nothing to load and the rule ends.
    fn load(&self, segment: &Segment<'_>) -> Option<Known> {
        Some(match self {
            Self::NetworkHeader { offset, length } => segment.network_header.part(*offset, *length),
            Self::TransportHeader { offset, length } => {
                segment.transport_header.part(*offset, *length)
            }
            Self::Zero { length } => Known::bytes(&[0; MOST_BYTES][..*length]),
            Self::Meta(key) => return load_meta(*key, segment),
            Self::Ct {
                key,
                has_direction: false,
            } => return load_ct(*key, segment),
            Self::Fib { result, flags } => return load_fib(*result, *flags, segment),
            // Addresses and counts of one direction: address translation changes them.
            Self::Ct { .. } | Self::Other => return None,
        })
    }
}

fn load_meta(key: u32, segment: &Segment<'_>) -> Option<Known> {
    let of_device = |at: DeviceAt<'_>, absent: Known, value: &dyn Fn(&Device) -> Known| match at {
        DeviceAt::None => absent,
        DeviceAt::Known(device) => value(device),
        DeviceAt::Unknown => Known::unknown(absent.len()),
    };
    let no_name = Known::bytes(&[0; NAME_BYTES]);
    let index = |device: &Device| number(device.index);
    let hardware = |device: &Device| Known::bytes(&device.hardware_type.to_ne_bytes());
    Some(match key {
        meta::PROTOCOL => Known::bytes(&segment.ethertype().to_be_bytes()),
        META_MARK if segment.is_unmarked => number(0),
        meta::IIF => of_device(segment.in_device(), number(0), &index),
        meta::OIF => of_device(segment.out_device(), number(0), &index),
        meta::IIFNAME => of_device(segment.in_device(), no_name, &name),
        meta::OIFNAME => of_device(segment.out_device(), no_name, &name),
        meta::IIFTYPE => match segment.in_device() {
            DeviceAt::Known(device) => hardware(device),
            _ => return None,
        },
        meta::OIFTYPE => match segment.out_device() {
            DeviceAt::Known(device) => hardware(device),
            _ => return None,
        },
        // `PACKET_HOST`: addressed to this host, or sent by it.
        META_NFPROTO => Known::bytes(&[protocol_family(segment)]),
        META_L4PROTO => Known::bytes(&[TCP]),
        meta::PKTTYPE => Known::bytes(&[0]),
        // Connections over IPsec or a VRF are not spliced.
        meta::SECPATH => Known::bytes(&[0]),
        meta::SDIF => number(0),
        meta::SDIFNAME => no_name,
        _ => return None,
    })
}

fn load_ct(key: u32, segment: &Segment<'_>) -> Option<Known> {
    if !segment.is_tracked {
        return None;
    }
    Some(match key {
        ct::STATE => number(ct::ESTABLISHED),
        ct::DIRECTION => Known::bytes(&[u8::from(!segment.is_original())]),
        ct::STATUS => {
            let bits = ct::STATUS_BITS.to_ne_bytes();
            Known::masked(&bits, &bits)
        }
        ct::L3PROTOCOL => Known::bytes(&[protocol_family(segment)]),
        ct::PROTOCOL => Known::bytes(&[TCP]),
        _ => return None,
    })
}

/// The engine takes a connection only if the route to the peer uses the device that receives its segments,
/// so a reverse path lookup finds this device.
fn load_fib(result: u32, flags: u32, segment: &Segment<'_>) -> Option<Known> {
    let end = match flags & (fib::SADDR | fib::DADDR) {
        fib::SADDR => segment.source(),
        fib::DADDR => segment.destination(),
        _ => return None,
    };
    let is_reverse_path = flags & !(fib::MARK | fib::PRESENT) == fib::SADDR | fib::IIF;
    match result {
        fib::OIF | fib::OIFNAME if is_reverse_path && segment.hook.is_inbound() => {
            if flags & fib::PRESENT != 0 {
                return Some(Known::bytes(&[1]));
            }
            match segment.in_device() {
                DeviceAt::Known(device) if result == fib::OIF => Some(number(device.index)),
                DeviceAt::Known(device) => Some(name(device)),
                _ => None,
            }
        }
        fib::ADDRTYPE if flags & !(fib::SADDR | fib::DADDR | fib::MARK) == 0 => {
            Some(number(address_type(end)?))
        }
        _ => None,
    }
}

fn address_type(end: &SegmentEnd) -> Option<u32> {
    match end.is_local {
        Answer::Yes => Some(fib::LOCAL),
        Answer::No => Some(fib::UNICAST),
        Answer::Maybe => None,
    }
}
