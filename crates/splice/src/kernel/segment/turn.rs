//! One turn of a pair: asks the kernel about its sockets, and does what the change-over decides.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;

use super::change_over::{ENDED_BEFORE, Phase, Progress, Stream, Watched};
use super::datapath::Failure;
use super::eligibility::{NotedSegment, Obstacle, announced_edge, device, examine, refused};
use super::flow::Flow;
use super::sockets::{address_pair, probe, put_to_sleep, tuple_of};
use super::translation::Translation;
use super::{Segment, reached};
use crate::endpoint::Endpoint;
use crate::kernel::{Cause, Next, PairView, Refusal, Turn, Watch};
use crate::outcome::{Reason, Side};
use splice_base::shortage::is_shortage;
use splice_bpf::types::{SegmentInspection, segment_mark as mark};

/// How long a pair goes on unchanged while another thread attaches the program to a device: as long as that
/// takes on a machine that is not busy.
const ATTACHING_PAUSE: Duration = Duration::from_millis(16);

/// How soon to try a pair again that something is short for, or that has no route for the moment.
const SHORT_PAUSE: Duration = Duration::from_millis(500);

/// How soon to look again at a pair whose sockets have looked for a route.
const SEARCH_PAUSE: Duration = Duration::from_millis(1);

/// How soon to look again at a pair that cannot change over now, since no segment may pass.
const CLOSED_PAUSE: Duration = Duration::from_millis(64);

impl Segment {
    pub(super) fn step(&mut self, pair: &mut PairView<'_>) -> Turn {
        let streams = pair.directions.each_ref().map(|direction| Stream {
            in_flight_bytes: (direction.taken_bytes() - direction.given_bytes()) as usize,
            has_ended: direction.has_ended(),
        });
        if self.change_over.phase() == Phase::New
            && let Err(turn) = self.start(pair)
        {
            return turn;
        }
        if let Some(reason) = self.end() {
            return Turn::Ends(reason);
        }
        match self.change_over.phase() {
            Phase::New | Phase::Watching => {
                if let Some(refusal) = self.why_revoked() {
                    return refused_turn(&refusal);
                }
                // It is not reset for that, as little as one that has changed over.
                if let Some(why) = self.why_moved() {
                    return refused_turn(&Cause::Network.because(why));
                }
                if self.is_closed() {
                    let pause = Next::watching(Watch::Stream);
                    return Turn::Holds(pause.until(pair.now + CLOSED_PAUSE));
                }
            }
            Phase::Overlap | Phase::Spliced => {
                self.follow_course();
            }
        }
        if let Some(flow) = self.held() {
            return self.give_back(&flow, pair, streams);
        }
        let progress = self.look(pair.ends, streams, pair.now);
        self.end_in_overlap(pair.ends, streams);
        for direction in pair.directions.iter_mut() {
            direction.hold_at(match progress {
                Progress::Spliced(_) => direction.taken_bytes(),
                _ => u64::MAX,
            });
        }
        let mut next = Next::watching(Watch::Stream);
        match progress {
            Progress::Copying(pause) => next.look_at = Some(pair.now + pause),
            Progress::Refused(refusal) => return refused_turn(&refusal),
            Progress::Spliced(pause) => {
                next.watch = Watch::Ends;
                next.look_at = Some(pair.now + pause);
            }
            Progress::Again => next.again = true,
            Progress::GivenUp(side) => {
                let errno = Errno::TIMEDOUT.raw_os_error();
                return Turn::Ends(Reason::Failed { side, errno });
            }
        }
        // The last of both streams may have come while the pair changed over.
        match self.end() {
            Some(reason) => Turn::Ends(reason),
            None => Turn::Holds(next),
        }
    }

    /// The flow, where the program holds it.
    fn held(&self) -> Option<Arc<Flow>> {
        let flow = self.counters.flow().filter(|flow| flow.is_held());
        flow.map(Arc::clone)
    }

