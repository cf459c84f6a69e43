//! A redirect that is attached to a map of its caller's.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use splice_base::error::{Error, ErrorKind, Result};
use splice_base::release::Release;
use splice_bpf::{SocketMap, SocketMapType};

use crate::key::{Cookie, Key};
use crate::link::Link;
use crate::loaded::{Loaded, Plan};
use crate::map::{SockHash, SockMap, cookie, members};
use crate::orphans;
use crate::redirect::Redirect;
use crate::redirections::{add, require_supported};

/// A redirect that is attached to a [`SockMap`] or a [`SockHash`]: the map's members are its sources, each under a key of
/// the caller's choice. Their targets are in a map without a program, so that nothing happens to what a target receives.
///
/// The attachment takes the map, since [`SockMap::remove`] would lose bytes of a source in full flow. A source goes in by
/// [`link`](Self::link), and out by [`Link::leave`] or when it is closed. Links keep the map when the attachment is dropped.
///
/// ```no_run
/// # use std::net::TcpStream;
/// # use std::time::Duration;
/// use splice_sockmap::{FourTuple, Redirect, SockHash};
///
/// # fn f(source: TcpStream, target: TcpStream) -> splice_sockmap::Result<()> {
/// let map = SockHash::<FourTuple>::create(1024)?;
/// let proxy = map.attach(Redirect::IngressToEgress)?;
/// let mut link = proxy.link(FourTuple::of(&source)?, &source, &target)?;
/// assert_eq!(proxy.iter().count(), 1);
/// link.leave(&source, Duration::from_secs(1))?;
/// # Ok(())
/// # }
/// ```
pub struct Attachment<K> {
    plan: Plan,
    loaded: Arc<Loaded>,
    map: SocketMap,
    keys: PhantomData<K>,
}

impl SockMap {
    /// Attaches a redirect: what a source in this map sends or receives goes to its target.
    ///
    /// # Errors
    /// - [`ErrorKind::System`] if the map has members: the kernel gives them no program any more.
    /// - [`ErrorKind::BpfRefused`] without the rights, which are `CAP_BPF`, `CAP_NET_ADMIN` and `CAP_PERFMON`.
    pub fn attach(self, redirect: Redirect) -> Result<Attachment<u32>> {
        Attachment::to(self.0, redirect)
    }
}

impl<K: Key> SockHash<K> {
    /// Attaches a redirect: what a source in this map sends or receives goes to its target.
    ///
    /// # Errors
    /// As [`SockMap::attach`].
    pub fn attach(self, redirect: Redirect) -> Result<Attachment<K>> {
        Attachment::to(self.map, redirect)
    }
}

impl<K: Key> Attachment<K> {
    fn to(map: SocketMap, redirect: Redirect) -> Result<Self> {
        if members::<K>(&map).next().is_some() {
            return Err(Error::new(
                ErrorKind::System,
                "cannot attach a redirect to a map that has sockets already: they would get no program (sock_map_link); attach \
                 it first, and then add them",
            ));
        }
        orphans::clear_if_many();
        let plan = Plan {
            redirect,
            map_type: SocketMapType::Hash,
            entries: map.entries(),
            // With one source it is known who has received a message.
            only: !redirect.is_of_sent() && map.entries() == 1,
            raw: false,
            release: Release::here(),
        };
        let loaded = Arc::new(Loaded::load_for(plan, &map)?);
        let keys = PhantomData;
        Ok(Self {
            plan,
            loaded,
            map,
            keys,
        })
    }

    /// Links sockets that a defect of this kernel may harm, too.
    pub fn despite_defects(mut self) -> Self {
        self.plan.release = None;
        self
    }

    /// Bounds what is outstanding at each target of further links, as
    /// [`Redirections::bounded`](crate::Redirections::bounded) does.
    pub fn bounded(self, most_bytes: u64) -> Self {
        self.loaded.bound(most_bytes);
        self
    }

    /// Adds `source` under `key`, and sends its messages to `target` from now on, as
    /// [`Redirections::link`](crate::Redirections::link) does.
    ///
    /// # Errors
    /// Those of [`Redirections::link`](crate::Redirections::link), and
    /// - [`ErrorKind::System`] if the key has a socket already,
    /// - [`ErrorKind::UnsupportedSocket`] for what a UNIX socket receives, unless the map has room for one socket only:
    ///   such a message does not tell who has received it.
    pub fn link(&self, key: K, source: impl AsFd, target: impl AsFd) -> Result<Link> {
        let (source, target) = (source.as_fd(), target.as_fd());
        let redirect = self.plan.redirect;
        let (from, to) = require_supported(self.plan, source, target)?;
        if from.is_unix() && !redirect.is_of_sent() && !self.plan.only {
            return Err(Error::new(
                ErrorKind::UnsupportedSocket,
                "what a UNIX socket receives does not tell who has received it (unix_read_skb): attach the redirect to a map \
                 with room for one socket, or use Redirections",
            ));
        }
        if self.loaded.is_full() {
            orphans::clear_of(&self.loaded);
        }
        add(
            Arc::clone(&self.loaded),
            redirect,
            Some(key.to_bytes()),
            (source, from),
            (target, to),
        )
    }

    /// The cookie (`SO_COOKIE`) of the source under a key.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses it.
    pub fn cookie(&self, key: K) -> Result<Option<Cookie>> {
        cookie(&self.map, &key.to_bytes())
    }

    /// The keys that have a source, each with its cookie. Sources that come or go meanwhile may be left out.
    pub fn iter(&self) -> impl Iterator<Item = (K, Cookie)> {
        members(&self.map)
    }

    /// Pins the map, so that it, its sources and their redirects outlive this process.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if `path` exists, or does not lie in a BPF file system.
    pub fn pin(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.map.pin(path.as_ref())
    }

    /// How many messages of members that have no link were left to their readers.
    pub fn passed_without_link(&self) -> u64 {
        self.loaded.passed_without_link()
    }
}

impl<K> fmt::Debug for Attachment<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attachment").field(&self.plan).finish()
    }
}
