//! Programs at tracepoints, which record the stack of functions there.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use splice_base::error::{Error, Result};

use super::functions::kernel_types;
use super::recording::Recording;
use crate::load::{Object, Opened, load};
use crate::map::Map;
use crate::objects;
use crate::program::Program;
use crate::shared_memory::SharedArray;
use crate::types::{TraceFilter, TraceStack, TraceSymbol, trace_limit, trace_point};

/// What libbpf's names of the types of tracepoints begin with.
const TYPE_PREFIX: &str = "btf_trace_";
const PROGRAM_PREFIX: &str = "trace_";

/// The attached programs. They record nothing before [`Stacks::start`], and the kernel removes them when
/// this is dropped or the process ends.
pub struct Stacks {
    /// Before the object, so that nothing records any more when that goes.
    links: Vec<libbpf_rs::Link>,
    missing: Vec<&'static str>,
    recording: Recording,
    marks: Map,
    symbols: SharedArray<TraceSymbol>,
    namer: Program,
    names: HashMap<u64, String>,
    _object: Object,
}

impl Stacks {
    /// Attaches to those tracepoints that this kernel has, but for `without`.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](splice_base::ErrorKind::BpfRefused)
    pub fn attach(without: &[&str]) -> Result<Self> {
        let kernel = kernel_types()?;
        let object = load("trace_stacks", objects::TRACE_STACKS, |opened| {
            leave_out_missing(opened, &kernel)
        })?;
        let mut links = Vec::new();
        let mut missing = Vec::new();
        for point in trace_point::NAMES {
            if !is_there(&kernel, point) {
                missing.push(point);
            } else if !without.contains(&point) {
                links.push(object.attach_to_tracepoint(&program_at(point))?);
            }
        }
        Ok(Self {
            links,
            missing,
            recording: Recording::of(&object)?,
            marks: object.map("marks")?,
            symbols: object.map("symbols")?.share_values()?,
            namer: object.program("trace_name")?,
            names: HashMap::new(),
            _object: object,
        })
    }

    /// The name of a tracepoint by its number in an event.
    pub fn point(number: u16) -> &'static str {
        (trace_point::NAMES.get(usize::from(number))).map_or("", |name| *name)
    }

    /// How many tracepoints there are.
    pub fn points(&self) -> usize {
        self.links.len()
    }

    /// The tracepoints that this kernel does not have.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// As [`Functions::start`](super::Functions::start); of `process`, the system calls of all its
    /// threads but the first one are recorded.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn start(&mut self, filters: &[TraceFilter], process: Option<u32>) -> Result<()> {
        // Of tasks that were at work when the last recording stopped.
        for key in self.marks.keys::<u64>() {
            self.marks.remove(&key);
        }
        self.recording.start(filters, process)
    }

    /// Stops recording.
    pub fn stop(&self) {
        self.recording.stop();
    }

    /// Takes what was recorded since the last call.
    pub fn take(&mut self, each: impl FnMut(&TraceStack)) {
        self.recording.take(each);
    }

    /// Events of this recording for which there was no room.
    pub fn lost(&self) -> u32 {
        self.recording.lost()
    }

    /// Asks the kernel for the names of the functions at these addresses.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn learn(&mut self, addresses: impl Iterator<Item = u64>) -> Result<()> {
        let mut unknown: Vec<_> = addresses
            .filter(|address| *address != 0 && !self.names.contains_key(address))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        // A zero ends the list.
        for asked in unknown.chunks(trace_limit::NAMES as usize - 1) {
            for (index, address) in asked.iter().chain([&0]).enumerate() {
                // A call that never returns is the last thing in its function: what is behind it belongs to
                // the next one.
                let inside = address.saturating_sub(1);
                self.symbols
                    .at(index)
                    .address
                    .store(inside, Ordering::Release);
            }
            let called = self.namer.call();
            called.map_err(|errno| {
                Error::system("cannot ask for the names of the kernel's functions", errno)
            })?;
            for (index, address) in asked.iter().enumerate() {
                let words = self.symbols.at(index).name.iter();
                let name: String = words
                    .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
                    .take_while(|letter| *letter != 0)
                    .map(char::from)
                    .collect();
                self.names.insert(*address, name);
            }
        }
        Ok(())
    }

    /// The name of the function at an address that was asked for.
    pub fn name(&self, address: u64) -> &str {
        self.names.get(&address).map_or("", String::as_str)
    }
}

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stacks")
            .field("points", &self.points())
            .finish_non_exhaustive()
    }
}

/// Leaves out the programs of tracepoints that this kernel does not have.
pub(crate) fn leave_out_missing(opened: &mut Opened, kernel: &Btf<'_>) -> Result<()> {
    for point in trace_point::NAMES {
        if !is_there(kernel, point) {
            opened.leave_out(&program_at(point))?;
        }
    }
    Ok(())
}

fn program_at(point: &str) -> String {
    format!("{PROGRAM_PREFIX}{point}")
}

fn is_there(kernel: &Btf<'_>, point: &str) -> bool {
    kernel
        .type_by_name::<Typedef<'_>>(&format!("{TYPE_PREFIX}{point}"))
        .is_some()
}
