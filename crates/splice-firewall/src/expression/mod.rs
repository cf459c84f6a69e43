//! Expressions, the parts of a rule of nftables.

mod evaluate;
mod set;

use std::sync::Arc;

pub(crate) use evaluate::Registers;
pub(crate) use set::{Data, DumpedElement, Element, Set};

/// A register, as an offset in bytes into all registers.
pub(crate) type Register = u8;

/// Up to 16 bytes, stored inline: memory access limits how fast a rule set is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    bytes: [u8; 16],
    length: u8,
}

impl Short {
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let mut short = Self {
            bytes: [0; 16],
            length: u8::try_from(bytes.len()).ok()?,
        };
        short.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(short)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// All bytes as one number, and the mask of the bits in use.
    pub(crate) fn bits(&self) -> (u128, u128) {
        let mut mask = [0; 16];
        mask[..usize::from(self.length)].fill(0xff);
        (u128::from_ne_bytes(self.bytes), u128::from_ne_bytes(mask))
    }
}

/// One expression of a rule. Expressions without influence on the verdict are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// Sets a register.
    Immediate { to: Register, value: Box<[u8]> },
    /// Continues if the comparison of a register with a value holds.
    Compare {
        from: Register,
        how: Comparison,
        value: Box<[u8]>,
    },
    /// Continues if a register is in a range, or outside of it.
    Range {
        from: Register,
        low: Box<[u8]>,
        high: Box<[u8]>,
        inverted: bool,
    },
    /// `(from & and) ^ xor`.
    MaskXor {
        from: Register,
        to: Register,
        and: Box<[u8]>,
        xor: Box<[u8]>,
    },
    /// Swaps the byte order of numbers of `size` bytes.
    Swap {
        from: Register,
        to: Register,
        length: u8,
        size: u8,
    },
    /// Continues if the set contains the key, or does not.
    Lookup {
        from: Register,
        /// Where a map's data goes; `None` for a set.
        to: Option<Target>,
        set: Arc<Set>,
        inverted: bool,
    },
    /// Loads a part of the packet, or data about it.
    Load { to: Register, what: Source },
    /// A load and the comparison of its value, if nothing else reads the value. Most rules consist of these,
    /// so they are one step (`nft/fuse.rs`).
    Ask {
        what: Source,
        is_equal: bool,
        value: Short,
    },
    /// Continues if the packet has a header that TCP segments do not have.
    Absent,
}

impl Expression {
    /// The chains to which the verdicts of a map go.
    pub(crate) fn leads_to(&self) -> Vec<usize> {
        match self {
            Self::Lookup {
                to: Some(Target::Verdict),
                set,
                ..
            } => set.leads_to(),
            _ => Vec::new(),
        }
    }

    /// The bytes of registers that it reads, as offset and length.
    pub(crate) fn reads(&self) -> Option<(Register, usize)> {
        match self {
            Self::Compare { from, value, .. } => Some((*from, value.len())),
            Self::Range { from, low, .. } => Some((*from, low.len())),
            Self::MaskXor { from, and, .. } => Some((*from, and.len())),
            Self::Swap { from, length, .. } => Some((*from, usize::from(*length))),
            Self::Lookup { from, set, .. } => Some((*from, set.key_bytes)),
            Self::Immediate { .. } | Self::Load { .. } | Self::Ask { .. } | Self::Absent => None,
        }
    }
}

/// Where a map's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Register(Register),
    Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// What is loaded into a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    NetworkHeader {
        offset: usize,
        length: usize,
    },
    TransportHeader {
        offset: usize,
        length: usize,
    },
    Meta(u32),
    Ct {
        key: u32,
        has_direction: bool,
    },
    Fib {
        result: u32,
        flags: u32,
    },
    Zero {
        length: usize,
    },
    /// Unknown.
    Other,
}

impl Source {
    /// Whether it loads at least this number of bytes.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        match self {
            Self::NetworkHeader { length, .. } | Self::TransportHeader { length, .. } => {
                bytes <= *length
            }
            Self::Meta(META_NFPROTO | META_L4PROTO) => bytes == 1,
            _ => true,
        }
    }
}

/// `NFT_META_*`.
pub(crate) const META_MARK: u32 = 3;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
