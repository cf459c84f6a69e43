//! One map: its entries through system calls, or mapped into this process.
#![allow(unsafe_code, reason = "bpf(2); see the SAFETY comments")]

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, libbpf_sys};
use rustix::io::Errno;
use rustix::param::page_size;
use splice_base::error::Result;

use crate::libbpf::{checked, refused};
use crate::plain::{Plain, bytes_of};
use crate::shared_memory::{Mapping, RingBuffer, SharedArray};

/// One BPF map.
pub struct Map {
    pub(crate) name: &'static str,
    pub(crate) fd: MapHandle,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    pub(crate) entries: u32,
}

impl Map {
    /// Makes a map for user space only, by keys that are hashed. Entries take memory when they are made.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](splice_base::ErrorKind::BpfRefused).
    pub fn create<K: Plain, V: Plain>(name: &'static str, entries: u32) -> Result<Self> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
            ..Default::default()
        };
        let (key_bytes, value_bytes) = (size_of::<K>(), size_of::<V>());
        let fd = MapHandle::create(
            MapType::Hash,
            Some(name),
            key_bytes as u32,
            value_bytes as u32,
            entries,
            &options,
        )
        .map_err(|error| refused(format!("the map {name} cannot be made"), &error))?;
        Ok(Self {
            name,
            fd,
            key_bytes,
            value_bytes,
            entries,
        })
    }

    /// Makes an array of one value, which can be mapped into processes.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](splice_base::ErrorKind::BpfRefused).
    pub fn create_shared<V: Plain>(name: &'static str) -> Result<Self> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let (key_bytes, value_bytes) = (size_of::<u32>(), size_of::<V>());
        let fd = MapHandle::create(
            MapType::Array,
            Some(name),
            key_bytes as u32,
            value_bytes as u32,
            1,
            &options,
        )
        .map_err(|error| refused(format!("the map {name} cannot be made"), &error))?;
        Ok(Self {
            name,
            fd,
            key_bytes,
            value_bytes,
            entries: 1,
        })
    }

    /// Makes a ring buffer of so many bytes: a power of two of whole pages.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](splice_base::ErrorKind::BpfRefused).
    pub fn create_ring(name: &'static str, bytes: u32) -> Result<Self> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let fd = MapHandle::create(MapType::RingBuf, Some(name), 0, 0, bytes, &options)
            .map_err(|error| refused(format!("the map {name} cannot be made"), &error))?;
        Ok(Self {
            name,
            fd,
            key_bytes: 0,
            value_bytes: 0,
            entries: bytes,
        })
    }

    /// Adds or replaces an entry.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn update<K: Plain, V: Plain>(&self, key: &K, value: &V) -> std::result::Result<(), Errno> {
        self.update_bytes(key, bytes_of(value), libbpf_sys::BPF_ANY.into())
    }

    /// The value of a key, if it has one.
    pub fn read<K: Plain, V: Plain + Copy>(&self, key: &K) -> Option<V> {
        assert_eq!(self.key_bytes, size_of::<K>(), "{}", self.name);
        let bytes = self.fd.lookup(bytes_of(key), MapFlags::ANY).ok()??;
        assert_eq!(bytes.len(), size_of::<V>(), "{}", self.name);
        // SAFETY: `Plain` makes any bytes a valid value, and there are as many as it has.
        Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }

    /// Takes the oldest value of a queue, if it has one.
    pub fn take<V: Plain + Copy>(&self) -> Option<V> {
        let bytes = self.fd.lookup_and_delete(&[]).ok()??;
        assert_eq!(bytes.len(), size_of::<V>(), "{}", self.name);
        // SAFETY: `Plain` makes any bytes a valid value, and there are as many as it has.
        Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }

    /// Adds a socket to a map of sockets. The caller keeps its own descriptor.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn insert_socket<K: Plain>(
        &self,
        key: &K,
        socket: BorrowedFd<'_>,
    ) -> std::result::Result<(), Errno> {
        // Maps of sockets accept a descriptor as a u64 (`sock_map_update_elem`).
        let value = socket.as_raw_fd() as u64;
        self.update_bytes(key, bytes_of(&value), libbpf_sys::BPF_NOEXIST.into())
    }

    /// Puts a map into an array of maps, in the place of another.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn set_inner(&self, index: u32, inner: &Self) -> std::result::Result<(), Errno> {
        // Arrays of maps accept a descriptor as a u32 (`bpf_fd_array_map_update_elem`).
        let value = inner.as_fd().as_raw_fd() as u32;
        self.update_bytes(&index, bytes_of(&value), libbpf_sys::BPF_ANY.into())
    }

    fn update_bytes<K: Plain>(
        &self,
        key: &K,
        value: &[u8],
        flags: u64,
    ) -> std::result::Result<(), Errno> {
        assert_eq!(self.key_bytes, size_of::<K>(), "{}", self.name);
        assert_eq!(self.value_bytes, value.len(), "{}", self.name);
        // SAFETY: the kernel reads as many bytes as the map's keys and values have, and both slices
        // were checked to have that length.
        let result = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.fd.as_fd().as_raw_fd(),
                bytes_of(key).as_ptr().cast(),
                value.as_ptr().cast(),
                flags,
            )
        };
        checked(result)
    }

    /// Whether its keys and values have the lengths of these types, as only those of a pinned map may not.
    pub fn is_of<K: Plain, V: Plain>(&self) -> bool {
        (self.key_bytes, self.value_bytes) == (size_of::<K>(), size_of::<V>())
    }

    /// All keys. Those that come or go meanwhile may be left out.
    pub fn keys<K: Plain + Copy>(&self) -> Vec<K> {
        let keys = self.fd.keys().filter(|key| key.len() == size_of::<K>());
        // SAFETY: `Plain` makes any bytes a valid key, and there are as many as it has.
        keys.map(|key| unsafe { std::ptr::read_unaligned(key.as_ptr().cast::<K>()) })
            .collect()
    }

    /// Removes an entry. A missing entry is no error.
    pub fn remove<K: Plain>(&self, key: &K) {
        debug_assert_eq!(self.key_bytes, size_of::<K>(), "{}", self.name);
        let _ = self.fd.delete(bytes_of(key));
    }

    /// How many entries fit.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// How many keys the map has. It walks the map, so only tests and the doctor call it.
    pub fn count(&self) -> usize {
        self.fd.keys().count()
    }

    /// The number by which the kernel knows it.
    ///
    /// # Errors
    /// The error of bpf(2).
    #[cfg(feature = "test")]
    pub fn id(&self) -> Result<u32> {
        let info = self.fd.info();
        let info = info.map_err(|error| {
            refused(format!("the map {} cannot be examined", self.name), &error)
        })?;
        Ok(info.info.id)
    }

    /// Maps the values of a `BPF_F_MMAPABLE` array into this process.
    pub fn share_values<T: Plain>(&self) -> Result<SharedArray<T>> {
        // The kernel rounds a value's size up to 8 bytes; ours are multiples of that.
        debug_assert_eq!(self.value_bytes, size_of::<T>(), "{}", self.name);
        debug_assert_eq!(size_of::<T>() % 8, 0, "{}", self.name);
        let count = self.entries as usize;
        let mapping = Mapping::new(self.name, self.as_fd(), 0, count * size_of::<T>(), true)?;
        Ok(SharedArray::new(mapping, count))
    }

    /// The consumer of a ring buffer. There must be only one.
    pub fn consume(&self) -> Result<RingBuffer> {
        let page = page_size();
        let size = self.entries as usize;
        // One page that we write, one page that the kernel writes, and the data mapped twice in a
        // row, so that a record at the end is contiguous (kernel/bpf/ringbuf.c).
        Ok(RingBuffer::new(
            Mapping::new(self.name, self.as_fd(), 0, page, true)?,
            Mapping::new(self.name, self.as_fd(), page, page + 2 * size, false)?,
            size - 1,
        ))
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Map").field(&self.name).finish()
    }
}