    /// Has the program watch the pair.
    ///
    /// # Errors
    /// What the turn comes to where it cannot yet, or cannot at all.
    fn start(&mut self, pair: &PairView<'_>) -> Result<(), Turn> {
        let wait_until = |at: Instant| Turn::Holds(Next::watching(Watch::Stream).until(at));
        if let Some(at) = self.begins_at.filter(|at| *at > pair.now) {
            return Err(wait_until(at));
        }
        let mut directions = pair.directions.iter();
        if directions.any(|direction| direction.is_ending()) {
            return Err(refused_turn(&Cause::State.because(ENDED_BEFORE)));
        }
        let begun = match pair.byte_limit {
            Some(_) => refused(Cause::Sockets, "a byte limit is set"),
            None => self.begin(pair.ends, pair.waker),
        };
        begun.map_err(|obstacle| {
            let pause = match obstacle {
                Obstacle::Ended => return refused_turn(&Cause::State.because(ENDED_BEFORE)),
                Obstacle::Refused(refusal) => return refused_turn(&refusal),
                Obstacle::NotNow => ATTACHING_PAUSE,
                Obstacle::Unrouted(side) => self.search_route(pair.ends, side, pair.now),
                Obstacle::Short => SHORT_PAUSE,
            };
            let at = pair.now + pause;
            self.begins_at = Some(at);
            wait_until(at)
        })
    }

    fn begin(&mut self, ends: [&Endpoint; 2], waker: &dyn Fn() -> Waker) -> Result<(), Obstacle> {
        let (mut addresses, mut cookies) = (Vec::with_capacity(2), [0; 2]);
        for (end, cookie) in ends.into_iter().zip(&mut cookies) {
            // A connection that was reset has no peer any more.
            addresses.push(address_pair(end).ok_or(Obstacle::Ended)?);
            *cookie = sockopt::socket_cookie(end).map_err(|errno| {
                let why = format!("the kernel gives a socket no cookie: {errno}");
                Obstacle::Refused(Cause::Engine.because(why))
            })?;
        }
        let addresses = [addresses[0], addresses[1]];
        let tuples = addresses.map(|(local, peer)| tuple_of(local, peer));
        if addresses[0].0 == addresses[1].1 && addresses[0].1 == addresses[1].0 {
            return refused(Cause::Sockets, "the relay is connected to itself");
        }
        let found = self
            .datapath
            .inspect(&tuples)
            .map_err(|errno| match is_shortage(errno) {
                true => Obstacle::Short,
                false => Obstacle::Refused(Cause::Engine.because(not_inspected(errno))),
            })?;
        examine(&found, &cookies, self.asked)?;
        let devices = [0, 1].map(|side: usize| device(&found.socket[side]));
        self.ask_packet_filters(addresses, &tuples, &found, waker())?;
        self.ask_routing(ends, addresses, &found, waker())?;
        for device in devices {
            self.ensure_attached(device)?;
        }
        // Before the first segment counts that the program sees.
        for (attached, device) in self.attached.iter_mut().zip(devices) {
            *attached = Some(self.datapath.attached(device).ok_or(Obstacle::NotNow)?);
        }
        let scales = [0, 1].map(|side: usize| found.socket[side].peer_scale);
        let flow = Flow::watch(Arc::clone(&self.datapath), tuples, devices, scales)
            .map_err(|why| Obstacle::Refused(Cause::Engine.because(why)))?;
        flow.call(waker());
        self.counters.set_flow(flow);
        // Should this process die, the peers must not take a FIN for the end of the stream.
        ends.into_iter().for_each(Endpoint::reset_on_close);
        reached("watching");
        self.change_over.begin_watching(cookies);
        Ok(())
    }

    /// Has the program see what comes in on a device.
    fn ensure_attached(&self, device: u32) -> Result<(), Obstacle> {
        let attached = if self.waits {
            let attached = self.datapath.ensure_attached(device);
            Some(attached.map(drop).map_err(|error| Failure::from(&error)))
        } else {
            self.datapath.attach_beside(device)
        };
        Ok(attached.ok_or(Obstacle::NotNow)??)
    }

