//! Programs at tracepoints, which record the stack of functions there.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Instant;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use splice_base::error::{Error, Result};

use super::functions::{kernel_types, nothing_in_time};
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
    late: Vec<&'static str>,
    watch: Watch,
    recording: Recording,
    /// Of the tasks that are at work for a watched connection, unless only few points are watched.
    marks: Option<Map>,
    symbols: SharedArray<TraceSymbol>,
    namer: Program,
    names: HashMap<u64, String>,
    _object: Object,
}

/// At which tracepoints programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// At all that are known.
    Everything,
    /// At few, for which connections of others pay little.
    Little,
}

impl Stacks {
    /// Attaches to those tracepoints that this kernel has, but for `without`, until `deadline`.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](splice_base::ErrorKind::BpfRefused), also if there was no time for a single one.
    pub fn attach(watch: Watch, without: &[&str], deadline: Instant) -> Result<Self> {
        Self::attach_while(watch, without, || Instant::now() < deadline)
    }

    fn attach_while(
        watch: Watch,
        without: &[&str],
        mut is_time: impl FnMut() -> bool,
    ) -> Result<Self> {
        let kernel = kernel_types()?;
        let (name, bytes) = match watch {
            Watch::Everything => ("trace_stacks", objects::TRACE_STACKS),
            Watch::Little => ("trace_live", objects::TRACE_LIVE),
        };
        let object = load(name, bytes, |opened| leave_out_missing(opened, &kernel))?;
        let mut links = Vec::new();
        let (mut missing, mut late) = (Vec::new(), Vec::new());
        let wanted = |point: &&str| object.has(&program_at(point)) && !without.contains(point);
        for point in trace_point::NAMES.into_iter().filter(wanted) {
            if !is_there(&kernel, point) {
                missing.push(point);
            } else if !is_time() {
                late.push(point);
            } else {
                links.push(object.attach_to_tracepoint(&program_at(point))?);
            }
        }
        if links.is_empty() {
            return Err(nothing_in_time());
        }
        Ok(Self {
            links,
            missing,
            late,
            watch,
            recording: Recording::of(&object)?,
            marks: (watch == Watch::Everything)
                .then(|| object.map("marks"))
                .transpose()?,
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

    /// At which tracepoints it looks.
    pub fn watch(&self) -> Watch {
        self.watch
    }

    /// How many tracepoints there are.
    pub fn points(&self) -> usize {
        self.links.len()
    }

    /// The tracepoints that this kernel does not have.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// The tracepoints for which there was no time.
    pub fn late(&self) -> &[&'static str] {
        &self.late
    }

    /// As [`Functions::start`](super::Functions::start); of `process`, the system calls of all its
    /// threads but the first one are recorded.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn start(&mut self, filters: &[TraceFilter], process: Option<u32>) -> Result<()> {
        // Of tasks that were at work when the last recording stopped.
        if let Some(marks) = &self.marks {
            for key in marks.keys::<u64>() {
                marks.remove(&key);
            }
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
        let program = program_at(point);
        if opened.has(&program) && !is_there(kernel, point) {
            opened.leave_out(&program)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_was_no_time_for_is_named() {
        if !netlab::available(netlab::Need::Bpf) {
            return;
        }
        for watch in [Watch::Everything, Watch::Little] {
            let whole = Stacks::attach_while(watch, &[], || true).expect("attached");
            assert!(whole.late().is_empty());
            let mut left = 3;
            let cut = Stacks::attach_while(watch, &[], || {
                left -= 1;
                left >= 0
            });
            let cut = cut.expect("attached");
            assert_eq!((cut.points(), cut.late().len()), (3, whole.points() - 3));
            let none = Stacks::attach(watch, &[], Instant::now()).expect_err("no time");
            let said = none.to_string();
            assert!(
                said.contains("no program was attached in the time"),
                "{said}"
            );
        }
    }
}
