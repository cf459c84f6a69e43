//! The thread that watches the ways in a network namespace.
//!
//! rtnetlink and IPsec report changes, and say if they have lost some. The thread then looks at all pairs. Every second it
//! looks at a few in turn, whatever was reported. After a look it rests nine times as long as that took, but at most half a
//! second: a router may change hundreds of routes a second.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use splice_base::error::{Result, ResultExt as _};
use splice_base::shortage::{Shortage, is_shortage};
use splice_firewall::{Links, Policies, PolicyChanges, PolicyReader, WayChanges};

use super::{Course, Loss, RoutedPair, Routing};
use crate::plural::connections;

/// How often to look for what was not reported.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many pairs to look at then, each of which takes some 20 µs.
const IN_TURN: usize = 256;

/// The rest after a look, as a multiple of its duration.
const REST_FACTOR: u32 = 9;
/// The longest rest: a pair goes on for at most that long.
const LONGEST_REST: Duration = Duration::from_millis(500);

pub(super) struct Watch {
    changes: WayChanges,
    policy_changes: PolicyChanges,
    policies: PolicyReader,
    links: Links,
    shortage: Shortage,
    stop: OwnedFd,
    look: OwnedFd,
}

/// What the looks at pairs have come to.
#[derive(Default)]
struct Told {
    /// Connections that lose segments from now on.
    closed: usize,
    why_closed: Option<String>,
    /// Those that no longer do.
    reopened: usize,
    moved: usize,
    why_moved: Option<String>,
}

impl Watch {
    pub(super) fn new(stop: &OwnedFd, look: &OwnedFd) -> Result<Self> {
        // Subscribe first, so that no change after the first look is missed.
        let changes = WayChanges::new().context("cannot subscribe to changes of routes")?;
        let policy_changes =
            PolicyChanges::new().context("cannot subscribe to changes of IPsec policies")?;
        let [stop, look] = [stop, look].map(OwnedFd::try_clone);
        Ok(Self {
            changes,
            policy_changes,
            policies: PolicyReader::new().context("cannot ask for IPsec policies")?,
            links: Links::new().context("cannot ask for devices")?,
            shortage: Shortage::default(),
            stop: stop.context("cannot duplicate an eventfd")?,
            look: look.context("cannot duplicate an eventfd")?,
        })
    }

    pub(super) fn read_policies(&mut self) -> io::Result<Policies> {
        self.policies.read()
    }

    /// The policies now, or why they cannot be read; `None` while something is short, but not for long.
    fn read_policies_again(&mut self) -> Option<std::result::Result<Policies, String>> {
        let read = self.read_policies();
        match read {
            Err(error)
                if Errno::from_io_error(&error).is_some_and(is_shortage)
                    && self.shortage.bears(Instant::now()) =>
            {
                None
            }
            read => {
                self.shortage.end();
                Some(read.map_err(|error| error.to_string()))
            }
        }
    }

    /// The devices that are ports of others.
    pub(super) fn read_ports(&mut self) -> io::Result<HashSet<u32>> {
        let all = self.links.all()?;
        let ports = all.iter().filter(|link| link.master.is_some());
        Ok(ports.map(|link| link.device.index).collect())
    }

    /// How long packets of IPv6 may be on the devices of these pairs. Nobody reports a change.
    fn read_ipv6_mtus(&mut self, pairs: &[Arc<RoutedPair>]) -> HashMap<u32, u32> {
        let legs = pairs.iter().flat_map(|pair| &pair.legs);
        let over_ipv6 = legs.filter(|leg| leg.ends.peer.is_ipv6());
        let devices: HashSet<_> = over_ipv6.map(|leg| leg.device).collect();
        let mtu_of = |device| {
            // One that is gone sends nothing.
            let mtu = self.links.ipv6_mtu(device).ok().flatten();
            mtu.map(|mtu| (device, mtu))
        };
        devices.into_iter().filter_map(mtu_of).collect()
    }

    /// Runs in a thread of its own until `routing` is dropped.
    pub(super) fn start(self, routing: &Arc<Routing>) -> Result<()> {
        let routing = Arc::downgrade(routing);
        thread::Builder::new()
            .name("routing".into())
            .spawn(move || self.run(&routing))
            .context("cannot start the thread that watches the routes")?;
        Ok(())
    }

