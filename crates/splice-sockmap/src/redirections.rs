//! One redirect, for many sources.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{RecvFlags, getpeername, getsockname, recv};
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::release::Release;
use splice_base::socket_option::progress;
use splice_bpf::SocketMapType;

use crate::heartbeat::Heartbeat;
use crate::key::{Cookie, FourTuple};
use crate::lease::Lease;
use crate::link::{Link, Losses, withdraw};
use crate::loaded::{Loaded, OVERTAKEN, Plan};
use crate::orphans;
use crate::redirect::Redirect;
use crate::socket_kind::SocketKind;

/// The program and the maps of one redirect.
///
/// The programs stay loaded as long as a link needs them, also after the `Redirections` were dropped.
#[derive(Debug)]
pub struct Redirections {
    plan: Plan,
    shared: Arc<Loaded>,
    /// If there is a lease.
    heartbeat: Option<Arc<Heartbeat>>,
}

impl Redirections {
    /// Loads the program of a redirect, with maps of one of the two types and room for as many links.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] without the rights, which are `CAP_BPF`, `CAP_NET_ADMIN` and `CAP_PERFMON`, or if
    /// the kernel lacks BPF; it says which.
    pub fn new(redirect: Redirect, map_type: SocketMapType, links: u32) -> Result<Self> {
        Self::load(plan(redirect, map_type, links), None)
    }

