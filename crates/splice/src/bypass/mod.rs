//! Connections between sockets of this host, whose messages go from socket to socket and not through the network stack.
//!
//! Programs pair the two ends of each connection of the covered control groups by both initial sequence numbers. A
//! connection that has shown small messages gets both ends into a map of sockets, and what one end sends goes to the
//! reader of the other. Any message may go over TCP instead, and does when TCP is faster or something is against it.
//!
//! Everything is pinned. When the owner dies its heartbeat stops, every message goes over TCP, and
//! the next [`Bypass::start`] or [`off`] has the members leave. The directory with its lock ([`Pins`]), the heartbeat
//! (`splice_bpf::types::Lease`) and the passes in which members leave ([`leave`]) are those of the
//! [lease](splice_sockmap::Lease) of redirects. What lies between differs:
//!
//! - The owner may come back. A lease that has lapsed stays so, since a stream's later message would overtake an earlier one.
//!   A bypass looks at each message whether the reader has all that came before, so a stalled owner goes on.
//! - Members can leave in full flow. They redirect what they send, so none is on its way once no program runs. A lease
//!   also has sources that receive, and keeps those until they are closed.
//! - There is one set of pins, with attachments to tracepoints.
//!
//! ```text
//!          start                          stop
//! nothing ──────▶ running (turn) ─────────────────────────▶ members leave ──▶ nothing
//!                    │ killed, or dropped                        ▲
//!                    ▼                                           │ off, or the next start
//!                 pinned: every message goes over TCP ───────────┘
//! ```

mod capture;
mod drain;
mod filters;
mod namespaces;
mod network;
mod pair;
mod reason;
mod reset;
mod rule;
mod site;
mod status;
mod tables;
mod threshold;
mod way;
mod words;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::types::{BypassKey, BypassPair, bypass_state, bypass_trait};
use splice_sockmap::{Lock, Pins, leave};

use self::drain::Drain;
use self::filters::Filters;
use self::namespaces::Namespaces;
use self::pair::{Decision, decide, why_unfit};
use self::tables::{News, PINNED, Sizes, Tables, end_address, peer_address};

pub use self::capture::{Capture, CaptureEnd, CaptureHeartbeat, CaptureOptions, Captured, Message};
pub use self::reason::{Obstacle, Reason};
pub use self::rule::{Rule, Rules};
pub use self::status::{Connection, End, State, Status, Sum, status};

/// How often [`Bypass::turn`] has to be called, which [`Bypass::wait`] sees to. A heartbeat that is 500 ms old is that of a dead owner.
pub const TURN_EVERY: Duration = Duration::from_millis(20);

/// The longest time until a pair is looked at again.
const LOOK_AGAIN_MOST: Duration = Duration::from_secs(2);

/// How often to look whether the owner has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What a bypass covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The directories of the control groups (version 2), with all below them.
    pub groups: Vec<PathBuf>,
    /// Which of their connections.
    pub rules: Rules,
    /// Where it is pinned: a directory that it makes, below a BPF file system.
    pub pins: PathBuf,
    /// The most connections that it sees at a time.
    pub connections: u32,
    /// Longer messages go over TCP, and connections whose messages are longer on average. `None`: [`Bypass::start`]
    /// measures from which size on TCP is faster, which takes some 0.2 s.
    pub bulk_bytes: Option<u32>,
    /// The most bytes that wait unread in a direction, beside TCP's own.
    pub unread_bytes: u64,
    /// How many messages an end has to have read before anything is redirected to it.
    pub least_reads: u32,
    /// Redirect whatever the packet filters, traffic shapers and BPF programs on the way would do with the segments.
    pub bypass_firewall: bool,
    /// Start although FIONREAD does not count all that members have to read, as on most kernels before 7.2.13.
    pub despite_fionread: bool,
}

impl Options {
    /// The defaults for some groups.
    pub fn of(groups: Vec<PathBuf>) -> Self {
        Self {
            groups,
            rules: Rules::default(),
            pins: PathBuf::from(DEFAULT_PINS),
            connections: 65_536,
            bulk_bytes: None,
            unread_bytes: 4 << 20,
            least_reads: 16,
            bypass_firewall: false,
            despite_fionread: false,
        }
    }
}

/// Where a bypass is pinned if nothing else is said.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/spliced-bypass";

/// A running bypass.
pub struct Bypass {
    pins: Pins,
    _lock: Lock,
    tables: Tables,
    news: News,
    namespaces: Namespaces,
    rules: Rules,
    /// `None` if they are to be bypassed.
    filters: Option<Filters>,
    watched: HashMap<(u32, u32), Watched>,
    drain: Drain,
}

