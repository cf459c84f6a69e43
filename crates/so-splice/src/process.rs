//! What the process has once: the loops that move, and what a forked child does with them.
//!
//! A child has none of the parent's threads. It closes the duplicates of the parent's sockets,
//! which would keep the connections open, forgets the parent's splices, and makes loops of its own
//! when it first splices.
#![allow(
    unsafe_code,
    reason = "pthread_atfork and pthread_sigmask; see the SAFETY comments"
)]

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, Once, PoisonError, mpsc};

use splice::{EventLoop, Result, Splicer};

use crate::duplicate::Duplicates;
use crate::table::{self, Table};

/// The loops of this process. A child's replace the parent's, which are never dropped: their
/// threads cannot be joined.
static LOOPS: Mutex<Option<Loops>> = Mutex::new(None);

struct Loops {
    splicer: &'static Splicer,
    /// Their own descriptors.
    descriptors: Vec<RawFd>,
}

/// What is locked while the process forks.
struct Locks {
    table: MutexGuard<'static, Table>,
    loops: MutexGuard<'static, Option<Loops>>,
    duplicates: Duplicates,
}

thread_local! {
    static LOCKS: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

/// The loops of this process, which the first call starts: one per CPU.
///
/// # Errors
/// [`ErrorKind::System`](splice::ErrorKind::System) if a thread or its loop cannot be created.
pub fn splicer() -> Result<&'static Splicer> {
    static HANDLERS: Once = Once::new();
    // SAFETY: the three functions live as long as the process, as this library is not unloaded
    // while its threads run.
    HANDLERS.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
    });
    let mut loops = lock();
    if let Some(Loops { splicer, .. }) = &*loops {
        return Ok(splicer);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let splicer = &*Box::leak(Box::new(without_signals(|| Splicer::new(threads))?));
    let descriptors = descriptors(splicer, threads)?;
    *loops = Some(Loops {
        splicer,
        descriptors,
    });
    Ok(splicer)
}

/// The descriptors of its loops, of which there are `count`.
fn descriptors(splicer: &Splicer, count: usize) -> Result<Vec<RawFd>> {
    let (sender, receiver) = mpsc::channel();
    for _ in 0..count {
        let sender = sender.clone();
        let tell = move |event_loop: &mut EventLoop| {
            // The receiver waits for it.
            let _ = sender.send(event_loop.descriptors());
        };
        splicer.remote().run(tell)?;
    }
    drop(sender);
    Ok(receiver.into_iter().flatten().collect())
}

fn lock() -> MutexGuard<'static, Option<Loops>> {
    LOOPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts threads that take no signal: the program's handlers run in the program's threads, and a
/// `SIGPIPE` of splice(2) stays pending for ever.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: a signal set is plain data, and is filled before it is used.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: `all` is a signal set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both are signal sets and outlive the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let started = start();
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

extern "C" fn before_fork() {
    let table = table::lock();
    // The child will have descriptors of all sockets: a close here is perhaps not the last one, and
    // it may read what arrives. Whoever moves bytes at this moment ends his turn first.
    table.share_all();
    let locks = Locks {
        table,
        loops: lock(),
        duplicates: Duplicates::lock(),
    };
    LOCKS.with_borrow_mut(|held| *held = Some(locks));
}

extern "C" fn in_parent() {
    drop(LOCKS.take());
}

extern "C" fn in_child() {
    let Some(mut locks) = LOCKS.take() else {
        return;
    };
    let of_loops = locks.loops.take().map(|loops| loops.descriptors);
    let duplicates = locks.duplicates.give_up().into_iter();
    for number in duplicates.chain(of_loops.into_iter().flatten()) {
        // SAFETY: nothing in the child uses it: the threads that did are the parent's only.
        unsafe { rustix::io::close(number) };
    }
    locks.table.abandon();
}
