//! The sockets that clients send to.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::net::{getsockname, sockopt};
use splice::{Address, SocketName};

use super::socket::DatagramSocket;
use crate::file_access::FileAccess;
use crate::listener::{SocketFile, Start, mark_closed, remove_stale_by, why_not};
use crate::plan::{DatagramTerms, datagram_address};
use crate::socket_address::SocketAddress;

/// How much may wait for a thread, in bytes with the kernel's overhead: 5 ms at a million small datagrams a
/// second.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// All answers to UNIX clients leave by one socket, and those that clients do not read stay in this, in bytes with the kernel's
/// overhead (`sk_wmem_alloc`).
const UNREAD_BYTES: usize = 4 << 20;

/// The bound sockets: for each thread those that it reads.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) sockets: Vec<Vec<DatagramSocket>>,
    pub(crate) addresses: Vec<SocketAddress>,
    pub(crate) socket_file: Option<SocketFile>,
}

impl Listeners {
    /// Binds a socket for each address that `listen` stands for and each thread. `access` says who may send to a socket
    /// file.
    pub(crate) fn bind(
        listen: &SocketName,
        terms: &DatagramTerms,
        threads: usize,
        access: FileAccess,
    ) -> Result<Self> {
        let typed =
            datagram_address(listen).with_context(|| format!("cannot listen on {listen}"))?;
        let mut found = SocketAddress::to_listen(typed)?;
        found.dedup();
        Self::at(listen, found, terms, threads, access)
    }

    /// The same at addresses that are known.
    pub(crate) fn at(
        listen: &SocketName,
        found: Vec<SocketAddress>,
        terms: &DatagramTerms,
        threads: usize,
        access: FileAccess,
    ) -> Result<Self> {
        let failed = || format!("cannot listen on {listen}");
        let typed = datagram_address(listen).with_context(failed)?;
        let mut listeners = Self {
            sockets: (0..threads).map(|_| Vec::new()).collect(),
            addresses: Vec::new(),
            socket_file: None,
        };
        let mut port = None;
        for mut address in found {
            if let (SocketAddress::Inet(inet), Some(port)) = (&mut address, port)
                && inet.port() == 0
            {
                inet.set_port(port);
            }
            let bound = listeners.add(&address, typed, terms, access);
            let bound = bound.with_context(failed)?;
            port = bound.inet().map(|inet| inet.port());
            listeners.addresses.push(bound);
        }
        Ok(listeners)
    }

    fn add(
        &mut self,
        address: &SocketAddress,
        typed: &Address,
        terms: &DatagramTerms,
        access: FileAccess,
    ) -> Result<SocketAddress> {
        let mut address = address.clone();
        let start = match typed {
            Address::UnixPath(path) => Some(Start::at(path, &Arc::default())?),
            _ => None,
        };
        // The first is bound without SO_REUSEPORT: otherwise a second relay of the same user would get a
        // part of the datagrams.
        let bind_to =
            |address: &SocketAddress, reuse_port| bind(address, reuse_port, terms, access);
        let first = match (bind_to(&address, false), typed) {
            (Err(Errno::ADDRINUSE), Address::UnixPath(path)) if is_stale(path, &address)? => {
                bind_to(&address, false)
            }
            (Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL), _) if address.is_dual_stack() => {
                let port = address.inet().map_or(0, |inet| inet.port());
                address = SocketAddress::Inet((Ipv4Addr::UNSPECIFIED, port).into());
                bind_to(&address, false)
            }
            (bound, _) => bound,
        };
        let first = first.map_err(|errno| why_not(errno, &address))?;
        if let (Some(start), Address::UnixPath(path)) = (start, typed) {
            let mut started = start.bound(path)?;
            if access != FileAccess::default() {
                started.file.open_to(access)?;
            }
            // Datagrams need no listen(2).
            self.socket_file = Some(started.listening(&address)?);
        }
        let name = SocketAddress::from_kernel(getsockname(first.fd()).ok());
        let address = name.unwrap_or(address);
        let threads = self.sockets.len();
        if threads > 1 {
            sockopt::set_socket_reuseport(first.fd(), true).context("cannot set SO_REUSEPORT")?;
        }
        self.sockets[0].push(first);
        for sockets in &mut self.sockets[1..] {
            let more = bind_to(&address, true).map_err(|errno| why_not(errno, &address))?;
            sockets.push(more);
        }
        Ok(address)
    }
}

/// Removes the file of a socket that nobody has bound any more.
fn is_stale(path: &Path, address: &SocketAddress) -> Result<bool> {
    let probe = DatagramSocket::new(address, &DatagramTerms::default())
        .context("cannot create a UNIX socket")?;
    remove_stale_by(path, address, probe.fd())
}

fn bind(
    address: &SocketAddress,
    reuse_port: bool,
    terms: &DatagramTerms,
    access: FileAccess,
) -> Result<DatagramSocket, Errno> {
    let socket = DatagramSocket::new(address, terms)?;
    if let SocketAddress::Inet(inet) = address {
        if address.is_dual_stack() {
            sockopt::set_ipv6_v6only(socket.fd(), false)?;
        }
        if inet.ip().is_unspecified() {
            socket.report_destination(matches!(inet, SocketAddr::V6(_)))?;
        }
        if reuse_port {
            sockopt::set_socket_reuseport(socket.fd(), true)?;
        }
        // Without CAP_NET_ADMIN the buffer has at most the size that the administrator allows.
        if sockopt::set_socket_recv_buffer_size_force(socket.fd(), RECEIVE_BUFFER_BYTES).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(socket.fd(), RECEIVE_BUFFER_BYTES);
        }
    }
    let is_small = || {
        let bytes = sockopt::socket_send_buffer_size(socket.fd());
        bytes.is_ok_and(|bytes| bytes < UNREAD_BYTES)
    };
    // The kernel doubles what is asked for.
    if !socket.is_udp()
        && is_small()
        && sockopt::set_socket_send_buffer_size_force(socket.fd(), UNREAD_BYTES / 2).is_err()
    {
        // As above.
        let _ = sockopt::set_socket_send_buffer_size(socket.fd(), UNREAD_BYTES / 2);
    }
    if access != FileAccess::default() {
        mark_closed(socket.fd(), access)?;
    }
    address.bind(socket.fd())?;
    Ok(socket)
}