/// When a pair is looked at again.
#[derive(Clone, Copy, Debug)]
struct Watched {
    at: Instant,
    pause: Duration,
}

impl Bypass {
    /// Clears what a dead owner has left, and starts.
    ///
    /// # Errors
    /// - [`ErrorKind::System`] if another process runs one with the same pins, or members of a dead one have unread
    ///   bytes.
    /// - [`ErrorKind::BpfRefused`] without the rights, or if the kernel lacks something.
    pub fn start(options: &Options) -> Result<Self> {
        if !options.despite_fionread && splice_sockmap::has_fionread_defect() {
            return Err(Error::new(
                ErrorKind::BpfRefused,
                "on this kernel FIONREAD does not count all that a redirected connection has to read, and programs \
                 that ask before they read stall",
            )
            .with_remedy("use a kernel without the defect, or --despite-fionread"));
        }
        let pins = Pins::at(&options.pins, PINNED);
        let namespaces = Namespaces::of(&options.groups)?;
        let filters = match options.bypass_firewall {
            true => None,
            false => Some(Filters::start(&options.groups)?),
        };
        let lock = pins.take()?.ok_or_else(|| second(&options.pins))?;
        clear(&pins, LEAVE_MOST)?;
        let loaded = load(&pins, options);
        let (tables, news) = loaded.inspect_err(|_| drop(pins.remove()))?;
        Ok(Self {
            pins,
            _lock: lock,
            tables,
            news,
            namespaces,
            rules: options.rules.clone(),
            filters,
            watched: HashMap::new(),
            drain: Drain::default(),
        })
    }

    /// Waits until it is to be turned again: for [`TURN_EVERY`], or until a connection has to leave at once.
    pub fn wait(&self) {
        self.news.wait(TURN_EVERY);
    }

    /// Does what is to be done now. Call it again when [`wait`](Self::wait) has returned, or every [`TURN_EVERY`]. It may enter other network namespaces for a moment
    /// with the calling thread.
    ///
    /// Whether to go on: [`off`] of another process ends a bypass.
    pub fn turn(&mut self) -> bool {
        self.tables.beat();
        self.tables.end_stale_capture();
        let now = Instant::now();
        let mut leaving = Vec::new();
        for key in self.news.take() {
            match self.tables.pair(key) {
                Some(pair) if pair.state == bypass_state::UNFIT => {
                    leaving.push((key, why_unfit(&pair)))
                }
                Some(pair) if pair.state == bypass_state::WATCHED => {
                    let pause = TURN_EVERY;
                    let id = (key.client_isn, key.server_isn);
                    self.watched.insert(id, Watched { at: now, pause });
                }
                Some(pair) if pair.state == bypass_state::STUCK => self.reset(key, &pair),
                // It is over already, as most short connections are.
                _ => {}
            }
        }
        if let Some(filters) = &mut self.filters {
            for (key, why) in filters.look(&mut self.namespaces, &self.tables) {
                self.tables.explain(key, Some(&why));
                leaving.push((key, Reason::Filter));
            }
        }
        self.drain.begin(&self.tables, &leaving);
        self.drain.go_on(&self.tables);
        self.look(now);
        self.namespaces.release();
        self.tables.settings().stopping.load(Ordering::Acquire) == 0
    }

    /// Ends a connection whose reader splices over messages that it has not read.
    fn reset(&mut self, key: BypassKey, pair: &BypassPair) {
        let mut ends = pair.ends;
        ends.sort_by_key(|end| end.traits & bypass_trait::SPLICES == 0);
        for end in &ends {
            let (local, remote) = (end_address(end), peer_address(end));
            let done = self
                .namespaces
                .within(end.network, || reset::reset(local, remote, end.cookie));
            match done {
                Some(Ok(())) => {
                    tracing::warn!(
                        %local, %remote, process = end.process,
                        "a bypassed connection was reset: a process has called splice(2) on it with unread messages, \
                         which splice(2) does not see; its further connections go over TCP"
                    );
                    self.tables
                        .turn(key, bypass_state::STUCK, Some(Reason::Stuck));
                    // Nobody can read what is left.
                    return self.tables.remove_both(key);
                }
                // The other end may be found.
                Some(Err(error)) => tracing::debug!(%local, %remote, %error, "cannot reset"),
                None => {}
            }
        }
        tracing::error!(
            client = %end_address(&pair.ends[0]),
            "a bypassed connection stands still: a process has called splice(2) on it with unread messages, and the kernel \
             cannot reset it; restart that process"
        );
    }

