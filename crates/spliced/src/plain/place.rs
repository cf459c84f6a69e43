//! Where to listen or to connect to: TCP, UNIX or VSOCK.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::socket::{SockaddrLike, VsockAddr};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, getsockname, listen, socket_with, sockopt,
};
use splice::{Address, SocketName};

use crate::listener::{SocketFile, Start, remove_stale_by, why_not};
use crate::resource_limit::words;
use crate::socket_address::SocketAddress;
use crate::target::{Lookup, Question, Target};

/// How many clients may wait to be accepted: what listeners of streams have.
const BACKLOG: i32 = 4096;

/// An address of a kind of socket.
pub(super) struct Place {
    name: SocketName,
    addresses: Addresses,
    kind: SocketType,
}

enum Addresses {
    /// Those of a name, as they are at a time.
    Named(Arc<Target>),
    Fixed(Vec<Resolved>),
}

/// What a place has at a time.
pub(super) enum Known {
    Addresses(Vec<Resolved>),
    /// As [`Lookup::Awaited`].
    Awaited(Question, Option<Instant>),
}

#[derive(Clone, Debug)]
pub(super) enum Resolved {
    Of(SocketAddress),
    Vsock(VsockAddr),
}

impl Place {
    /// Where to connect to. Waits up to `at_most` for the addresses of a name.
    pub(super) fn of(name: &SocketName, at_most: Duration) -> Result<Self> {
        match name {
            SocketName::Stream(address) if SocketAddress::needs_resolver(address) => Ok(Self {
                name: name.clone(),
                addresses: Addresses::Named(Target::new(address.clone(), Some(at_most))?),
                kind: SocketType::STREAM,
            }),
            _ => Self::resolved_by(name, SocketAddress::resolve),
        }
    }

    /// Resolves `name` to listen on, once.
    pub(super) fn to_listen(name: &SocketName) -> Result<Self> {
        Self::resolved_by(name, SocketAddress::to_listen)
    }

    fn resolved_by(
        name: &SocketName,
        resolve: impl Fn(&Address) -> Result<Vec<SocketAddress>>,
    ) -> Result<Self> {
        let of = |found: Vec<SocketAddress>| found.into_iter().map(Resolved::Of).collect();
        let addresses = match name {
            SocketName::VsockStream(vsock) | SocketName::VsockSeqpacket(vsock) => {
                vec![Resolved::Vsock(VsockAddr::new(vsock.cid, vsock.port))]
            }
            SocketName::Stream(address)
            | SocketName::UnixSeqpacket(address)
            | SocketName::Udp(address)
            | SocketName::UnixDatagram(address) => of(resolve(address)?),
        };
        Ok(Self {
            name: name.clone(),
            addresses: Addresses::Fixed(addresses),
            kind: match name.is_seqpacket() {
                true => SocketType::SEQPACKET,
                false => SocketType::STREAM,
            },
        })
    }

    /// A listening socket, its address with the port that the kernel has picked, and its file, which goes
    /// with it.
    pub(super) fn listen(&self) -> Result<(OwnedFd, String, Option<SocketFile>)> {
        let failed = || format!("cannot listen on {}", self.name);
        // One listener: a name with several addresses is listened on at its first.
        let address = match &self.addresses {
            Addresses::Fixed(addresses) => addresses.first(),
            Addresses::Named(_) => None,
        };
        let address = address.with_context(failed)?;
        let socket = self.socket(address).map_err(|errno| {
            anyhow!(
                "this kernel has no such socket: {}",
                std::io::Error::from(errno)
            )
        });
        let socket = socket.with_context(failed)?;
        if matches!(address, Resolved::Of(SocketAddress::Inet(_))) {
            sockopt::set_socket_reuseaddr(&socket, true).with_context(failed)?;
        }
        if let Resolved::Of(inet) = address
            && inet.is_dual_stack()
        {
            sockopt::set_ipv6_v6only(&socket, false).with_context(failed)?;
        }
        let path = match &self.name {
            SocketName::Stream(Address::UnixPath(path))
            | SocketName::UnixSeqpacket(Address::UnixPath(path)) => Some(path),
            _ => None,
        };
        let start = path
            .map(|path| Start::at(path, &Arc::default()))
            .transpose();
        let start = start.with_context(failed)?;
        let mut bound = address.bind(&socket);
        if let (Err(Errno::ADDRINUSE), Some(path), Resolved::Of(unix)) = (bound, path, address) {
            let probe = self.socket(address).with_context(failed)?;
            if remove_stale_by(path, unix, &probe).with_context(failed)? {
                bound = address.bind(&socket);
            }
        }
        bound
            .map_err(|errno| address.why_not(errno))
            .with_context(failed)?;
        let started = match (start, path) {
            (Some(start), Some(path)) => Some(start.bound(path).with_context(failed)?),
            _ => None,
        };
        listen(&socket, BACKLOG)
            .map_err(|errno| address.why_not(errno))
            .with_context(failed)?;
        let file = match (started, address) {
            (Some(started), Resolved::Of(unix)) => {
                Some(started.listening(unix).with_context(failed)?)
            }
            _ => None,
        };
        let bound = SocketAddress::from_kernel(getsockname(&socket).ok());
        let shown = match (address, bound) {
            (Resolved::Of(SocketAddress::Inet(_)), Some(bound)) => bound.to_string(),
            _ => self.name.to_string(),
        };
        Ok((socket, shown, file))
    }

