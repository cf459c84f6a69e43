//! Makes a pair of a splice and its reverse once the program has closed both sockets.
//!
//! The kernel tells nobody that a descriptor was closed while others of the same socket are open.
//! So the task looks, less and less often: first at the two descriptors that the program has named,
//! and if both are closed, at all descriptors of the process.

use std::collections::HashMap;
use std::fs;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use splice::{Context, OneWay, Options, Readiness, Step, Task, merged_task};

/// Programs that close their sockets do so right after they have spliced them. A connection that
/// ends sooner gains nothing from the kernel (`segment_after`).
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(50);

/// A look costs two system calls, so an idle program is not kept awake.
const LOOK_LEAST_OFTEN: Duration = Duration::from_secs(10);

/// Makes a pair of a splice and its reverse once the process has closed all descriptors of both
/// sockets. What other processes have is not seen; `may` is asked before.
pub(crate) struct Merger {
    ways: [Weak<OneWay>; 2],
    numbers: [RawFd; 2],
    inodes: [u64; 2],
    may: Box<dyn Fn() -> bool + Send>,
    look_after: Duration,
}

impl Merger {
    /// `numbers` are the program's descriptors of the sources of both.
    pub(crate) fn new(
        ways: [&Arc<OneWay>; 2],
        numbers: [RawFd; 2],
        may: Box<dyn Fn() -> bool + Send>,
    ) -> Self {
        Self {
            ways: ways.map(Arc::downgrade),
            numbers,
            inodes: numbers.map(|number| {
                inode(format!("/proc/self/fd/{number}").as_ref()).unwrap_or_default()
            }),
            may,
            look_after: FIRST_LOOK_AFTER,
        }
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Step {
        cx.set_deadline(Some(cx.now() + self.look_after));
        self.look_after = (self.look_after * 2).min(LOOK_LEAST_OFTEN);
        Step::Wait
    }

    fn look(&mut self, cx: &mut Context<'_>) -> Step {
        let [Some(forth), Some(back)] = self.ways.each_ref().map(Weak::upgrade) else {
            return Step::Done;
        };
        if !self.are_closed(cx.now()) || !(self.may)() {
            return self.wait(cx);
        }
        match merged_task(&forth, &back, &Options::default()) {
            Ok(Some(pair)) => Step::Become(pair),
            Ok(None) if forth.reason().or_else(|| back.reason()).is_some() => Step::Done,
            Ok(None) => self.wait(cx),
            // They are closed, and were nobody's any more.
            Err(_) => Step::Done,
        }
    }

    /// Whether the process has no descriptor of either socket but the splices' own, of which each
    /// socket has two.
    fn are_closed(&self, now: Instant) -> bool {
        const OWN: usize = 2;
        let names = |number: &RawFd| inode(format!("/proc/self/fd/{number}").as_ref());
        if self
            .numbers
            .iter()
            .any(|number| names(number).is_some_and(|one| self.inodes.contains(&one)))
        {
            return false;
        }
        let count = |inode: &u64| open_sockets(now).get(inode).copied();
        self.inodes.iter().all(|inode| count(inode) == Some(OWN))
    }
}

impl Task for Merger {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.wait(cx)
    }

    fn ready(&mut self, _cx: &mut Context<'_>, _source: u8, _readiness: Readiness) -> Step {
        Step::Wait
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        self.look(cx)
    }

    fn is_aftermath(&self) -> bool {
        true
    }
}

/// The socket that a link of `/proc/self/fd` names.
fn inode(link: &Path) -> Option<u64> {
    let target = fs::read_link(link).ok()?;
    let number = target
        .to_str()?
        .strip_prefix("socket:[")?
        .strip_suffix(']')?;
    number.parse().ok()
}

/// How many descriptors there are, by inode.
type Counts = HashMap<u64, usize>;

/// How many descriptors the process has of each socket. A closed socket stays closed, so an answer
/// that is a little old serves the many who ask at about the same time.
fn open_sockets(now: Instant) -> Arc<Counts> {
    static LAST: Mutex<Option<(Instant, Arc<Counts>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, counts)) = &*last
        && now.saturating_duration_since(*at) < FIRST_LOOK_AFTER
    {
        return Arc::clone(counts);
    }
    let mut counts = Counts::new();
    for entry in fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
    {
        if let Some(inode) = inode(&entry.path()) {
            *counts.entry(inode).or_default() += 1;
        }
    }
    let counts = Arc::new(counts);
    *last = Some((Instant::now(), Arc::clone(&counts)));
    counts
}
