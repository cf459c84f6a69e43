//! Listening sockets, and the task that accepts on one.

use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, getsockname, listen, sockopt};
use splice::{
    Address, Context, Endpoint, Interest, Kind, Readiness, SegmentSize, Step, Task, set_busy_poll,
};

use crate::connection::Connection;
use crate::echo;
use crate::live::Alive;
use crate::place::{Place, keep_urgent_bytes};
use crate::relay::{Goal, Relay};
use crate::shortage::limit_met;

/// Connections that may wait to be accepted; the kernel cuts it to `net.core.somaxconn`, which is
/// 4096 since Linux 5.4.
const BACKLOG: i32 = 4096;

/// How long to leave a listener alone after the process or the system has run out of something:
/// connections wait in the backlog meanwhile, and the loop has its time for those that will free
/// it.
const RETRY_AFTER_SHORTAGE: Duration = Duration::from_millis(100);

/// The sockets of a relay that listen, by thread.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) by_thread: Vec<Vec<OwnedFd>>,
    /// Where it listens, as the kernel says it (a port 0 has become a number).
    pub(crate) places: Vec<Place>,
    /// The threads share one socket instead of having one each.
    pub(crate) shared: bool,
    _socket_file: Option<SocketFile>,
}

impl Listening {
    /// Binds a socket for each thread: TCP sockets of their own, over which the kernel spreads
    /// the connections (`SO_REUSEPORT`), or one shared UNIX socket. Where `fits` is given, clients
    /// over TCP are told to send no larger segments.
    pub(crate) fn on(address: &Address, threads: usize, fits: Option<SegmentSize>) -> Result<Self> {
        let mut listening = Self {
            by_thread: (0..threads).map(|_| Vec::new()).collect(),
            places: Vec::new(),
            shared: !matches!(address, Address::Inet { .. }),
            _socket_file: None,
        };
        let mut places = Place::to_listen(address)?;
        places.dedup();
        let mut failed = None;
        for place in places {
            let added = match &place {
                Place::Inet(_) => listening.add_tcp(place, threads, fits),
                Place::Unix(_) => listening.add_unix(&place, address, threads),
            };
            match added.with_context(|| format!("cannot listen on {address}")) {
                Ok(()) => {}
                // A name may stand for an address of a family that this host does not have.
                Err(error) if error.downcast_ref::<NotOfThisHost>().is_some() => {
                    failed = Some(error)
                }
                Err(error) => return Err(error),
            }
        }
        match failed {
            Some(error) if listening.places.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!("{error:#}; listening on its other addresses");
                Ok(listening)
            }
            None => Ok(listening),
        }
    }

    /// Has the connections poll the device before they sleep: they take the option over from the
    /// socket that they are accepted on (`sk_clone`).
    pub(crate) fn set_busy_poll(&self, time: Duration) -> Result<()> {
        for socket in self.by_thread.iter().flatten() {
            set_busy_poll(socket, time)?;
        }
        Ok(())
    }

    fn add_tcp(&mut self, place: Place, threads: usize, fits: Option<SegmentSize>) -> Result<()> {
        // The first socket is bound without SO_REUSEPORT: with it, a second relay of the same
        // user would be given the port too, and a part of this one's connections.
        let (first, place) = match bind_tcp(&place, false) {
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if is_wildcard(&place) => {
                let v4 = Place::Inet((std::net::Ipv4Addr::UNSPECIFIED, port(&place)).into());
                (bind_tcp(&v4, false), v4)
            }
            bound => (bound, place),
        };
        let first = first.map_err(|errno| why_not(errno, &place))?;
        let bound = getsockname(&first).ok();
        let place = bound
            .and_then(|name| Place::from_kernel(Some(name)))
            .unwrap_or(place);
        if threads > 1 {
            sockopt::set_socket_reuseport(&first, true).context("SO_REUSEPORT cannot be set")?;
        }
        let listen = |socket: &OwnedFd| -> Result<()> {
            if let Some(size) = fits {
                size.announce_on(socket)?;
            }
            listen(socket, BACKLOG).map_err(|errno| why_not(errno, &place))
        };
        listen(&first)?;
        self.by_thread[0].push(first);
        for sockets in &mut self.by_thread[1..] {
            let socket = bind_tcp(&place, true).map_err(|errno| why_not(errno, &place))?;
            listen(&socket)?;
            sockets.push(socket);
        }
        self.places.push(place);
        Ok(())
    }

    fn add_unix(&mut self, place: &Place, address: &Address, threads: usize) -> Result<()> {
        let socket = unix_socket(place)?;
        let mut bound = place.bind(&socket);
        if let (Err(Errno::ADDRINUSE), Address::UnixPath(path)) = (bound, address) {
            remove_stale(path, place)?;
            bound = place.bind(&socket);
        }
        bound.map_err(|errno| why_not(errno, place))?;
        if let Address::UnixPath(path) = address {
            self._socket_file = Some(SocketFile::of(path)?);
        }
        listen(&socket, BACKLOG).map_err(|errno| why_not(errno, place))?;
        for sockets in &mut self.by_thread[..threads - 1] {
            sockets.push(
                socket
                    .try_clone()
                    .context("the listening socket cannot be shared")?,
            );
        }
        self.by_thread[threads - 1].push(socket);
        self.places.push(place.clone());
        Ok(())
    }
}

