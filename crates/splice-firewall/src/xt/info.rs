//! The data of a match or target (`struct xt_*_info`), in the kernel's memory layout.

/// Reads fields by their offset in the structure; a field past the end is `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info<'a>(pub(crate) &'a [u8]);

impl<'a> Info<'a> {
    pub(crate) fn bytes<const LENGTH: usize>(&self, offset: usize) -> Option<&'a [u8; LENGTH]> {
        self.0.get(offset..)?.first_chunk()
    }

    pub(crate) fn u8(&self, offset: usize) -> Option<u8> {
        self.0.get(offset).copied()
    }

    /// In the byte order of this machine.
    pub(crate) fn u16(&self, offset: usize) -> Option<u16> {
        self.bytes(offset).copied().map(u16::from_ne_bytes)
    }

    /// In the byte order of this machine.
    pub(crate) fn u32(&self, offset: usize) -> Option<u32> {
        self.bytes(offset).copied().map(u32::from_ne_bytes)
    }
}
