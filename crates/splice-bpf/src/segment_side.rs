//! What a flow knows of one peer, in the memory that the program works on; `reach` as the program takes it
//! apart (`bpf/segment/overlap.h`).

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use crate::sequence::{is_behind, raise};
use crate::types::{SegmentChangeOverSide, SegmentSide};
use crate::types::{segment_flag as flag, segment_mark as mark};

/// By how much the clock is ahead where it stands; `LEAD_NS` in `bpf/segment/timestamp.h` says why.
const LEAD: Duration = Duration::from_millis(250);

/// The unit of `heard` and `waiting`, as a power of two of nanoseconds (`bpf/segment/shared.h`).
const SEGMENT_TICK_SHIFT: u32 = 20;

impl SegmentSide {
    /// The stamps of its translated segments count microseconds, not milliseconds.
    pub fn ticks_in_microseconds(&self) -> bool {
        self.flags.load(Relaxed) & flag::MICROSECONDS != 0
    }

    /// Where the clock stands that begins to stand at `now_ns`, and showed `clock` at time 0.
    pub fn standing_at(&self, now_ns: u64, clock: u32) -> u32 {
        let tick_ns = if self.ticks_in_microseconds() {
            1_000
        } else {
            1_000_000
        };
        let ticks = (now_ns + LEAD.as_nanos() as u64) / tick_ns;
        (ticks as u32).wrapping_add(clock)
    }

    /// The end of what the peer has sent.
    pub fn high_seq(&self) -> u32 {
        self.reach.load(Acquire) as u32
    }

    /// Its bits of [`segment_mark`](crate::types::segment_mark).
    pub fn marks(&self) -> u32 {
        (self.reach.load(Acquire) >> u32::BITS) as u32
    }

    /// Marks the peer.
    pub fn add_mark(&self, added: u32) {
        self.reach.fetch_or(u64::from(added) << u32::BITS, SeqCst);
    }

    /// The peer's receiver compares timestamps with this one, if not with a later one, since `now_ns`.
    pub fn raise_recent_timestamp(&self, to: u32, now_ns: u64) {
        let now_seconds = (now_ns / 1_000_000_000) as u32;
        self.recent_seconds.store(now_seconds, Relaxed);
        if self.recent_timestamp.load(Relaxed) == 0 {
            self.recent_timestamp.store(to, Relaxed);
        } else {
            raise(&self.recent_timestamp, to);
        }
    }

    /// Takes a mark away.
    pub fn take_mark(&self, taken: u32) {
        self.reach
            .fetch_and(!(u64::from(taken) << u32::BITS), SeqCst);
    }

    /// As if the program had marked the peer.
    #[cfg(feature = "test")]
    pub fn add_marks(&self, marks: u32) {
        self.reach.fetch_or(u64::from(marks) << u32::BITS, SeqCst);
    }

    /// The program notes the next segment as if it was the first one; before Overlap only.
    pub fn forget_noted(&self) {
        self.reach.store(0, SeqCst);
    }

    /// Nothing is marked any more; the socket knows of so much.
    pub fn begin_reach(&self, known: u32) {
        let begun = |reach: u64| {
            let noted = (reach >> u32::BITS) as u32 & mark::NOTED != 0;
            let is_newer = noted && !is_behind(reach as u32, known);
            Some(u64::from(if is_newer { reach as u32 } else { known }))
        };
        // It cannot fail.
        let _ = self.reach.fetch_update(SeqCst, SeqCst, begun);
    }

    /// The peer has sent up to `to` at least.
    pub fn raise_high_seq(&self, to: u32) {
        let raised = |reach: u64| {
            let marks = reach >> u32::BITS << u32::BITS;
            is_behind(reach as u32, to).then_some(marks | u64::from(to))
        };
        // It fails where nothing is to be done.
        let _ = self.reach.fetch_update(Relaxed, Relaxed, raised);
    }

    /// By the sockets nothing comes beyond `most`; the socket knows of so much.
    pub fn bound_high_seq(&self, most: u32, known: u32) {
        let bound = |reach: u64| {
            let marks = reach >> u32::BITS;
            let is_past = marks as u32 & mark::PAST != 0;
            (!is_past && is_behind(most, reach as u32))
                .then_some(marks << u32::BITS | u64::from(known))
        };
        // It fails where nothing is to be done.
        let _ = self.reach.fetch_update(Relaxed, Relaxed, bound);
    }