fn bind_tcp(place: &Place, reuse_port: bool) -> Result<OwnedFd, Errno> {
    let socket = place.socket()?;
    // A port whose last connections are in TIME_WAIT is free for a listener.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if is_wildcard(place) {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    if reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    place.bind(&socket)?;
    Ok(socket)
}

fn is_wildcard(place: &Place) -> bool {
    matches!(place, Place::Inet(inet) if inet.is_ipv6() && inet.ip().is_unspecified())
}

fn port(place: &Place) -> u16 {
    match place {
        Place::Inet(inet) => inet.port(),
        Place::Unix(_) => 0,
    }
}

/// The address belongs to another host, or to a family that this one does not have.
#[derive(Debug)]
struct NotOfThisHost(Place);

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

fn why_not(errno: Errno, place: &Place) -> anyhow::Error {
    let port = port(place);
    match errno {
        Errno::ADDRINUSE => {
            anyhow!("{place} is in use by another socket; stop it or choose another")
        }
        Errno::ACCESS if port != 0 => anyhow!(
            "port {port} is privileged; choose one above 1023 or run with CAP_NET_BIND_SERVICE"
        ),
        Errno::ACCESS => {
            anyhow!("its directory must not be written to; choose another or its owner")
        }
        Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => NotOfThisHost(place.clone()).into(),
        Errno::NOENT => anyhow!("its directory does not exist; make it or choose another"),
        other => anyhow!("{}", std::io::Error::from(other)),
    }
}

fn unix_socket(place: &Place) -> Result<OwnedFd> {
    place.socket().map_err(|errno| {
        anyhow!(
            "a UNIX socket cannot be made: {}; raise the limit or listen on a TCP address",
            std::io::Error::from(errno)
        )
    })
}

/// Removes a socket file that nobody listens on any more, and nothing else.
fn remove_stale(path: &Path, place: &Place) -> Result<()> {
    let metadata =
        fs::symlink_metadata(path).with_context(|| format!("{place} cannot be looked at"))?;
    if !metadata.file_type().is_socket() {
        bail!("the file exists and is not a socket; remove it or choose another");
    }
    let probe = unix_socket(place)?;
    match place.connect(&probe) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(|error| {
            anyhow!(
                "the socket file of a dead listener cannot be removed: {error}; remove it or \
                     choose another"
            )
        }),
        _ => Err(why_not(Errno::ADDRINUSE, place)),
    }
}

