//! What all sockmap pairs of a process share: the programs, the maps, and the table of
//! directions.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::reactor::Notifier;
use splice_base::error::Result;
use splice_base::obstacle::Obstacle;
use splice_base::release::{NO_STALLS, Release};
use splice_bpf::types::{DirectionEntry, Inspection};
use splice_bpf::{Map, Program, RingBuffer, SharedArray, load};
use splice_bpf::{clock, objects};
use std::task::Waker;

/// The fewest directions that the tables are made for.
const LEAST_DIRECTIONS: u32 = 64;

/// The most directions that the tables are made for: 8 MiB for the array of entries, which the
/// kernel allocates at once.
const MOST_DIRECTIONS: u32 = 1 << 16;

/// What one call takes in the ring, in bytes: a header of 8 and an index, rounded up to 8.
const CALL_BYTES: u32 = 16;

/// How many calls one direction can have under way: one while it is open, one at its byte limit, and one
/// that reports a lost byte.
const CALLS_PER_DIRECTION: u32 = 4;

/// How long an index stays unused after its direction has ended. A verdict that was running when
/// the direction was taken out still counts there; it runs in a softirq or with preemption off,
/// for microseconds.
const REST_OF_INDEX: Duration = Duration::from_millis(20);

/// The one object of the process, as long as a pair or a loop uses it.
static CURRENT: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

pub(crate) struct Shared {
    pub(super) sources: Map,
    pub(super) targets: Map,
    pub(super) indices: Map,
    pub(super) gate: Program,
    entries: SharedArray<DirectionEntry>,
    inspect: Program,
    calls: Map,
    ring: Mutex<RingBuffer>,
    table: Mutex<Table>,
}

/// Which indices are in use, and whom their calls wake.
#[derive(Debug)]
struct Table {
    /// The first index that was never used.
    unused: u32,
    /// When each was given back, the earliest first.
    free: VecDeque<(Instant, u32)>,
    wakers: Vec<Option<Waker>>,
}

impl Table {
    fn new(count: usize) -> Self {
        Self {
            unused: 0,
            free: VecDeque::new(),
            wakers: vec![None; count],
        }
    }

    /// `None` when every index is in use, or was in use a moment ago.
    fn take(&mut self, now: Instant) -> Option<u32> {
        match self.free.front() {
            Some((since, index)) if now.saturating_duration_since(*since) >= REST_OF_INDEX => {
                let index = *index;
                self.free.pop_front();
                Some(index)
            }
            _ if (self.unused as usize) < self.wakers.len() => {
                self.unused += 1;
                Some(self.unused - 1)
            }
            _ => None,
        }
    }

    fn give_back(&mut self, index: u32, now: Instant) {
        self.wakers[index as usize] = None;
        self.free.push_back((now, index));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is a single step, so a panic leaves none half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The process's object, loaded if nobody has it.
    pub(crate) fn of_process() -> Result<Arc<Self>> {
        let mut current = lock(&CURRENT);
        if let Some(shared) = current.upgrade() {
            return Ok(shared);
        }
        let shared = Arc::new(Self::load()?);
        *current = Arc::downgrade(&shared);
        Ok(shared)
    }

    fn load() -> Result<Self> {
        // A direction has a source, and a source is a descriptor.
        let directions = getrlimit(Resource::Nofile)
            .current
            .and_then(|most| u32::try_from(most).ok())
            .unwrap_or(MOST_DIRECTIONS)
            .clamp(LEAST_DIRECTIONS, MOST_DIRECTIONS)
            .next_power_of_two();
        let ring_bytes = (directions * CALLS_PER_DIRECTION * CALL_BYTES).max(page_bytes());
        let object = load("redirect", objects::REDIRECT, |opened| {
            for map in ["sources", "targets", "indices", "directions"] {
                opened.resize(map, directions)?;
            }
            opened.resize("calls", ring_bytes)
        })?;
        let sources = object.map("sources")?;
        let targets = object.map("targets")?;
        // A socket gets the program that is attached when it is inserted.
        object.attach_to_map("redirect", &sources)?;
        let inspect = load("inspect", objects::INSPECT, |opened| {
            opened.resize("targets", directions)?;
            opened.share("targets", &targets)
        })?;
        clock::prepare();
        let (indices, entries) = (object.map("indices")?, object.map("directions")?);
        let calls = object.map("calls")?;
        let gate = load("gate", objects::GATE, |opened| {
            for (name, map, entries) in [
                ("sources", &sources, directions),
                ("indices", &indices, directions),
                ("directions", &entries, directions),
                ("calls", &calls, ring_bytes),
            ] {
                opened.resize(name, entries)?;
                opened.share(name, map)?;
            }
            Ok(())
        })?;
        Ok(Self {
            sources,
            targets,
            indices,
            gate: gate.program("gate")?,
            entries: entries.share_values()?,
            inspect: inspect.program("inspect")?,
            ring: Mutex::new(calls.consume()?),
            calls,
            table: Mutex::new(Table::new(directions as usize)),
        })
    }

    /// A fresh entry, all zero; its calls go to `waker`. `None` when all are in use.
    pub(super) fn claim(&self, waker: Waker) -> Option<u32> {
        let mut table = lock(&self.table);
        let index = table.take(Instant::now())?;
        table.wakers[index as usize] = Some(waker);
        self.entry(index).clear();
        Some(index)
    }

    pub(super) fn give_back(&self, index: u32) {
        lock(&self.table).give_back(index, Instant::now());
    }

    pub(super) fn entry(&self, index: u32) -> &DirectionEntry {
        self.entries.at(index as usize)
    }

    /// The state of the target of the source with this cookie.
    pub(super) fn inspect(&self, cookie: u64) -> std::result::Result<Inspection, Errno> {
        let answer = self.inspect.run(&Inspection {
            cookie,
            ..Inspection::default()
        })?;
        match answer.found {
            0 => Err(Errno::NOENT),
            _ => Ok(answer),
        }
    }

    /// How many entries its maps hold: sources, targets, indices.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [&self.sources, &self.targets, &self.indices].map(Map::count)
    }
}

