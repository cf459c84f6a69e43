//! `sockmap`: a BPF program sends what arrives on one socket to the other; the process sleeps.
//!
//! ```text
//! socket a ──verdict──▶ backlog of b ──kernel worker──▶ socket b
//! ```
//!
//! The kernel has no flow control here: what is redirected is acknowledged at once and waits in the
//! target's backlog, charged to nobody. So each direction has a tap: a source that is taken out of
//! the map of sources is a plain TCP socket, whose bytes wait in its queue and whose window closes,
//! and user space moves them.
//!
//! ```text
//!     nothing in hand, the       the gate has closed: the target has its share;
//!     gate is asked to open      or what was asked for was taken back
//! ByHand ───────────────▶ Open ──────────────────────────────────────────────▶ Draining
//!  │  ▲                    │ │                                                   │
//!  │  │ the spell is over  │ │ end of stream seen, all of it is out              │
//!  │  └─────────(by hand)──│─│───────────────────────────────────────────────────┘
//!  │ cannot be taken       │ │                          target has taken all
//!  ▼                       │ ▼
//! Left ◀───────────────────┘ Over
//!        the kernel refuses
//! ```
//!
//! User space never puts a source in: it asks, and the gate does it before the next segment, which
//! brings about the verdict of what waits. Until then user space does not read. Where something
//! waits and no segment comes for 1 ms, it takes back what it asked for and reads on; a process that has
//! the verdicts made would hold the socket meanwhile, and leave a fast sender with a closed window
//! (`bpf/gate.bpf.c`).
//!
//! In `ByHand` and `Left` user space moves the bytes, from `Left` to the end. A sender that is
//! faster than the kernel's worker, or a receiver that is slow, so costs what `copy` costs.
//!
//! The rules that keep the bytes whole, with the place that keeps each:
//!
//! - A source is taken out of the map only while nothing can have its verdict, since the kernel
//!   drops what has. The gate does it, before it lets the next segment in (`bpf/gate.bpf.c`).
//! - The program never passes a byte to user space (`bpf/redirect.bpf.c` says why).
//! - User space gives bytes to a target only after all that was redirected to it has been taken
//!   by it ([`Tap::drain`]).
//! - A source may have bytes in its queue when it is put in, partly read ones too: the kernel hands over
//!   an skb whole, and the program trims off what it knows by sequence number, as it does with a
//!   segment that was sent again with other borders (`trim` in `bpf/redirect.bpf.c`).
//! - A UNIX socket is refused. When its peer half-closes, the kernel takes it out of the maps and
//!   drops its backlog (`unix_shutdown` calls `sock_map_unhash` for the other end). As a source it would
//!   lag behind by what waited when it was put in (docs/notes/sockmap-design.md).
//! - An end of stream is passed on only after everything that came has had its verdict and has
//!   been pushed ([`Tap::finish`]).
//! - Near its byte limit a direction goes by hand: only user space can stop at a byte.
//!
//! Memory: on the way to a target is its send buffer at most. Where the gate cannot close, since a
//! segment before has not come, it lets nothing new in at a quarter beyond that; the sender repeats it.

mod shared;
mod spell;
mod tap;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;

use self::shared::Shared;
use self::tap::{State, Tap};
use super::{DirectionView, KernelCounters, KernelEngine, Next, PairView, Turn};
use crate::endpoint::Endpoint;
use crate::name::EngineName;
use crate::outcome::{Reason, Side};
use crate::reactor::Notifier;
use splice_base::error::{Error, ErrorKind};
use splice_base::obstacle::Obstacle;
use splice_bpf::clock::coarse_now_ns;

/// Whether the engine can be used in this process.
///
/// # Errors
/// What is in the way.
pub(crate) fn probe() -> Result<(), Obstacle> {
    shared::found().map(drop)
}

/// What the programs call with; as long as somebody has it, they stay loaded.
///
/// # Errors
/// What is in the way.
pub(crate) fn notifier() -> Result<Arc<dyn Notifier>, Obstacle> {
    Ok(shared::found()?)
}

/// How many entries the maps hold: sources, targets, indices.
///
/// # Errors
/// What is in the way.
pub(crate) fn entries() -> Result<[usize; 3], Obstacle> {
    Ok(shared::found()?.counts())
}

/// A socket that lies in a map of sockets which has no program, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Member {
    shared: Arc<Shared>,
    cookie: u64,
}

impl Member {
    /// # Errors
    /// [`ErrorKind::EngineRefused`] where the engine cannot be used, or the kernel does not take
    /// the socket.
    pub(crate) fn new(socket: impl AsFd) -> splice_base::Result<Self> {
        let shared =
            shared::found().map_err(|obstacle| EngineName::Sockmap.unavailable(obstacle))?;
        let inserted = socket_cookie(&socket).and_then(|cookie| {
            let inserted = shared.targets.insert_socket(&cookie, socket.as_fd());
            inserted.map(|()| cookie)
        });
        match inserted {
            Ok(cookie) => Ok(Self { shared, cookie }),
            Err(errno) => Err(Error::new(ErrorKind::EngineRefused, refusal(errno))),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.targets.remove(&self.cookie);
    }
}

/// The engine of one pair.
#[derive(Debug)]
pub(crate) struct Sockmap {
    shared: Arc<Shared>,
    counters: Arc<Redirected>,
    /// Empty until the first turn; `taps[i]` is the direction that reads from `ends[i]`.
    taps: Vec<Tap>,
}

/// Where anyone can read what the program has redirected.
#[derive(Debug)]
struct Redirected {
    shared: Arc<Shared>,
    /// The index of each direction's entry, plus one; 0 while it has none.
    indices: [AtomicU64; 2],
}

impl KernelCounters for Redirected {
    fn moved_bytes(&self) -> [u64; 2] {
        [0, 1].map(
            |direction: usize| match self.indices[direction].load(Ordering::Acquire) {
                0 => 0,
                index => {
                    let entry = self.shared.entry((index - 1) as u32);
                    entry.redirected.load(Ordering::Relaxed)
                }
            },
        )
    }
}

impl Sockmap {
    /// # Errors
    /// What is in the way.
    pub(crate) fn new() -> Result<Self, Obstacle> {
        let shared = shared::found()?;
        Ok(Self {
            counters: Arc::new(Redirected {
                shared: Arc::clone(&shared),
                indices: Default::default(),
            }),
            shared,
            taps: Vec::new(),
        })
    }

