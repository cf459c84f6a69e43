//! The steps from the one state to the next; `mod.rs` has them all.

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::eligibility::{
    self, Obstacle, Plan, can_go_on, examine, has_ended, is_own, promised, was_seen,
};
use super::flow::Flow;
use super::sockets::{ask, put_to_sleep, wake};
use super::{
    ENDED_BEFORE, LARGEST_OVERLAP_PAUSE, LARGEST_PAUSE, Load, Phase, Progress, SLEEPING_PAUSE,
    SMALLEST_PAUSE, Segment, reached,
};
use crate::bpf_types::{SegmentInspection, segment_mark as mark};
use crate::endpoint::Endpoint;
use crate::engine::kernel::KernelEngine;
use crate::outcome::Side;

/// How long a pair waits to be seen by the program, or for a gap to close: a round trip to a far
/// peer, and a repetition.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// How often the peers are asked for a segment, and how long after each other: a peer that does not
/// read has answers to spare only now and then (`net.ipv4.tcp_invalid_ratelimit`, 500 ms), and the
/// last may have gone to the socket's own question for room.
pub(super) const PROBES: u32 = 3;
const ANSWERED_ONCE_IN: Duration = Duration::from_millis(600);

/// A peer that has been silent may be promised a little too much, as long as it was promised no
/// more than this: a connection's first window (`tcp_rmem[1]` has room for 64 KiB) and a half. It
/// would have to send more than the receiver's whole window before it hears of that.
const FIRST_WINDOW_BYTES: i32 = 96 << 10;

/// Silence of this length is no gap in a transfer.
const IDLE: Duration = Duration::from_millis(16);

/// How long a socket may still have a word to say after it was put to sleep: an acknowledgement
/// waits 200 ms at most (`TCP_DELACK_MAX`).
const LAST_WORD: Duration = Duration::from_millis(250);

impl Segment {
    fn later(&mut self) -> Progress {
        let pause = self.pause;
        let largest = match self.phase {
            Phase::Overlap => LARGEST_OVERLAP_PAUSE,
            _ => LARGEST_PAUSE,
        };
        self.pause = (pause * 2).min(largest);
        Progress::Later(pause)
    }

    /// Looks often as long as the change-over gets on.
    fn later_unless_moved(&mut self, to: [u32; 2]) -> Progress {
        if std::mem::replace(&mut self.moved_to, to) != to {
            self.pause = SMALLEST_PAUSE;
        }
        self.later()
    }

    /// Once bytes may go past the sockets there is no way back.
    pub(super) fn later_or(&mut self, why: impl Into<Cow<'static, str>>) -> Progress {
        if self.probes_left == 0
            && self.probed_at.is_some_and(|at| at.elapsed() > SEEN_WITHIN)
            && !self.has_taken()
        {
            return Progress::Refused(why.into());
        }
        self.later()
    }

    pub(super) fn watch(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        loads: [Load; 2],
    ) -> Progress {
        // Of one that has ended, the peer has nothing left to say that could be seen.
        if !self.finds_both(found) || found.socket.iter().any(has_ended) {
            return Progress::Declined(ENDED_BEFORE);
        }
        match examine(found, &self.cookies, self.bypasses_firewall) {
            Err(Obstacle::Refused(why)) => return Progress::Refused(why),
            Err(Obstacle::Ended) => return Progress::Declined(ENDED_BEFORE),
            Err(Obstacle::NotNow) | Ok(()) => {}
        }
        if !self.bypasses_firewall && !self.has_leave(found) {
            let why = "segment: its route has changed since the packet filters were asked";
            return Progress::Refused(why.into());
        }
        for side in Side::BOTH {
            let entry = flow.side(side.index());
            let socket = &flow.change_over()[side.index()];
            let noted = (flow.marks(side.index()) & mark::NOTED != 0).then(|| {
                (
                    socket.seen_device.load(Relaxed),
                    entry.high_seq(),
                    entry.high_ack.load(Relaxed),
                )
            });
            if !was_seen(found, side.index(), noted) {
                let device = eligibility::device(&found.socket[side.index()]);
                if let Err(Obstacle::Refused(why)) = self.probe(ends, device) {
                    return Progress::Refused(why);
                }
                return self.later_or(format!(
                    "no segment of {side:?}'s was seen on device {device}: NAT, policy routing or \
                     another tc program stands between"
                ));
            }
            let hops = noted.map(|_| socket.seen_hops.load(Relaxed));
            if !can_go_on(found, side.index(), hops) {
                return Progress::Refused(
                    format!("{side:?}'s segments come with a TTL of 1, so they go no further")
                        .into(),
                );
            }
        }
        let plan = eligibility::plan(found, loads.map(|load| load.held));
        self.seq_delta = plan.sides.map(|side| side.seq_delta);
        reached("planned");
        for (next_byte, side) in self.gauge.next_byte.iter().zip(&plan.sides) {
            next_byte.store(side.next_byte, Relaxed);
        }
        flow.overlap(&plan);
        reached("overlap");
        self.phase = Phase::Overlap;
        self.pause = SMALLEST_PAUSE;
        // What the sockets have promised since `found` was asked for counts, too; from now on
        // their peers hear no more of it.
        match self.ground.inspect(flow.tuples()) {
            Ok(found) if self.finds_both(&found) => {
                for (from, socket) in found.socket.iter().enumerate() {
                    flow.promise(from, promised(socket));
                }
                flow.catch_up(&found);
                for (from, socket) in found.socket.iter().enumerate() {
                    // Only from now on nothing can come unseen.
                    if self.is_empty(&found, loads[from], from) && self.is_safe(&plan, &found, from)
                    {
                        flow.let_past(from, socket.rcv_nxt);
                    }
                }
                self.overlap(flow, ends, &found, loads)
            }
            // What is gone was reset, of which the pair hears by its socket.
            Ok(_) | Err(_) => self.later(),
        }
    }

