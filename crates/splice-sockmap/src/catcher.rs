//! The TCP connections of a control group, caught when they are established.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use splice_base::error::Result;
use splice_bpf::types::{CatcherFilter, CaughtConnection};
use splice_bpf::{Link as Attached, Map, Program, RingBuffer, SocketMap, load, objects};

use crate::key::Cookie;
use crate::link::{Link, Losses};
use crate::loaded::Loaded;
use crate::map::explained;
use crate::redirect::Redirect;
use crate::redirections::{Redirections, require_another};
use crate::socket_kind::SocketKind;

/// Where the program has its filter.
const FILTER_SECTION: &str = ".rodata.filter";

/// Catches every TCP connection that a process of a control group makes or accepts, by a sock_ops program. What was
/// established before is not caught.
///
/// The descriptor ([`AsFd`]) is readable when [`next`](Self::next) has something. The program is detached when the
/// catcher is dropped; links go on.
#[derive(Debug)]
pub struct Catcher {
    caught: SocketMap,
    news: Map,
    missed: Map,
    calls: Map,
    ring: Mutex<RingBuffer>,
    /// For each of the redirections that were linked in, its program. It goes when they and their links have gone.
    admitters: Mutex<Vec<(Weak<Loaded>, Arc<Program>)>>,
    _attached: Attached,
}

/// A connection that was caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Caught {
    /// The socket's cookie (`SO_COOKIE`), by which [`Catcher::link`] knows it.
    pub cookie: Cookie,
    /// The socket's own address.
    pub local: SocketAddr,
    /// Its peer's address.
    pub remote: SocketAddr,
    /// Whether the process has made the connection. Else it has accepted it, or is about to.
    pub is_active: bool,
}

/// Which connections are caught: those that agree with all that is given. An IPv4 address also names IPv4 connections of
/// IPv6 sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Filter {
    /// The socket's own address.
    pub local_ip: Option<IpAddr>,
    /// The socket's own port: that on which a server listens, if the process has accepted the connection.
    pub local_port: Option<u16>,
    /// Its peer's address.
    pub remote_ip: Option<IpAddr>,
    /// Its peer's port.
    pub remote_port: Option<u16>,
}

impl Catcher {
    /// Attaches to a control group of version 2, given by its directory, with room for as many open connections.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](crate::ErrorKind::BpfRefused) without the rights, which are `CAP_BPF` and
    /// `CAP_NET_ADMIN`, or if it is no control group of version 2.
    pub fn attach(cgroup: impl AsFd, connections: u32) -> Result<Self> {
        Self::attach_filtered(cgroup, connections, &Filter::default())
    }

    /// The same for connections that pass a filter. Others take no room.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_filtered(cgroup: impl AsFd, connections: u32, filter: &Filter) -> Result<Self> {
        let object = load("catcher", objects::CATCHER, |opened| {
            opened.set_constant(FILTER_SECTION, &CatcherFilter::from(filter))?;
            opened.resize("caught", connections)?;
            opened.resize("news", connections)
        })
        .map_err(|error| explained(&error))?;
        let calls = object.map("calls")?;
        Ok(Self {
            caught: object.socket_map("caught")?,
            news: object.map("news")?,
            missed: object.map("missed")?,
            ring: Mutex::new(calls.consume()?),
            calls,
            admitters: Mutex::default(),
            _attached: object
                .attach_to_cgroup("catch", cgroup.as_fd())
                .map_err(|error| explained(&error))?,
        })
    }

    /// The next connection that was caught, if there is one now. It may be closed by now.
    pub fn next(&self) -> Option<Caught> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        // First, so that what comes behind the look at the queue makes the descriptor readable again.
        ring.take(|_| {});
        self.news.take().map(|connection| Caught::from(&connection))
    }

    /// How many connections were not caught, or not told, since there was no room.
    pub fn missed(&self) -> u64 {
        self.missed.read(&0u32).unwrap_or_default()
    }

    /// Links two caught connections by their cookies, as [`Redirections::link`] does with descriptors.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if one of them was not caught or is closed, if nobody has
    /// accepted the target yet, or if the source has bytes that came before: its process has to read them.
    pub fn link(
        &self,
        redirections: &Redirections,
        source: Cookie,
        target: Cookie,
    ) -> Result<Link> {
        let plan = redirections.plan();
        plan.require_sound(SocketKind::Tcp)?;
        if plan.redirect == Redirect::IngressToLocal {
            require_another(source, target)?;
        }
        let loaded = redirections.shared();
        let admitter = self.admitter(loaded)?;
        let place = loaded.add_caught(&admitter, source.0, target.0)?;
        Ok(Link::new(
            Arc::clone(loaded),
            place,
            (SocketKind::Tcp, source),
            plan.redirect,
            Losses::unknown(),
        ))
    }

    fn admitter(&self, loaded: &Arc<Loaded>) -> Result<Arc<Program>> {
        let mut admitters = self
            .admitters
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        admitters.retain(|(of, _)| of.strong_count() > 0);
        let mut known = admitters.iter();
        if let Some((_, known)) = known.find(|(of, _)| of.as_ptr() == Arc::as_ptr(loaded)) {
            return Ok(Arc::clone(known));
        }
        let admitter = Arc::new(loaded.admitter(&self.caught)?);
        admitters.push((Arc::downgrade(loaded), Arc::clone(&admitter)));
        Ok(admitter)
    }
}

impl AsFd for Catcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.calls.as_fd()
    }
}

impl From<&Filter> for CatcherFilter {
    fn from(filter: &Filter) -> Self {
        let words = |ip: Option<IpAddr>| {
            let ip = match ip {
                None => Ipv6Addr::UNSPECIFIED,
                Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped(),
                Some(IpAddr::V6(ip)) => ip,
            };
            let bytes = ip.octets();
            [0, 4, 8, 12].map(|at| {
                u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            })
        };
        Self {
            local: words(filter.local_ip),
            remote: words(filter.remote_ip),
            local_port: filter.local_port.map_or(0, u32::from),
            remote_port: filter.remote_port.map_or(0, u32::from),
            has_local: filter.local_ip.is_some().into(),
            has_remote: filter.remote_ip.is_some().into(),
        }
    }
}

impl From<&CaughtConnection> for Caught {
    fn from(of: &CaughtConnection) -> Self {
        let address = |bytes: [u8; 16], port: u32| {
            let ip = if of.is_ipv6 != 0 {
                IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
            } else {
                IpAddr::from(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
            };
            // Ports have 16 bits.
            SocketAddr::new(ip, port as u16)
        };
        Self {
            cookie: Cookie(of.cookie),
            local: address(of.local, of.local_port),
            remote: address(of.remote, of.remote_port),
            is_active: of.is_active != 0,
        }
    }
}
