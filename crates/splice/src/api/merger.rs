//! Makes a pair of two one-way splices once the caller has closed both sockets.
//!
//! The kernel tells nobody that a descriptor was closed while others of the same socket are open.
//! So the task looks, less and less often: first at the two descriptors that the caller has named,
//! and if both are closed, at all descriptors of the process.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::fstat;

use crate::endpoint::Endpoint;
use crate::options::Options;
use crate::reactor::{Context, Readiness, Step, Task};
use crate::session::Status;
use crate::session::one_way::{OneWay, Reverses};
use crate::session::pair::ends::Ends;

/// Programs that close their sockets do so right after they have spliced them. A connection that
/// ends sooner gains nothing from the kernel (`segment_after`).
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(50);

/// A look costs two system calls, so an idle program is not kept awake.
const LOOK_LEAST_OFTEN: Duration = Duration::from_secs(10);

pub(super) struct Merger {
    ways: [Weak<OneWay>; 2],
    numbers: [RawFd; 2],
    options: Options,
    may: Box<dyn Fn() -> bool + Send>,
    look_after: Duration,
}

impl Merger {
    pub(super) fn new(
        ways: [&Arc<OneWay>; 2],
        numbers: [RawFd; 2],
        options: &Options,
        may: Box<dyn Fn() -> bool + Send>,
    ) -> Self {
        Self {
            ways: ways.map(Arc::downgrade),
            numbers,
            options: *options,
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
        let Some(reverses) = Reverses::of(&forth, &back) else {
            return Step::Done;
        };
        if !are_closed(reverses.sources(), self.numbers) || !(self.may)() {
            drop(reverses);
            return self.wait(cx);
        }
        let status = Arc::new(Status::new());
        let Some((sources, on_end)) = reverses.merge(&status) else {
            return Step::Done;
        };
        let [Ok(a), Ok(b)] = sources.map(Endpoint::new) else {
            return Step::Done;
        };
        let on_end = Box::new(move |outcome: crate::Outcome| on_end(outcome.reason, outcome.moved));
        match super::pair(
            Ends::Two([a, b]),
            &self.options,
            None,
            &status,
            Some(on_end),
        ) {
            Ok(pair) => Step::Become(Box::new(pair)),
            Err(_) => Step::Done,
        }
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

/// Whether the process has no descriptor of either socket but the splices' own, of which each
/// socket has two.
fn are_closed(sources: [BorrowedFd<'_>; 2], numbers: [RawFd; 2]) -> bool {
    const OWN: usize = 2;
    let inodes = sources.map(|source| fstat(source.as_fd()).map_or(0, |status| status.st_ino));
    let names = inodes.map(|inode| format!("socket:[{inode}]"));
    let is_named = |path: &std::path::Path| {
        fs::read_link(path).is_ok_and(|link| names.iter().any(|name| link.as_os_str() == &**name))
    };
    if numbers
        .iter()
        .any(|number| is_named(format!("/proc/self/fd/{number}").as_ref()))
    {
        return false;
    }
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else {
        return false;
    };
    let named = descriptors
        .flatten()
        .filter(|entry| is_named(&entry.path()));
    named.count() == OWN * sources.len()
}
