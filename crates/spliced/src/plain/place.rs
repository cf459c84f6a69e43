//! Where to listen or to connect to: TCP, UNIX or VSOCK.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::socket::{SockaddrLike, VsockAddr};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, getsockname, listen, socket_with, sockopt,
};
use splice::{Address, SocketName};

use crate::listener::{SocketFile, remove_stale_by, why_not};
use crate::socket_address::SocketAddress;

/// How many clients may wait to be accepted: what listeners of streams have.
const BACKLOG: i32 = 4096;

/// A resolved address of a kind of socket.
#[derive(Debug)]
pub(super) struct Place {
    name: SocketName,
    addresses: Vec<Resolved>,
    kind: SocketType,
}

#[derive(Debug)]
enum Resolved {
    Of(SocketAddress),
    Vsock(VsockAddr),
}

impl Place {
    /// Resolves `name` to connect to, once.
    pub(super) fn of(name: &SocketName) -> Result<Self> {
        Self::resolved_by(name, SocketAddress::resolve)
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
            addresses,
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
        let address = self.addresses.first().with_context(failed)?;
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
        let mut bound = address.bind(&socket);
        let path = match &self.name {
            SocketName::Stream(Address::UnixPath(path))
            | SocketName::UnixSeqpacket(Address::UnixPath(path)) => Some(path),
            _ => None,
        };
        if let (Err(Errno::ADDRINUSE), Some(path), Resolved::Of(unix)) = (bound, path, address) {
            let probe = self.socket(address).with_context(failed)?;
            if remove_stale_by(path, unix, &probe).with_context(failed)? {
                bound = address.bind(&socket);
            }
        }
        bound
            .map_err(|errno| address.why_not(errno))
            .with_context(failed)?;
        let file = path.map(|path| SocketFile::of(path)).transpose()?;
        listen(&socket, BACKLOG)
            .map_err(|errno| address.why_not(errno))
            .with_context(failed)?;
        let bound = SocketAddress::from_kernel(getsockname(&socket).ok());
        let shown = match (address, bound) {
            (Resolved::Of(SocketAddress::Inet(_)), Some(bound)) => bound.to_string(),
            _ => self.name.to_string(),
        };
        Ok((socket, shown, file))
    }

    /// A socket that is connected, or being connected (`false`).
    pub(super) fn connect(&self) -> Result<(OwnedFd, bool), Errno> {
        let mut failed = Errno::ADDRNOTAVAIL;
        for address in &self.addresses {
            let socket = self.socket(address)?;
            match address.connect(&socket) {
                Ok(()) => return Ok((socket, true)),
                Err(Errno::INPROGRESS) => return Ok((socket, false)),
                Err(errno) => failed = errno,
            }
        }
        Err(failed)
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
