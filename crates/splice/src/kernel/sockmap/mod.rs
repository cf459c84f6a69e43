//! `sockmap`: a BPF program redirects what arrives on one socket to the other; the process sleeps.
//!
//! ```text
//! socket a ──verdict──▶ backlog of b ──kernel worker──▶ socket b
//! ```
//!
//! The kernel has no flow control here: it acknowledges redirected bytes at once, and they wait in the
//! target's backlog, charged to nobody. So each direction has a gate in front of its source. The gate takes
//! the source out of the map of sources. Then the source is a plain TCP socket, whose bytes wait in its queue
//! and whose window closes, and user space moves them.
//!
//! ```text
//!     user space holds no      the gate has closed: the target has its share;
//!     byte: it asks the gate   or user space has taken its request back
//! UserSpace ──────────────▶ Open ───────────────────────────────────▶ Draining
//!  │  ▲                      │ │                                         │
//!  │  │ the backoff is over  │ │ end of stream seen, all of it is out    │
//!  │  └────(UserSpace)───────│─│─────────────────────────────────────────┘
//!  │ cannot be taken         │ │                 target has taken all
//!  ▼                         │ ▼
//! GivenUp ◀──────────────────┘ Ended
//!          the kernel refuses
//! ```
//!
//! User space never puts a source into the map: it asks, and the gate does so before the next segment, which
//! brings about the verdict of what waits. Until then user space does not read. Where bytes wait and no
//! segment comes for 1 ms, user space takes its request back and reads on. It could instead bring about the
//! verdicts itself, but then it would hold the socket meanwhile, and leave a fast sender with a closed window
//! (`bpf/gate.bpf.c`).
//!
//! In `UserSpace` and `GivenUp` user space moves the bytes, in `GivenUp` to the end. So a sender that is
//! faster than the kernel's worker, or a slow receiver, costs what `copy` costs.
//!
//! The rules that keep the bytes whole, with the place that keeps each:
//!
//! - A source is taken out of the map only while nothing waits for its verdict, since the kernel drops what
//!   does. The gate takes it out before it lets the next segment in (`bpf/gate.bpf.c`).
//! - The program never passes a byte to user space (`bpf/redirect.bpf.c` says why).
//! - User space writes to a target only after the target has taken everything that was redirected to it
//!   ([`RedirectHalf::drain`]).
//! - A source may have bytes in its queue when it is put into the map, even partly read ones. The kernel
//!   passes an skb whole, and the program trims off what it knows by sequence number, as it does with a
//!   retransmission that has other borders (`trim` in `bpf/redirect.bpf.c`).
//! - A UNIX socket is refused. When its peer half-closes, the kernel takes it out of the maps and drops its
//!   backlog (`unix_shutdown` calls `sock_map_unhash` for the other end). As a source it would lag behind by
//!   what waited when it was put in (docs/notes/sockmap-design.md).
//! - An end of stream is passed on only after everything before it has had its verdict and was pushed
//!   ([`RedirectHalf::finish`]).
//! - Near its byte limit user space moves a direction: only user space can stop at a byte.
//!
//! Memory: what is under way to a target is its send buffer at most. Where the gate cannot close, since a
//! segment is missing, it lets no new byte in from a quarter beyond that on. The sender retransmits it.

mod account;
mod backoff;
mod redirect_half;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;

use self::redirect_half::{RedirectHalf, State};
use self::shared::Shared;
use super::{Cause, DirectionView, KernelCounters, KernelEngine, Next, PairView, Profile, Turn};
use crate::endpoint::Endpoint;
use crate::name::EngineName;
use crate::outcome::{Reason, Side};
use crate::reactor::Notifier;
use splice_base::obstacle::Obstacle;
use splice_bpf::clock::{coarse_now_ns, now_ns};

/// Whether the engine can be used in this process.
///
/// # Errors
/// The reason, and a remedy.
pub(crate) fn probe() -> Result<(), Obstacle> {
    shared::found().map(drop)
}