/// The file of a listening UNIX socket, removed with it, unless somebody has put another there.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> Result<Self> {
        let device_and_inode = identity(path).context("the socket file cannot be looked at")?;
        Ok(Self {
            path: path.into(),
            device_and_inode,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.device_and_inode) {
            // There is nobody to tell, and the next start removes a stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Accepts on one socket of one thread.
///
/// ```text
/// Accepting ──descriptors or memory used up──▶ Pausing ──after a moment──▶ Accepting
///     └──────as many connections as allowed──▶ Pausing ──one has ended───▶ Accepting
/// ```
pub(crate) struct Listener {
    socket: OwnedFd,
    interest: Interest,
    accepting: bool,
    relay: Arc<Relay>,
}

impl Listener {
    pub(crate) fn new(socket: OwnedFd, shared: bool, relay: Arc<Relay>) -> Self {
        let interest = if shared {
            Interest::TAKE_SHARED
        } else {
            Interest::TAKE
        };
        Self {
            socket,
            interest,
            accepting: false,
            relay,
        }
    }

    /// Accepts one connection; false when there is none to be had now.
    fn accept(&mut self, cx: &mut Context<'_>, alive: Alive) -> bool {
        match acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok((client, peer)) => {
                // Only looked at for the log, and turning it into text costs.
                let peer = if self.relay.writes_access_log() {
                    Place::from_kernel(peer)
                } else {
                    None
                };
                let relay = Arc::clone(&self.relay);
                let kind = relay.client_kind;
                if kind == Kind::Unix {
                    keep_urgent_bytes(&client);
                }
                match &self.relay.goal {
                    Goal::Target(target) => {
                        let target = Arc::clone(target);
                        let connection = Connection::new(client, kind, peer, alive, target, relay);
                        cx.spawn(Box::new(connection));
                    }
                    Goal::Client => echo::spawn(cx, Endpoint::prepared(client, kind), alive, relay),
                }
                true
            }
            Err(errno) => match Failure::of(errno) {
                Failure::NoneWaits => false,
                Failure::ThisOne => true,
                Failure::Shortage => {
                    self.relay.shortage.emit(|_| {
                        tracing::warn!(
                            "no connection can be accepted for now: {}; raise the limit or lower \
                             --max-connections",
                            limit_met(errno)
                                .unwrap_or_else(|| std::io::Error::from(errno).to_string())
                        );
                    });
                    self.pause(cx);
                    cx.set_deadline(Some(cx.now() + RETRY_AFTER_SHORTAGE));
                    false
                }
            },
        }
    }

    fn pause(&mut self, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.accepting, false) {
            cx.deregister(&self.socket);
        }
    }

    fn go_on(&mut self, cx: &mut Context<'_>) -> Step {
        if !self.accepting {
            match cx.register(&self.socket, 0, self.interest) {
                Ok(()) => self.accepting = true,
                Err(error) => {
                    self.relay
                        .shortage
                        .emit(|_| tracing::warn!("no connection can be accepted: {error}"));
                    cx.set_deadline(Some(cx.now() + RETRY_AFTER_SHORTAGE));
                }
            }
        }
        Step::Wait
    }
}

/// What a failed accept4 means for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Nobody waits to be accepted.
    NoneWaits,
    /// The process or the system has run out of something, or forbids it: the next one would fail
    /// as well.
    Shortage,
    /// This connection died in the backlog, or its network had a fault, which accept(2) passes
    /// on: the next one may be well.
    ThisOne,
}

impl Failure {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Self::NoneWaits,
            // The list of accept(2), and what a connection leaves that died in the backlog.
            Errno::CONNABORTED
            | Errno::INTR
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH
            | Errno::TIMEDOUT => Self::ThisOne,
            // Unknown: it may stay, and must not make the loop spin.
            _ => Self::Shortage,
        }
    }
}

impl Task for Listener {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.go_on(cx)
    }

    /// One at a time: while more wait, the kernel says so again, and the connections that are
    /// already there have their turn in between.
    fn ready(&mut self, cx: &mut Context<'_>, _source: u8, _readiness: Readiness) -> Step {
        match self.relay.live.enter(|| cx.waker()) {
            Some(alive) => drop(self.accept(cx, alive)),
            None => {
                self.relay.max_connections_reached.emit(|_| {
                    tracing::warn!(
                        "--max-connections {} is reached: clients wait in the backlog until a \
                         connection ends",
                        self.relay.live.most()
                    );
                });
                self.pause(cx);
            }
        }
        Step::Wait
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        self.go_on(cx)
    }

    fn resume(&mut self, cx: &mut Context<'_>) -> Step {
        self.go_on(cx)
    }

    /// What has been established by the kernel was promised to its client: it is accepted before
    /// the socket goes, since closing it resets what is left in the backlog.
    ///
    /// Not more than the backlog holds, since more may come all the time.
    fn close(&mut self, cx: &mut Context<'_>) {
        for _ in 0..BACKLOG {
            let alive = self.relay.live.enter_beyond_limit();
            if !self.accept(cx, alive) {
                break;
            }
        }
    }
}

/// The kind of the connections that a listener on `places` gets.
pub(crate) fn client_kind(places: &[Place]) -> Kind {
    places.first().map_or(Kind::Tcp4, Place::kind)
}

#[cfg(test)]
mod tests {
    use super::{Errno, Failure};

    #[test]
    fn a_connection_that_died_does_not_stop_the_others_and_a_shortage_pauses_them() {
        for errno in [
            Errno::CONNABORTED,
            Errno::PROTO,
            Errno::NETDOWN,
            Errno::INTR,
        ] {
            assert_eq!(Failure::of(errno), Failure::ThisOne);
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert_eq!(Failure::of(errno), Failure::Shortage);
        }
        assert_eq!(Failure::of(Errno::AGAIN), Failure::NoneWaits);
    }
}
