//! Maps of sockets: `BPF_MAP_TYPE_SOCKMAP` and `BPF_MAP_TYPE_SOCKHASH`.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::PoisonError;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, libbpf_sys};
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};

use crate::libbpf::{LOADING, Quiet, errno_of, refused};

/// A value of 8 bytes: a descriptor on the way in, a cookie on the way out. With 4 bytes the kernel refuses
/// to tell the cookie (`sock_map_lookup_sys`).
const VALUE_BYTES: u32 = 8;

/// Which of the two types a map has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketMapType {
    /// An array: the keys are the indices from 0 on.
    Map,
    /// A hash table with keys of any bytes.
    Hash,
}

impl SocketMapType {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Map, Self::Hash];

    pub(crate) fn of_kernel(self) -> MapType {
        match self {
            Self::Map => MapType::Sockmap,
            Self::Hash => MapType::Sockhash,
        }
    }

    /// The name that the kernel's documentation uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Map => "SOCKMAP",
            Self::Hash => "SOCKHASH",
        }
    }
}

/// One map of sockets.
pub struct SocketMap {
    handle: MapHandle,
}

impl SocketMap {
    pub(crate) fn new(handle: MapHandle) -> Self {
        Self { handle }
    }

    /// Creates a map without a program.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] if the kernel refuses it.
    pub fn create(of: SocketMapType, key_bytes: u32, entries: u32) -> Result<Self> {
        let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let _quiet = Quiet::begin();
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        MapHandle::create(
            of.of_kernel(),
            Some("sockets"),
            key_bytes,
            VALUE_BYTES,
            entries,
            &options,
        )
        .map(Self::new)
        .map_err(|error| refused(format!("a {} cannot be created", of.name()), &error))
    }

    /// Opens the map that is pinned at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is none, or if it is no map of sockets.
    pub fn open(path: &Path) -> Result<Self> {
        let what = || format!("cannot open the pinned map {}", path.display());
        let handle = MapHandle::from_pinned_path(path).map_err(|error| match errno_of(&error) {
            Some(number) => Error::system(what(), Errno::from_raw_os_error(number)),
            None => Error::new(ErrorKind::System, format!("{}: {error:#}", what())),
        })?;
        let opened = Self::new(handle);
        match opened.kernel_type() {
            Some(_) if opened.handle.value_size() == VALUE_BYTES => Ok(opened),
            Some(_) => Err(Error::new(
                ErrorKind::System,
                format!(
                    "{}: its values have {} bytes, and the kernel tells cookies only with {VALUE_BYTES}",
                    what(),
                    opened.handle.value_size()
                ),
            )),
            None => Err(Error::new(
                ErrorKind::System,
                format!(
                    "{}: it is a map of the type {:?} and not of sockets",
                    what(),
                    opened.handle.map_type()
                ),
            )),
        }
    }

    /// The number of a map on this host that has a socket with this cookie (`SO_COOKIE`). Maps whose values have 4 bytes
    /// do not tell, and neither does any map without `CAP_SYS_ADMIN`.
    pub fn id_with(cookie: u64) -> Option<u32> {
        let maps = MapInfoIter::default()
            .filter(|info| matches!(info.ty, MapType::Sockmap | MapType::Sockhash));
        maps.filter(|info| info.value_size == VALUE_BYTES)
            .find(|info| {
                // A map that is gone by now has nothing.
                let Ok(map) = MapHandle::from_map_id(info.id).map(Self::new) else {
                    return false;
                };
                map.keys().any(|key| map.cookie(&key) == Ok(Some(cookie)))
            })
            .map(|info| info.id)
    }

    /// Pins the map at `path`, which must be in a BPF file system.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses it.
    pub fn pin(&mut self, path: &Path) -> Result<()> {
        let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let _quiet = Quiet::begin();
        self.handle.pin(path).map_err(|error| {
            let what = format!("cannot pin a map at {}", path.display());
            match errno_of(&error) {
                Some(number) => Error::system(what, Errno::from_raw_os_error(number)),
                None => Error::new(ErrorKind::System, format!("{what}: {error:#}")),
            }
        })
    }

    /// The same map with another descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] if the process has no descriptor left.
    pub fn duplicate(&self) -> Result<Self> {
        let handle = MapHandle::try_from(&self.handle);
        let handle = handle.map_err(|error| {
            refused(
                "cannot duplicate the descriptor of a map of sockets".into(),
                &error,
            )
        })?;
        Ok(Self::new(handle))
    }

    /// Which of the two types it has.
    fn kernel_type(&self) -> Option<SocketMapType> {
        match self.handle.map_type() {
            MapType::Sockmap => Some(SocketMapType::Map),
            MapType::Sockhash => Some(SocketMapType::Hash),
            _ => None,
        }
    }

    /// Whether it has the type.
    pub fn is(&self, of: SocketMapType) -> bool {
        self.kernel_type() == Some(of)
    }

    /// The length of its keys, in bytes.
    pub fn key_bytes(&self) -> u32 {
        self.handle.key_size()
    }

    /// How many entries fit.
    pub fn entries(&self) -> u32 {
        self.handle.max_entries()
    }

    /// Adds a socket under a key that has none. The caller keeps its descriptor.
    ///
    /// # Errors
    /// The error of bpf(2): `EEXIST` if the key has a socket.
    pub fn insert(&self, key: &[u8], socket: BorrowedFd<'_>) -> std::result::Result<(), Errno> {
        let value = (socket.as_raw_fd() as u64).to_ne_bytes();
        (self.handle)
            .update(key, &value, MapFlags::NO_EXIST)
            .map_err(|error| number(&error))
    }

    /// Removes what a key has.
    ///
    /// # Errors
    /// The error of bpf(2): `ENOENT` or `EINVAL` if the key has no socket.
    pub fn remove(&self, key: &[u8]) -> std::result::Result<(), Errno> {
        self.handle.delete(key).map_err(|error| number(&error))
    }

    /// The cookie of the socket under a key.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn cookie(&self, key: &[u8]) -> std::result::Result<Option<u64>, Errno> {
        let found = self.handle.lookup(key, MapFlags::ANY);
        let value = found.map_err(|error| number(&error))?;
        // The map's values have 8 bytes.
        Ok(value.and_then(|bytes| bytes.try_into().ok().map(u64::from_ne_bytes)))
    }

    /// The keys. An array has each of its indices, with or without a socket.
    pub fn keys(&self) -> impl Iterator<Item = Vec<u8>> {
        self.handle.keys()
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl fmt::Debug for SocketMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SocketMap")
            .field(&self.kernel_type())
            .finish()
    }
}

/// libbpf-rs passes the kernel's error number on in each of these calls.
fn number(error: &libbpf_rs::Error) -> Errno {
    errno_of(error).map_or(Errno::INVAL, Errno::from_raw_os_error)
}
