//! The way of a message through the kernel's functions.
//!
//! A [`Recorder`] attaches BPF programs to the entry and the exit of some hundred functions of the socket
//! layer (fentry and fexit), or, on a kernel that does not allow that, to its tracepoints, where they read
//! the stack of functions. They follow the connections that a [`ConnectionFilter`] names, and whatever
//! runs for them: system calls, softirqs, kernel workers, the relay. They change nothing, and go with the
//! recorder. It needs CAP_BPF and CAP_PERFMON.

mod connection;
mod cookie;
mod functions;
mod stacks;
mod summary;
mod tree;

use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use splice_base::error::{Error, Result};
use splice_base::obstacle::{Obstacle, listed};
use splice_bpf::tracing::{Functions, Stacks, WATCHED_MOST, Watch};
use splice_bpf::types::{TraceEvent, TraceStack};

pub use self::connection::ConnectionFilter;
pub use self::summary::Summary;
pub use self::tree::{Call, Context, Irq, Trace, Value};

/// The most connections that are traced at a time.
pub const CONNECTIONS_MOST: usize = WATCHED_MOST;

/// How the kernel's functions are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Programs at their entries and exits: each call of a function on the list is seen, with exact times
    /// and what it returned.
    Functions,
    /// Programs at tracepoints, which read the stack: a function is seen if a tracepoint is met within it.
    /// Its times are those of the first and the last one.
    Stacks,
}

impl Means {
    /// The means as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::Stacks => "stacks",
        }
    }
}

/// At which tracepoints [`Means::Stacks`] looks. All processes of the host pay for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Points {
    /// At each that it knows.
    All,
    /// At few, none of which every system call or softirq meets. Functions that meet none of them are missing then, and
    /// system calls have no result.
    Sparse,
    /// The same without the one that only datagrams need.
    SparseTcp,
}

/// The tracepoint at which datagrams are received; TCP has another one.
const OF_DATAGRAMS: &[&str] = &["sock_recv_length"];

/// How long to attach programs. What has none then stays without.
pub const ATTACH_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Programs {
    Functions(Functions, Vec<TraceEvent>),
    Stacks(Stacks, Vec<TraceStack>),
}

/// Records calls of the kernel's functions.
#[derive(Debug)]
pub struct Recorder {
    programs: Programs,
}

impl Recorder {
    /// Attaches by the means that suit the points: to the functions that this kernel has, or to its tracepoints if it lets
    /// no program be attached to those, or if there are to be few.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](crate::ErrorKind::BpfRefused), with the remedy.
    pub fn new(points: Points, within: Duration) -> Result<Self> {
        let begun = Instant::now();
        match points {
            Points::Sparse | Points::SparseTcp => Self::with(Means::Stacks, points, within),
            Points::All => Self::with(Means::Functions, points, within).or_else(|_| {
                let left = within.saturating_sub(begun.elapsed());
                Self::with(Means::Stacks, points, left)
            }),
        }
    }

    /// Attaches by the given means.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](crate::ErrorKind::BpfRefused), with the remedy.
    pub fn with(means: Means, points: Points, within: Duration) -> Result<Self> {
        let deadline = Instant::now() + within;
        let (watch, without) = match points {
            Points::All => (Watch::Everything, &[][..]),
            Points::Sparse => (Watch::Little, &[][..]),
            Points::SparseTcp => (Watch::Little, OF_DATAGRAMS),
        };
        let programs = match means {
            Means::Functions => Functions::attach(&functions::targets(), deadline)
                .map(|programs| Programs::Functions(programs, Vec::new())),
            Means::Stacks => Stacks::attach(watch, without, deadline)
                .map(|programs| Programs::Stacks(programs, Vec::new())),
        };
        let programs = programs.map_err(|error| refused(&error, means))?;
        Ok(Self { programs })
    }

    /// How the functions are observed.
    pub fn means(&self) -> Means {
        match self.programs {
            Programs::Functions(..) => Means::Functions,
            Programs::Stacks(..) => Means::Stacks,
        }
    }

