//! The sockets that a relay listens on.

use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::net::{getsockname, listen, sockopt};
use splice::{Address, SegmentSize, set_busy_poll};

use crate::place::Place;

/// Connections that may wait to be accepted; the kernel cuts it to `net.core.somaxconn`, which is
/// 4096 since Linux 5.4.
pub(crate) const BACKLOG: i32 = 4096;

/// How many ports are tried where the kernel picks one and each address of a name has to have it: of
/// the 28 000 in the default range few are in use.
const PORTS_TRIED: usize = 16;

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
    /// Binds at each of the `places` that `address` stands for a socket for each thread: TCP sockets of their own, over which the kernel spreads
    /// the connections (`SO_REUSEPORT`), or one shared UNIX socket. Where `fits` is given, clients
    /// over TCP are told to send no larger segments.
    pub(crate) fn on(
        address: &Address,
        mut places: Vec<Place>,
        threads: usize,
        fits: Option<SegmentSize>,
    ) -> Result<Self> {
        places.dedup();
        let picks_port = matches!(address, Address::Inet { port: 0, .. });
        for _ in 1..PORTS_TRIED {
            match Self::on_places(address, &places, threads, fits) {
                // Another family's socket has the port that the kernel picked for the first.
                Err(error) if picks_port && error.is::<InUse>() => {}
                other => return other,
            }
        }
        Self::on_places(address, &places, threads, fits)
    }

    fn on_places(
        address: &Address,
        places: &[Place],
        threads: usize,
        fits: Option<SegmentSize>,
    ) -> Result<Self> {
        let mut listening = Self {
            by_thread: (0..threads).map(|_| Vec::new()).collect(),
            places: Vec::new(),
            shared: !matches!(address, Address::Inet { .. }),
            _socket_file: None,
        };
        let mut failed = None;
        for place in places {
            let added = match place {
                Place::Inet(inet) => {
                    let mut inet = *inet;
                    if inet.port() == 0 {
                        inet.set_port(listening.places.first().map_or(0, port));
                    }
                    listening.add_tcp(Place::Inet(inet), threads, fits)
                }
                Place::Unix(_) => listening.add_unix(place, address, threads),
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
                tracing::warn!("{error:#}; the relay listens on the other addresses of the name");
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
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if place.takes_both_families() => {
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
    if place.takes_both_families() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    if reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    place.bind(&socket)?;
    Ok(socket)
}

fn port(place: &Place) -> u16 {
    match place {
        Place::Inet(inet) => inet.port(),
        Place::Unix(_) => 0,
    }
}

/// Another socket has the address.
#[derive(Debug)]
struct InUse(Place);

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = &self.0;
        write!(
            f,
            "{place} is in use by another socket; stop it or choose another"
        )
    }
}

impl std::error::Error for InUse {}

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
        Errno::ADDRINUSE => InUse(place.clone()).into(),
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