impl Notifier for Shared {
    fn fd(&self) -> BorrowedFd<'_> {
        self.calls.as_fd()
    }

    fn answer(&self) {
        let mut wakers = Vec::new();
        lock(&self.ring).take(|index| {
            if let Some(Some(waker)) = lock(&self.table).wakers.get(index as usize) {
                wakers.push(waker.clone());
            }
        });
        wakers.iter().for_each(Waker::wake_by_ref);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

fn page_bytes() -> u32 {
    // A page is far below 4 GiB.
    u32::try_from(rustix::param::page_size()).unwrap_or(u32::MAX)
}

/// Loads everything, so that a refusal comes before a pair depends on it.
///
/// # Errors
/// The reason, and a remedy.
pub(super) fn found() -> std::result::Result<Arc<Shared>, Obstacle> {
    // Asked for every pair, and one kernel does not change.
    static OLD: OnceLock<Option<Obstacle>> = OnceLock::new();
    if let Some(obstacle) = OLD.get_or_init(|| too_old(Release::here())) {
        return Err(obstacle.clone());
    }
    Shared::of_process().map_err(|error| Obstacle::of_bpf(&error))
}

/// Why a kernel is refused that is known to stall members of a map.
fn too_old(release: Option<Release>) -> Option<Obstacle> {
    let lacks = release?.lacks(NO_STALLS)?;
    lacks.then(|| {
        Obstacle::new(
            "this kernel may leave a socket of a map stalled with bytes unread",
            "run Linux 6.1.32 or 6.4, or later releases",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_stalls_members_is_refused_with_what_to_run() {
        let on = |release| too_old(Release::of(release, ""));
        for release in ["5.15.200", "6.1.31"] {
            let obstacle = on(release).expect("it is too old");
            assert!(obstacle.reason.contains("stalled"), "{release}");
            assert!(obstacle.remedy.contains("6.1.32"), "{release}");
        }
        for release in ["6.1.32", "6.1.0-9-generic", "6.3.1", "6.4.0", "7.2.13"] {
            assert_eq!(on(release), None, "{release}");
        }
    }

    #[test]
    fn an_index_rests_before_it_is_used_again() {
        let (mut table, now) = (Table::new(2), Instant::now());
        assert_eq!(table.take(now), Some(0));
        table.give_back(0, now);
        let early = now + REST_OF_INDEX - Duration::from_nanos(1);
        assert_eq!(table.take(early), Some(1), "one that was never used");
        assert_eq!(table.take(early), None);
        assert_eq!(table.take(now + REST_OF_INDEX), Some(0));
    }

    #[test]
    fn the_index_that_has_rested_for_longest_is_used_first() {
        let (mut table, now) = (Table::new(3), Instant::now());
        for index in 0..3 {
            assert_eq!(table.take(now), Some(index));
        }
        for (after_ms, index) in (0..).zip([2, 0, 1]) {
            table.give_back(index, now + Duration::from_millis(after_ms));
        }
        let later = now + 2 * REST_OF_INDEX;
        let taken = [(); 3].map(|()| table.take(later));
        assert_eq!(taken, [Some(2), Some(0), Some(1)]);
    }
}
