//! Datagrams on their way from one socket to the other.

use quinn_udp::EcnCodepoint;

/// One or more datagrams that one call may send.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) bytes: &'a [u8],
    /// The length of each datagram but the last.
    pub(crate) stride: usize,
    pub(crate) congestion: Option<EcnCodepoint>,
    /// The time to live that is left, if it is kept.
    pub(crate) ttl: Option<u8>,
}

impl<'a> Piece<'a> {
    pub(crate) fn is_many(&self) -> bool {
        self.stride > 0 && self.stride < self.bytes.len()
    }

    pub(crate) fn datagrams(&self) -> usize {
        match self.stride {
            0 => 1,
            stride => self.bytes.len().div_ceil(stride).max(1),
        }
    }

    /// The first datagram, and those after it.
    pub(crate) fn split_first(&self) -> (Self, Option<Self>) {
        if !self.is_many() {
            return (self.clone(), None);
        }
        let (first, others) = self.bytes.split_at(self.stride);
        let of = |bytes: &'a [u8]| Self {
            bytes,
            stride: self.stride.min(bytes.len()),
            ..*self
        };
        (of(first), Some(of(others)))
    }
}