    /// How many functions or tracepoints have a program.
    pub fn places(&self) -> usize {
        match &self.programs {
            Programs::Functions(programs, _) => programs.functions().len(),
            Programs::Stacks(programs, _) => programs.points(),
        }
    }

    /// The functions or tracepoints that this kernel does not have, or takes no program at.
    pub fn missing(&self) -> Vec<&'static str> {
        match &self.programs {
            Programs::Functions(programs, _) => {
                let has = |name| {
                    programs.functions().iter().any(|one| one.name == name)
                        || programs.late().contains(&name)
                };
                let names = functions::targets().into_iter().map(|target| target.name);
                names.filter(|name| !has(*name)).collect()
            }
            Programs::Stacks(programs, _) => programs.missing().to_vec(),
        }
    }

    /// The functions or tracepoints for which there was no time.
    pub fn late(&self) -> &[&'static str] {
        match &self.programs {
            Programs::Functions(programs, _) => programs.late(),
            Programs::Stacks(programs, _) => programs.late(),
        }
    }

    /// Begins to record what concerns these connections, of which only the first [`CONNECTIONS_MOST`]
    /// count. With `own`, also what the threads of this process do without a socket.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn start(&mut self, connections: &[ConnectionFilter], own: bool) -> Result<()> {
        let filters: Vec<_> = connections
            .iter()
            .map(ConnectionFilter::for_program)
            .collect();
        let process = own.then(std::process::id);
        match &mut self.programs {
            Programs::Functions(programs, events) => {
                events.clear();
                programs.start(&filters, process)
            }
            Programs::Stacks(programs, events) => {
                events.clear();
                programs.start(&filters, process)
            }
        }
    }

    /// How many events were recorded so far.
    pub fn events(&mut self) -> usize {
        match &mut self.programs {
            Programs::Functions(programs, events) => {
                programs.take(|event| events.push(*event));
                events.len()
            }
            Programs::Stacks(programs, events) => {
                programs.take(|event| events.push(*event));
                events.len()
            }
        }
    }

    /// Stops recording and returns everything.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn finish(&mut self) -> Result<Trace> {
        match &self.programs {
            Programs::Functions(programs, _) => programs.stop(),
            Programs::Stacks(programs, _) => programs.stop(),
        }
        self.events();
        Ok(match &mut self.programs {
            Programs::Functions(programs, events) => {
                let events = std::mem::take(events);
                Trace::of(events, programs.functions(), programs.lost())
            }
            Programs::Stacks(programs, events) => {
                let events = std::mem::take(events);
                programs.learn(events.iter().flat_map(|event| event.frames))?;
                Trace::of_stacks(events, programs, programs.lost())
            }
        })
    }

    /// Stops recording and returns the first message.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn finish_first_message(&mut self) -> Result<Trace> {
        let mut trace = self.finish()?;
        trace.cut_after_first_message();
        Ok(trace)
    }
}

/// Tracing needs less than the engines do, so what is missing is named here.
fn refused(error: &Error, means: Means) -> Error {
    let is_forbidden = matches!(error.errno(), Some(Errno::PERM | Errno::ACCESS));
    let Obstacle { reason, remedy } = match missing() {
        Some(names) if is_forbidden => Obstacle::new(
            format!("this process lacks {names}"),
            format!("run it as root, or give it {names} (setcap on the program's file)"),
        ),
        None if is_forbidden && means == Means::Functions => Obstacle::new(
            "it lets no program be attached to them",
            "look at its tracepoints (stacks) instead",
        ),
        _ => Obstacle::of_bpf(error),
    };
    Error::new(error.kind(), reason)
        .about("cannot trace the kernel's functions")
        .with_remedy(remedy)
}

/// Which of the capabilities that tracing needs this process lacks.
fn missing() -> Option<String> {
    let held = capabilities(None).ok()?.effective;
    if held.contains(CapabilitySet::SYS_ADMIN) {
        return None;
    }
    let needed = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ];
    let lacks: Vec<_> = needed
        .into_iter()
        .filter_map(|(capability, name)| (!held.contains(capability)).then_some(name))
        .collect();
    (!lacks.is_empty()).then(|| listed(&lacks, "and"))
}