    /// The stream ends there, and that was acknowledged.
    pub fn end_reach(&self, end: u32) {
        self.fin_end.store(end, SeqCst);
        let acknowledged = u64::from(mark::FIN | mark::FIN_ACKED);
        let ended = |reach: u64| {
            let marks = reach >> u32::BITS | acknowledged;
            Some(marks << u32::BITS | u64::from(end))
        };
        // It cannot fail.
        let _ = self.reach.fetch_update(SeqCst, SeqCst, ended);
    }

    /// The peer's stream has ended there, as far as is known, and the other peer has acknowledged all of it.
    pub fn has_acknowledged_end(&self) -> bool {
        let acked = self.acked.load(Acquire) as u32;
        self.marks() & mark::FIN != 0 && acked == self.fin_end.load(Relaxed)
    }

    /// How long ago the peer last sent what the other one takes, at `now_ns`.
    pub fn silent_for(&self, now_ns: u64) -> Duration {
        since(self.heard.load(Relaxed), now_ns)
    }

    /// For how long the peer has waited for an acknowledgement, if it does.
    pub fn waits_for(&self, now_ns: u64) -> Option<Duration> {
        let waiting = self.waiting.load(Relaxed);
        (waiting != 0).then(|| since(waiting, now_ns))
    }

    /// The end of the other peer's window, if the peer has filled it and has asked for more room since.
    pub fn asks_for_room(&self, other: &Self) -> Option<u32> {
        let edge = other.edge.load(Relaxed);
        let sent = self.high_seq().wrapping_add(self.seq_delta.load(Relaxed));
        // It is told its window in steps.
        let step = 1 << (self.own_scale.load(Relaxed) & 15);
        let has_room = is_behind(sent.wrapping_add(step - 1), edge);
        (self.marks() & mark::PROBES != 0 && !has_room).then_some(edge)
    }

    /// Nothing that the peer has sent before the end of its stream is missing, as far as is known.
    pub fn has_come_to_its_end(&self) -> bool {
        let marks = self.marks();
        let before_fin = self.fin_end.load(Relaxed).wrapping_sub(1);
        let is_delivered = !is_behind(self.acked.load(Relaxed) as u32, before_fin);
        marks & mark::FIN != 0 && (marks & mark::GAP == 0 || is_delivered)
    }

    /// The peer was heard at `now_ns`.
    pub fn hear(&self, now_ns: u64) {
        self.heard.store(ticks_of(now_ns), Relaxed);
    }

    /// Nothing is known of the peer.
    pub fn clear(&self) {
        self.reach.store(0, Relaxed);
        self.timestamp_delta.store(0, Relaxed);
        self.acked.store(0, Relaxed);
        for word in [
            &self.out_device,
            &self.seq_delta,
            &self.ack_delta,
            &self.timestamp_floor,
            &self.high_ack,
            &self.edge,
            &self.promised,
            &self.latest_timestamp,
            &self.recent_timestamp,
            &self.recent_seconds,
            &self.largest_window,
            &self.doubted_seq,
            &self.first_ack,
            &self.fin_end,
            &self.heard,
            &self.waiting,
        ] {
            word.store(0, Relaxed);
        }
        for byte in [
            &self.window_left,
            &self.window_right,
            &self.flags,
            &self.own_scale,
        ] {
            byte.store(0, Relaxed);
        }
    }
}

/// What `heard` and `waiting` say for a time of CLOCK_MONOTONIC; `ticks_of` in `bpf/segment/flow.h`.
fn ticks_of(now_ns: u64) -> u32 {
    ((now_ns >> SEGMENT_TICK_SHIFT) as u32).max(1)
}

/// The time since `ticks`. The program's clock is up to a jiffy late, but may have been read later.
fn since(ticks: u32, now_ns: u64) -> Duration {
    let past = ticks_of(now_ns).wrapping_sub(ticks).cast_signed().max(0);
    Duration::from_nanos(u64::from(past.cast_unsigned()) << SEGMENT_TICK_SHIFT)
}

impl SegmentChangeOverSide {
    /// Nothing is known of the peer.
    pub fn clear(&self) {
        for word in [
            &self.clock,
            &self.cut,
            &self.border,
            &self.sent,
            &self.room_end,
            &self.seen_device,
            &self.seen_hops,
            &self.held_end,
        ] {
            word.store(0, Relaxed);
        }
    }
}