/// What the programs wake user space by. They stay loaded as long as somebody has it.
///
/// # Errors
/// The reason, and a remedy.
pub(crate) fn notifier() -> Result<Arc<dyn Notifier>, Obstacle> {
    Ok(shared::found()?)
}

/// How many entries the maps hold: sources, targets, indices.
///
/// # Errors
/// The reason, and a remedy.
pub(crate) fn entries() -> Result<[usize; 3], Obstacle> {
    Ok(shared::found()?.counts())
}

/// The engine of one pair.
#[derive(Debug)]
pub(crate) struct Sockmap {
    shared: Arc<Shared>,
    counters: Arc<Redirected>,
    /// Empty until the first turn; `halves[i]` reads from `ends[i]`.
    halves: Vec<RedirectHalf>,
}

/// Where any thread can read what the program has redirected.
#[derive(Debug)]
struct Redirected {
    shared: Arc<Shared>,
    /// The index of each direction's entry, plus one; 0 while it has none.
    indices: [AtomicU64; 2],
    /// What a direction that had an entry has moved.
    released_bytes: [AtomicU64; 2],
    /// When the second direction, which had an entry, first moved something; 0: it never did.
    released_first_ns: AtomicU64,
}

impl KernelCounters for Redirected {
    fn moved_bytes(&self) -> [u64; 2] {
        [0, 1].map(
            |direction: usize| match self.indices[direction].load(Ordering::Acquire) {
                0 => self.released_bytes[direction].load(Ordering::Relaxed),
                index => {
                    let entry = self.shared.entry((index - 1) as u32);
                    entry.redirected.load(Ordering::Relaxed)
                }
            },
        )
    }

    fn moved_at(&self, now: Instant) -> Option<Instant> {
        let indices = self.indices.each_ref();
        let indices = indices.map(|index| index.load(Ordering::Acquire));
        let used = indices.into_iter().filter_map(|index| index.checked_sub(1));
        let last = used.map(|index| {
            let entry = self.shared.entry(index as u32);
            entry.last_ns.load(Ordering::Relaxed)
        });
        let last_ns = last.max().filter(|last| *last > 0)?;
        now.checked_sub(Duration::from_nanos(
            coarse_now_ns().saturating_sub(last_ns),
        ))
    }

    fn first_moved_at(&self, now: Instant) -> Option<Instant> {
        let first_ns = Some(self.first_ns()).filter(|first| *first > 0)?;
        now.checked_sub(Duration::from_nanos(now_ns().saturating_sub(first_ns)))
    }
}

impl Redirected {
    /// When the second direction first moved something; 0: it has not.
    fn first_ns(&self) -> u64 {
        match self.indices[1].load(Ordering::Acquire) {
            0 => self.released_first_ns.load(Ordering::Relaxed),
            index => {
                let entry = self.shared.entry((index - 1) as u32);
                entry.first_ns.load(Ordering::Relaxed)
            }
        }
    }
}

impl Sockmap {
    /// # Errors
    /// The reason, and a remedy.
    pub(crate) fn new() -> Result<Self, Obstacle> {
        let shared = shared::found()?;
        Ok(Self {
            counters: Arc::new(Redirected {
                shared: Arc::clone(&shared),
                indices: Default::default(),
                released_bytes: Default::default(),
                released_first_ns: AtomicU64::new(0),
            }),
            shared,
            halves: Vec::new(),
        })
    }

    /// Makes the sockets targets.
    fn prepare(&mut self, pair: &mut PairView<'_>) -> Result<(), String> {
        let cookie = |end: &Endpoint| {
            socket_cookie(end).map_err(|errno| format!("a socket has no cookie: {errno}"))
        };
        let [a, b] = pair.ends;
        let cookies = [cookie(a)?, cookie(b)?];
        let mut halves = vec![RedirectHalf::new(0, cookies[0], cookies[1])];
        if !pair.is_echo() {
            halves.push(RedirectHalf::new(1, cookies[1], cookies[0]));
        }
        for (index, half) in halves.iter().enumerate() {
            let inserted = half.insert_target(&self.shared, pair.ends[1 - index]);
            if let Err(errno) = inserted {
                halves
                    .iter()
                    .for_each(|half| half.remove_target(&self.shared));
                return Err(refusal(errno));
            }
        }
        for end in pair.ends {
            end.fix_buffers(pair.buffer_bytes);
        }
        self.halves = halves;
        Ok(())
    }
}