    /// None of the pair's own sockets is gone.
    fn finds_both(&self, found: &SegmentInspection) -> bool {
        let mut sockets = found.socket.iter().zip(self.cookies);
        sockets.all(|(socket, cookie)| is_own(socket, cookie))
    }

    /// All that the socket has of this side's stream has arrived at the other peer.
    fn is_empty(&self, found: &SegmentInspection, load: Load, from: usize) -> bool {
        let (near, far) = (&found.socket[from], &found.socket[1 - from]);
        near.copied_seq == near.rcv_nxt
            && load.held == 0
            && far.write_seq == near.rcv_nxt.wrapping_add(self.seq_delta[from])
            && far.snd_una == far.write_seq
    }

    /// This side's peer, which is silent, will not be promised much more than the other one has room
    /// for.
    fn is_safe(&self, plan: &Plan, found: &SegmentInspection, from: usize) -> bool {
        let near = &found.socket[from];
        let edge = plan.sides[1 - from].edge.wrapping_sub(self.seq_delta[from]);
        let room = edge.wrapping_sub(near.rcv_nxt).cast_signed();
        promised(near).wrapping_sub(near.rcv_nxt).cast_signed() <= room.max(FIRST_WINDOW_BYTES)
    }

    /// Makes both peers send a segment, so that the program sees one where it was not seen.
    fn probe(&mut self, ends: [&Endpoint; 2], device: u32) -> Result<(), Obstacle> {
        let is_due = match self.probed_at {
            // Where bytes flow a segment comes by itself.
            None => self.pause > SMALLEST_PAUSE,
            Some(at) => at.elapsed() > ANSWERED_ONCE_IN && self.probes_left > 0,
        };
        if is_due {
            self.ground
                .stand_anew_beside(device)
                .ok_or(Obstacle::NotNow)?
                .map_err(|why| Obstacle::Refused(why.into()))?;
            self.probed_at = Some(Instant::now());
            self.probes_left -= 1;
            ends.into_iter().for_each(ask);
        }
        Ok(())
    }

    pub(super) fn overlap(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        loads: [Load; 2],
    ) -> Progress {
        if !self.finds_both(found) {
            // It was reset; the pair hears of it by its socket.
            flow.renew();
            return self.later();
        }
        flow.look(found.socket.each_ref().map(promised));
        flow.catch_up(found);
        let mut settled = true;
        for (from, load) in loads.into_iter().enumerate() {
            let end = found.socket[from].rcv_nxt;
            let is_empty = self.is_empty(found, load, from);
            if is_empty && !flow.is_past(from) && self.silent_for(from, end) > IDLE {
                flow.let_past(from, end);
            }
            settled &= is_empty && flow.is_past(from);
        }
        if !settled {
            reached("emptying");
            return self.later_unless_moved(found.socket.map(|socket| socket.snd_una));
        }
        for (from, load) in loads.iter().enumerate() {
            flow.cut(from, found.socket[from].rcv_nxt);
            if load.ended {
                // It went through the sockets, and was acknowledged with the rest.
                flow.end(from, found.socket[from].rcv_nxt);
            }
        }
        reached("settled");
        flow.splice();
        reached("spliced");
        self.phase = Phase::Spliced;
        self.slept_at = Some(Instant::now());
        self.slept_with = found.socket.map(|socket| socket.rcv_nxt);
        for end in ends {
            put_to_sleep(end, &self.ground);
            reached("asleep");
        }
        // What was on its way into a socket meanwhile shows at the next look.
        Progress::Spliced(SMALLEST_PAUSE)
    }

    /// For how long this side's stream has stood at `end`.
    fn silent_for(&mut self, from: usize, end: u32) -> Duration {
        match &mut self.silent[from] {
            Some((at, since)) if *at == end => since.elapsed(),
            silent => {
                *silent = Some((end, Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// Sees that the sockets have stayed as they were when they were put to sleep. A segment that
    /// the program had let pass before Overlap may have reached one only now, and what it has
    /// acknowledged it has to deliver.
    pub(super) fn sleep(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
    ) -> Progress {
        let is_late = |from: usize| {
            let near = &found.socket[from];
            is_own(near, self.cookies[from]) && near.rcv_nxt != self.slept_with[from]
        };
        if (0..2).any(is_late) && !flow.is_over() {
            ends.into_iter().for_each(wake);
            flow.overlap_again();
            self.phase = Phase::Overlap;
            self.pause = SMALLEST_PAUSE;
            return Progress::Woken;
        }
        let slept = self.slept_at.map_or(Duration::ZERO, |at| at.elapsed());
        if slept < LAST_WORD {
            return Progress::Spliced(LAST_WORD - slept);
        }
        flow.hush();
        Progress::Spliced(SLEEPING_PAUSE)
    }
}
