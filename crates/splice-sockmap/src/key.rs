//! Keys of a [`SockHash`](crate::SockHash).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{getpeername, getsockname, sockopt};
use splice_base::error::{Error, Result};
use splice_base::socket_option::namespace_cookie;

/// A key: a [`Cookie`], a [`FourTuple`], an integer in the byte order of this machine, or bytes.
///
/// The trait is sealed: keys have to be the same bytes for the program that looks them up.
pub trait Key: Copy + sealed::Bytes {}

/// The cookie of a socket (`SO_COOKIE`, `bpf_get_socket_cookie`): 8 bytes, which no other socket of this host gets until it is
/// started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

impl Cookie {
    /// That of a socket.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if it is no socket.
    pub fn of(socket: impl AsFd) -> Result<Self> {
        sockopt::socket_cookie(socket)
            .map(Self)
            .map_err(|errno| Error::system("cannot read the cookie of a socket", errno))
    }
}

/// The addresses of a connection over IP, with its network namespace: the same addresses exist in many of them.
///
/// As a key it has 48 bytes: the namespace's cookie (`bpf_get_netns_cookie`, 8 bytes in the byte order of this machine), the
/// socket's own address and its peer's (16 bytes each, in network order; IPv4 as IPv6, `::ffff:a.b.c.d`), its own port and its
/// peer's (2 bytes each, in network order), and 4 zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct FourTuple {
    /// The cookie of the network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
    pub namespace: u64,
    /// The socket's own address.
    pub local: SocketAddr,
    /// Its peer's address.
    pub remote: SocketAddr,
}

impl FourTuple {
    /// That of a connected TCP or UDP socket.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if it has no such addresses.
    pub fn of(socket: impl AsFd) -> Result<Self> {
        let failed = |errno| Error::system("cannot read the addresses of a socket", errno);
        let namespace = namespace_cookie(&socket).map_err(failed)?;
        let local = getsockname(&socket).and_then(|address| address.try_into());
        let remote =
            getpeername(&socket).and_then(|address| address.ok_or(Errno::NOTCONN)?.try_into());
        Ok(Self {
            namespace,
            local: canonical(local.map_err(failed)?),
            remote: canonical(remote.map_err(failed)?),
        })
    }
}

/// IPv4 is IPv4, also on a socket of IPv6. Scopes are no part of the key.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn mapped(of: IpAddr) -> Ipv6Addr {
    match of {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl Key for Cookie {}

impl sealed::Bytes for Cookie {
    const LENGTH: u32 = u64::LENGTH;
    fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        u64::from_bytes(bytes).map(Self)
    }
}

impl Key for FourTuple {}

impl sealed::Bytes for FourTuple {
    const LENGTH: u32 = 48;
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.namespace.to_bytes();
        bytes.extend(mapped(self.local.ip()).octets());
        bytes.extend(mapped(self.remote.ip()).octets());
        bytes.extend(self.local.port().to_be_bytes());
        bytes.extend(self.remote.port().to_be_bytes());
        bytes.extend([0; 4]);
        bytes
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (namespace, rest) = bytes.split_first_chunk::<8>()?;
        let (local, rest) = rest.split_first_chunk::<16>()?;
        let (remote, rest) = rest.split_first_chunk::<16>()?;
        let (ports, rest) = rest.split_first_chunk::<4>()?;
        let address = |ip: [u8; 16], port: [u8; 2]| {
            SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port))
        };
        (rest.len() == 4).then_some(Self {
            namespace: u64::from_ne_bytes(*namespace),
            local: address(*local, [ports[0], ports[1]]),
            remote: address(*remote, [ports[2], ports[3]]),
        })
    }
}

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

#[cfg(test)]
mod tests {
    use super::sealed::Bytes as _;
    use super::*;

    #[test]
    fn a_tuple_is_its_bytes() {
        let [local, remote] =
            ["10.0.0.1:8080", "10.0.0.2:443"].map(|of| of.parse().expect("an address"));
        let tuple = FourTuple {
            namespace: 7,
            local,
            remote,
        };
        let bytes = tuple.to_bytes();
        assert_eq!(bytes.len(), FourTuple::LENGTH as usize);
        assert_eq!(bytes[..8], 7u64.to_ne_bytes());
        assert_eq!(bytes[18..24], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(bytes[34..40], [0xff, 0xff, 10, 0, 0, 2]);
        assert_eq!(bytes[40..], [0x1f, 0x90, 1, 0xbb, 0, 0, 0, 0]);
        assert_eq!(FourTuple::from_bytes(&bytes), Some(tuple));
        assert_eq!(FourTuple::from_bytes(&bytes[1..]), None);
        let [local, remote] =
            ["[2001:db8::1]:1", "[2001:db8::2]:2"].map(|of| of.parse().expect("an address"));
        let tuple = FourTuple {
            namespace: u64::MAX,
            local,
            remote,
        };
        assert_eq!(FourTuple::from_bytes(&tuple.to_bytes()), Some(tuple));
    }
}
