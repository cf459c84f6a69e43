//! The steps from the one state to the next; `mod.rs` has them all.

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::eligibility::{self, Obstacle, Plan, examine, has_ended, own_seq, promised, was_seen};
use super::flow::Flow;
use super::sockets::{ask, put_to_sleep, wake};
use super::{
    ENDED_BEFORE, LARGEST_PAUSE, Load, Phase, Progress, SLEEPING_PAUSE, SMALLEST_PAUSE, Segment,
    reached,
};
use crate::bpf_types::SegmentInspection;
use crate::bpf_types::{segment_mark as mark, segment_socket_flag as has};
use crate::endpoint::Endpoint;
use crate::engine::kernel::{Grip, KernelEngine};
use crate::outcome::Side;
use crate::socket_option;

/// How long a pair waits to be seen by the program, or for a gap to close: a round trip to a far
/// peer, and a repetition.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the peers are asked for a segment, and how long after each other: a peer that does not
/// read has answers to spare only now and then (`net.ipv4.tcp_invalid_ratelimit`, 500 ms), and the
/// last may have gone to the socket's own question for room.
pub(super) const PROBES: u32 = 3;
const ANSWERED_ONCE_IN: Duration = Duration::from_millis(600);

/// Which part of the receiver's largest window a socket may promise in Narrow: the rest is for
/// what the other socket still has to deliver.
const PROMISE_PART: u32 = 8;

/// A peer that has been silent may be promised a little too much, as long as it was promised no
/// more than this: a connection's first window (`tcp_rmem[1]` has room for 64 KiB) and a half. It
/// would have to send more than the receiver's whole window before it hears of that.
const FIRST_WINDOW_BYTES: i64 = 96 << 10;

/// Silence of this length is no gap in a transfer.
const IDLE: Duration = Duration::from_millis(16);

/// No window is larger (RFC 7323).
const LARGEST_WINDOW_BYTES: u32 = 1 << 30;

/// How long a socket may still have a word to say after it was put to sleep: an acknowledgement
/// waits 200 ms at most (`TCP_DELACK_MAX`).
const LAST_WORD: Duration = Duration::from_millis(250);

impl Segment {
    /// Says how far the directions may read.
    pub(super) fn hold(&self, grip: &mut Grip<'_>, progress: &Progress) {
        for (index, direction) in grip.directions.iter_mut().enumerate() {
            let may_read = match progress {
                Progress::Spliced(_) => 0,
                Progress::Later(_) if self.phase == Phase::Narrow => self.may_read[index],
                _ => u64::MAX,
            };
            if self.phase == Phase::Narrow && may_read == u64::MAX {
                // An end of stream at the mark was passed over.
                direction.look_again();
            }
            direction.hold_at(direction.taken_bytes().saturating_add(may_read));
        }
        if self.phase == Phase::Narrow && !matches!(progress, Progress::Later(_)) {
            for end in grip.ends {
                // As before; should it fail, the connection keeps its small window.
                let _ = socket_option::clamp_window(end, LARGEST_WINDOW_BYTES);
            }
        }
    }