    /// The same with a lease: programs and maps are pinned, so that the sockets of other processes keep them if this one dies.
    /// When the lease has lapsed, everything is passed, and counted as [`Lapsed`](crate::PassReason::Lapsed).
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`ErrorKind::System`] if it cannot be pinned.
    pub fn leased(
        lease: &Lease,
        redirect: Redirect,
        map_type: SocketMapType,
        links: u32,
    ) -> Result<Self> {
        Self::load(plan(redirect, map_type, links), Some(lease.heartbeat()))
    }

    /// Links sockets that a defect of this kernel may harm, too: those that are refused otherwise. [`defects`](crate::defects)
    /// says what there is.
    pub fn despite_defects(mut self) -> Self {
        self.plan.release = None;
        self
    }

    /// Bounds what is outstanding at each target of further links: the bytes that were redirected to it, less those that its
    /// socket has sent, or its reader has read. A message beyond it is passed, and counted as
    /// [`Full`](crate::PassReason::Full). On a stream so is everything behind it, until [`Link::resume`]: it would overtake.
    ///
    /// The program reads what waits: of a TCP socket that sends, by its sequence numbers, exactly unless its owner writes to it
    /// meanwhile; of every other target, by its queues, with what it has passed to its own reader. Up to one message of each
    /// other source may be on its way there, and come on top. Of a queue of more than 1024 messages, and of one that changes
    /// while it is read, everything counts that came since it could be read.
    pub fn bounded(self, most_bytes: u64) -> Self {
        self.shared.bound(most_bytes);
        self
    }

    /// The same with the kernel's own answers, which lose what a redirect does not support.
    pub(crate) fn raw(redirect: Redirect, map_type: SocketMapType, links: u32) -> Result<Self> {
        let plan = Plan {
            raw: true,
            release: None,
            ..plan(redirect, map_type, links)
        };
        Self::load(plan, None)
    }

    fn load(plan: Plan, heartbeat: Option<&Arc<Heartbeat>>) -> Result<Self> {
        orphans::clear_if_many();
        Ok(Self {
            plan,
            shared: loaded(plan, heartbeat)?,
            heartbeat: heartbeat.cloned(),
        })
    }

    /// Sends the messages of `source` to `target` from now on, until the source is closed or the link
    /// [leaves](Link::leave).
    ///
    /// The target may be the source itself, but for what TCP receives and would read again. A socket can be the target of many sources. A message that is longer
    /// than the target takes in one piece, and whatever the target does not take since it is closed, goes to the
    /// source's own reader instead, and is counted. Empty datagrams are dropped and counted: the kernel takes them for
    /// an error of the target (`sk_psock_backlog`), and a reader of a member gets `EFAULT` from then on
    /// (`sk_msg_recvmsg`, Linux 6.18).
    ///
    /// # Errors
    /// - [`ErrorKind::UnsupportedSocket`] if the redirect does not support this pair of kinds, the kernel does not take one of
    ///   the sockets, or it has a defect that would harm the target; it says why. Nothing was lost.
    /// - [`ErrorKind::System`] if what the source sends is to go to its own peer's reader, and that has not read all that
    ///   came before: it would read redirected bytes first. The source must not send while it is being linked.
    /// - [`ErrorKind::System`] if the source has a link already, or has bytes that wait to be read: those came before
    ///   the link and belong to its reader. Read them and try again. If a UNIX or VSOCK stream brings more while it is
    ///   being linked, its target may get the first of them: link it before its peer sends.
    pub fn link(&self, source: impl AsFd, target: impl AsFd) -> Result<Link> {
        let (source, target) = (source.as_fd(), target.as_fd());
        let (from, to) = require_supported(self.plan, source, target)?;
        self.link_any((source, from), (target, to))
    }

    /// How many messages of sources that have no link were left to their readers: a source whose sent messages are redirected
    /// keeps its program until it is in no map, and a source that leaves may get one more verdict. Sources of UNIX have
    /// programs of their own, and do not count.
    pub fn passed_without_link(&self) -> u64 {
        self.shared.passed_without_link()
    }

    /// What is loaded for all sources but those of UNIX, with room for another one if there can be.
    pub(crate) fn shared(&self) -> &Arc<Loaded> {
        if self.shared.is_full() {
            orphans::clear_of(&self.shared);
        }
        &self.shared
    }

    /// How many links were dropped and are still in the maps that all sources but those of UNIX share.
    #[cfg(test)]
    pub(crate) fn orphans(&self) -> usize {
        orphans::count_of(&self.shared)
    }

    pub(crate) fn plan(&self) -> Plan {
        self.plan
    }

    /// The same for pairs that the redirect may not support.
    pub(crate) fn link_any(
        &self,
        source: (BorrowedFd<'_>, SocketKind),
        target: (BorrowedFd<'_>, SocketKind),
    ) -> Result<Link> {
        let received = !self.plan.redirect.is_of_sent();
        // A UNIX source has maps and a program of its own.
        let loaded = if received && source.1.is_unix() {
            orphans::clear_if_many();
            let plan = Plan {
                only: true,
                entries: 1,
                ..self.plan
            };
            let beside = Loaded::load_beside(plan, self.heartbeat.as_deref(), self.shared())?;
            Arc::new(beside)
        } else {
            Arc::clone(self.shared())
        };
        add(loaded, self.plan.redirect, None, source, target)
    }
}

fn plan(redirect: Redirect, map_type: SocketMapType, entries: u32) -> Plan {
    Plan {
        redirect,
        map_type,
        entries,
        only: false,
        raw: false,
        release: Release::here(),
    }
}

fn loaded(plan: Plan, heartbeat: Option<&Arc<Heartbeat>>) -> Result<Arc<Loaded>> {
    let loaded = match heartbeat {
        Some(heartbeat) => Loaded::load_leased(plan, heartbeat),
        None => Loaded::load(plan),
    };
    loaded.map(Arc::new)
}

/// That a redirect supports a pair of sockets here, and what kinds they are of.
pub(crate) fn require_supported(
    plan: Plan,
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
) -> Result<(SocketKind, SocketKind)> {
    let redirect = plan.redirect;
    let (from, to) = (SocketKind::of(source)?, SocketKind::of(target)?);
    redirect.supports(from, to).map_err(|failure| {
        Error::new(
            ErrorKind::UnsupportedSocket,
            format!(
                "the redirect {redirect} does not support {from} to {to}: {failure} ({})",
                redirect.decided_by(failure)
            ),
        )
    })?;
    for (socket, kind) in [(source, from), (target, to)] {
        require_ready(socket, kind)?;
    }
    require_peer(target, to)?;
    plan.require_sound(to)?;
    if from == SocketKind::Tcp && redirect == Redirect::IngressToLocal {
        require_another(Cookie::of(source)?, Cookie::of(target)?)?;
    }
    let is_tcp = (from, to) == (SocketKind::Tcp, SocketKind::Tcp);
    if is_tcp && redirect == Redirect::SendToLocal {
        require_read(source, target)?;
    }
    Ok((from, to))
}

/// A map takes a listener, which neither sends nor receives a message, and on some kernels a UDP socket without a port.
fn require_ready(socket: BorrowedFd<'_>, kind: SocketKind) -> Result<()> {
    let unsupported = |why| Err(Error::new(ErrorKind::UnsupportedSocket, why));
    // VSOCK does not tell, and its listeners are refused by the maps.
    if socket_acceptconn(socket) == Ok(true) {
        return unsupported(
            "a listening socket sends and receives no messages: link the sockets that it accepts",
        );
    }
    let address = || SocketAddr::try_from(getsockname(socket)?);
    if kind == SocketKind::Udp && address().is_ok_and(|address| address.port() == 0) {
        return unsupported("a UDP socket that is not bound receives nothing: bind it first");
    }
    Ok(())
}

/// The kernel redirects to connected sockets only, to their readers, too (`sock_map_redirect_allowed`): a link would pass every
/// message.
fn require_peer(target: BorrowedFd<'_>, kind: SocketKind) -> Result<()> {
    if matches!(getpeername(target), Ok(Some(_))) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::UnsupportedSocket,
        format!(
            "the {kind} target has no peer, and the kernel redirects to connected sockets only \
             (sock_map_redirect_allowed): connect it first"
        ),
    ))
}

