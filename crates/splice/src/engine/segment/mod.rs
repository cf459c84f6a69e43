//! `segment`: a tc program translates the segments of the one connection into those of the other,
//! and the relay's sockets sleep.
//!
//! ```text
//! peer of a ──segment──▶ tc ingress: addresses, ports, numbers, stamps ──segment──▶ peer of b
//! ```
//!
//! How a pair gets there while bytes are under way, without a segment lost or held back:
//!
//! ```text
//!     the program stands      seen             both streams past the sockets,
//!     on both devices                          which are empty
//! New ────────────────▶ Watching ────▶ Overlap ───────────────────────────────▶ Spliced ──▶ over
//!  │                        │             ▲                                        │
//!  └───────────┬────────────┘             └────────────────────────────────────────┘
//!              ▼                             a late segment reached a socket
//!           refused
//! ```
//!
//! Of these the program knows Watching to Spliced (`enum segment_state` in `bpf/segment/shared.h`).
//!
//! The difference between the two numberings is constant from the moment on from which the relay
//! adds nothing of its own: with `held` bytes in its hand,
//! `D = b.write_seq + held - a.copied_seq`. So every byte has one place in the receiver's
//! numbering, whichever way it travels.
//!
//! In Overlap a stream goes by the sockets until nothing of it is under way; then it goes past them.
//! A sender in full flow is brought there by its window: the program lets the sockets promise no
//! more than they had promised before, so it gets to the end of that, the relay delivers what it
//! has, and with the acknowledgement of the last of it the window is that of the other peer. What it
//! was promised before may be more than that, and would be dropped there; it went by the sockets.

mod change_over;
pub(crate) mod eligibility;
pub(crate) mod flow;
pub(crate) mod ground;
mod leave;
mod linger;
mod side;
mod slots;
mod sockets;
#[cfg(test)]
mod tests;

/// A step of the change-over is done; tests look there, or have the process die.
#[cfg(not(test))]
fn reached(_step: &str) {}
#[cfg(test)]
use tests::step::reached;

use std::borrow::Cow;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::EngineName;
use super::kernel::{Bell, Gauge, Grip, KernelEngine, Next, Turn, Watch};
use crate::bpf_types::segment_mark as mark;
use crate::direction::Direction;
use crate::endpoint::{Endpoint, Kind};
use crate::firewall::Pass;
use crate::mailbox::Waker;
use crate::outcome::{Reason, Side};
use crate::socket_option;
use crate::task::Task;
use change_over::PROBES;
use eligibility::{Obstacle, examine, is_own, refused};
use flow::Flow;
use ground::Ground;
use linger::Linger;
use sockets::{address_pair, addresses_of, tuple_of};

/// How often a pair is looked at: at first, which is as often as the loop's clock ticks, and at last,
/// while its segments are watched.
const SMALLEST_PAUSE: Duration = Duration::from_millis(1);
const LARGEST_PAUSE: Duration = Duration::from_millis(64);

/// The same while it changes over. Each pause is twice the one before, so a delayed acknowledgement, the
/// last word of many a change-over (`TCP_DELACK_MAX`, 200 ms), is found soon enough; a receiver that does
/// not read may keep a pair there for hours, and thousands of pairs at once. What comes then goes past the
/// sockets by the program's doing.
const LARGEST_OVERLAP_PAUSE: Duration = Duration::from_secs(1);

/// How long a pair goes on as it was while the program is attached to a device: as long as that takes
/// on a machine that is not busy.
const ATTACHING_PAUSE: Duration = Duration::from_millis(16);

const ENDED_BEFORE: &str = "segment: a stream had ended before it was taken";

/// How often a sleeping pair is looked at, should the call that wakes it have got lost, as any
/// packet can: often enough that what is over does not pile up, and a wake-up that does not count.
const SLEEPING_PAUSE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Watching,
    Overlap,
    Spliced,
}

/// What the pair's directions have come to.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Bytes in the relay's hand.
    held: usize,
    /// The end of the stream was passed on by the relay.
    ended: bool,
}

