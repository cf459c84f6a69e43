//! Which descriptors are sockets that are or were spliced: their cookies.
//!
//! A mark is set by a splice and by dup(2), and removed by close(2). A descriptor that is closed by
//! a system call of the program's own keeps its mark, so whoever acts on one looks whether it still
//! names that socket.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use so_splice::{Personality, Splice};

/// Marks are kept in chunks, which are made when one is needed.
const CHUNK_LENGTH: usize = 1024;

/// As many descriptors as a process may have: the kernel's default of `fs.nr_open`, 1 048 576.
const CHUNKS: usize = 1024;

/// What is known of one descriptor. Read without a lock, changed under that of `MARKED`.
struct Slot {
    /// 0 without a mark.
    cookie: AtomicU64,
    /// Whether an epoll instance may watch it.
    is_registered: AtomicBool,
}

type Chunk = [Slot; CHUNK_LENGTH];

static SLOTS: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// The descriptors with the mark of each socket.
static MARKED: Mutex<BTreeMap<u64, BTreeSet<c_int>>> = Mutex::new(BTreeMap::new());

/// The process that has set marks: after vfork(2), a child has them, too, and must not change them.
static OWNER: AtomicU32 = AtomicU32::new(0);

pub(crate) type Marked = MutexGuard<'static, BTreeMap<u64, BTreeSet<c_int>>>;

pub(crate) fn lock() -> Marked {
    MARKED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place(fd: c_int) -> Option<(usize, usize)> {
    let fd = usize::try_from(fd).ok()?;
    (fd < CHUNKS * CHUNK_LENGTH).then_some((fd / CHUNK_LENGTH, fd % CHUNK_LENGTH))
}

fn slot(fd: c_int) -> Option<&'static Slot> {
    let (chunk, index) = place(fd)?;
    let chunk = SLOTS[chunk].load(Ordering::Acquire);
    // SAFETY: a chunk is leaked before it is stored.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[index])
}

/// The same, made if there is none. The caller holds the lock.
fn slot_or_new(fd: c_int) -> Option<&'static Slot> {
    let (chunk, _) = place(fd)?;
    if SLOTS[chunk].load(Ordering::Acquire).is_null() {
        let new: Box<Chunk> = Box::new(std::array::from_fn(|_| Slot {
            cookie: AtomicU64::new(0),
            is_registered: AtomicBool::new(false),
        }));
        SLOTS[chunk].store(Box::leak(new), Ordering::Release);
    }
    slot(fd)
}

/// The cookie that a descriptor is marked with.
pub(crate) fn get(fd: c_int) -> Option<u64> {
    let cookie = slot(fd)?.cookie.load(Ordering::Acquire);
    (cookie != 0).then_some(cookie)
}

/// The same, if the descriptor still names that socket.
pub(crate) fn valid(fd: c_int) -> Option<u64> {
    let cookie = get(fd)?;
    if so_splice::cookie(fd) == Ok(cookie) {
        return Some(cookie);
    }
    remove(fd);
    None
}

/// Marks a descriptor.
pub(crate) fn set(fd: c_int, cookie: u64) {
    if !are_ours() {
        return;
    }
    let mut marked = lock();
    let Some(slot) = slot_or_new(fd) else {
        return;
    };
    let before = slot.cookie.swap(cookie, Ordering::AcqRel);
    if before != cookie {
        subtract(&mut marked, before, fd);
        marked.entry(cookie).or_default().insert(fd);
    }
}

/// Removes a mark. Returns the cookie if no other descriptor has it.
pub(crate) fn remove(fd: c_int) -> Option<u64> {
    if !are_ours() {
        return None;
    }
    let slot = slot(fd)?;
    let mut marked = lock();
    let cookie = slot.cookie.swap(0, Ordering::AcqRel);
    subtract(&mut marked, cookie, fd).then_some(cookie)
}

/// True if no descriptor is left.
fn subtract(marked: &mut Marked, cookie: u64, fd: c_int) -> bool {
    let Some(descriptors) = marked.get_mut(&cookie) else {
        return false;
    };
    descriptors.remove(&fd);
    let is_last = descriptors.is_empty();
    if is_last {
        marked.remove(&cookie);
    }
    is_last
}

/// The descriptors that are marked with a cookie.
pub(crate) fn of(cookie: u64) -> Vec<c_int> {
    let marked = lock();
    let descriptors = marked.get(&cookie);
    descriptors.map_or_else(Vec::new, |all| all.iter().copied().collect())
}

/// Whether an epoll instance may watch the descriptor.
pub(crate) fn is_registered(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| slot.is_registered.load(Ordering::Acquire))
}

/// Records whether an epoll instance may watch the descriptor.
pub(crate) fn set_registered(fd: c_int, is_registered: bool) {
    let _marked = lock();
    if let Some(slot) = slot_or_new(fd) {
        slot.is_registered.store(is_registered, Ordering::Release);
    }
}

/// Whether this process may change marks: see `OWNER`.
pub(crate) fn are_ours() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// The marks are those of this process, which has just been started or forked.
pub(crate) fn take_over() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

/// What the splices of a socket mean for the program.
#[derive(Debug, Default)]
pub(crate) struct Spliced {
    /// The splice that takes what arrives.
    pub(crate) as_source: Option<Arc<Splice>>,
    /// The splice that writes to it.
    pub(crate) as_drain: Option<Arc<Splice>>,
    /// What `SO_ERROR` is to return.
    pub(crate) error: Option<Errno>,
}

impl Spliced {
    pub(crate) fn of(cookie: u64) -> Self {
        let [source, drain] = so_splice::last_of(cookie);
        Self {
            as_source: source.filter(|splice| splice.is_active()),
            as_drain: drain.filter(|splice| splice.is_active()),
            error: so_splice::pending_error(cookie),
        }
    }

    /// The splice that keeps readiness to read from the program.
    pub(crate) fn hides_reading(&self) -> Option<&Arc<Splice>> {
        self.as_source.as_ref()
    }

    /// The splice that keeps readiness to write from the program: FreeBSD's `sopoll` suppresses it,
    /// OpenBSD's does not.
    pub(crate) fn hides_writing(&self) -> Option<&Arc<Splice>> {
        let is_free_bsd = |splice: &&Arc<Splice>| splice.personality() == Personality::FreeBsd;
        self.as_drain.as_ref().filter(is_free_bsd)
    }
}

/// The descriptors from `first` to `last` that are marked or registered.
pub(crate) fn in_range(first: c_int, last: c_int) -> Vec<c_int> {
    let chunk_of = |fd: c_int| usize::try_from(fd).unwrap_or(0) / CHUNK_LENGTH;
    let chunks = chunk_of(first)..=chunk_of(last).min(CHUNKS - 1);
    let present = chunks.filter(|chunk| !SLOTS[*chunk].load(Ordering::Acquire).is_null());
    present
        .flat_map(|chunk| chunk * CHUNK_LENGTH..(chunk + 1) * CHUNK_LENGTH)
        .filter_map(|fd| c_int::try_from(fd).ok())
        .filter(|fd| (first..=last).contains(fd) && (get(*fd).is_some() || is_registered(*fd)))
        .collect()
}
