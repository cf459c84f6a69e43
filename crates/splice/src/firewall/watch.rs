//! The thread that watches the filters of a network namespace.
//!
//! nftables reports every change. iptables-legacy, hooks, tc and the programs of control groups change silently, so the
//! thread looks twice a second. After a reading it rests nine times as long as that took, but at most half a second. So a
//! change is known after half a second, and the other half is left for pairs to go back.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use splice_base::error::{Result, ResultExt as _};
use splice_firewall::{Changes, Filters, Reader};

use super::pass::Change;
use super::{Firewall, Snapshot, read};

/// How often to look for silent changes.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The rest after a reading, as a multiple of its duration.
const REST_FACTOR: u32 = 9;
/// The longest rest: a pair that must go back goes on for at most that long.
const LONGEST_REST: Duration = LOOK_EVERY;

pub(super) struct Watch {
    changes: Changes,
    reader: Option<Reader>,
    first: std::result::Result<Filters, String>,
    stop: OwnedFd,
    look: OwnedFd,
}

impl Watch {
    pub(super) fn new(stop: &OwnedFd, look: &OwnedFd) -> Result<Self> {
        let changes =
            Changes::new().context("cannot subscribe to changes of the nftables rules")?;
        let [stop, look] = [stop, look].map(OwnedFd::try_clone);
        let stop = stop.context("cannot duplicate an eventfd")?;
        let look = look.context("cannot duplicate an eventfd")?;
        let mut reader = None;
        let first = read(&mut reader);
        Ok(Self {
            changes,
            reader,
            first,
            stop,
            look,
        })
    }

    /// The filters at the start, or why they cannot be read.
    pub(super) fn first(&self) -> std::result::Result<Filters, String> {
        self.first.clone()
    }

    /// Runs in a thread of its own until `firewall` is dropped.
    pub(super) fn start(self, firewall: &Arc<Firewall>) -> Result<()> {
        let firewall = Arc::downgrade(firewall);
        thread::Builder::new()
            .name("firewall".into())
            .spawn(move || self.run(&firewall))
            .context("cannot start the thread that watches the packet filters")?;
        Ok(())
    }

    fn run(mut self, firewall: &Weak<Firewall>) {
        let mut filters = self.first.clone();
        let mut is_unsettled = false;
        let mut next = 0;
        let mut looked_at = Instant::now();
        while let Some(told) = self.waits(if is_unsettled {
            Duration::ZERO
        } else {
            LOOK_EVERY.saturating_sub(looked_at.elapsed())
        }) {
            looked_at = Instant::now();
            // The caller that asks for a look may know of a change that was not reported yet.
            let asked = rustix::io::read(&self.look, &mut [0; 8]).is_ok();
            // A failed socket reports nothing any more.
            let told = asked || is_unsettled || told && self.changes.any().unwrap_or(true);
            // First, since it takes long: the kernel calls other hooks soon after the filters were read.
            let behind = {
                let Some(firewall) = firewall.upgrade() else {
                    return;
                };
                (firewall.look_around)();
                firewall.snapshot().look_behind(&firewall.behind)
            };
            let began = Instant::now();
            let read = self.read_again(&filters, told);
            let rest = (began.elapsed() * REST_FACTOR).min(LONGEST_REST);
            let Some(firewall) = firewall.upgrade() else {
                return;
            };
            let snapshot = firewall.snapshot();
            let has_changed = read.is_some()
                || is_unsettled
                || snapshot.has_others_behind(&behind)
                || firewall.has_other_hooks(&snapshot);
            if let Some(read) = read {
                filters = read;
            }
            let mut change = if has_changed {
                firewall.change(Snapshot::new(filters.clone(), behind), began)
            } else {
                firewall.lock().looked_at = began;
                Change::default()
            };
            firewall.look_at_groups(&mut next, &mut change);
            // This thread may hold the last reference.
            drop((snapshot, firewall));
            is_unsettled = change.is_unsettled;
            if let Some(why) = change.why_revoked {
                tracing::warn!(
                    "the packet filters have changed: {} spliced connections go back to the network stack, where \
                     the filters apply: {why}",
                    change.revoked
                );
            }
            if let Some(why) = change.why_gone {
                tracing::warn!(
                    "{} spliced connections go back to the network stack: {why}",
                    change.gone
                );
            }
            // Even without news, since rules that change too fast to be read give the same error
            // each time.
            if !self.rests(rest) {
                return;
            }
        }
    }

    /// The filters, if they have changed.
    fn read_again(
        &mut self,
        filters: &std::result::Result<Filters, String>,
        told: bool,
    ) -> Option<std::result::Result<Filters, String>> {
        let now = match (filters, &mut self.reader) {
            (Ok(filters), Some(reader)) => match reader.read_again(filters, told) {
                Ok(None) => return None,
                Ok(Some(filters)) => Ok(filters),
                Err(error) => Err(error.to_string()),
            },
            _ => read(&mut self.reader),
        };
        (now != *filters).then_some(now)
    }

    /// Waits for a change for at most `time`. Returns whether one was reported, or `None` to stop.
    fn waits(&self, time: Duration) -> Option<bool> {
        let mut fds = [
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.changes, PollFlags::IN),
            PollFd::new(&self.look, PollFlags::IN),
        ];
        polls(&mut fds, time);
        fds[0]
            .revents()
            .is_empty()
            .then(|| !fds[1].revents().is_empty())
    }

    fn rests(&self, time: Duration) -> bool {
        let mut fds = [PollFd::new(&self.stop, PollFlags::IN)];
        polls(&mut fds, time);
        fds[0].revents().is_empty()
    }
}

fn polls(fds: &mut [PollFd<'_>], time: Duration) {
    let timeout = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    // An early look after an interruption does no harm.
    let _ = poll(fds, Some(&timeout));
}