    fn run(mut self, routing: &Weak<Routing>) {
        let mut next = 0;
        let mut has_pairs = false;
        while self.waits(has_pairs.then_some(LOOK_EVERY)) {
            let _ = rustix::io::read(&self.look, &mut [0; 8]);
            let began = Instant::now();
            // A failed socket reports nothing any more.
            let mut told = self.changes.any().unwrap_or(true);
            let _ = self.policy_changes.any();
            let policies = self.read_policies_again();
            // Should they change too fast, the next look is soon.
            let ports = told.then(|| self.read_ports().ok()).flatten();
            let Some(routing) = routing.upgrade() else {
                return;
            };
            let all: Vec<_> = {
                let state = routing.state();
                let pairs = state.pairs.iter();
                pairs.map(|(_, pair)| Arc::clone(pair)).collect()
            };
            let ipv6_mtus = self.read_ipv6_mtus(&all);
            {
                let mut state = routing.state();
                if let Some(ports) = ports {
                    state.ports = ports;
                }
                if let Some(policies) = policies
                    && state.policies != policies
                {
                    state.policies = policies;
                    told = true;
                }
                if state.ipv6_mtus != ipv6_mtus {
                    state.ipv6_mtus = ipv6_mtus;
                    told = true;
                }
            }
            let in_turn = if told {
                all.len()
            } else {
                all.len().min(IN_TURN)
            };
            has_pairs = !all.is_empty();
            let mut found = Told::default();
            for pair in all
                .iter()
                .cycle()
                .skip(next % all.len().max(1))
                .take(in_turn)
            {
                let course = routing.look_at(pair);
                found.add(course, pair.news_of_loss());
            }
            next = next.wrapping_add(in_turn);
            found.reopened += mem::take(&mut routing.state().left_lost);
            // This thread may hold the last reference.
            drop((all, routing));
            found.tell();
            if !self.rests((began.elapsed() * REST_FACTOR).min(LONGEST_REST)) {
                return;
            }
        }
    }

    /// Waits for a change, for at most `time`. `false`: to stop.
    fn waits(&self, time: Option<Duration>) -> bool {
        let mut fds = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.changes, PollFlags::IN),
            PollFd::new(&self.look, PollFlags::IN),
        ];
        let policies = self.policy_changes.fd();
        fds.extend(policies.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        polls(&mut fds, time);
        fds[0].revents().is_empty()
    }

    fn rests(&self, time: Duration) -> bool {
        let mut fds = [PollFd::new(&self.stop, PollFlags::IN)];
        polls(&mut fds, Some(time));
        fds[0].revents().is_empty()
    }
}

fn polls(fds: &mut [PollFd<'_>], time: Option<Duration>) {
    let timeout = time.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    });
    // An early look after an interruption does no harm.
    let _ = poll(fds, timeout.as_ref());
}

impl Told {
    fn add(&mut self, course: Option<Course>, loss: Option<Loss>) {
        match loss {
            Some(Loss::Begins(why)) => {
                self.closed += 1;
                self.why_closed.get_or_insert(why);
            }
            Some(Loss::Ends) => self.reopened += 1,
            None => {}
        }
        let course = course.filter(|course| course.why_closed().is_none());
        if let Some(why) = course.and_then(|course| course.moved) {
            self.moved += 1;
            self.why_moved.get_or_insert(why);
        }
    }

    fn tell(self) {
        if let Some(why) = self.why_closed {
            let whom = if self.closed == 1 { "it" } else { "them" };
            tracing::warn!(
                "{} until there is a way for {whom} again: {why}",
                connections(self.closed, "loses segments", "lose segments"),
            );
        }
        if self.reopened > 0 {
            tracing::info!(
                "{}",
                connections(
                    self.reopened,
                    "no longer loses segments: it has a way again, or has ended",
                    "no longer lose segments: they have a way again, or have ended"
                )
            );
        }
        if let Some(why) = self.why_moved {
            tracing::info!(
                "{} to the network stack: {why}",
                connections(self.moved, "goes back", "go back")
            );
        }
    }
}
