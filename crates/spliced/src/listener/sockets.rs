//! The sockets that a relay listens on.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{getsockname, listen, sockopt};
use splice::{Address, SegmentSize, set_busy_poll};

use super::socket_access::AccessChange;
use super::socket_file::{SocketFile, mark};
use super::stale_socket::{remove_stale, unix_socket};
use super::start::{InUse, Start};
use crate::file_access::FileAccess;
use crate::file_lock::LockWait;
use crate::peer_timeouts::PeerTimeouts;
use crate::resource_limit::words;
use crate::socket_address::SocketAddress;

/// Connections that may wait to be accepted. The kernel caps it at `net.core.somaxconn`, which is 4096
/// since Linux 5.4.
pub(super) const BACKLOG: i32 = 4096;

/// How many ports to try if the kernel picks one and every address of a name needs the same: of the
/// 28 000 in the default range few are in use.
const PORTS_TRIED: usize = 16;

/// The listening sockets of a relay.
#[derive(Debug)]
pub(crate) struct ListeningSockets {
    pub(crate) by_thread: Vec<Vec<OwnedFd>>,
    /// The addresses that the sockets are bound to: the kernel has replaced a port 0.
    pub(crate) addresses: Vec<SocketAddress>,
    /// The threads share one socket instead of having one each.
    pub(crate) shared: bool,
    socket_file: Option<SocketFile>,
}

impl ListeningSockets {
    /// Binds `addresses`, which `typed` stands for. Over TCP each thread gets a socket of its own, and the
    /// kernel spreads the connections (`SO_REUSEPORT`); a UNIX socket is shared. Clients over TCP are told
    /// to send segments of at most `largest_segment`; `access` says who may connect over UNIX.
    pub(crate) fn bind(
        typed: &Address,
        mut addresses: Vec<SocketAddress>,
        threads: usize,
        largest_segment: Option<SegmentSize>,
        access: FileAccess,
        lock_wait: &Arc<LockWait>,
    ) -> Result<Self> {
        addresses.dedup();
        let picks_port = matches!(typed, Address::Inet { port: 0, .. });
        for _ in 1..PORTS_TRIED {
            match Self::bind_all(
                typed,
                &addresses,
                threads,
                largest_segment,
                access,
                lock_wait,
            ) {
                // The port that the kernel picked for one family is in use in the other.
                Err(error) if picks_port && error.is::<InUse>() => {}
                other => return other,
            }
        }
        Self::bind_all(
            typed,
            &addresses,
            threads,
            largest_segment,
            access,
            lock_wait,
        )
    }

