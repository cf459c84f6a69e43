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
//!             seen, plan made           queues empty, all acknowledged
//! Watching ─────────────────▶ Overlap ─────────────────────────────────▶ Spliced ──▶ over
//!     └──────▶ refused
//! ```
//!
//! The difference between the two numberings is constant from the moment on from which the relay
//! adds nothing of its own: with `held` bytes in its hand,
//! `D = b.write_seq + held - a.copied_seq`. So every byte has one place in the receiver's
//! numbering, and it does no harm when some travel through the sockets and others past them. The
//! one hard rule is that what the relay has acknowledged it must deliver. So in Overlap new bytes
//! go past the sockets while the pair copies what the sockets already have.

pub(crate) mod eligibility;
pub(crate) mod flow;
pub(crate) mod ground;
#[cfg(test)]
mod tests;

/// A step of the change-over is done; a test has the process die there.
#[cfg(not(test))]
fn reached(_step: &str) {}
#[cfg(test)]
use tests::crash::reached;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::net::{getpeername, getsockname, sockopt};

use super::EngineName;
use super::kernel::{Bell, Gauge, Grip, KernelEngine, Next, Turn, Watch};
use crate::bpf_types::{SegmentInspection, SegmentSocket, SegmentTuple};
use crate::bpf_types::{segment_mark as mark, segment_socket_flag as has};
use crate::context::Context;
use crate::direction::Direction;
use crate::endpoint::{Endpoint, Kind};
use crate::outcome::{Reason, Side};
use crate::socket_option::{self, Repair};
use crate::task::{Readiness, Step, Task};
use eligibility::{Obstacle, examine, own_seq, plan, refused, was_seen};
use flow::{Flow, LINGER, now_ns};
use ground::Ground;

/// How long a pair waits to be seen by the program: a round trip to a far peer, and a repetition.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a pair that changes over is looked at: at first, and at last.
const SMALLEST_PAUSE: Duration = Duration::from_millis(1);
const LARGEST_PAUSE: Duration = Duration::from_millis(64);

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
    /// Leave the sockets alone from now on.
    Spliced,
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
    phase: Phase,
    gauge: Arc<PastSockets>,
    tuples: [SegmentTuple; 2],
    /// Of side 0 and side 1: the relay's end and the peer's.
    addresses: Option<[(SocketAddr, SocketAddr); 2]>,
    cookies: [u64; 2],
    began: Instant,
    pause: Duration,
    probed: bool,
    seq_delta: [u32; 2],
}

impl Segment {
    pub(crate) fn new(ground: Arc<Ground>) -> Self {
        Self {
            ground,
            phase: Phase::New,
            gauge: Arc::default(),
            tuples: Default::default(),
            addresses: None,
            cookies: [0; 2],
            began: Instant::now(),
            pause: SMALLEST_PAUSE,
            probed: false,
            seq_delta: [0; 2],
        }
    }

