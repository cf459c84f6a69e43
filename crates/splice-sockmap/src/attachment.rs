//! A redirect that is attached to a map of its caller's.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::release::Release;
use splice_bpf::{SocketMapType, programs_on_map};

use crate::heartbeat::Heartbeat;
use crate::key::{Cookie, Key, sealed::Bytes as _};
use crate::lease::Lease;
use crate::link::Link;
use crate::loaded::{Loaded, Plan};
use crate::map::{Container, SockHash, SockMap, Use, cookie, members, require_no_program};
use crate::orphans;
use crate::redirect::Redirect;
use crate::redirections::{add, require_supported};

/// A redirect that is attached to a [`SockMap`] or a [`SockHash`]: the map's members are its sources, each under a key of
/// the caller's choice. Their targets are in a map without a program, so that nothing happens to what a target receives.
///
/// The attachment takes the map, since [`SockMap::remove`] would lose bytes of a source in full flow. A source goes in by
/// [`link`](Self::link), and out by [`Link::leave`] or when it is closed. [`detach`](Self::detach) gives the map back, with its
/// sources. Links keep the map when the attachment is dropped.
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
pub struct Attachment<M> {
    plan: Plan,
    loaded: Arc<Loaded>,
    map: M,
}

impl SockMap {
    /// Attaches a redirect: what a source in this map sends or receives goes to its target.
    ///
    /// # Errors
    /// - [`ErrorKind::System`] if the map has members: the kernel gives them no program any more.
    /// - [`ErrorKind::System`] if a program is attached to the map already, whoever has done it.
    /// - [`ErrorKind::BpfRefused`] without the rights, which are `CAP_BPF`, `CAP_NET_ADMIN` and `CAP_PERFMON`.
    pub fn attach(self, redirect: Redirect) -> Result<Attachment<Self>> {
        Attachment::to(self, redirect, None)
    }

    /// The same with a lease, as [`Redirections::leased`](crate::Redirections::leased) has it: program and map are pinned, and
    /// everything is passed when the lease has lapsed.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), and [`ErrorKind::System`] if it cannot be pinned.
    pub fn attach_leased(self, lease: &Lease, redirect: Redirect) -> Result<Attachment<Self>> {
        Attachment::to(self, redirect, Some(lease.heartbeat()))
    }
}

impl<K: Key> SockHash<K> {
    /// Attaches a redirect: what a source in this map sends or receives goes to its target.
    ///
    /// # Errors
    /// As [`SockMap::attach`].
    pub fn attach(self, redirect: Redirect) -> Result<Attachment<Self>> {
        Attachment::to(self, redirect, None)
    }

    /// The same with a lease.
    ///
    /// # Errors
    /// As [`SockMap::attach_leased`].
    pub fn attach_leased(self, lease: &Lease, redirect: Redirect) -> Result<Attachment<Self>> {
        Attachment::to(self, redirect, Some(lease.heartbeat()))
    }
}

