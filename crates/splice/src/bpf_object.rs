//! Loading BPF objects and reaching their maps and programs: the only module that names libbpf.
//!
//! An engine embeds its object with [`include_bytes!`], opens it, sizes its maps, loads it, and
//! takes the [`Map`]s and [`Program`]s that it needs; each owns a descriptor of its own, so the
//! object itself is dropped after that.
#![allow(
    unsafe_code,
    reason = "shared memory and bpf(2); see the SAFETY comments"
)]

pub(crate) mod device;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{
    MapCore as _, MapHandle, ObjectBuilder, OpenObject, PrintCallback, PrintLevel, get_print,
    libbpf_sys, set_print,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags as MmapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::bpf_types::Plain;
use crate::error::{Error, ErrorKind, Result};

/// What libbpf has printed since a load began. libbpf has one print function per process.
static PRINTED: Mutex<String> = Mutex::new(String::new());

/// One load at a time, since they share `PRINTED`.
static LOADING: Mutex<()> = Mutex::new(());

/// The most of libbpf's words that an error carries, in bytes: its last lines name the cause,
/// the log of a verifier before them can be megabytes.
const REASON_BYTES: usize = 600;

fn keep_print(_level: PrintLevel, text: String) {
    PRINTED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push_str(&text);
}

/// Puts the program's own print function back, whatever happens.
struct Quiet {
    before: Option<(PrintLevel, PrintCallback)>,
}

impl Quiet {
    fn begin() -> Self {
        PRINTED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let before = get_print();
        set_print(Some((PrintLevel::Warn, keep_print)));
        Self { before }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_print(self.before);
    }
}

/// An object that has been parsed; its maps can still be sized.
pub(crate) struct Opened(OpenObject);

/// A loaded object.
pub(crate) struct Object(libbpf_rs::Object);

/// Opens, adjusts and loads an object.
///
/// # Errors
/// [`ErrorKind::BpfRefused`] with libbpf's own last words as the reason; what it prints goes
/// nowhere else.
pub(crate) fn load(
    name: &'static str,
    bytes: &[u8],
    adjust: impl FnOnce(&mut Opened) -> Result<()>,
) -> Result<Object> {
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let _quiet = Quiet::begin();
    let open = ObjectBuilder::default()
        .open_memory(bytes)
        .map_err(|error| refused(format!("the BPF object {name} cannot be read"), &error))?;
    let mut opened = Opened(open);
    adjust(&mut opened)?;
    opened
        .0
        .load()
        .map(Object)
        .map_err(|error| refused(format!("the BPF object {name} cannot be loaded"), &error))
}

impl Opened {
    /// How many entries a map (for a ring: bytes) shall have.
    pub(crate) fn resize(&mut self, map: &str, entries: u32) -> Result<()> {
        self.map(map)?
            .set_max_entries(entries)
            .map_err(|error| refused(format!("the BPF map {map} cannot be sized"), &error))
    }

    /// Uses a map that another object made in place of an own one.
    pub(crate) fn share(&mut self, map: &str, with: &Map) -> Result<()> {
        self.map(map)?
            .reuse_fd(with.fd.as_fd())
            .map_err(|error| refused(format!("the BPF map {map} cannot be shared"), &error))
    }

    fn map(&mut self, name: &str) -> Result<libbpf_rs::OpenMapMut<'_>> {
        self.0
            .maps_mut()
            .find(|map| map.name() == name)
            .ok_or_else(|| absent(name))
    }
}

impl Object {
    /// A descriptor of one of the object's maps.
    pub(crate) fn map(&self, name: &'static str) -> Result<Map> {
        let map = self
            .0
            .maps()
            .find(|map| map.name() == name)
            .ok_or_else(|| absent(name))?;
        let key_bytes = map.key_size() as usize;
        let value_bytes = map.value_size() as usize;
        let entries = map.max_entries();
        let fd = MapHandle::try_from(&map)
            .map_err(|error| refused(format!("the BPF map {name} cannot be kept"), &error))?;
        Ok(Map {
            name,
            fd,
            key_bytes,
            value_bytes,
            entries,
        })
    }