    /// Sees how far the change-over has come, and takes the next step.
    fn look(&mut self, ends: [&Endpoint; 2], streams: [Stream; 2], now: Instant) -> Progress {
        let Some(flow) = self.counters.flow().map(Arc::clone) else {
            let why = "the program does not watch the pair yet";
            return Progress::Refused(Cause::Engine.because(why));
        };
        if self.peers.as_ref().is_some_and(|peers| peers.sleep) {
            return self.look_at_peers(&flow, ends, now);
        }
        let found = match self.datapath.inspect(flow.tuples()) {
            Ok(found) => found,
            Err(errno) => {
                let refusal = Cause::Engine.because(not_inspected(errno));
                return self.change_over.later_or(now, refusal);
            }
        };
        match self.change_over.phase() {
            Phase::New | Phase::Watching => self.watch(&flow, ends, &found, streams, now),
            Phase::Overlap => self.overlap(&flow, ends, &found, streams, now),
            Phase::Spliced => self.look_at_sleepers(&flow, ends, &found, now),
        }
    }

    fn watch(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        streams: [Stream; 2],
        now: Instant,
    ) -> Progress {
        for (side, socket) in found.socket.iter().enumerate() {
            self.renew_attached(flow, side, device(socket));
        }
        let noted = [0, 1].map(|side| noted_segment(flow, side));
        let only_noted = [0, 1].map(|side: usize| {
            let attached = self.attached[side].as_ref();
            attached.is_none_or(|attached| attached.doubts_handshakes())
        });
        let is_admitted = self.is_admitted(found);
        let watched = self
            .change_over
            .watch(found, streams, noted, only_noted, is_admitted, now);
        let translation = match watched {
            Watched::Stays(progress) => return progress,
            Watched::Unrouted(side) => {
                return Progress::Copying(self.search_route(ends, side, now));
            }
            Watched::Translatable(translation) => translation,
            Watched::Unseen {
                side,
                device,
                is_probe_due,
            } => {
                if is_probe_due
                    && let Err(Obstacle::Refused(refusal)) = self.probe(ends, device, now)
                {
                    return Progress::Refused(refusal);
                }
                let why = format!(
                    "the program saw no segment of {} on device {device}: NAT, policy routing or another \
                     tc program is in between",
                    self.asked.peers.of(side)
                );
                return self.change_over.later_or(now, Cause::Filters.because(why));
            }
        };
        self.change_over.prepare_overlap(&translation);
        reached("translatable");
        flow.overlap(&translation);
        reached("overlap");
        self.change_over.begin_overlap();
        // What the sockets have announced since `found` was asked for counts, too. From now on the program
        // announces no window beyond that to their peers.
        match self.datapath.inspect(flow.tuples()) {
            Ok(found) if self.change_over.finds_both(&found) => {
                self.begin_overlap(flow, &translation, &found, streams);
                self.overlap(flow, ends, &found, streams, now)
            }
            // A socket that is gone was reset, which the pair learns by its own event.
            Ok(_) | Err(_) => self.change_over.later(),
        }
    }

    /// Where the program was detached, or may have lost sight of this side's peer, only what it sees from now on counts.
    fn renew_attached(&mut self, flow: &Flow, side: usize, device: u32) {
        let attached = self.attached[side].as_ref();
        if attached.is_none_or(|attached| attached.why_lost().is_some()) {
            self.attached[side] = self.datapath.attached(device);
            flow.side(side).forget_noted();
        }
    }

    /// Makes both peers send a segment, so that the program sees one.
    fn probe(&mut self, ends: [&Endpoint; 2], device: u32, now: Instant) -> Result<(), Obstacle> {
        self.datapath
            .reattach_beside(device)
            .ok_or(Obstacle::NotNow)??;
        self.change_over.probed(now);
        ends.into_iter().for_each(probe);
        Ok(())
    }

    /// Has the side's socket look for a route, now and then; returns how soon to look at the pair again. A route that the kernel
    /// drops (`dst_dev_put`) leaves a socket without one until it sends.
    fn search_route(&mut self, ends: [&Endpoint; 2], side: Side, now: Instant) -> Duration {
        match self.change_over.begins_search(now) {
            true => {
                probe(ends[side.index()]);
                SEARCH_PAUSE
            }
            false => SHORT_PAUSE,
        }
    }