    fn bind_all(
        typed: &Address,
        addresses: &[SocketAddress],
        threads: usize,
        largest_segment: Option<SegmentSize>,
        access: FileAccess,
        lock_wait: &Arc<LockWait>,
    ) -> Result<Self> {
        let mut sockets = Self {
            by_thread: (0..threads).map(|_| Vec::new()).collect(),
            addresses: Vec::new(),
            shared: !matches!(typed, Address::Inet { .. }),
            socket_file: None,
        };
        let mut failed = None;
        for address in addresses {
            let added = match address {
                SocketAddress::Inet(inet) => {
                    let mut inet = *inet;
                    if inet.port() == 0 {
                        inet.set_port(sockets.addresses.first().map_or(0, port));
                    }
                    sockets.add_tcp(SocketAddress::Inet(inet), threads, largest_segment)
                }
                SocketAddress::Unix(_) | SocketAddress::UnixSeqpacket(_) => {
                    sockets.add_unix(address, typed, threads, access, lock_wait)
                }
                SocketAddress::Vsock(_) | SocketAddress::VsockSeqpacket(_) => {
                    sockets.add_vsock(address, threads)
                }
            };
            match added.with_context(|| format!("cannot listen on {typed}")) {
                Ok(()) => {}
                // A name may stand for an address of a family that this host does not have.
                Err(error) if error.downcast_ref::<NotOfThisHost>().is_some() => {
                    failed = Some(error)
                }
                Err(error) => return Err(error),
            }
        }
        match failed {
            Some(error) if sockets.addresses.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!("{error:#}; the relay listens on the other addresses of the name");
                Ok(sockets)
            }
            None => Ok(sockets),
        }
    }

    /// Has the connections poll the device before they sleep: an accepted socket inherits the option
    /// (`sk_clone`).
    pub(crate) fn set_busy_poll(&self, time: Duration) -> Result<()> {
        for socket in self.by_thread.iter().flatten() {
            set_busy_poll(socket, time)?;
        }
        Ok(())
    }

    /// Sets when connections take their peers for gone: an accepted TCP socket inherits it.
    pub(crate) fn set_peer_timeouts(&self, timeouts: PeerTimeouts) -> Result<()> {
        if self.shared {
            // Only TCP has them.
            return Ok(());
        }
        for socket in self.by_thread.iter().flatten() {
            timeouts.set_on_new(socket)?;
        }
        Ok(())
    }

    /// The change of who may connect to a UNIX socket.
    pub(crate) fn change_of_access(
        &self,
        former: FileAccess,
        wanted: FileAccess,
    ) -> Result<Option<AccessChange<'_>>> {
        let file = self.socket_file.as_ref();
        file.map(|file| file.change(former, wanted)).transpose()
    }

    /// Why clients do not reach a UNIX socket any more, though it listens.
    pub(crate) fn why_unreachable(&self) -> Option<String> {
        let file = self.socket_file.as_ref()?;
        (!file.is_in_place()).then(|| file.words_if_gone())
    }

    fn add_tcp(
        &mut self,
        address: SocketAddress,
        threads: usize,
        largest_segment: Option<SegmentSize>,
    ) -> Result<()> {
        // The first socket is bound without SO_REUSEPORT. With it, the kernel would give a second relay
        // of the same user the same port, and a part of this relay's connections.
        let (first, address) = match bind_tcp(&address, false) {
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if address.is_dual_stack() => {
                let v4 =
                    SocketAddress::Inet((std::net::Ipv4Addr::UNSPECIFIED, port(&address)).into());
                (bind_tcp(&v4, false), v4)
            }
            bound => (bound, address),
        };
        let first = first.map_err(|errno| why_not(errno, &address))?;
        let bound = getsockname(&first).ok();
        let address = bound
            .and_then(|name| SocketAddress::from_kernel(Some(name)))
            .unwrap_or(address);
        if threads > 1 {
            sockopt::set_socket_reuseport(&first, true).context("cannot set SO_REUSEPORT")?;
        }
        let listen = |socket: &OwnedFd| -> Result<()> {
            if let Some(size) = largest_segment {
                size.announce_on(socket)?;
            }
            listen(socket, BACKLOG).map_err(|errno| why_not(errno, &address))
        };
        listen(&first)?;
        self.by_thread[0].push(first);
        for sockets in &mut self.by_thread[1..] {
            let socket = bind_tcp(&address, true).map_err(|errno| why_not(errno, &address))?;
            listen(&socket)?;
            sockets.push(socket);
        }
        self.addresses.push(address);
        Ok(())
    }

    fn add_unix(
        &mut self,
        address: &SocketAddress,
        typed: &Address,
        threads: usize,
        access: FileAccess,
        lock_wait: &Arc<LockWait>,
    ) -> Result<()> {
        let socket = unix_socket(address)?;
        let path = typed.socket_file();
        let start = path.map(|path| Start::at(path, lock_wait)).transpose()?;
        if access != FileAccess::default() {
            mark(&socket)?;
        }
        let mut bound = address.bind(&socket);
        if let (Err(Errno::ADDRINUSE), Some(path)) = (bound, path)
            && remove_stale(path, address)?
        {
            bound = address.bind(&socket);
        }
        bound.map_err(|errno| why_not(errno, address))?;
        let mut started = match (start, path) {
            (Some(start), Some(path)) => Some(start.bound(path)?),
            _ => None,
        };
        if let Some(started) = &mut started
            && access != FileAccess::default()
        {
            // Nobody can connect before listen(2).
            started.file.set_first_access(access)?;
        }
        listen(&socket, BACKLOG).map_err(|errno| why_not(errno, address))?;
        if let Some(started) = started {
            self.socket_file = Some(started.listening(address)?);
        }
        self.share(socket, address, threads)
    }

    fn add_vsock(&mut self, address: &SocketAddress, threads: usize) -> Result<()> {
        let socket = address.socket().map_err(|errno| match errno {
            Errno::AFNOSUPPORT | Errno::SOCKTNOSUPPORT | Errno::OPNOTSUPP => {
                anyhow!("this kernel has no such VSOCK sockets; load the module vsock, or choose another address")
            }
            errno => anyhow!("cannot create a VSOCK socket: {}", words(errno)),
        })?;
        let bound = address
            .bind(&socket)
            .and_then(|()| listen(&socket, BACKLOG));
        bound.map_err(|errno| why_not(errno, address))?;
        self.share(socket, address, threads)
    }

    /// Gives each thread a descriptor of the one socket.
    fn share(&mut self, socket: OwnedFd, address: &SocketAddress, threads: usize) -> Result<()> {
        for sockets in &mut self.by_thread[..threads - 1] {
            let clone = fcntl_dupfd_cloexec(&socket, 0).map_err(|errno| {
                anyhow!(
                    "cannot share the listening socket: {}; raise the limit",
                    words(errno)
                )
            })?;
            sockets.push(clone);
        }
        self.by_thread[threads - 1].push(socket);
        self.addresses.push(address.clone());
        Ok(())
    }
}