    /// Looks at the pairs whose time has come.
    fn look(&mut self, now: Instant) {
        let Self {
            watched,
            tables,
            namespaces,
            rules,
            filters,
            ..
        } = self;
        watched.retain(|&(client_isn, server_isn), watch| {
            if watch.at > now {
                return true;
            }
            let key = BypassKey {
                client_isn,
                server_isn,
            };
            let Some(pair) = tables.pair(key).filter(|pair| pair.closed == 0) else {
                return false;
            };
            match decide(tables, namespaces, rules, filters.as_mut(), key, &pair) {
                Decision::Admitted => {
                    tables.turn(key, bypass_state::ACTIVE, None);
                    false
                }
                Decision::Later(reason) => {
                    tables.turn(key, bypass_state::WATCHED, Some(reason));
                    watch.pause = (watch.pause * 2).min(LOOK_AGAIN_MOST);
                    watch.at = now + watch.pause;
                    true
                }
                Decision::Never(reason) => {
                    tables.turn(key, bypass_state::LEFT, Some(reason));
                    false
                }
            }
        });
    }

    /// The connections now.
    pub fn status(&self) -> Status {
        status::of(&self.tables)
    }

    /// Has every member leave, and removes everything. No byte is lost: a member whose reader does not read stays one,
    /// and the pins with it, until a later [`off`].
    ///
    /// # Errors
    /// [`ErrorKind::System`] if bytes are unread after `most`.
    pub fn stop(&mut self, most: Duration) -> Result<()> {
        drain(&self.tables, most)?;
        self.pins.remove()
    }
}

impl std::fmt::Debug for Bypass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bypass").finish_non_exhaustive()
    }
}

/// How long [`Bypass::start`] waits for members of a dead bypass.
const LEAVE_MOST: Duration = Duration::from_secs(10);

/// Ends the bypass that is pinned in a directory, whether its owner lives or not. Whether there was one.
///
/// # Errors
/// [`ErrorKind::System`] if members have unread bytes after `most`: they stay members, and every message goes over TCP.
pub fn off(directory: &Path, most: Duration) -> Result<bool> {
    let pins = Pins::at(directory, PINNED);
    if !pins.are_whole() {
        return Ok(false);
    }
    let deadline = Instant::now() + most;
    Tables::open(&pins)?
        .settings()
        .stopping
        .store(1, Ordering::Release);
    loop {
        // The owner has it until it has ended.
        match pins.lock() {
            _ if !pins.are_whole() => return Ok(true),
            Ok(Some(_lock)) => {
                clear(&pins, deadline.saturating_duration_since(Instant::now()))?;
                return pins.remove().map(|()| true);
            }
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK_AGAIN),
            Ok(None) => {
                return Err(Error::new(
                    ErrorKind::System,
                    "the bypass's process has not ended it in time: stop that process, and try again",
                ));
            }
            Err(error) => return Err(error),
        }
    }
}

fn load(pins: &Pins, options: &Options) -> Result<(Tables, News)> {
    let bulk_bytes = match options.bulk_bytes {
        Some(bytes) => bytes,
        None => threshold::measure()?,
    };
    let sizes = Sizes {
        connections: options.connections,
        bulk_bytes,
        unread_bytes: options.unread_bytes,
        least_reads: options.least_reads,
    };
    Tables::load(pins, &options.groups, sizes)
}

/// Clears what a dead owner has left, and keeps the directory with its lock.
fn clear(pins: &Pins, most: Duration) -> Result<()> {
    if pins.are_whole() {
        drain(&Tables::open(pins)?, most)?;
    }
    pins.empty()
}

/// Has all members leave.
fn drain(tables: &Tables, most: Duration) -> Result<()> {
    tables.settings().stopping.store(1, Ordering::Release);
    let mut drain = Drain::default();
    let left = leave(most, || {
        drain.begin_all(tables);
        let has_left = !drain.go_on(tables) && tables.members().is_empty();
        // Between its last look and this one, a member may have come.
        Ok(if has_left { 0 } else { drain.count().max(1) })
    })?;
    if left == 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::System,
        format!(
            "{left} connections have bytes that their readers have not read: they stay in the map, where all else \
             goes over TCP; run 'spliced bypass off' when they have read or ended"
        ),
    ))
}

fn second(directory: &Path) -> Error {
    Error::new(
        ErrorKind::System,
        format!(
            "a bypass runs already with its pins in {}: stop it, or choose another directory with --pins",
            directory.display()
        ),
    )
}
