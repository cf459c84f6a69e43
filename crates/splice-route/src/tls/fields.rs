//! The fields of a TLS message: numbers, and vectors that a length precedes.

use crate::progress::Fault;

/// What is left of a message, or of a vector in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

const SHORT: Fault = Fault("the TLS hello has lengths that do not add up");

impl<'a> Fields<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(self) -> bool {
        self.rest.is_empty()
    }

    /// Refuses bytes behind the last field.
    pub(super) fn end(self) -> Result<(), Fault> {
        if self.is_empty() { Ok(()) } else { Err(SHORT) }
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(SHORT)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Fault> {
        self.bytes(1).map(|taken| taken[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Fault> {
        self.bytes(2)
            .map(|taken| u16::from_be_bytes([taken[0], taken[1]]))
    }

    /// A vector whose length is a byte.
    pub(super) fn vector8(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.u8()?;
        self.bytes(length.into())
    }

    /// A vector whose length is two bytes.
    pub(super) fn vector16(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.u16()?;
        self.bytes(length.into())
    }
}