    /// Has the pair's segments watched, or says why not.
    fn begin(&mut self, ends: [&Endpoint; 2]) -> Result<(), Obstacle> {
        let mut addresses = Vec::with_capacity(2);
        for (end, cookie) in ends.iter().zip(&mut self.cookies) {
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
        self.addresses = Some(addresses);
        self.tuples = addresses.map(|(local, peer)| tuple_of(local, peer));
        if addresses[0].0 == addresses[1].1 && addresses[0].1 == addresses[1].0 {
            return refused("the relay is connected to itself");
        }
        let found = self
            .ground
            .inspect(&self.tuples)
            .map_err(|errno| Obstacle::Refused(format!("looking failed: {errno}").into()))?;
        examine(&found, &self.cookies)?;
        let devices = [0, 1].map(|side: usize| eligibility::device(&found.socket[side]));
        for device in devices {
            self.ground
                .stand_on(device)
                .map_err(|error| Obstacle::Refused(error.to_string().into()))?;
        }
        let scales = [0, 1].map(|side: usize| found.socket[side].peer_scale);
        let flow = Flow::watch(Arc::clone(&self.ground), self.tuples, devices, scales)
            .map_err(|why| Obstacle::Refused(why.into()))?;
        // It was empty: a pair begins once.
        let _ = self.gauge.flow.set(Arc::new(flow));
        // Should this process die, the peers must not take a FIN for the end of the stream.
        ends.into_iter().for_each(Endpoint::reset_on_close);
        reached("watching");
        self.phase = Phase::Watching;
        Ok(())
    }

    /// Sees how far the change-over has come, and takes the next step.
    fn look(&mut self, ends: [&Endpoint; 2], loads: [Load; 2]) -> Progress {
        let Some(flow) = self.gauge.flow.get().map(Arc::clone) else {
            return Progress::Refused("the pair has not begun".into());
        };
        let found = match self.ground.inspect(&self.tuples) {
            Ok(found) => found,
            Err(errno) => return self.later_or(format!("looking failed: {errno}")),
        };
        match self.phase {
            Phase::New | Phase::Watching => self.watch(&flow, ends, &found, loads),
            Phase::Overlap => self.overlap(&flow, ends, &found, loads),
            Phase::Spliced => Progress::Spliced,
        }
    }

    fn later(&mut self) -> Progress {
        let pause = self.pause;
        self.pause = (pause * 2).min(LARGEST_PAUSE);
        Progress::Later(pause)
    }

    /// Once bytes may go past the sockets there is no way back.
    fn later_or(&mut self, why: impl Into<Cow<'static, str>>) -> Progress {
        if self.phase == Phase::Watching && self.began.elapsed() > PATIENCE {
            return Progress::Refused(why.into());
        }
        self.later()
    }

    fn watch(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        loads: [Load; 2],
    ) -> Progress {
        match examine(found, &self.cookies) {
            Err(Obstacle::Refused(why)) => return Progress::Refused(why),
            Err(Obstacle::Ended) => return Progress::Declined(ENDED_BEFORE),
            Err(Obstacle::NotNow(_)) | Ok(()) => {}
        }
        for side in Side::BOTH {
            let entry = flow.side(side.index());
            let noted = (flow.marks(side.index()) & mark::NOTED != 0).then(|| {
                (
                    entry.seen_device.load(Relaxed),
                    entry.high_seq.load(Relaxed),
                    entry.high_ack.load(Relaxed),
                )
            });
            if !was_seen(found, side.index(), noted) {
                self.probe(ends);
                return self.later_or(format!(
                    "no segment of {side:?}'s was seen on device {}: NAT, policy routing or \
                     another tc program stands between",
                    eligibility::device(&found.socket[side.index()])
                ));
            }
        }
        let plan = match plan(found, loads.map(|load| load.held)) {
            Ok(plan) => plan,
            Err(Obstacle::Refused(why)) => return Progress::Refused(why),
            Err(Obstacle::NotNow(why)) => {
                // It passes; should it not, the pair is well where it is.
                return if self.began.elapsed() > PATIENCE {
                    Progress::Declined(why)
                } else {
                    Progress::Later(SMALLEST_PAUSE * 2)
                };
            }
            Err(Obstacle::Ended) => return Progress::Declined(ENDED_BEFORE),
        };
        reached("planned");
        for (next_byte, side) in self.gauge.next_byte.iter().zip(&plan.sides) {
            next_byte.store(side.next_byte, Relaxed);
        }
        self.seq_delta = plan.sides.map(|side| side.seq_delta);
        flow.overlap(&plan);
        reached("overlap");
        self.phase = Phase::Overlap;
        self.pause = SMALLEST_PAUSE;
        // Often there is nothing to empty.
        self.look(ends, loads)
    }

    /// Makes both peers send a segment, so that the program sees one.
    fn probe(&mut self, ends: [&Endpoint; 2]) {
        if std::mem::replace(&mut self.probed, true) {
            return;
        }
        for end in ends {
            // Should it fail, the pair waits for what the peer sends by itself.
            let _ = socket_option::repair(end, Repair::On);
            let _ = socket_option::repair(end, Repair::OffWithProbe);
            let _ = sockopt::set_socket_reuseaddr(end, true);
        }
    }

    fn overlap(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        loads: [Load; 2],
    ) -> Progress {
        flow.renew();
        let mut settled = true;
        for (from, load) in loads.iter().enumerate() {
            let (near, far) = (&found.socket[from], &found.socket[1 - from]);
            if near.flags & has::FOUND == 0 {
                // It was reset; the pair hears of it by its socket.
                return self.later();
            }
            flow.side(from).own_seq.store(own_seq(near), Relaxed);
            flow.side(from).cut.store(near.rcv_nxt, Relaxed);
            settled &= near.copied_seq == near.rcv_nxt
                && load.held == 0
                && far.write_seq == near.rcv_nxt.wrapping_add(self.seq_delta[from])
                && far.snd_una == far.write_seq;
        }
        if !settled {
            reached("emptying");
            return self.later();
        }
        reached("settled");
        for (from, load) in loads.iter().enumerate() {
            let (near, far) = (&found.socket[from], &found.socket[1 - from]);
            let side = flow.side(from);
            let promised = near.rcv_wup.wrapping_add(near.rcv_wnd);
            side.promised.store(promised, Relaxed);
            side.stamp_floor.store(stamp_now(far), Relaxed);
            if load.ended {
                // It went through the sockets, and was acknowledged with the rest.
                side.fin_end.store(near.rcv_nxt, Relaxed);
                side.marks.fetch_or(mark::FIN | mark::FIN_ACKED, Relaxed);
            }
        }
        flow.splice();
        reached("spliced");
        self.phase = Phase::Spliced;
        for end in ends {
            put_to_sleep(end);
            reached("asleep");
        }
        Progress::Spliced
    }

    /// Why the flow is over, once it is.
    fn end(&self) -> Option<Reason> {
        let flow = self.gauge.flow.get()?;
        if self.phase != Phase::Spliced {
            return None;
        }
        let marks = [0, 1].map(|side| flow.marks(side));
        for side in Side::BOTH {
            if marks[side.index()] & mark::RST != 0 {
                return Some(Reason::Reset(side));
            }
        }
        let all_over = marks.iter().all(|marks| marks & mark::FIN_ACKED != 0);
        if all_over && !flow.is_over() {
            // The last of it was seen in OVERLAP, where the program leaves the end to us.
            flow.linger();
        }
        all_over.then_some(Reason::EndOfStream)
    }

    /// Ends the flow before its end, when both sockets are closed.
    fn reset_both(&self, flow: &Flow) {
        let numbers = [0, 1].map(|side| {
            let (near, far) = (flow.side(side), flow.side(1 - side));
            let seq = far
                .high_seq
                .load(Relaxed)
                .wrapping_add(far.seq_delta.load(Relaxed));
            (seq, near.high_seq.load(Relaxed))
        });
        for ((local, peer), (seq, ack)) in self.addresses.into_iter().flatten().zip(numbers) {
            // Should it fail, the peer's next segment finds no socket and is answered with a
            // reset by the kernel.
            let _ = socket_option::reset(local, peer, seq, ack);
        }
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
            if grip.directions.iter().any(Direction::is_ending) {
                return Turn::Declined(ENDED_BEFORE.into());
            }
            let begun = match grip.byte_limit {
                Some(_) => refused("a byte limit is set"),
                None => self.begin(grip.ends),
            };
            match begun {
                Ok(()) => {}
                Err(Obstacle::Ended) => return Turn::Declined(ENDED_BEFORE.into()),
                Err(Obstacle::NotNow(why)) => return Turn::Declined(why.into()),
                Err(Obstacle::Refused(why)) => {
                    return Turn::Refused(format!("segment: {why}").into());
                }
            }
        }
        let mut next = Next {
            watch: Watch::Stream,
            look_at: None,
            again: false,
        };
        if self.phase != Phase::Spliced {
            match self.look(grip.ends, loads) {
                Progress::Later(pause) => {
                    next.look_at = Some(grip.now + pause);
                    return Turn::Holds(next);
                }
                Progress::Declined(why) => return Turn::Declined(why.into()),
                Progress::Refused(why) => return Turn::Refused(format!("segment: {why}").into()),
                Progress::Spliced => {
                    for direction in &mut *grip.directions {
                        direction.hold_at(direction.taken_bytes());
                    }
                    // A segment may have been on its way through the program meanwhile.
                    next.look_at = Some(grip.now + SMALLEST_PAUSE);
                }
            }
        }
        next.watch = Watch::Ends;
        next.look_at = next.look_at.or(Some(grip.now + SLEEPING_PAUSE));
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

    fn has_taken(&self) -> bool {
        matches!(self.phase, Phase::Overlap | Phase::Spliced)
    }

    fn turn(&mut self, grip: &mut Grip<'_>) -> Turn {
        let turn = self.step(grip);
        if matches!(turn, Turn::Declined(_) | Turn::Refused(_)) && self.phase == Phase::Watching {
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

    fn release(&mut self, ends: [&Endpoint; 2], _directions: &[Direction; 2]) -> [u64; 2] {
        if matches!(self.phase, Phase::Watching | Phase::Overlap) {
            // Where both streams have come to their ends through the sockets, these end them.
            ends.into_iter().for_each(Endpoint::end_on_close);
        }
        self.gauge.moved_bytes()
    }

    fn closed(&mut self, reason: Reason) -> Option<Box<dyn Task>> {
        let flow = Arc::clone(self.gauge.flow.get()?);
        if self.has_taken() {
            // Where the kernel cannot do it, the entries go by their own time.
            let _ = self.ground.forget(&self.tuples);
        }
        if self.end() == Some(reason) {
            return Some(Box::new(Linger { _flow: flow }));
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

/// What remains of a pair whose segments were translated: late ones still are.
#[derive(Debug)]
struct Linger {
    _flow: Arc<Flow>,
}

impl Task for Linger {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        cx.set_deadline(Some(cx.now() + LINGER));
        Step::Wait
    }

    fn ready(&mut self, _cx: &mut Context<'_>, _source: u8, _readiness: Readiness) -> Step {
        Step::Wait
    }

    fn deadline_passed(&mut self, _cx: &mut Context<'_>) -> Step {
        Step::Done
    }

    fn is_aftermath(&self) -> bool {
        true
    }
}

/// What the relay's socket would stamp a segment with now.
fn stamp_now(socket: &SegmentSocket) -> u32 {
    let tick_ns = if socket.flags & has::MICROSECONDS != 0 {
        1_000
    } else {
        1_000_000
    };
    ((now_ns() / tick_ns) as u32).wrapping_add(socket.clock)
}

/// The socket neither answers nor sends nor says good-bye from now on.
fn put_to_sleep(end: &Endpoint) {
    // None of these can fail on a socket that was just in use by a process that may do all of it;
    // and should one, no segment reaches the socket as long as the program is there.
    let _ = socket_option::ignore_all_but_resets(end);
    let _ = socket_option::repair(end, Repair::On);
    // Both fire in repair mode, too.
    let _ = sockopt::set_socket_keepalive(end, false);
    let _ = sockopt::set_tcp_user_timeout(end, 0);
}

/// The relay's address and the peer's, an IPv4 one as such.
fn address_pair(end: &Endpoint) -> Option<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(getsockname(end).ok()?).ok()?;
    let peer = SocketAddr::try_from(getpeername(end).ok()??).ok()?;
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    Some((plain(local), plain(peer)))
}

/// What the peer's segments carry.
fn tuple_of(local: SocketAddr, peer: SocketAddr) -> SegmentTuple {
    let octets = |address: SocketAddr| match address {
        SocketAddr::V4(address) => address.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(address) => address.ip().octets(),
    };
    SegmentTuple {
        source: octets(peer),
        destination: octets(local),
        source_port: peer.port().to_be_bytes(),
        destination_port: local.port().to_be_bytes(),
    }
}