    fn later(&mut self) -> Progress {
        let pause = self.pause;
        self.pause = (pause * 2).min(LARGEST_PAUSE);
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
            && self.probed_at.is_some_and(|at| at.elapsed() > PATIENCE)
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
        match examine(found, &self.cookies) {
            Err(Obstacle::Refused(why)) => return Progress::Refused(why),
            Err(Obstacle::Ended) => return Progress::Declined(ENDED_BEFORE),
            Err(Obstacle::NotNow(_)) | Ok(()) => {}
        }
        // Its peer has nothing left to say that could be seen.
        if found.socket.iter().any(has_ended) {
            return Progress::Declined(ENDED_BEFORE);
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
        let plan = match self.plan(found, loads) {
            Ok(plan) => plan,
            Err(progress) => return progress,
        };
        self.seq_delta = plan.sides.map(|side| side.seq_delta);
        let is_idle = |side: Side| {
            let from = side.index();
            self.is_quiet(flow, found, loads, side)
                && self.promise(found, from)
                    <= self.room(&plan, found, from).max(FIRST_WINDOW_BYTES)
        };
        if Side::BOTH.into_iter().all(is_idle) {
            return self.begin_overlap(flow, ends, &plan, loads);
        }
        for from in 0..2 {
            self.clamp(ends, found, from, found.socket[1 - from].largest_window);
        }
        self.phase = Phase::Narrow;
        self.pause = SMALLEST_PAUSE;
        self.look(ends, loads)
    }

    fn plan(&mut self, found: &SegmentInspection, loads: [Load; 2]) -> Result<Plan, Progress> {
        match eligibility::plan(found, loads.map(|load| load.held)) {
            Ok(plan) => {
                self.not_now_since = None;
                Ok(plan)
            }
            Err(Obstacle::Refused(why)) => Err(Progress::Refused(why)),
            Err(Obstacle::NotNow(why)) => {
                // It passes; should it not, the pair is well where it is.
                let since = *self.not_now_since.get_or_insert_with(Instant::now);
                Err(if since.elapsed() > PATIENCE {
                    Progress::Declined(why)
                } else {
                    Progress::Later(SMALLEST_PAUSE * 2)
                })
            }
            Err(Obstacle::Ended) => Err(Progress::Declined(ENDED_BEFORE)),
        }
    }

    /// Nothing of this side's stream is under way as far as anybody here knows.
    fn is_quiet(
        &self,
        flow: &Flow,
        found: &SegmentInspection,
        loads: [Load; 2],
        side: Side,
    ) -> bool {
        let from = side.index();
        let noted = flow.marks(from) & mark::NOTED != 0;
        self.is_empty(found, loads[from], from)
            && (!noted || flow.side(from).high_seq.load(Relaxed) == found.socket[from].rcv_nxt)
    }

    /// All that the socket has of this side's stream has arrived at the other peer.
    fn is_empty(&self, found: &SegmentInspection, load: Load, from: usize) -> bool {
        let (near, far) = (&found.socket[from], &found.socket[1 - from]);
        near.copied_seq == near.rcv_nxt
            && load.held == 0
            && far.write_seq == near.rcv_nxt.wrapping_add(self.seq_delta[from])
            && far.snd_una == far.write_seq
    }

    /// Nobody has been promised more than there is room for at the other peer.
    pub(super) fn narrow(
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
        let plan = match self.plan(found, loads) {
            Ok(plan) => plan,
            Err(progress) => {
                // What stands in the way may have to be read first.
                self.may_read = [u64::MAX; 2];
                return progress;
            }
        };
        let quiet = Side::BOTH.map(|side| self.is_quiet(flow, found, loads, side));
        let idle = quiet == [true; 2] && self.pause > IDLE;
        let mut fits = true;
        for (from, quiet) in quiet.into_iter().enumerate() {
            let far = &found.socket[1 - from];
            let room = self.room(&plan, found, from);
            let promise = self.promise(found, from).max(self.clamp[from].into());
            let may_read = (room - i64::from(self.clamp[from])).max(0) as u32;
            self.may_read[from] = if may_read >= far.snd_wnd / PROMISE_PART {
                may_read
            } else if far.snd_una != far.write_seq {
                // A few bytes alone would wait long for their acknowledgement.
                0
            } else {
                // Its window is as large as it gets, and may have become smaller for good.
                self.clamp(ends, found, from, far.snd_wnd);
                far.snd_wnd
            }
            .into();
            fits &= promise <= room || quiet && promise <= FIRST_WINDOW_BYTES || idle;
        }
        if fits {
            self.begin_overlap(flow, ends, &plan, loads)
        } else {
            self.later_unless_moved(plan.sides.map(|side| side.edge))
        }
    }

    /// Has a socket promise no more than a part of what the other peer has room for.
    fn clamp(&mut self, ends: [&Endpoint; 2], found: &SegmentInspection, from: usize, window: u32) {
        let clamp = window / PROMISE_PART;
        // It goes on as it was where this fails, and the promise will hardly ever fit.
        let _ = socket_option::clamp_window(ends[from], clamp);
        // Windows are announced in steps.
        self.clamp[from] = clamp + (1 << found.socket[from].own_scale);
    }

    /// How much this side's peer may send behind what the relay has read, in bytes.
    fn promise(&self, found: &SegmentInspection, from: usize) -> i64 {
        let near = &found.socket[from];
        promised(near).wrapping_sub(near.copied_seq).into()
    }

    /// How much of that the other peer has room for, in bytes.
    fn room(&self, plan: &Plan, found: &SegmentInspection, from: usize) -> i64 {
        plan.sides[1 - from]
            .edge
            .wrapping_sub(self.seq_delta[from])
            .wrapping_sub(found.socket[from].copied_seq)
            .cast_signed()
            .into()
    }

    fn begin_overlap(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        plan: &Plan,
        loads: [Load; 2],
    ) -> Progress {
        reached("planned");
        for (next_byte, side) in self.gauge.next_byte.iter().zip(&plan.sides) {
            next_byte.store(side.next_byte, Relaxed);
        }
        flow.overlap(plan);
        reached("overlap");
        self.phase = Phase::Overlap;
        self.pause = SMALLEST_PAUSE;
        // Often there is nothing to empty.
        self.look(ends, loads)
    }

    /// Makes both peers send a segment, so that the program sees one.
    fn probe(&mut self, ends: [&Endpoint; 2]) {
        let is_due = match self.probed_at {
            // Where bytes flow a segment comes by itself.
            None => self.pause > SMALLEST_PAUSE,
            Some(at) => at.elapsed() > ANSWERED_ONCE_IN && self.probes_left > 0,
        };
        if is_due {
            self.probed_at = Some(Instant::now());
            self.probes_left -= 1;
            ends.into_iter().for_each(ask);
        }
    }

    pub(super) fn overlap(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        loads: [Load; 2],
    ) -> Progress {
        flow.renew();
        let mut settled = true;
        for (from, load) in loads.into_iter().enumerate() {
            let near = &found.socket[from];
            if near.flags & has::FOUND == 0 {
                // It was reset; the pair hears of it by its socket.
                return self.later();
            }
            flow.side(from).own_seq.store(own_seq(near), Relaxed);
            flow.side(from).cut.store(near.rcv_nxt, Relaxed);
            settled &= self.is_empty(found, load, from);
        }
        if !settled {
            reached("emptying");
            return self.later_unless_moved(found.socket.map(|socket| socket.snd_una));
        }
        for (from, load) in loads.iter().enumerate() {
            if load.ended {
                // It went through the sockets, and was acknowledged with the rest.
                let side = flow.side(from);
                side.fin_end.store(found.socket[from].rcv_nxt, Relaxed);
                side.marks.fetch_or(mark::FIN | mark::FIN_ACKED, Relaxed);
            }
        }
        reached("settled");
        flow.splice();
        reached("spliced");
        self.phase = Phase::Spliced;
        self.slept_at = Some(Instant::now());
        for end in ends {
            put_to_sleep(end, &self.ground);
            reached("asleep");
        }
        // What was on its way into a socket meanwhile shows at the next look.
        Progress::Spliced(SMALLEST_PAUSE)
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
            near.flags & has::FOUND != 0 && near.rcv_nxt != flow.side(from).cut.load(Relaxed)
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
