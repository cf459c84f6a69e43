//! Maps of sockets without a program.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::obstacle::Obstacle;
use splice_bpf::{SocketMap, SocketMapType, programs_on_map};

use crate::key::{Cookie, Key, sealed::Bytes as _};
use crate::socket_kind::SocketKind;

/// A map of the type `BPF_MAP_TYPE_SOCKMAP`: its keys are the indices from 0 on.
///
/// A member leaves when its last descriptor is closed, when it is removed, or when the last reference to the map is
/// dropped: a descriptor, a pin, or a program that uses the map.
#[derive(Debug)]
pub struct SockMap(SocketMap);

/// A map of the type `BPF_MAP_TYPE_SOCKHASH`. Members leave it as they leave a [`SockMap`].
pub struct SockHash<K> {
    map: SocketMap,
    keys: PhantomData<K>,
}

impl SockMap {
    /// Creates a map with room for as many sockets.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] without the rights, which are `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn create(entries: u32) -> Result<Self> {
        create(SocketMapType::Map, size_of::<u32>() as u32, entries).map(Self)
    }

    /// Opens the map that is pinned at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is none, or one of another type.
    pub fn open_pinned(path: impl AsRef<Path>) -> Result<Self> {
        open(path.as_ref(), SocketMapType::Map, size_of::<u32>() as u32).map(Self)
    }

    /// Pins the map, so that it and its members outlive this process.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if `path` exists, or does not lie in a BPF file system.
    pub fn pin(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.0.pin(path.as_ref())
    }

    /// Adds a socket at an index that has none.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedSocket`] if the kernel does not take the socket, [`ErrorKind::System`] if the index has
    /// a socket or does not exist, or a program is attached to the map, as by another process that has it by its pin.
    pub fn insert(&self, index: u32, socket: impl AsFd) -> Result<()> {
        insert(&self.0, &index.to_bytes(), socket.as_fd())
    }

    /// Removes the socket at an index. Returns whether there was one.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses it, or a program is attached to the map: the socket would lose what it
    /// receives at this moment.
    pub fn remove(&self, index: u32) -> Result<bool> {
        remove(&self.0, &index.to_bytes())
    }

    /// The cookie (`SO_COOKIE`) of the socket at an index.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses it.
    pub fn cookie(&self, index: u32) -> Result<Option<Cookie>> {
        cookie(&self.0, &index.to_bytes())
    }

    /// The indices that have a socket, each with its cookie. Members that come or go meanwhile may be left out.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Cookie)> {
        members(&self.0)
    }
}

impl<K: Key> SockHash<K> {
    /// Creates a map with room for as many sockets.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] without the rights, which are `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn create(entries: u32) -> Result<Self> {
        create(SocketMapType::Hash, K::LENGTH, entries).map(Self::new)
    }

    /// Opens the map that is pinned at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is none, one of another type, or one with keys of another length.
    pub fn open_pinned(path: impl AsRef<Path>) -> Result<Self> {
        open(path.as_ref(), SocketMapType::Hash, K::LENGTH).map(Self::new)
    }

    fn new(map: SocketMap) -> Self {
        let keys = PhantomData;
        Self { map, keys }
    }

    /// Pins the map, so that it and its members outlive this process.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if `path` exists, or does not lie in a BPF file system.
    pub fn pin(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.map.pin(path.as_ref())
    }

    /// Adds a socket under a key that has none.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedSocket`] if the kernel does not take the socket, [`ErrorKind::System`] if the key has a
    /// socket, the map is full, or a program is attached to it, as by another process that has it by its pin.
    pub fn insert(&self, key: K, socket: impl AsFd) -> Result<()> {
        insert(&self.map, &key.to_bytes(), socket.as_fd())
    }

    /// Removes the socket under a key. Returns whether there was one.
    ///
    /// # Errors
    /// As [`SockMap::remove`].
    pub fn remove(&self, key: K) -> Result<bool> {
        remove(&self.map, &key.to_bytes())
    }

    /// The cookie (`SO_COOKIE`) of the socket under a key.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses it.
    pub fn cookie(&self, key: K) -> Result<Option<Cookie>> {
        cookie(&self.map, &key.to_bytes())
    }

    /// The keys, each with the cookie of its socket. Members that come or go meanwhile may be left out.
    pub fn iter(&self) -> impl Iterator<Item = (K, Cookie)> {
        members(&self.map)
    }
}

/// A map of sockets that a redirect can be attached to: a [`SockMap`] or a [`SockHash`].
///
/// The trait is sealed.
pub trait Container: sealed::Sockets {
    /// What names a socket in it.
    type Key: Key;
}

pub(crate) mod sealed {
    use splice_bpf::SocketMap;

    pub trait Sockets {
        fn sockets(&self) -> &SocketMap;
        fn sockets_mut(&mut self) -> &mut SocketMap;
    }
}

impl Container for SockMap {
    type Key = u32;
}

impl sealed::Sockets for SockMap {
    fn sockets(&self) -> &SocketMap {
        &self.0
    }

    fn sockets_mut(&mut self) -> &mut SocketMap {
        &mut self.0
    }
}

impl<K: Key> Container for SockHash<K> {
    type Key = K;
}

impl<K> sealed::Sockets for SockHash<K> {
    fn sockets(&self) -> &SocketMap {
        &self.map
    }

    fn sockets_mut(&mut self) -> &mut SocketMap {
        &mut self.map
    }
}

impl AsFd for SockMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<K> AsFd for SockHash<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl<K> fmt::Debug for SockHash<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SockHash").field(&self.map).finish()
    }
}