impl KernelEngine for Sockmap {
    fn profile(&self) -> &'static Profile {
        &Profile {
            name: EngineName::Sockmap,
            why_picked: "it lives long and moves little at a time",
            left_to_user_space: "sockmap leaves the first 20 ms, bulk and slow receivers to user space",
            redirects: true,
        }
    }

    fn has_taken(&self) -> bool {
        self.halves.iter().any(|half| half.index().is_some())
            && !self.halves.iter().any(RedirectHalf::is_waiting)
    }

    fn turn(&mut self, pair: &mut PairView<'_>) -> Turn {
        if self.halves.is_empty() {
            let flowing = if pair.is_echo() { 1 } else { 2 };
            if pair.directions[..flowing]
                .iter()
                .any(|direction| direction.is_ending())
            {
                let why = "sockmap: a stream had ended before it was taken";
                return Turn::Refused(Cause::State.because(why));
            }
            if let Err(why) = self.prepare(pair) {
                return Turn::Refused(Cause::State.because(format!("sockmap: {why}")));
            }
        }
        let mut next = Next::ASLEEP;
        for (index, half) in self.halves.iter_mut().enumerate() {
            match half.turn(&self.shared, pair) {
                Ok(own) => next.join(own),
                Err(reason) => return Turn::Ends(reason),
            }
            let entry = half.index().map_or(0, |entry| u64::from(entry) + 1);
            self.counters.indices[index].store(entry, Ordering::Release);
        }
        let never_taken =
            |half: &RedirectHalf| half.state() == State::GivenUp && half.index().is_none();
        if self.halves.iter().all(never_taken) {
            self.halves
                .iter()
                .for_each(|half| half.remove_target(&self.shared));
            for end in pair.ends {
                end.tune_buffers();
            }
            let why = self.halves.iter().find_map(RedirectHalf::why_given_up);
            let why = format!("sockmap: {}", why.unwrap_or_default());
            return Turn::Refused(Cause::State.because(why));
        }
        Turn::Holds(next)
    }

    fn counters(&self) -> Arc<dyn KernelCounters> {
        Arc::clone(&self.counters) as Arc<dyn KernelCounters>
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        Some(Arc::clone(&self.shared) as Arc<dyn Notifier>)
    }

    fn release(&mut self, ends: [&Endpoint; 2], directions: [&dyn DirectionView; 2]) -> [u64; 2] {
        let mut moved = [0, 0];
        for (index, half) in self.halves.iter().enumerate() {
            moved[index] = half.pushed(&self.shared, directions[index]);
        }
        for (index, half) in self.halves.iter_mut().enumerate() {
            let first_ns = self.counters.first_ns();
            half.remove(&self.shared, ends[index]);
            // The entry belongs to no direction now.
            self.counters.released_bytes[index].store(moved[index], Ordering::Relaxed);
            let released = &self.counters.released_first_ns;
            released.store(first_ns, Ordering::Relaxed);
            self.counters.indices[index].store(0, Ordering::Release);
        }
        for half in &self.halves {
            half.remove_target(&self.shared);
        }
        self.halves.clear();
        moved
    }
}

/// Why the kernel does not take a socket.
fn refusal(errno: Errno) -> String {
    match errno {
        Errno::OPNOTSUPP => "the kernel accepts only ESTABLISHED connections".into(),
        Errno::BUSY => "another BPF program already has the socket".into(),
        Errno::INVAL => "the socket has a protocol on top (TLS)".into(),
        Errno::TOOBIG | Errno::NOSPC | Errno::NOMEM => "its tables are full".into(),
        errno => format!("the kernel does not accept the socket: {errno}"),
    }
}

fn failed(side: usize, errno: Errno) -> Reason {
    Reason::Failed {
        side: Side::BOTH[side],
        errno: errno.raw_os_error(),
    }
}