    /// A descriptor of one of the object's programs.
    pub(crate) fn program(&self, name: &'static str) -> Result<Program> {
        let program = self
            .0
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| absent(name))?;
        let fd = program
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::system(format!("the BPF program {name} is lost"), error))?;
        Ok(Program { name, fd })
    }

    /// Makes a program the one that runs for the members of a map of sockets. A member keeps the
    /// program that was attached when it came in.
    pub(crate) fn attach_to_map(&self, program: &'static str, map: &Map) -> Result<()> {
        self.0
            .progs_mut()
            .find(|candidate| candidate.name() == program)
            .ok_or_else(|| absent(program))?
            .attach_sockmap(map.fd.as_fd().as_raw_fd())
            .map_err(|error| {
                refused(
                    format!("the BPF program {program} cannot be attached to its map"),
                    &error,
                )
            })
    }
}

/// One BPF map.
pub(crate) struct Map {
    name: &'static str,
    fd: MapHandle,
    key_bytes: usize,
    value_bytes: usize,
    entries: u32,
}

impl Map {
    pub(crate) fn update<K: Plain, V: Plain>(
        &self,
        key: &K,
        value: &V,
    ) -> std::result::Result<(), Errno> {
        self.update_bytes(key, bytes_of(value), libbpf_sys::BPF_ANY.into())
    }

    /// Puts a socket into a map of sockets. The caller keeps its own descriptor.
    pub(crate) fn insert_socket<K: Plain>(
        &self,
        key: &K,
        socket: BorrowedFd<'_>,
    ) -> std::result::Result<(), Errno> {
        // Maps of sockets take a descriptor as a u64 (`sock_map_update_elem`).
        let value = socket.as_raw_fd() as u64;
        self.update_bytes(key, bytes_of(&value), libbpf_sys::BPF_NOEXIST.into())
    }

