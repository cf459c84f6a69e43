//! Keys of a [`SockHash`](crate::SockHash).

/// A key: an integer in the byte order of this machine, or bytes.
///
/// The trait is sealed: keys have to be the same bytes for the program that looks them up.
pub trait Key: Copy + sealed::Bytes {}

pub(crate) mod sealed {
    pub trait Bytes: Sized {
        const LENGTH: u32;
        fn to_bytes(&self) -> Vec<u8>;
        /// `None` if there are not `LENGTH` bytes.
        fn from_bytes(bytes: &[u8]) -> Option<Self>;
    }
}

macro_rules! integers {
    ($($of:ty),*) => {$(
        impl Key for $of {}
        impl sealed::Bytes for $of {
            const LENGTH: u32 = size_of::<Self>() as u32;
            fn to_bytes(&self) -> Vec<u8> {
                self.to_ne_bytes().into()
            }
            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self::from_ne_bytes)
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, u128);

impl<const N: usize> Key for [u8; N] {}

impl<const N: usize> sealed::Bytes for [u8; N] {
    const LENGTH: u32 = N as u32;
    fn to_bytes(&self) -> Vec<u8> {
        (*self).into()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
}