fn bind_tcp(address: &SocketAddress, reuse_port: bool) -> Result<OwnedFd, Errno> {
    let socket = address.socket()?;
    // Connections in TIME_WAIT must not keep a listener off their port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_dual_stack() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    if reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    address.bind(&socket)?;
    Ok(socket)
}

fn port(address: &SocketAddress) -> u16 {
    match address {
        SocketAddress::Inet(inet) => inet.port(),
        _ => 0,
    }
}

/// The address belongs to another host, or to a family that this host does not support.
#[derive(Debug)]
struct NotOfThisHost(SocketAddress);

impl fmt::Display for NotOfThisHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is not an address of this host; choose one that is",
            self.0
        )
    }
}

impl std::error::Error for NotOfThisHost {}

/// Why an address cannot be bound, and what to do.
pub(crate) fn why_not(errno: Errno, address: &SocketAddress) -> anyhow::Error {
    let port = port(address);
    match errno {
        Errno::ADDRINUSE => InUse(address.clone()).into(),
        Errno::ACCESS if address.kind().is_vsock() => {
            anyhow!(
                "the port is privileged; choose one above 1023 or run with CAP_NET_BIND_SERVICE"
            )
        }
        Errno::ACCESS if port != 0 => anyhow!(
            "port {port} is privileged; choose one above 1023 or run with CAP_NET_BIND_SERVICE"
        ),
        Errno::ACCESS => {
            anyhow!("no permission to write to its directory; choose another or run as its owner")
        }
        Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => NotOfThisHost(address.clone()).into(),
        Errno::NOENT => anyhow!("its directory does not exist; make it or choose another"),
        Errno::NOTDIR => anyhow!("what would be its directory is a file; choose another"),
        other => {
            let lacks_interface = address.lacks_interface();
            match lacks_interface.filter(|_| other == Errno::INVAL) {
                Some(why) => anyhow!(why),
                None => anyhow!("{}", std::io::Error::from(other)),
            }
        }
    }
}