impl<M: Container> Attachment<M> {
    fn to(map: M, redirect: Redirect, heartbeat: Option<&Arc<Heartbeat>>) -> Result<Self> {
        let sockets = map.sockets();
        require_no_program(sockets, Use::Attach)?;
        if members::<M::Key>(sockets).next().is_some() {
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
            entries: sockets.entries(),
            // With one source it is known who has received a message.
            only: !redirect.is_of_sent() && sockets.entries() == 1,
            raw: false,
            release: Release::here(),
        };
        let loaded = Loaded::load_for(plan, sockets, heartbeat.map(Arc::as_ref))?;
        Ok(Self {
            plan,
            loaded: Arc::new(loaded),
            map,
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
    /// - [`ErrorKind::System`] if the key has a socket already, or another process has replaced the program of the map,
    /// - [`ErrorKind::UnsupportedSocket`] for what a UNIX socket receives, unless the map has room for one socket only:
    ///   such a message does not tell who has received it.
    pub fn link(&self, key: M::Key, source: impl AsFd, target: impl AsFd) -> Result<Link> {
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
        self.require_own_program()?;
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
    pub fn cookie(&self, key: M::Key) -> Result<Option<Cookie>> {
        cookie(self.map.sockets(), &key.to_bytes())
    }

    /// The keys that have a source, each with its cookie. Sources that come or go meanwhile may be left out.
    pub fn iter(&self) -> impl Iterator<Item = (M::Key, Cookie)> {
        members(self.map.sockets())
    }

    /// Pins the map, so that it, its sources and their redirects outlive this process.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if `path` exists, or does not lie in a BPF file system.
    pub fn pin(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.map.sockets_mut().pin(path.as_ref())
    }

    /// Detaches the redirect, and gives the map back with its sources under their keys. They and their targets are plain
    /// sockets again, and no byte is lost: each of `links`, which come with their sources, ends as by [`Link::leave`]. It waits
    /// until the kernel has handed over all that was redirected, at most for `patience` in all.
    ///
    /// A TCP source whose peer has ended its stream is not in the map afterwards, since the kernel takes established connections
    /// only. It removes a UNIX stream when its peer ends it (`unix_shutdown`).
    ///
    /// # Errors
    /// Those of [`Link::leave`], and [`ErrorKind::System`] if the map has a source that comes with no link. The attachment is as
    /// it was, and is returned. Only if the kernel refuses to detach the program, as without `CAP_NET_ADMIN`, its links have ended.
    pub fn detach<'l, S: AsFd>(
        self,
        links: impl IntoIterator<Item = (&'l mut Link, S)>,
        patience: Duration,
    ) -> std::result::Result<M, Box<(Self, Error)>> {
        let mut links: Vec<(&mut Link, S)> = links.into_iter().collect();
        match self.detach_all(&mut links, Instant::now() + patience) {
            Ok(()) => Ok(self.map),
            Err(error) => Err(Box::new((self, error))),
        }
    }

    fn detach_all<S: AsFd>(&self, links: &mut [(&mut Link, S)], deadline: Instant) -> Result<()> {
        orphans::clear_of(&self.loaded);
        let mut leaving = Vec::new();
        for (link, source) in links.iter_mut() {
            if let Some(place) = link.place_in(&self.loaded)? {
                let key = self.loaded.own_key(place);
                leaving.push((link, key, (*source).as_fd()));
            }
        }
        let sockets = self.map.sockets();
        let has_link = |key: &Vec<u8>| leaving.iter().any(|(_, of, _)| of.as_ref() == Some(key));
        let members = members::<M::Key>(sockets).map(|(key, _)| key.to_bytes());
        let without = members.filter(|key| !has_link(key)).count();
        if without > 0 {
            return Err(Error::new(
                ErrorKind::System,
                format!(
                    "cannot detach the redirect: {without} of its sources come with no link, and would lose what is redirected \
                     at this moment; pass their links, or close them"
                ),
            ));
        }
        let mut held = Vec::new();
        for (link, _, source) in &leaving {
            held.push(link.hold(*source)?);
            link.drain(*source, deadline)?;
        }
        for (link, _, source) in &mut leaving {
            link.end(*source);
        }
        // Last of what can fail. A member keeps the program that its map had when it came, so the sources go and come again.
        self.loaded.detach(sockets)?;
        for (_, key, source) in &leaving {
            let Some(key) = key else { continue };
            // It is a plain socket in any case.
            let _ = sockets.insert(key, *source);
        }
        Ok(())
    }

    /// That a source would get the program of this redirect. The kernel lets every process with the map replace it
    /// (`sock_map_prog_update`).
    fn require_own_program(&self) -> Result<()> {
        let (Some(own), Ok(programs)) = (
            self.loaded.program_id(),
            programs_on_map(self.map.sockets()),
        ) else {
            // It has no right to ask.
            return Ok(());
        };
        let other = programs.iter().find(|program| **program != own);
        let what = match other {
            Some(other) => format!("has the program {other}"),
            None if programs.is_empty() => "has no program any more".into(),
            None => return Ok(()),
        };
        Err(Error::new(
            ErrorKind::System,
            format!("cannot link a source: the map {what}, since another process has changed that"),
        )
        .with_remedy("attach the redirect to a map that no other process attaches programs to"))
    }

    /// Whether the kernel tells that the map has a program.
    pub(crate) fn is_told(&self) -> std::result::Result<bool, Errno> {
        programs_on_map(self.map.sockets()).map(|programs| !programs.is_empty())
    }

    /// How many messages of members that have no link were left to their readers.
    pub fn passed_without_link(&self) -> u64 {
        self.loaded.passed_without_link()
    }
}

impl<M> fmt::Debug for Attachment<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attachment").field(&self.plan).finish()
    }
}
