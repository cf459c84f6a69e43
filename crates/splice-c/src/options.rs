//! `struct splice_options`, which may grow.

use std::ffi::{CStr, c_char, c_int};
use std::mem::offset_of;
use std::time::Duration;

use rustix::io::Errno;
use so_splice::Request;
use splice::{EngineChoice, Limits, Options};

use crate::fault::{Fault, Result};

/// Flag of splice_options: the caller gives both sockets up for good.
pub const SPLICE_FINAL: u32 = 1;

/// How a pair is to be joined. Zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpliceOptions {
    /// sizeof(struct splice_options), so that fields can be added.
    pub size: u32,
    /// 0 or SPLICE_FINAL.
    pub flags: u32,
    /// The engine: NULL or "auto" for the library's choice. With SPLICE_FINAL also "copy", "pipe",
    /// "aio", "uring", "sockmap" or "segment".
    pub engine: *const c_char,
    /// The pair ends when one direction has moved this many bytes; 0 for no limit.
    pub max_bytes: u64,
    /// The pair ends when no byte has moved in either direction for this many milliseconds; 0 for
    /// never.
    pub idle_ms: u64,
    /// With SPLICE_FINAL: the most memory that the pair may hold while a receiver does not read, in
    /// bytes; 0 for 16 MiB.
    pub memory_bytes: u64,
}

/// The size of the first version, in bytes.
const FIRST_SIZE: usize = 40;

const _: () = assert!(size_of::<SpliceOptions>() == FIRST_SIZE);
const _: () = assert!(offset_of!(SpliceOptions, engine) == 8);

/// No version is larger: a size beyond it was never set, and there are not as many bytes.
const LARGEST_SIZE: usize = 4096;

/// What a program may ask for.
pub(crate) struct Wanted {
    pub(crate) is_final: bool,
    engine: EngineChoice,
    max_bytes: Option<u64>,
    idle: Option<Duration>,
    memory_bytes: u64,
}

impl Wanted {
    /// Reads what the caller points to, which may be null.
    ///
    /// # Safety
    /// The pointer is null or there are as many bytes as `size` says.
    pub(crate) unsafe fn read(options: *const SpliceOptions) -> Result<Self> {
        let mut known = SpliceOptions {
            size: 0,
            flags: 0,
            engine: std::ptr::null(),
            max_bytes: 0,
            idle_ms: 0,
            memory_bytes: 0,
        };
        if !options.is_null() {
            // SAFETY: `size` is the first field of every version.
            let size = unsafe { options.cast::<u32>().read() } as usize;
            if !(size_of::<u32>() * 2..=LARGEST_SIZE).contains(&size) {
                let why = format!("size is {size}; set it to sizeof(struct splice_options)");
                return Err(Fault::new(Errno::INVAL, why));
            }
            // SAFETY: the caller says that there are `size` bytes.
            let bytes = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) };
            let (here, later) = bytes.split_at(size.min(FIRST_SIZE));
            if later.iter().any(|byte| *byte != 0) {
                let why = "the program uses options of a later version of the library";
                return Err(Fault::new(Errno::INVAL, why));
            }
            // SAFETY: `known` has room for them, and each field takes every value.
            unsafe {
                std::ptr::copy_nonoverlapping(here.as_ptr(), (&raw mut known).cast(), here.len());
            }
        }
        // SAFETY: null, or the caller points to a string.
        unsafe { Self::of(&known) }
    }

    /// # Safety
    /// `engine` is null or a C string.
    unsafe fn of(options: &SpliceOptions) -> Result<Self> {
        if options.flags & !SPLICE_FINAL != 0 {
            let why = format!("flags has unknown bits: {:#x}", options.flags);
            return Err(Fault::new(Errno::INVAL, why));
        }
        let engine = if options.engine.is_null() {
            EngineChoice::Auto
        } else {
            // SAFETY: the caller says so.
            let name = unsafe { CStr::from_ptr(options.engine) }.to_string_lossy();
            let named = name.parse();
            named.map_err(|error: splice::Error| Fault::new(Errno::INVAL, error.to_string()))?
        };
        let is_final = options.flags & SPLICE_FINAL != 0;
        if engine != EngineChoice::Auto && !is_final {
            let why = "an engine can be chosen only with SPLICE_FINAL; others cannot give the \
                       sockets back";
            return Err(Fault::new(Errno::INVAL, why));
        }
        if options.memory_bytes != 0 && !is_final {
            let why = "memory_bytes can be set only with SPLICE_FINAL";
            return Err(Fault::new(Errno::INVAL, why));
        }
        Ok(Self {
            is_final,
            engine,
            max_bytes: (options.max_bytes != 0).then_some(options.max_bytes),
            idle: (options.idle_ms != 0).then(|| Duration::from_millis(options.idle_ms)),
            memory_bytes: options.memory_bytes,
        })
    }

    /// For one direction of a pair that can be undone.
    pub(crate) fn one_way(&self, drain: c_int) -> Request {
        let idle = self.idle.unwrap_or_default();
        Request {
            drain,
            max_bytes: self
                .max_bytes
                .map_or(0, |max| i64::try_from(max).unwrap_or(i64::MAX)),
            idle_seconds: idle.as_secs().cast_signed(),
            idle_microseconds: idle.subsec_micros().into(),
        }
    }

    /// For a pair that cannot.
    pub(crate) fn pair(&self) -> Options {
        let mut limits = Limits {
            idle_timeout: self.idle,
            byte_limit: self.max_bytes,
            ..Limits::default()
        };
        if self.memory_bytes != 0 {
            limits.memory_bytes = usize::try_from(self.memory_bytes).unwrap_or(usize::MAX);
        }
        Options {
            engine: self.engine,
            limits,
            ..Options::default()
        }
    }
}