    /// Makes the sockets targets.
    fn prepare(&mut self, pair: &mut PairView<'_>) -> Result<(), String> {
        let cookie = |end: &Endpoint| {
            socket_cookie(end).map_err(|errno| format!("a socket has no cookie: {errno}"))
        };
        let [a, b] = pair.ends;
        let cookies = [cookie(a)?, cookie(b)?];
        let mut taps = vec![Tap::new(0, cookies[0], cookies[1])];
        if !pair.is_echo() {
            taps.push(Tap::new(1, cookies[1], cookies[0]));
        }
        for (index, tap) in taps.iter().enumerate() {
            let inserted = tap.insert_target(&self.shared, pair.ends[1 - index]);
            if let Err(errno) = inserted {
                taps.iter().for_each(|tap| tap.remove_target(&self.shared));
                return Err(refusal(errno));
            }
        }
        for end in pair.ends {
            end.fix_buffers(pair.buffer_bytes);
        }
        self.taps = taps;
        Ok(())
    }
}

impl KernelEngine for Sockmap {
    fn name(&self) -> EngineName {
        EngineName::Sockmap
    }

    fn left_to_user_space(&self) -> &'static str {
        "sockmap leaves the first 20 ms, bulk and slow receivers to user space"
    }

    fn why_picked(&self) -> &'static str {
        "it lives long and moves little at a time"
    }

    fn redirects(&self) -> bool {
        true
    }

    fn has_taken(&self) -> bool {
        self.taps.iter().any(|tap| tap.index().is_some()) && !self.taps.iter().any(Tap::is_waiting)
    }

    fn turn(&mut self, pair: &mut PairView<'_>) -> Turn {
        if self.taps.is_empty() {
            let flowing = if pair.is_echo() { 1 } else { 2 };
            if pair.directions[..flowing]
                .iter()
                .any(|direction| direction.is_ending())
            {
                return Turn::Declined("sockmap: a stream had ended before it was taken".into());
            }
            if let Err(why) = self.prepare(pair) {
                return Turn::Declined(format!("sockmap: {why}").into());
            }
        }
        let mut next = Next::ASLEEP;
        for (index, tap) in self.taps.iter_mut().enumerate() {
            match tap.turn(&self.shared, pair) {
                Ok(own) => next.join(own),
                Err(reason) => return Turn::Ends(reason),
            }
            let entry = tap.index().map_or(0, |entry| u64::from(entry) + 1);
            self.counters.indices[index].store(entry, Ordering::Release);
        }
        let never_taken = |tap: &Tap| tap.state() == State::Left && tap.index().is_none();
        if self.taps.iter().all(never_taken) {
            self.taps
                .iter()
                .for_each(|tap| tap.remove_target(&self.shared));
            for end in pair.ends {
                end.tune_buffers();
            }
            let why = self.taps.iter().find_map(Tap::why_left);
            return Turn::Declined(format!("sockmap: {}", why.unwrap_or_default()).into());
        }
        Turn::Holds(next)
    }

    fn counters(&self) -> Arc<dyn KernelCounters> {
        Arc::clone(&self.counters) as Arc<dyn KernelCounters>
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        Some(Arc::clone(&self.shared) as Arc<dyn Notifier>)
    }

    fn moved_at(&self, now: Instant) -> Option<Instant> {
        let last = self.taps.iter().filter_map(Tap::index);
        let last = last.map(|index| self.shared.entry(index).last_ns.load(Ordering::Relaxed));
        let last_ns = last.max().filter(|last| *last > 0)?;
        now.checked_sub(Duration::from_nanos(
            coarse_now_ns().saturating_sub(last_ns),
        ))
    }

    fn release(&mut self, ends: [&Endpoint; 2], directions: [&dyn DirectionView; 2]) -> [u64; 2] {
        let mut moved = [0, 0];
        for (index, tap) in self.taps.iter().enumerate() {
            moved[index] = tap.pushed(&self.shared, directions[index]);
        }
        for (index, tap) in self.taps.iter_mut().enumerate() {
            tap.remove(&self.shared, ends[index]);
            // The entry belongs to nobody now.
            self.counters.indices[index].store(0, Ordering::Release);
        }
        for tap in &self.taps {
            tap.remove_target(&self.shared);
        }
        self.taps.clear();
        moved
    }
}

/// Why the kernel does not take a socket, in words.
fn refusal(errno: Errno) -> String {
    match errno {
        Errno::OPNOTSUPP => "the kernel accepts only ESTABLISHED connections".into(),
        Errno::BUSY => "another BPF program has the socket already".into(),
        Errno::INVAL => "the socket has a protocol on top (TLS)".into(),
        Errno::TOOBIG | Errno::NOSPC | Errno::NOMEM => "its tables are full".into(),
        errno => format!("the kernel does not take the socket: {errno}"),
    }
}

fn failed(side: usize, errno: Errno) -> Reason {
    Reason::Failed {
        side: Side::BOTH[side],
        errno: errno.raw_os_error(),
    }
}
