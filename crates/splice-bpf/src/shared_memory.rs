//! Maps that are mapped into this process.
#![allow(
    unsafe_code,
    reason = "memory shared with the kernel; see the SAFETY comments"
)]

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use splice_base::error::{Error, Result};

use crate::libbpf::absent;
use crate::plain::Plain;

/// A part of a map, mapped into this process.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the kernel, and every access to it is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(
        name: &str,
        map: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
        writable: bool,
    ) -> Result<Self> {
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
                MapFlags::SHARED,
                map,
                offset as u64,
            )
        };
        let start = start
            .map_err(|errno| Error::system(format!("cannot map the BPF map {name}"), errno))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| absent(name))?;
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

    /// Bytes that nobody writes to while the result is borrowed.
    fn bytes(&self, offset: usize, count: usize) -> &[u8] {
        assert!(offset + count <= self.bytes);
        // SAFETY: the assertion keeps it inside the mapping.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: the mapping lives as long as `self`, the assertion keeps the slice inside, and any byte is a valid one. The
        // caller has made sure that it does not change.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of a mapping of our own, and every reference
        // into it borrowed `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The values of an array map, shared with the kernel.
pub struct SharedArray<T> {
    mapping: Mapping,
    count: usize,
    of: PhantomData<T>,
}

impl<T: Plain> SharedArray<T> {
    pub(crate) fn new(mapping: Mapping, count: usize) -> Self {
        Self {
            mapping,
            count,
            of: PhantomData,
        }
    }

    /// How many values the array has.
    #[allow(clippy::len_without_is_empty, reason = "a map has one entry at least")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// `T` consists of atomics, since the kernel may write it at any time.
    pub fn at(&self, index: usize) -> &T {
        self.mapping.at(index * size_of::<T>())
    }
}

impl<T> fmt::Debug for SharedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedArray").field(&self.count).finish()
    }
}

/// The consumer of a `BPF_MAP_TYPE_RINGBUF`.
pub struct RingBuffer {
    consumer: Mapping,
    producer: Mapping,
    mask: usize,
}

/// Bits of a record's length word, from `linux/bpf.h`.
const RINGBUF_BUSY_BIT: u32 = 1 << 31;
const RINGBUF_DISCARD_BIT: u32 = 1 << 30;
const RINGBUF_HEADER_BYTES: usize = 8;

impl RingBuffer {
    pub(crate) fn new(consumer: Mapping, producer: Mapping, mask: usize) -> Self {
        Self {
            consumer,
            producer,
            mask,
        }
    }

    /// Consumes all complete records, each of which begins with a `u32`.
    pub fn take(&mut self, mut record: impl FnMut(u32)) {
        self.take_values(|word: &AtomicWord| record(word.0.load(Ordering::Relaxed)));
    }

    /// Consumes all complete records, each of which begins with a `T`.
    pub fn take_values<T: Plain>(&mut self, mut record: impl FnMut(&T)) {
        self.take_records(|value, _| record(value));
    }

    /// The same, with the bytes that are behind the `T` in each.
    pub fn take_records<T: Plain>(&mut self, mut record: impl FnMut(&T, &[u8])) {
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
            if length & RINGBUF_DISCARD_BIT == 0 && bytes >= size_of::<T>() {
                // Nobody writes to a complete record until its place is given back below.
                let begin = offset + RINGBUF_HEADER_BYTES;
                let rest = bytes - size_of::<T>();
                let rest = self.producer.bytes(begin + size_of::<T>(), rest);
                record(self.producer.at::<T>(begin), rest);
            }
            position += (RINGBUF_HEADER_BYTES + bytes).next_multiple_of(8);
            consumed.0.store(position, Ordering::Release);
        }
    }
}

impl fmt::Debug for RingBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingBuffer").finish_non_exhaustive()
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
