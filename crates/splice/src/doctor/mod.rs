//! What works here, tested rather than guessed from a version number.
//!
//! [`examine()`] joins sockets of its own with each engine and checks what arrives:
//!
//! ```
//! use splice::EngineName;
//! use splice::doctor::{Verdict, examine};
//!
//! let report = examine();
//! for finding in &report.engines {
//!     println!("{}: {:?}, {}", finding.engine, finding.verdict, finding.reason);
//! }
//! let copy = report.engines.iter().find(|finding| finding.engine == EngineName::Copy);
//! assert_eq!(copy.map(|finding| finding.verdict), Some(Verdict::Yes));
//! ```
//!
//! It takes well under a second if all is well, and a few seconds if nothing moves. It leaves
//! nothing behind.

mod sockets;
mod trial;

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use splice_base::error::Result;
use splice_base::obstacle::Obstacle;

use self::sockets::Family;
use self::trial::{Failure, Trial};
use crate::carrier::pipe;
use crate::firewall;
use crate::kernel::{segment, sockmap};
use crate::name::{EngineChoice, EngineName};
use crate::reactor::EventLoop;

/// How long one engine may take for one kind of socket. Loopback answers within milliseconds, but
/// attaching a program takes a lock (`rtnl_lock`) that a busy machine can hold for a second.
const TRIAL_MOST: Duration = Duration::from_secs(4);

/// How long all trials together may take. Loading programs does not count: it depends on no other
/// process, and its duration says nothing about an engine.
const EXAMINATION_MOST: Duration = Duration::from_secs(10);

/// How much of the time for the trials is left.
struct TimeBudget {
    end: Cell<Instant>,
}

impl TimeBudget {
    fn of(time: Duration) -> Self {
        let end = Cell::new(Instant::now() + time);
        Self { end }
    }

    /// The deadline of a trial that begins now.
    fn deadline(&self) -> Instant {
        self.end.get().min(Instant::now() + TRIAL_MOST)
    }

    /// Runs `work` without charging its time.
    fn excluding<T>(&self, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = work();
        self.end.set(self.end.get() + begin.elapsed());
        done
    }
}

/// Whether an engine works here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The engine moved every byte of a trial.
    Yes,
    /// The engine did not.
    No,
}

impl Verdict {
    /// The verdict as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
        }
    }
}

/// The finding about one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The engine.
    pub engine: EngineName,
    /// Whether it works between TCP sockets.
    pub verdict: Verdict,
    /// What was seen: which sockets it joined, or why it failed.
    pub reason: String,
    /// What the user can do about it, if that is known; nothing if it works as it should.
    pub remedy: Option<String>,
}

/// The result of [`examine()`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// One for each of [`EngineName::ALL`], in that order.
    pub engines: Vec<Finding>,
}

/// Tests every engine.
pub fn examine() -> Report {
    // A closed ring may interrupt a system call of the thread that used it.
    thread::scope(|scope| {
        let examination = thread::Builder::new().spawn_scoped(scope, examine_here);
        examination.ok().and_then(|thread| thread.join().ok())
    })
    .unwrap_or_else(examine_here)
}

fn examine_here() -> Report {
    let budget = TimeBudget::of(EXAMINATION_MOST);
    Report {
        kernel: kernel(),
        engines: EngineName::ALL
            .into_iter()
            .map(|engine| examine_engine(engine, &budget))
            .collect(),
    }
}

/// The kernel's release, as `uname -r` prints it.
pub fn kernel() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// A loop that keeps the kernel side of an engine loaded.
fn loaded(engine: EngineName) -> Result<EventLoop> {
    let mut event_loop = EventLoop::new()?;
    event_loop.prepare(EngineChoice::Only(engine))?;
    Ok(event_loop)
}

fn examine_engine(engine: EngineName, budget: &TimeBudget) -> Finding {
    // The trial finds out by itself why it cannot be loaded.
    let _loaded = engine
        .is_in_kernel()
        .then(|| budget.excluding(|| loaded(engine)));
    let run = |family| Trial::of(engine, family, budget).and_then(Trial::run);
    match run(Family::Tcp) {
        Err(Failure { reason, remedy }) => Finding {
            engine,
            verdict: Verdict::No,
            reason,
            remedy,
        },
        Ok(()) => {
            let mover = if engine.is_in_kernel() {
                "the kernel moves the bytes"
            } else {
                "every byte arrives"
            };
            let reason = match run(Family::Unix) {
                Ok(()) => format!("{mover} between TCP and between UNIX sockets"),
                Err(Failure { reason, .. }) => {
                    format!("{mover} between TCP sockets; not between UNIX sockets: {reason}")
                }
            };
            let shortage = match engine {
                EngineName::Pipe => pipes_are_short(),
                EngineName::Segment => filters_are_in_the_way(),
                _ => None,
            };
            let (reason, remedy) = match shortage {
                None => (reason, None),
                Some(Obstacle {
                    reason: short,
                    remedy,
                }) => (format!("{reason}; {short}"), Some(remedy)),
            };
            Finding {
                engine,
                verdict: Verdict::Yes,
                reason,
                remedy,
            }
        }
    }
}