    fn begin_overlap(
        &self,
        flow: &Flow,
        translation: &Translation,
        found: &SegmentInspection,
        streams: [Stream; 2],
    ) {
        for (from, socket) in found.socket.iter().enumerate() {
            flow.raise_announced_edge(from, announced_edge(socket));
        }
        flow.catch_up(found);
        for (from, stream) in streams.into_iter().enumerate() {
            // No segment can come unseen any more.
            let takeover_seq =
                self.change_over
                    .takeover_seq_at_once(translation, found, stream, from);
            if let Some(takeover_seq) = takeover_seq {
                flow.take_over(from, takeover_seq);
            }
        }
    }

    fn overlap(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        streams: [Stream; 2],
        now: Instant,
    ) -> Progress {
        if !self.change_over.finds_both(found) {
            // It was reset, which the pair learns by its own event.
            flow.renew();
            return self.change_over.later();
        }
        flow.look(found.socket.each_ref().map(announced_edge));
        flow.catch_up(found);
        if self.goes_back(flow) && self.ways_back(flow, found, streams, now).is_some() {
            flow.hold();
            return Progress::Again;
        }
        let mut are_taken_over = true;
        for (from, stream) in streams.into_iter().enumerate() {
            if !flow.is_taken_over(from)
                && let Some(takeover_seq) = self
                    .change_over
                    .takeover_seq_when_idle(found, stream, from, now)
            {
                flow.take_over(from, takeover_seq);
            }
            are_taken_over &=
                flow.is_taken_over(from) && self.change_over.is_empty(found, stream, from);
        }
        if !are_taken_over {
            reached("emptying");
            return match self.look_for_gone(flow, ends, found, now) {
                Ok(pause) => self.change_over.keep_emptying(found, pause),
                Err(side) => Progress::GivenUp(side),
            };
        }
        for (from, stream) in streams.into_iter().enumerate() {
            flow.note_acknowledged_by_socket(from, found.socket[from].rcv_nxt);
            if stream.has_ended {
                // It went through the sockets, and was acknowledged with the rest.
                flow.end(from, found.socket[from].rcv_nxt);
            }
        }
        reached("settled");
        flow.splice(found);
        reached("spliced");
        let progress = self.change_over.splice(found);
        for end in ends {
            put_to_sleep(end, &self.datapath);
            reached("asleep");
        }
        if self.goes_back(flow) {
            flow.hold();
        }
        progress
    }

    /// Puts the sockets to sleep where both peers have both streams to their ends. What the sockets still
    /// hold in Overlap has arrived without them as well, and nobody is left to acknowledge it: they would
    /// retransmit it for ever.
    fn end_in_overlap(&mut self, ends: [&Endpoint; 2], streams: [Stream; 2]) {
        let Some(flow) = self.counters.flow() else {
            return;
        };
        if self.change_over.phase() != Phase::Overlap || !flow.is_all_acknowledged() {
            return;
        }
        let found = self.datapath.inspect(flow.tuples()).ok();
        for (from, stream) in streams.iter().enumerate() {
            let socket = found.as_ref().map(|found| &found.socket[from]);
            if let Some(socket) = socket.filter(|socket| self.change_over.is_own(socket, from)) {
                // What user space has not written bypassed the sockets.
                let written = socket
                    .copied_seq
                    .wrapping_sub(stream.in_flight_bytes as u32);
                flow.change_over()[from]
                    .acknowledged_by_socket
                    .store(written, Relaxed);
            }
        }
        self.change_over.end_in_overlap(found.as_ref());
        for end in ends {
            put_to_sleep(end, &self.datapath);
        }
    }
}

/// The latest segment of a peer that the program has noted since it watches the connection.
fn noted_segment(flow: &Flow, side: usize) -> Option<NotedSegment> {
    let (entry, noted) = (flow.side(side), &flow.change_over()[side]);
    (flow.marks(side) & mark::NOTED != 0).then(|| NotedSegment {
        device: noted.seen_device.load(Relaxed),
        seq: entry.high_seq(),
        ack: entry.high_ack.load(Relaxed),
        hops: noted.seen_hops.load(Relaxed),
    })
}

/// Not with this engine.
fn refused_turn(refusal: &Refusal) -> Turn {
    let Refusal { cause, why } = refusal;
    Turn::Refused(cause.because(format!("segment: {why}")))
}

fn not_inspected(errno: Errno) -> String {
    format!("the program that looks up sockets has failed: {errno}")
}