    fn update_bytes<K: Plain>(
        &self,
        key: &K,
        value: &[u8],
        flags: u64,
    ) -> std::result::Result<(), Errno> {
        assert_eq!(self.key_bytes, size_of::<K>(), "{}", self.name);
        assert_eq!(self.value_bytes, value.len(), "{}", self.name);
        // SAFETY: the kernel reads as many bytes as the map's keys and values have, which both
        // slices were checked to be.
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

    /// Removes an entry; one that is not there is removed.
    pub(crate) fn remove<K: Plain>(&self, key: &K) {
        debug_assert_eq!(self.key_bytes, size_of::<K>(), "{}", self.name);
        let _ = self.fd.delete(bytes_of(key));
    }

    /// How many keys it holds. For tests and the doctor: it walks the map.
    pub(crate) fn count(&self) -> usize {
        self.fd.keys().count()
    }

    /// Maps the values of a `BPF_F_MMAPABLE` array into this process.
    pub(crate) fn share_values<T: Plain>(&self) -> Result<SharedArray<T>> {
        // The kernel rounds a value up to 8 bytes; ours are multiples of it.
        debug_assert_eq!(self.value_bytes, size_of::<T>(), "{}", self.name);
        debug_assert_eq!(size_of::<T>() % 8, 0, "{}", self.name);
        let count = self.entries as usize;
        let mapping = Mapping::new(self, 0, count * size_of::<T>(), true)?;
        Ok(SharedArray {
            mapping,
            count,
            of: PhantomData,
        })
    }

    /// The consuming end of a ring. There must be one only.
    pub(crate) fn consume(&self) -> Result<Ring> {
        let page = page_size();
        let size = self.entries as usize;
        // One page that we write, one that the kernel writes, and the data twice in a row, so
        // that a record at the end can be read in one piece (kernel/bpf/ringbuf.c).
        Ok(Ring {
            consumer: Mapping::new(self, 0, page, true)?,
            producer: Mapping::new(self, page, page + 2 * size, false)?,
            mask: size - 1,
        })
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

/// One BPF program.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    fd: OwnedFd,
}

impl Program {
    /// Runs a tc program once, with `packet` as the packet's first bytes; it may write there.
    pub(crate) fn run<T: Plain + Copy>(&self, packet: &T) -> std::result::Result<T, Errno> {
        // The kernel refuses a packet shorter than an Ethernet header (`bpf_test_init`).
        const { assert!(size_of::<T>() >= 14) };
        let mut output = *packet;
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: std::ptr::from_ref(packet).cast(),
            data_size_in: size_of::<T>() as u32,
            data_out: std::ptr::from_mut(&mut output).cast(),
            data_size_out: size_of::<T>() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: both packets outlive the call and have the sizes that are given with them;
        // whatever the program writes there is a valid `T`, which is `Plain`.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut options) };
        checked(result)?;
        Ok(output)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
impl Program {
    /// Runs a tc program once on a packet of any length, as if it came in on a device; tells what
    /// it returned.
    pub(crate) fn run_on(&self, packet: &[u8], device: u32) -> std::result::Result<i32, Errno> {
        // The beginning of `struct __sk_buff` up to its `ifindex`, as 32-bit words.
        let mut context = [0u32; 11];
        context[10] = device;
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: packet.as_ptr().cast(),
            data_size_in: packet.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: packet and context outlive the call and their lengths are given with them.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut options) };
        checked(result)?;
        Ok(options.retval as i32)
    }
}

/// A piece of a map in this process's memory.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is the kernel's, and everything that is reached through it is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(map: &Map, offset: usize, bytes: usize, writable: bool) -> Result<Self> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MmapFlags::SHARED,
                map.fd.as_fd(),
                offset as u64,
            )
        };
        let start = start.map_err(|errno| {
            Error::system(format!("cannot map the BPF map {}", map.name), errno)
        })?;
        let start = NonNull::new(start.cast()).ok_or_else(|| absent(map.name))?;
        Ok(Self { start, bytes })
    }

    fn at<T: Plain>(&self, offset: usize) -> &T {
        assert!(offset + size_of::<T>() <= self.bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the assertion keeps it inside the mapping.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: the mapping begins at a page and lives as long as `self`; the assertion keeps
        // the reference inside and aligned; `Plain` makes any bytes a valid value.
        unsafe { start.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of a mapping of our own, and every reference
        // into it borrowed `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The values of an array, shared with the kernel.
pub(crate) struct SharedArray<T> {
    mapping: Mapping,
    count: usize,
    of: PhantomData<T>,
}

impl<T: Plain> SharedArray<T> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// `T` is made of atomics, since the kernel writes it at any time.
    pub(crate) fn at(&self, index: usize) -> &T {
        self.mapping.at(index * size_of::<T>())
    }
}

impl<T> fmt::Debug for SharedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedArray").field(&self.count).finish()
    }
}

/// The consuming end of a `BPF_MAP_TYPE_RINGBUF`.
pub(crate) struct Ring {
    consumer: Mapping,
    producer: Mapping,
    mask: usize,
}

/// Bits of a record's length word, from `linux/bpf.h`.
const RINGBUF_BUSY_BIT: u32 = 1 << 31;
const RINGBUF_DISCARD_BIT: u32 = 1 << 30;
const RINGBUF_HEADER_BYTES: usize = 8;