    /// Its addresses, in the order in which to try them, as [`Target::look_up`].
    pub(super) fn look_up(&self, latest: Instant, waker: &Waker) -> Known {
        let of = |found: &[SocketAddress]| found.iter().cloned().map(Resolved::Of).collect();
        match &self.addresses {
            Addresses::Fixed(addresses) => Known::Addresses(addresses.clone()),
            Addresses::Named(target) => match target.look_up(latest, || waker.clone()) {
                Lookup::Known(addresses) => Known::Addresses(of(&addresses)),
                Lookup::Awaited(question, again) => Known::Awaited(question, again),
            },
        }
    }

    /// `address`, of those in the order `tried`, has answered.
    pub(super) fn answered(&self, address: &Resolved, tried: &[Resolved]) {
        if let Addresses::Named(target) = &self.addresses
            && let Resolved::Of(address) = address
        {
            let of = |resolved: &Resolved| match resolved {
                Resolved::Of(address) => Some(address.clone()),
                Resolved::Vsock(_) => None,
            };
            let tried: Vec<_> = tried.iter().filter_map(of).collect();
            target.answered(address, &tried);
        }
    }

    /// A socket that is connected to one of its addresses, or being connected (`false`), and is watched.
    pub(super) fn begin(
        &self,
        address: &Resolved,
        watch: impl Fn(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(OwnedFd, bool), Errno> {
        let socket = self.socket(address)?;
        let is_connected = match address.connect(&socket) {
            Ok(()) => true,
            Err(Errno::INPROGRESS) => false,
            Err(errno) => return Err(errno),
        };
        watch(&socket)?;
        Ok((socket, is_connected))
    }

    /// A place of streams at these addresses.
    #[cfg(test)]
    pub(super) fn at(addresses: Vec<SocketAddress>) -> Self {
        let name = Address::UnixAbstract("a test's".into());
        Self {
            name: SocketName::Stream(name),
            addresses: Addresses::Fixed(addresses.into_iter().map(Resolved::Of).collect()),
            kind: SocketType::STREAM,
        }
    }

    /// Why no connection to it was made, by what its last address has met.
    pub(super) fn unreached(&self, errno: Errno) -> String {
        match (&self.name, errno) {
            // What VSOCK answers where nobody listens (`virtio_transport_recv_connecting`, seen on 7.3).
            (SocketName::VsockStream(_) | SocketName::VsockSeqpacket(_), Errno::CONNRESET) => {
                "nothing listens there, as far as this network namespace reaches; since Linux 7.0 one can have VSOCK ports of \
                 its own (net.vsock.ns_mode)"
                    .into()
            }
            (_, errno) => words(errno),
        }
    }

    fn socket(&self, address: &Resolved) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match address {
            Resolved::Of(address) if self.kind == SocketType::STREAM => address.socket(),
            Resolved::Of(_) => socket_with(AddressFamily::UNIX, self.kind, flags, None),
            Resolved::Vsock(_) => socket_with(AddressFamily::VSOCK, self.kind, flags, None),
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.name).finish()
    }
}

impl Resolved {
    fn bind(&self, socket: &OwnedFd) -> Result<(), Errno> {
        match self {
            Self::Of(address) => address.bind(socket),
            Self::Vsock(vsock) => errno(nix::sys::socket::bind(
                socket.as_raw_fd(),
                vsock as &dyn SockaddrLike,
            )),
        }
    }

    fn connect(&self, socket: &OwnedFd) -> Result<(), Errno> {
        match self {
            Self::Of(address) => address.connect(socket),
            Self::Vsock(vsock) => errno(nix::sys::socket::connect(
                socket.as_raw_fd(),
                vsock as &dyn SockaddrLike,
            )),
        }
    }

    fn why_not(&self, errno: Errno) -> anyhow::Error {
        match self {
            Self::Of(address) => why_not(errno, address),
            Self::Vsock(_) if errno == Errno::ADDRINUSE => {
                anyhow!("the port is in use by another socket; stop it or choose another")
            }
            Self::Vsock(_) => anyhow!("{}", std::io::Error::from(errno)),
        }
    }
}

fn errno(result: nix::Result<()>) -> Result<(), Errno> {
    result.map_err(|error| Errno::from_raw_os_error(error as i32))
}

#[cfg(test)]
mod tests {
    use splice::VsockAddress;

    use super::*;

    #[test]
    fn a_vsock_port_without_a_listener_may_be_in_another_namespace() {
        let vsock = SocketName::VsockStream(VsockAddress { cid: 1, port: 7 });
        let vsock = Place::to_listen(&vsock).expect("nothing to resolve");
        let why = vsock.unreached(Errno::CONNRESET);
        assert!(why.contains("net.vsock.ns_mode"), "{why}");
        assert!(vsock.unreached(Errno::TIMEDOUT).contains("timed out"));
        // A TCP server that resets is there.
        let why = Place::at(Vec::new()).unreached(Errno::CONNRESET);
        assert!(!why.contains("vsock"), "{why}");
    }
}