/// The number of a map of sockets on this host that has `socket` already. Maps whose values have 4 bytes do not tell what
/// they have, and without `CAP_SYS_ADMIN` none does.
///
/// # Errors
/// [`ErrorKind::System`] if it is no socket.
pub fn id_of_map_with(socket: impl AsFd) -> Result<Option<u32>> {
    Ok(SocketMap::id_with(Cookie::of(socket)?.0))
}

fn create(of: SocketMapType, key_bytes: u32, entries: u32) -> Result<SocketMap> {
    SocketMap::create(of, key_bytes, entries).map_err(|error| explained(&error))
}

/// The same error with the reason that this process can see, and the remedy.
pub(crate) fn explained(error: &Error) -> Error {
    let Obstacle { reason, remedy } = Obstacle::of_bpf(error);
    Error::new(ErrorKind::BpfRefused, reason)
        .about("maps of sockets cannot be used")
        .with_remedy(remedy)
}

fn open(path: &Path, of: SocketMapType, key_bytes: u32) -> Result<SocketMap> {
    let map = SocketMap::open(path)?;
    let wrong = |what: String| {
        Err(Error::new(
            ErrorKind::System,
            format!("cannot open the pinned map {}: {what}", path.display()),
        ))
    };
    if !map.is(of) {
        return wrong(format!("it is no {}", of.name()));
    }
    if map.key_bytes() != key_bytes {
        let has = map.key_bytes();
        return wrong(format!("its keys have {has} bytes, and not {key_bytes}"));
    }
    Ok(map)
}

/// What a program that is attached to a map forbids those who do not know it.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    Attach,
    Insert,
    Remove,
}

/// That no program is attached to a map, by whatever process. The kernel tells it since Linux 5.18, which is older than all that
/// this library runs on.
pub(crate) fn require_no_program(map: &SocketMap, to: Use) -> Result<()> {
    let (what, why, remedy) = match to {
        Use::Attach => (
            "cannot attach a redirect to the map",
            "it would be replaced under its owner's hands (sock_map_prog_update)",
            "detach that one where it was attached, or create another map",
        ),
        Use::Insert => (
            "cannot insert the socket into the map",
            "it would take the socket's messages without a link",
            "link the socket where the program was attached, or use another map",
        ),
        Use::Remove => (
            "cannot remove the socket from the map",
            "the kernel would drop what the socket receives at this moment (sk_psock_verdict_recv)",
            "let its link leave where the program was attached, or close the socket",
        ),
    };
    match programs_on_map(map) {
        Ok(programs) => {
            let Some(id) = programs.first() else {
                return Ok(());
            };
            let reason = format!("{what}: program {id} is attached to it, and {why}");
            Err(Error::new(ErrorKind::System, reason).with_remedy(remedy))
        }
        Err(errno) => {
            let reason =
                format!("{what}: the kernel does not tell whether a program is attached to it");
            let error = Error::system(reason, errno);
            Err(error.with_remedy("run it with CAP_NET_ADMIN"))
        }
    }
}

fn insert(map: &SocketMap, key: &[u8], socket: BorrowedFd<'_>) -> Result<()> {
    require_no_program(map, Use::Insert)?;
    let kind = SocketKind::of(socket)?;
    map.insert(key, socket)
        .map_err(|errno| refusal(kind, errno))
}

/// Why the kernel does not take a socket.
pub(crate) fn refusal(kind: SocketKind, errno: Errno) -> Error {
    let unsupported = |why: &str| {
        Error::new(
            ErrorKind::UnsupportedSocket,
            format!("the kernel does not take the {kind} socket into a map of sockets: {why}"),
        )
    };
    match errno {
        Errno::OPNOTSUPP if kind == SocketKind::Tcp => {
            unsupported("it is neither ESTABLISHED nor LISTEN; a peer may have closed it")
        }
        Errno::OPNOTSUPP if kind == SocketKind::Udp => unsupported("it is not bound"),
        Errno::OPNOTSUPP if kind.is_vsock() => {
            unsupported("it is not connected, or the kernel is older than 6.4")
        }
        Errno::OPNOTSUPP => unsupported("it is not connected, or the kernel is too old"),
        Errno::INVAL if kind == SocketKind::Tcp => {
            unsupported("it has an upper layer protocol (TCP_ULP), as kTLS is one")
        }
        Errno::BUSY => unsupported("another program or another user in the kernel has it already"),
        Errno::EXIST => Error::new(ErrorKind::System, "the key has a socket already"),
        Errno::TOOBIG | Errno::NOSPC => {
            Error::new(ErrorKind::System, "the map of sockets has no room for it")
        }
        other => Error::system(
            format!("the kernel does not take the {kind} socket into a map of sockets"),
            other,
        ),
    }
}

fn remove(map: &SocketMap, key: &[u8]) -> Result<bool> {
    require_no_program(map, Use::Remove)?;
    match map.remove(key) {
        Ok(()) => Ok(true),
        // An array answers EINVAL for an empty index (`__sock_map_delete`), a hash table ENOENT.
        Err(Errno::NOENT | Errno::INVAL) => Ok(false),
        Err(errno) => Err(Error::system("cannot remove a socket from its map", errno)),
    }
}

pub(crate) fn cookie(map: &SocketMap, key: &[u8]) -> Result<Option<Cookie>> {
    map.cookie(key)
        .map(|found| found.map(Cookie))
        .map_err(|errno| Error::system("cannot read a map of sockets", errno))
}

pub(crate) fn members<K: Key>(map: &SocketMap) -> impl Iterator<Item = (K, Cookie)> {
    map.keys().filter_map(|key| {
        let cookie = map.cookie(&key).ok()??;
        Some((K::from_bytes(&key)?, Cookie(cookie)))
    })
}