impl Ring {
    /// Takes the records that are there, each of which begins with a `u32`.
    pub(crate) fn take(&mut self, mut record: impl FnMut(u32)) {
        let data_begins = page_size();
        let consumed = self.consumer.at::<AtomicPosition>(0);
        let produced = self.producer.at::<AtomicPosition>(0);
        let mut position = consumed.0.load(Ordering::Relaxed);
        while position != produced.0.load(Ordering::Acquire) {
            let offset = data_begins + (position & self.mask);
            let header = self.producer.at::<AtomicWord>(offset);
            let length = header.0.load(Ordering::Acquire);
            if length & RINGBUF_BUSY_BIT != 0 {
                break;
            }
            let bytes = (length & !RINGBUF_DISCARD_BIT) as usize;
            if length & RINGBUF_DISCARD_BIT == 0 && bytes >= size_of::<u32>() {
                let word = self
                    .producer
                    .at::<AtomicWord>(offset + RINGBUF_HEADER_BYTES);
                record(word.0.load(Ordering::Relaxed));
            }
            position += (RINGBUF_HEADER_BYTES + bytes).next_multiple_of(8);
            consumed.0.store(position, Ordering::Release);
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}

#[repr(transparent)]
struct AtomicPosition(AtomicUsize);
#[repr(transparent)]
struct AtomicWord(AtomicU32);
// SAFETY: an integer.
unsafe impl Plain for AtomicPosition {}
// SAFETY: an integer.
unsafe impl Plain for AtomicWord {}

fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` has no padding, so all `size_of` bytes are initialised, and they live as
    // long as the reference.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// libbpf's calls return a negative error number.
fn checked(result: i32) -> std::result::Result<(), Errno> {
    match result {
        0.. => Ok(()),
        number => Err(Errno::from_raw_os_error(-number)),
    }
}

fn refused(context: String, error: &libbpf_rs::Error) -> Error {
    let printed = std::mem::take(&mut *PRINTED.lock().unwrap_or_else(PoisonError::into_inner));
    let mut reason = printed.trim();
    if reason.len() > REASON_BYTES {
        let mut start = reason.len() - REASON_BYTES;
        while !reason.is_char_boundary(start) {
            start += 1;
        }
        reason = &reason[start..];
    }
    let reason = reason.replace('\n', "; ");
    let separator = if reason.is_empty() { "" } else { " (" };
    let closing = if reason.is_empty() { "" } else { ")" };
    Error::new(
        ErrorKind::BpfRefused,
        format!("{context}: {error:#}{separator}{reason}{closing}"),
    )
}

fn absent(name: &str) -> Error {
    Error::new(
        ErrorKind::BpfRefused,
        format!("the embedded BPF object has no {name}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf_types::{DirectionEntry, Inspection};

    static REDIRECT: &[u8] = include_bytes!("../bpf/prebuilt/redirect.bpf.o");
    static INSPECT: &[u8] = include_bytes!("../bpf/prebuilt/inspect.bpf.o");

    #[test]
    fn the_objects_load_and_their_maps_are_reached() -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let object = load("redirect", REDIRECT, |opened| {
            opened.resize("directions", 64)?;
            opened.resize("targets", 64)
        })?;
        let targets = object.map("targets")?;
        object.attach_to_map("redirect", &object.map("sources")?)?;
        let inspect = load("inspect", INSPECT, |opened| {
            opened.resize("targets", 64)?;
            opened.share("targets", &targets)
        })?;
        let answer = inspect.program("inspect")?.run(&Inspection {
            cookie: 1,
            ..Inspection::default()
        });
        assert_eq!(
            answer.map(|answer| (answer.cookie, answer.found)),
            Ok((1, 0))
        );
        let entries = object.map("directions")?.share_values::<DirectionEntry>()?;
        assert_eq!(entries.len(), 64);
        assert_eq!(entries.at(63).redirected.load(Ordering::Relaxed), 0);
        let mut ring = object.map("calls")?.consume()?;
        ring.take(|_| unreachable!("nobody has called"));
        Ok(())
    }

    #[test]
    fn a_refusal_carries_the_reason_and_prints_nothing() {
        let error = load("nothing", b"not an object", |_| Ok(())).map(drop);
        let error = error.expect_err("it is no object");
        assert_eq!(error.kind(), ErrorKind::BpfRefused);
        assert!(error.to_string().contains("nothing"), "{error}");
    }
}