/// What makes `pipe` slow, although it works.
fn pipes_are_short() -> Option<Obstacle> {
    let bytes = pipe::capacity_bytes().ok()?;
    (bytes < pipe::CAPACITY_BYTES).then(|| Obstacle {
        reason: format!(
            "slowly, since a pipe holds {} KiB instead of {}",
            bytes >> 10,
            pipe::CAPACITY_BYTES >> 10
        ),
        remedy: "raise fs.pipe-user-pages-soft, which this user's pipes have used up, or run the \
                 relay as a user of its own; fs.pipe-max-size must be 1 MiB at least"
            .into(),
    })
}

/// What keeps `segment` from some or all connections, although it works. Here only their family is
/// known.
fn filters_are_in_the_way() -> Option<Obstacle> {
    let families = [firewall::Family::Ipv4, firewall::Family::Ipv6];
    let found = match firewall::PacketFilters::read() {
        Ok(filters) => families.into_iter().find_map(|family| {
            match filters.judge(&firewall::Connection::any(family)) {
                firewall::Verdict::Accepts => None,
                firewall::Verdict::Stops(why) => Some(format!("all connections: {why}")),
                firewall::Verdict::Unknown(why) => Some(format!("some connections: {why}")),
            }
        }),
        Err(error) => Some(format!("all connections: {error}")),
    };
    Some(Obstacle {
        reason: format!("the packet filters of this host keep it from {}", found?),
        remedy: "none needed if that is intended: such connections use copy and pipe, through the \
                 filters; otherwise change the rule, or run the relay with --bypass-firewall"
            .into(),
    })
}

/// How many segments each reason of the engine [`Segment`](EngineName::Segment) has counted, by name: summed over
/// all relays on this machine, since each loaded its program. Empty where no relay uses the engine. What the names mean is
/// in `docs/segment.md`.
///
/// # Errors
/// Where the process may not list the BPF maps of this machine, which takes `CAP_SYS_ADMIN`.
pub fn segment_counts() -> Result<Vec<(&'static str, u64)>> {
    segment::datapath::counts::of_all()
}

/// The same of this process alone, for which it needs no right. Empty as long as it has not used the engine.
///
/// # Errors
/// The error of bpf(2).
pub fn segment_counts_of_process() -> Result<Vec<(&'static str, u64)>> {
    segment::datapath::counts::of_process()
}

/// How many entries the process's maps of sockets have: sources, targets, indices.
///
/// # Errors
/// If the engine `sockmap` cannot be used.
// Not a finding: the test `ten_thousand_pairs_leave_nothing` calls it from a process of its own.
#[doc(hidden)]
pub fn sockmap_entries() -> Result<[usize; 3]> {
    sockmap::entries().map_err(|obstacle| EngineName::Sockmap.unavailable(obstacle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_a_finding() {
        let report = examine();
        let engines = report.engines.iter().map(|finding| finding.engine);
        assert!(engines.eq(EngineName::ALL), "{report:?}");
        for finding in &report.engines {
            assert!(!finding.reason.is_empty(), "{finding:?}");
            let works = finding.verdict == Verdict::Yes;
            // A working engine can still lack something.
            assert!(works || finding.remedy.is_some(), "{finding:?}");
            if matches!(finding.engine, EngineName::Copy | EngineName::Pipe) {
                assert!(works, "{finding:?}");
            }
        }
        assert!(!report.kernel.is_empty());
    }

    #[test]
    fn a_trial_without_time_gives_a_finding() {
        let finding = examine_engine(EngineName::Copy, &TimeBudget::of(Duration::ZERO));
        assert_eq!(finding.verdict, Verdict::No);
        assert!(finding.reason.contains("in time"), "{finding:?}");
    }

    #[test]
    fn excluded_work_takes_no_time() {
        const TIME: Duration = Duration::from_millis(20);
        let budget = TimeBudget::of(TIME);
        let end = budget.end.get();
        budget.excluding(|| thread::sleep(TIME));
        assert!(budget.end.get() >= end + TIME);
    }
}
