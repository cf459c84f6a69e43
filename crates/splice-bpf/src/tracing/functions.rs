//! Programs at the entries and exits of the kernel's functions, which record what passes there.
#![allow(unsafe_code, reason = "bpf(2); see the SAFETY comments")]

use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::PoisonError;
use std::time::Instant;

use libbpf_rs::btf::Btf;
use libbpf_rs::libbpf_sys;
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};

use super::recording::Recording;
use super::signature::{Returned, Signature};
use crate::libbpf::{LOADING, Quiet, absent, checked, refused};
use crate::load::{Object, load};
use crate::objects;
use crate::types::{TraceEvent, TraceFilter, trace_cookie};

/// A function to be traced.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name in the kernel.
    pub name: &'static str,
    /// Whether it says something only where a function that is recorded has called it.
    pub inner: bool,
}

/// A function that is traced. Its events carry its place in [`Functions::functions`].
#[derive(Clone, Copy, Debug)]
pub struct Traced {
    /// Its name in the kernel.
    pub name: &'static str,
    /// What it returns.
    pub returned: Returned,
}

/// The attached programs. They record nothing before [`Functions::start`], and the kernel removes them
/// when this is dropped or the process ends.
pub struct Functions {
    functions: Vec<Traced>,
    late: Vec<&'static str>,
    /// Before the object, so that nothing records any more when that goes.
    links: Vec<OwnedFd>,
    recording: Recording,
    _object: Object,
}

impl Functions {
    /// Attaches to those of `targets` that this kernel has, until `deadline`.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`], also if there was no time for a single one.
    pub fn attach(targets: &[Target], deadline: Instant) -> Result<Self> {
        let kernel = kernel_types()?;
        let known: Vec<_> = targets
            .iter()
            .filter_map(|target| Some((target, Signature::of(target.name, &kernel)?)))
            .collect();
        let (first, _) = known
            .first()
            .ok_or_else(|| absent("function that this kernel has"))?;
        let object = load("trace", objects::TRACE, |opened| {
            opened.aim("trace_entered", first.name)?;
            opened.aim("trace_left", first.name)
        })?;
        let mut tracer = Self {
            functions: Vec::new(),
            late: Vec::new(),
            links: Vec::new(),
            recording: Recording::of(&object)?,
            _object: object,
        };
        let mut last = None;
        for (target, signature) in known {
            if Instant::now() >= deadline {
                tracer.late.push(target.name);
                continue;
            }
            // The compiler may have left the function without a place to attach to.
            if let Err(error) = tracer.add(*target, &signature) {
                last = Some(error);
            }
        }
        match last {
            Some(errno) if tracer.functions.is_empty() => Err(Error::new(
                ErrorKind::BpfRefused,
                "no program can be attached to a function of the kernel",
            )
            .with_source(errno)),
            None if tracer.functions.is_empty() => Err(nothing_in_time()),
            _ => Ok(tracer),
        }
    }

    fn add(&mut self, target: Target, signature: &Signature) -> std::result::Result<(), Errno> {
        let (handle, argument) = signature.handle;
        let mut cookie = self.functions.len() as u64
            | u64::from(handle) << trace_cookie::HANDLE_SHIFT
            | u64::from(argument) << trace_cookie::ARGUMENT_SHIFT;
        if target.inner {
            cookie |= u64::from(trace_cookie::INNER);
        }
        // The exit first: an exit without its entry is ignored.
        let left =
            self.attach_copy("trace_left", libbpf_sys::BPF_TRACE_FEXIT, signature, cookie)?;
        let entered = self.attach_copy(
            "trace_entered",
            libbpf_sys::BPF_TRACE_FENTRY,
            signature,
            cookie,
        )?;
        self.links.extend([left, entered]);
        self.functions.push(Traced {
            name: target.name,
            returned: signature.returned,
        });
        Ok(())
    }

    /// Loads a copy of a program for one function and attaches it. A program of this type belongs to the
    /// function that it was loaded for.
    fn attach_copy(
        &self,
        program: &'static str,
        place: libbpf_sys::bpf_attach_type,
        signature: &Signature,
        cookie: u64,
    ) -> std::result::Result<OwnedFd, Errno> {
        let original = self._object.0.progs().find(|one| one.name() == program);
        let instructions = original.ok_or(Errno::NOENT)?.insns();
        let mut loading = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
            expected_attach_type: place,
            attach_btf_id: signature.id,
            ..Default::default()
        };
        // SAFETY: the instructions are those of a loaded program, the maps that they name by descriptor are
        // open, and both texts end with a zero.
        let result = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_TRACING,
                c"spliced_trace".as_ptr(),
                c"Dual BSD/GPL".as_ptr(),
                instructions.as_ptr(),
                instructions.len() as _,
                &raw mut loading,
            )
        };
        let copy = owned(result)?;
        let mut linking = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        linking.__bindgen_anon_1.tracing.cookie = cookie;
        // SAFETY: `linking` outlives the call and tells its own size; the descriptor is a program's.
        let result =
            unsafe { libbpf_sys::bpf_link_create(copy.as_raw_fd(), 0, place, &raw const linking) };
        owned(result)
    }

    /// The functions that are traced.
    pub fn functions(&self) -> &[Traced] {
        &self.functions
    }

    /// Those for which there was no time.
    pub fn late(&self) -> &[&'static str] {
        &self.late
    }

    /// Begins to record what concerns the connections of `filters` (of which only the first
    /// [`WATCHED_MOST`](super::WATCHED_MOST) count), and what tasks of `process` do without a socket.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn start(&mut self, filters: &[TraceFilter], process: Option<u32>) -> Result<()> {
        self.recording.start(filters, process)
    }

    /// Stops recording.
    pub fn stop(&self) {
        self.recording.stop();
    }

    /// Takes what was recorded since the last call.
    pub fn take(&mut self, each: impl FnMut(&TraceEvent)) {
        self.recording.take(each);
    }

    /// Events of this recording for which there was no room.
    pub fn lost(&self) -> u32 {
        self.recording.lost()
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions")
            .field("functions", &self.functions.len())
            .finish_non_exhaustive()
    }
}

pub(crate) fn kernel_types() -> Result<Btf<'static>> {
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let _quiet = Quiet::begin();
    Btf::from_vmlinux().map_err(|error| {
        refused(
            "the kernel's type information cannot be read".into(),
            &error,
        )
    })
}

/// What is told if the time was over before the first program was attached.
pub(super) fn nothing_in_time() -> Error {
    Error::new(
        ErrorKind::BpfRefused,
        "no program was attached in the time that there was for it",
    )
    .with_remedy("give it more time, or try again when this host is less busy")
}

fn owned(result: i32) -> std::result::Result<OwnedFd, Errno> {
    checked(result)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}
