//! Bytes of which only some bits are known, and the comparisons that can still be answered.

/// The answer to whether something matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    No,
    /// It depends on what is not known.
    Maybe,
    Yes,
}

impl Answer {
    pub(crate) fn not(self) -> Self {
        match self {
            Self::No => Self::Yes,
            Self::Maybe => Self::Maybe,
            Self::Yes => Self::No,
        }
    }

    /// Whether both hold.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::Maybe,
        }
    }

    /// Whether at least one holds.
    pub(crate) fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }

    /// The same with the sense of an option that can be inverted (`!`).
    pub(crate) fn invert_if(self, inverted: bool) -> Self {
        if inverted { self.not() } else { self }
    }
}

impl From<bool> for Answer {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// The longest value: four concatenated fields of 16 bytes, all that nftables' registers hold
/// (`NFT_REG32_15`).
pub(crate) const MOST_BYTES: usize = 64;

/// Bytes in network order of which the bits of `known` are known; the others are 0 in `value`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    value: [u8; MOST_BYTES],
    known: [u8; MOST_BYTES],
    length: usize,
}

impl Known {
    /// Bytes that are known. What is longer than [`MOST_BYTES`] is cut.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        let mut this = Self::unknown(bytes.len());
        let length = this.length;
        this.value[..length].copy_from_slice(&bytes[..length]);
        this.known[..length].fill(0xff);
        this
    }

    /// Bytes of which the bits in `known` are known; both have one length.
    pub(crate) fn masked(value: &[u8], known: &[u8]) -> Self {
        let mut this = Self::unknown(value.len());
        for (at, (value, known)) in value.iter().zip(known).enumerate().take(this.length) {
            this.known[at] = *known;
            this.value[at] = value & known;
        }
        this
    }

    /// Bytes of which nothing is known.
    pub(crate) fn unknown(length: usize) -> Self {
        Self {
            value: [0; MOST_BYTES],
            known: [0; MOST_BYTES],
            length: length.min(MOST_BYTES),
        }
    }

    /// A part of them; what lies behind their end is unknown.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Self {
        let mut part = Self::unknown(length);
        let from = offset.min(self.length);
        let there = part.length.min(self.length - from);
        part.value[..there].copy_from_slice(&self.value[from..from + there]);
        part.known[..there].copy_from_slice(&self.known[from..from + there]);
        part
    }

    /// Whether the bytes from `offset` on, as far as `mask` has bits, are those of `bits`: 16 bytes at once.
    pub(crate) fn equals_at(&self, offset: usize, bits: u128, mask: u128) -> Answer {
        let window = |bytes: &[u8; MOST_BYTES]| {
            let window = bytes.get(offset..offset + size_of::<u128>());
            window.and_then(|window| window.try_into().ok())
        };
        let (Some(value), Some(known)) = (window(&self.value), window(&self.known)) else {
            return Answer::Maybe;
        };
        let (value, known) = (
            u128::from_ne_bytes(value),
            u128::from_ne_bytes(known) & mask,
        );
        if (value ^ bits) & known != 0 {
            Answer::No
        } else if known == mask {
            Answer::Yes
        } else {
            Answer::Maybe
        }
    }

    /// Makes it the first bytes of two runs that may be too short.
    pub(crate) fn set(&mut self, value: Option<&[u8]>, known: Option<&[u8]>, length: usize) {
        *self = Self::unknown(length);
        if let (Some(value), Some(known)) = (value, known) {
            let there = self.length.min(value.len()).min(known.len());
            self.value[..there].copy_from_slice(&value[..there]);
            self.known[..there].copy_from_slice(&known[..there]);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn value(&self) -> &[u8] {
        &self.value[..self.length]
    }

    pub(crate) fn mask(&self) -> &[u8] {
        &self.known[..self.length]
    }

    pub(crate) fn is_known(&self) -> bool {
        self.mask().iter().all(|bits| *bits == 0xff)
    }

    /// `(self & and) ^ xor`.
    pub(crate) fn and_xor(&self, and: &[u8], xor: &[u8]) -> Self {
        let mut result = *self;
        for at in 0..self.length {
            let (and, xor) = (byte(and, at), byte(xor, at));
            // A bit that is masked out is known to be 0.
            result.known[at] = self.known[at] | !and;
            result.value[at] = ((self.value[at] & and) ^ xor) & result.known[at];
        }
        result
    }

    /// Whether they are these bytes.
    pub(crate) fn equals(&self, bytes: &[u8]) -> Answer {
        let mut answer = Answer::Yes;
        for at in 0..self.length {
            if (self.value[at] ^ byte(bytes, at)) & self.known[at] != 0 {
                return Answer::No;
            }
            if self.known[at] != 0xff {
                answer = Answer::Maybe;
            }
        }
        answer
    }

    /// Whether they lie between two values, both included, as numbers in network order.
    pub(crate) fn lies_within(&self, from: &[u8], to: &[u8]) -> Answer {
        if self.is_known() && from.len() == self.length && to.len() == self.length {
            return (from <= self.value() && self.value() <= to).into();
        }
        let (least, most) = (self.least(), self.most());
        let bound = |bytes: &[u8]| {
            let mut bound = [0; MOST_BYTES];
            let length = self.length.min(bytes.len());
            bound[..length].copy_from_slice(&bytes[..length]);
            bound
        };
        let (from, to) = (bound(from), bound(to));
        if least >= from && most <= to {
            Answer::Yes
        } else if most < from || least > to {
            Answer::No
        } else {
            Answer::Maybe
        }
    }

    fn least(&self) -> [u8; MOST_BYTES] {
        self.value
    }

    fn most(&self) -> [u8; MOST_BYTES] {
        let mut most = self.value;
        for (most, known) in most.iter_mut().zip(self.mask()) {
            *most |= !known;
        }
        most
    }
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (value, known) in self.value().iter().zip(self.mask()) {
            match known {
                0xff => write!(f, "{value:02x}")?,
                0 => f.write_str("..")?,
                _ => write!(f, "{value:02x}/{known:02x}")?,
            }
        }
        Ok(())
    }
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}
