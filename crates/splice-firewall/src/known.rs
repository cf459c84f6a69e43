//! Bytes of which some bits are unknown, and comparisons that may answer maybe.

/// The answer to whether something matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    No,
    /// The unknown bits decide.
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

    /// Yes if both are yes, no if one is no.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::Maybe,
        }
    }

    /// Yes if one is yes, no if both are no.
    pub(crate) fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }

    /// Negated if the option is inverted (`!`).
    pub(crate) fn invert_if(self, inverted: bool) -> Self {
        if inverted { self.not() } else { self }
    }
}

impl From<bool> for Answer {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// The longest value: four concatenated fields of 16 bytes, which is all that the registers of nftables
/// hold (`NFT_REG32_15`).
pub(crate) const MOST_BYTES: usize = 64;

/// Bytes in network order. `known` is the mask of the known bits; unknown bits of `value` are 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    value: [u8; MOST_BYTES],
    known: [u8; MOST_BYTES],
    length: usize,
}

impl Known {
    /// Bytes that are all known, truncated to [`MOST_BYTES`].
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        let mut this = Self::unknown(bytes.len());
        let length = this.length;
        this.value[..length].copy_from_slice(&bytes[..length]);
        this.known[..length].fill(0xff);
        this
    }

    /// Bytes whose bits in `known` are known. Both slices have the same length.
    pub(crate) fn masked(value: &[u8], known: &[u8]) -> Self {
        let mut this = Self::unknown(value.len());
        for (at, (value, known)) in value.iter().zip(known).enumerate().take(this.length) {
            this.known[at] = *known;
            this.value[at] = value & known;
        }
        this
    }

    /// Bytes that are all unknown.
    pub(crate) fn unknown(length: usize) -> Self {
        Self {
            value: [0; MOST_BYTES],
            known: [0; MOST_BYTES],
            length: length.min(MOST_BYTES),
        }
    }

    /// A range of the bytes; bytes past the end are unknown.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Self {
        let mut part = Self::unknown(length);
        let from = offset.min(self.length);
        let there = part.length.min(self.length - from);
        part.value[..there].copy_from_slice(&self.value[from..from + there]);
        part.known[..there].copy_from_slice(&self.known[from..from + there]);
        part
    }

    /// Whether the 16 bytes from `offset` on equal `bits` under `mask`, in one comparison.
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

    /// Sets it to the first `length` bytes of two slices; unknown if one is missing or too short.
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
            // A masked bit is known: it is 0.
            result.known[at] = self.known[at] | !and;
            result.value[at] = ((self.value[at] & and) ^ xor) & result.known[at];
        }
        result
    }

    /// Whether they equal `bytes`.
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

    /// Whether they are in the inclusive range, as numbers in network order.
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