/// Adds a source, from whose queue nothing may be missing or left behind.
pub(crate) fn add(
    loaded: Arc<Loaded>,
    redirect: Redirect,
    own_key: Option<Vec<u8>>,
    source: (BorrowedFd<'_>, SocketKind),
    target: (BorrowedFd<'_>, SocketKind),
) -> Result<Link> {
    let received = !redirect.is_of_sent();
    let cookie = Cookie::of(source.0)?;
    if received {
        require_empty(source.0)?;
    }
    let losses = Losses::begin(source.0, source.1)?;
    let place = loaded.add(own_key, source, target)?;
    // What came in before the source was a member waits in its queue. A look at it brings about its verdict on
    // TCP. Elsewhere it would stay there, in front of all that follows.
    if received && let Err(error) = require_empty(source.0) {
        withdraw(&loaded, place);
        return Err(error);
    }
    Ok(Link::new(
        loaded,
        place,
        (source.1, cookie),
        redirect,
        losses,
    ))
}

/// The kernel counts such bytes as read twice, at their verdict (`tcp_eat_skb`) and by their reader (`sk_msg_recvmsg`,
/// `tcp_bpf_recvmsg`). Once the source has left, TCP takes as many of the next bytes for read (seen on 6.18.44; 7.2.9 counts
/// once). The source's reader gets the bytes without a link, too.
pub(crate) fn require_another(source: Cookie, target: Cookie) -> Result<()> {
    if source != target {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::UnsupportedSocket,
        "the redirect ingress to local does not support a TCP socket to itself: the kernel counts its bytes as read twice \
         and skips later ones (tcp_bpf_recvmsg)",
    ))
}

/// A reader takes what was redirected to it before what came over its own connection (`tcp_bpf_recvmsg`). So a target that is
/// the source's own peer must have read all that the source has sent.
fn require_read(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<()> {
    let (Ok(from), Ok(to)) = (FourTuple::of(source), FourTuple::of(target)) else {
        return Ok(());
    };
    // They may be in two network namespaces.
    if (from.local, from.remote) != (to.remote, to.local) {
        return Ok(());
    }
    let progress = |of| {
        progress(of)
            .map_err(|errno| Error::system("cannot tell how far a connection has come", errno))
    };
    let come = progress(target)?;
    let has_come = progress(source)?.written_bytes == come.read_bytes + come.unread_bytes;
    // FIONREAD, by which `unread_bytes` is known, does not count all that a member of a map has.
    let mut byte = [0];
    let peeked = recv(target, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    if has_come && peeked == Err(Errno::AGAIN) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::System, OVERTAKEN))
}

/// Nothing may wait in the source's queue.
fn require_empty(source: BorrowedFd<'_>) -> Result<()> {
    let mut byte = [0];
    match recv(source, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN) => Ok(()),
        // The source may have an error of its own, or be ended: its link does no harm.
        Err(_) => Ok(()),
        Ok((_, 0)) if SocketKind::of(source)?.is_stream() => Ok(()),
        Ok(_) => Err(Error::new(
            ErrorKind::System,
            "the source has bytes that came before the link: read them first, and try again",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::member::Pair;

    #[test]
    fn a_kernel_that_would_harm_a_target_is_refused_unless_asked_for_otherwise() {
        if !netlab::available(netlab::Need::Bpf) {
            return;
        }
        let mut old =
            Redirections::new(Redirect::IngressToLocal, SocketMapType::Hash, 2).expect("loaded");
        old.plan.release = Release::of("6.1.164", "");
        let [source, target] = [(); 2].map(|()| Pair::of(SocketKind::Tcp).expect("made"));
        let error = old
            .link(&source.member, &target.member)
            .expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::UnsupportedSocket);
        assert!(error.to_string().contains("despite_defects"), "{error}");
        assert_eq!(old.orphans(), 0);
        let mut link = old
            .despite_defects()
            .link(&source.member, &target.member)
            .expect("asked for");
        let left = link.leave(&source.member, Duration::from_secs(30));
        left.expect("it leaves");
    }
}