/// How a change-over goes on.
#[derive(Debug)]
enum Progress {
    /// Go on copying, and look again after this long.
    Later(Duration),
    /// Stay with what the pair has: its streams are not both open any more.
    Declined(&'static str),
    /// Stay with what the pair has: it is not of the right kind.
    Refused(Cow<'static, str>),
    /// Leave the sockets alone, and look again after this long.
    Spliced(Duration),
    /// A sleeping socket has something to deliver.
    Woken,
}

/// Where anyone can read what has gone past the sockets.
#[derive(Debug, Default)]
struct PastSockets {
    flow: OnceLock<Arc<Flow>>,
    /// Where counting began: the number of the first byte that the relay had not given on.
    next_byte: [AtomicU32; 2],
}

impl Gauge for PastSockets {
    fn moved_bytes(&self) -> [u64; 2] {
        let Some(flow) = self.flow.get() else {
            return [0; 2];
        };
        [0, 1].map(|side: usize| flow.past_sockets(side, self.next_byte[side].load(Relaxed)))
    }
}

/// A pair on its way to, or on, this engine.
#[derive(Debug)]
pub(crate) struct Segment {
    ground: Arc<Ground>,
    /// The loop waits for the program to be attached to a device.
    waits: bool,
    /// The packet filters are not asked.
    bypasses_firewall: bool,
    /// The packet filters have let it go past them.
    pass: Option<Pass>,
    /// Since when it waits for the packet filters to be looked at.
    doubted_at: Option<Instant>,
    /// Another thread attaches it: nothing changes before then.
    begins_at: Option<Instant>,
    phase: Phase,
    gauge: Arc<PastSockets>,
    cookies: [u64; 2],
    pause: Duration,
    probed_at: Option<Instant>,
    probes_left: u32,
    seq_delta: [u32; 2],
    /// In Overlap: where each stream was last seen to be empty, and since when it has been.
    silent: [Option<(u32, Instant)>; 2],
    slept_at: Option<Instant>,
    /// What the sockets had received when they were put to sleep. Not what they have acknowledged: a
    /// segment that came in between was acknowledged, and still has to be delivered.
    slept_with: [u32; 2],
    /// The sockets have had their last words.
    settled: bool,
    /// Where the change-over stood at the last look.
    moved_to: [u32; 2],
}

impl Segment {
    /// The first pair on a device that `waits` has its loop wait for the program to get there;
    /// another goes on as it was until then.
    pub(crate) fn new(ground: Arc<Ground>, waits: bool, bypasses_firewall: bool) -> Self {
        Self {
            ground,
            waits,
            bypasses_firewall,
            pass: None,
            doubted_at: None,
            begins_at: None,
            phase: Phase::New,
            gauge: Arc::default(),
            cookies: [0; 2],
            pause: SMALLEST_PAUSE,
            probed_at: None,
            probes_left: PROBES,
            moved_to: [0; 2],
            seq_delta: [0; 2],
            silent: [None; 2],
            slept_at: None,
            slept_with: [0; 2],
            settled: false,
        }
    }

    /// Has the pair's segments watched, or says why not.
    fn begin(&mut self, ends: [&Endpoint; 2], waker: &dyn Fn() -> Waker) -> Result<(), Obstacle> {
        let mut addresses = Vec::with_capacity(2);
        for (end, cookie) in ends.into_iter().zip(&mut self.cookies) {
            match end.kind() {
                Kind::Tcp4 | Kind::Tcp6 => {}
                Kind::Mptcp => return refused("Multipath TCP has numbers of its own"),
                Kind::Unix => return refused("a UNIX socket has no segments"),
            }
            // A connection that was reset has no peer any more.
            addresses.push(address_pair(end).ok_or(Obstacle::Ended)?);
            *cookie = sockopt::socket_cookie(end)
                .map_err(|errno| Obstacle::Refused(format!("no cookie: {errno}").into()))?;
        }
        let addresses = [addresses[0], addresses[1]];
        let tuples = addresses.map(|(local, peer)| tuple_of(local, peer));
        if addresses[0].0 == addresses[1].1 && addresses[0].1 == addresses[1].0 {
            return refused("the relay is connected to itself");
        }
        let found = self
            .ground
            .inspect(&tuples)
            .map_err(|errno| Obstacle::Refused(format!("looking failed: {errno}").into()))?;
        examine(&found, &self.cookies, self.bypasses_firewall)?;
        let devices = [0, 1].map(|side: usize| eligibility::device(&found.socket[side]));
        self.ask_leave(ends, addresses, &tuples, &found, waker())?;
        for device in devices {
            self.stand_on(device)?;
        }
        let scales = [0, 1].map(|side: usize| found.socket[side].peer_scale);
        let flow = Flow::watch(Arc::clone(&self.ground), tuples, devices, scales)
            .map_err(|why| Obstacle::Refused(why.into()))?;
        // It was empty: a pair begins once.
        let _ = self.gauge.flow.set(Arc::new(flow));
        // Should this process die, the peers must not take a FIN for the end of the stream.
        ends.into_iter().for_each(Endpoint::reset_on_close);
        reached("watching");
        self.phase = Phase::Watching;
        Ok(())
    }

    /// Has the program see what comes in on a device.
    fn stand_on(&self, device: u32) -> Result<(), Obstacle> {
        let stands = if self.waits {
            let stood = self.ground.stand_on(device);
            Some(stood.map(drop).map_err(|error| error.to_string()))
        } else {
            self.ground.stand_on_beside(device)
        };
        stands
            .ok_or(Obstacle::NotNow)?
            .map_err(|why| Obstacle::Refused(why.into()))
    }

    /// Sees how far the change-over has come, and takes the next step.
    fn look(&mut self, ends: [&Endpoint; 2], loads: [Load; 2]) -> Progress {
        let Some(flow) = self.gauge.flow.get().map(Arc::clone) else {
            return Progress::Refused("the pair has not begun".into());
        };
        let found = match self.ground.inspect(flow.tuples()) {
            Ok(found) => found,
            Err(errno) => return self.later_or(format!("looking failed: {errno}")),
        };
        match self.phase {
            Phase::New | Phase::Watching => self.watch(&flow, ends, &found, loads),
            Phase::Overlap => self.overlap(&flow, ends, &found, loads),
            Phase::Spliced => self.sleep(&flow, ends, &found),
        }
    }

    /// Why the flow is over, once it is.
    fn end(&self) -> Option<Reason> {
        let flow = self.gauge.flow.get()?;
        if self.phase != Phase::Spliced {
            return None;
        }
        if let Some(side) = self.reset_by() {
            return Some(Reason::Reset(side));
        }
        let all_over = flow.is_all_acknowledged();
        if all_over && !flow.is_over() {
            // The last of it was seen in OVERLAP, where the program leaves the end to us.
            flow.linger();
        }
        all_over.then_some(Reason::EndOfStream)
    }

    /// Both peers have both streams to their ends. What the sockets still hold in Overlap has
    /// arrived past them as well, and nobody is left to acknowledge it: they would repeat it for
    /// ever.
    fn settle_at_the_end(&mut self, ends: [&Endpoint; 2], loads: [Load; 2]) {
        let Some(flow) = self.gauge.flow.get() else {
            return;
        };
        if self.phase != Phase::Overlap || !flow.is_all_acknowledged() {
            return;
        }
        if let Ok(found) = self.ground.inspect(flow.tuples()) {
            self.slept_with = found.socket.map(|socket| socket.rcv_nxt);
            for (from, load) in loads.iter().enumerate() {
                let socket = &found.socket[from];
                if is_own(socket, self.cookies[from]) {
                    // What has not been given on by hand went past the sockets.
                    let given = socket.copied_seq.wrapping_sub(load.held as u32);
                    flow.change_over()[from].cut.store(given, Relaxed);
                }
            }
        }
        self.phase = Phase::Spliced;
        for end in ends {
            sockets::put_to_sleep(end, &self.ground);
        }
    }

    /// Ends the flow before its end, when both sockets are closed.
    fn reset_both(&self, flow: &Flow) {
        let numbers = [0, 1].map(|side| {
            let (near, far) = (flow.side(side), flow.side(1 - side));
            let seq = if flow.is_past(1 - side) {
                let past = far.high_seq();
                past.wrapping_add(far.seq_delta.load(Relaxed))
            } else {
                flow.change_over()[side].sent.load(Relaxed)
            };
            (seq, near.high_seq())
        });
        for (tuple, (seq, ack)) in flow.tuples().iter().zip(numbers) {
            let (local, peer) = addresses_of(tuple);
            // Should it fail, the peer's next segment finds no socket and is answered with a
            // reset by the kernel.
            let _ = socket_option::reset(local, peer, seq, ack);
        }
    }

    fn begins_later(&self) -> Turn {
        Turn::Holds(Next {
            look_at: self.begins_at,
            ..Next::watching(Watch::Stream)
        })
    }

    /// A turn, whatever it comes to.
    fn step(&mut self, grip: &mut Grip<'_>) -> Turn {
        let loads = [0, 1].map(|index: usize| {
            let direction = &grip.directions[index];
            Load {
                held: (direction.taken_bytes() - direction.given_bytes()) as usize,
                ended: direction.has_ended(),
            }
        });
        if self.phase == Phase::New {
            if self.begins_at.is_some_and(|at| at > grip.now) {
                return self.begins_later();
            }
            if grip.directions.iter().any(Direction::is_ending) {
                return Turn::Declined(ENDED_BEFORE.into());
            }
            let begun = match grip.byte_limit {
                Some(_) => refused("a byte limit is set"),
                None => self.begin(grip.ends, grip.waker),
            };
            match begun {
                Ok(()) => {}
                Err(Obstacle::Ended) => return Turn::Declined(ENDED_BEFORE.into()),
                Err(Obstacle::NotNow) => {
                    self.begins_at = Some(grip.now + ATTACHING_PAUSE);
                    return self.begins_later();
                }
                Err(Obstacle::Refused(why)) => {
                    return Turn::Refused(format!("segment: {why}").into());
                }
            }
        }
        if let Some(reason) = self.end() {
            return Turn::Ends(reason);
        }
        if let Some(turn) = self.is_revoked(self.has_taken()) {
            return turn;
        }
        let mut next = Next::watching(Watch::Stream);
        let progress = self.look(grip.ends, loads);
        self.settle_at_the_end(grip.ends, loads);
        for direction in grip.directions.iter_mut() {
            direction.hold_at(match progress {
                Progress::Spliced(_) => direction.taken_bytes(),
                _ => u64::MAX,
            });
        }
        match progress {
            Progress::Later(pause) => {
                next.look_at = Some(grip.now + pause);
            }
            Progress::Declined(why) => return Turn::Declined(why.into()),
            Progress::Refused(why) => return Turn::Refused(format!("segment: {why}").into()),
            Progress::Spliced(pause) => {
                next.watch = Watch::Ends;
                if pause == SLEEPING_PAUSE && !std::mem::replace(&mut self.settled, true) {
                    grip.ends.into_iter().for_each(sockets::end_keep_alive);
                }
                next.look_at = Some(grip.now + pause);
            }
            Progress::Woken => next.again = true,
        }
        // The last of it may have come while the pair changed over.
        match self.end() {
            Some(reason) => Turn::Ends(reason),
            None => Turn::Holds(next),
        }
    }
}

impl KernelEngine for Segment {
    fn name(&self) -> EngineName {
        EngineName::Segment
    }

    fn left_to_user_space(&self) -> &'static str {
        "segment leaves all bytes before its change-over to user space"
    }

    fn has_taken(&self) -> bool {
        matches!(self.phase, Phase::Overlap | Phase::Spliced)
    }

    fn turn(&mut self, grip: &mut Grip<'_>) -> Turn {
        let turn = self.step(grip);
        if matches!(turn, Turn::Declined(_) | Turn::Refused(_)) && self.phase != Phase::New {
            grip.ends.into_iter().for_each(Endpoint::end_on_close);
        }
        turn
    }

    fn gauge(&self) -> Arc<dyn Gauge> {
        Arc::clone(&self.gauge) as Arc<dyn Gauge>
    }

    fn bell(&self) -> Option<Arc<dyn Bell>> {
        // A copy of the last segment, made into a reset, wakes the pair through its own socket.
        None
    }

    fn moved_at(&self, now: Instant) -> Option<Instant> {
        let flow = self.gauge.flow.get()?;
        now.checked_sub(flow.idle_for())
    }

    fn reset_by(&self) -> Option<Side> {
        let flow = self.gauge.flow.get().filter(|_| self.has_taken())?;
        Side::BOTH
            .into_iter()
            .find(|side| flow.marks(side.index()) & mark::RST != 0)
    }

    fn release(&mut self, ends: [&Endpoint; 2], _directions: &[Direction; 2]) -> [u64; 2] {
        match self.phase {
            Phase::New => {}
            // A process that is being started may hold duplicates until its exec; the tuples have
            // to be free for `reset_both` all the same. Sleeping sockets say nothing at it.
            Phase::Spliced => {
                let all_over = self.end().is_some();
                let held = ends.into_iter().filter(|end| !all_over || end.is_shared());
                held.for_each(sockets::disconnect);
            }
            // Where both streams have come to their ends through the sockets, these end them.
            Phase::Watching => ends.into_iter().for_each(Endpoint::end_on_close),
            Phase::Overlap => {
                let flow = self.gauge.flow.get();
                for (peer, end) in ends.into_iter().enumerate() {
                    let standing = flow.and_then(|flow| flow.standing_stamp(peer));
                    if let Some((stamp, in_microseconds)) = standing {
                        sockets::go_on_from(end, stamp, in_microseconds);
                    }
                    end.end_on_close();
                }
            }
        }
        self.gauge.moved_bytes()
    }

    fn closed(&mut self, reason: Reason) -> Option<Box<dyn Task>> {
        let flow = Arc::clone(self.gauge.flow.get()?);
        flow.hush();
        if self.has_taken() {
            flow.forget();
        }
        if self.end() == Some(reason) {
            return Some(Box::new(Linger::new(flow)));
        }
        flow.stop();
        if self.has_taken() && reason.cuts() {
            self.reset_both(&flow);
        }
        None
    }

    #[cfg(test)]
    fn carried_bytes(&self) -> u64 {
        let flow = self.gauge.flow.get();
        flow.map_or(0, |flow| flow.payload_bytes())
    }
}
