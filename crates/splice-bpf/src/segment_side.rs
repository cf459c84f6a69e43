//! What a flow knows of one peer, in the memory that the program works on; `high_seq_and_marks` as the program takes
//! it apart (`bpf/segment/flow.h`).

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use crate::sequence::{is_before, raise};
use crate::types::{SegmentChangeOverSide, SegmentSide};
use crate::types::{segment_flag as flag, segment_mark as mark};

/// By how much the clock is ahead where it stands; `LEAD_NS` in `bpf/segment/timestamp.h` says why.
const LEAD: Duration = Duration::from_millis(250);

/// The unit of `accepted_at` and `waiting`, as a power of two of nanoseconds (`bpf/segment/shared.h`).
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
        self.high_seq_and_marks.load(Acquire) as u32
    }

    /// Its bits of [`segment_mark`](crate::types::segment_mark).
    pub fn marks(&self) -> u32 {
        (self.high_seq_and_marks.load(Acquire) >> u32::BITS) as u32
    }

    /// Marks the peer.
    pub fn add_mark(&self, added: u32) {
        self.high_seq_and_marks
            .fetch_or(u64::from(added) << u32::BITS, SeqCst);
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
        self.high_seq_and_marks
            .fetch_and(!(u64::from(taken) << u32::BITS), SeqCst);
    }

    /// As if the program had marked the peer.
    #[cfg(feature = "test")]
    pub fn add_marks(&self, marks: u32) {
        self.high_seq_and_marks
            .fetch_or(u64::from(marks) << u32::BITS, SeqCst);
    }

    /// The program notes the next segment as if it was the first one; before Overlap only.
    pub fn forget_noted(&self) {
        self.high_seq_and_marks.store(0, SeqCst);
    }

    /// Nothing is marked any more; the socket knows of so much.
    pub fn begin_high_seq(&self, known: u32) {
        let begun = |word: u64| {
            let noted = (word >> u32::BITS) as u32 & mark::NOTED != 0;
            let is_newer = noted && !is_before(word as u32, known);
            Some(u64::from(if is_newer { word as u32 } else { known }))
        };
        // It cannot fail.
        let _ = self.high_seq_and_marks.fetch_update(SeqCst, SeqCst, begun);
    }

    /// The peer has sent up to `to` at least.
    pub fn raise_high_seq(&self, to: u32) {
        let raised = |word: u64| {
            let marks = word >> u32::BITS << u32::BITS;
            is_before(word as u32, to).then_some(marks | u64::from(to))
        };
        // It fails where nothing is to be done.
        let _ = self
            .high_seq_and_marks
            .fetch_update(Relaxed, Relaxed, raised);
    }

    /// By the sockets nothing comes beyond `most`; the socket knows of so much.
    pub fn bound_high_seq(&self, most: u32, known: u32) {
        let bound = |word: u64| {
            let marks = word >> u32::BITS;
            let is_taken_over = marks as u32 & mark::TAKEN_OVER != 0;
            (!is_taken_over && is_before(most, word as u32))
                .then_some(marks << u32::BITS | u64::from(known))
        };
        // It fails where nothing is to be done.
        let _ = self
            .high_seq_and_marks
            .fetch_update(Relaxed, Relaxed, bound);
    }

    /// The stream ends there, and that was acknowledged.
    pub fn end_stream(&self, end: u32) {
        self.fin_end.store(end, SeqCst);
        let acknowledged = u64::from(mark::FIN | mark::FIN_ACKED);
        let ended = |word: u64| {
            let marks = word >> u32::BITS | acknowledged;
            Some(marks << u32::BITS | u64::from(end))
        };
        // It cannot fail.
        let _ = self.high_seq_and_marks.fetch_update(SeqCst, SeqCst, ended);
    }

    /// The peer's stream has ended there, as far as is known, and the other peer has acknowledged all of it.
    pub fn has_acknowledged_end(&self) -> bool {
        let acked = self.acked.load(Acquire) as u32;
        self.marks() & mark::FIN != 0 && acked == self.fin_end.load(Relaxed)
    }

    /// How long ago the peer last sent an acceptable segment, at `now_ns`.
    pub fn silent_for(&self, now_ns: u64) -> Duration {
        since(self.accepted_at.load(Relaxed), now_ns)
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
        // Its window is announced to it in steps.
        let step = 1 << (self.own_scale.load(Relaxed) & 15);
        let has_room = is_before(sent.wrapping_add(step - 1), edge);
        (self.marks() & mark::PROBES != 0 && !has_room).then_some(edge)
    }

    /// Nothing that the peer has sent before the end of its stream is missing, as far as is known.
    pub fn has_come_to_its_end(&self) -> bool {
        let marks = self.marks();
        let before_fin = self.fin_end.load(Relaxed).wrapping_sub(1);
        let is_delivered = !is_before(self.acked.load(Relaxed) as u32, before_fin);
        marks & mark::FIN != 0 && (marks & mark::GAP == 0 || is_delivered)
    }

    /// A segment of the peer was accepted at `now_ns`.
    pub fn note_accepted(&self, now_ns: u64) {
        self.accepted_at.store(ticks_of(now_ns), Relaxed);
    }

    /// Nothing is known of the peer.
    pub fn clear(&self) {
        self.high_seq_and_marks.store(0, Relaxed);
        self.timestamp_delta.store(0, Relaxed);
        self.acked.store(0, Relaxed);
        for word in [
            &self.out_device,
            &self.seq_delta,
            &self.ack_delta,
            &self.timestamp_floor,
            &self.high_ack,
            &self.edge,
            &self.announced_edge,
            &self.latest_timestamp,
            &self.recent_timestamp,
            &self.recent_seconds,
            &self.largest_window,
            &self.doubted_seq,
            &self.first_ack,
            &self.fin_end,
            &self.accepted_at,
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

/// What `accepted_at` and `waiting` say for a time of CLOCK_MONOTONIC; `ticks_of` in `bpf/segment/flow.h`.
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
            &self.acknowledged_by_socket,
            &self.takeover_seq,
            &self.sent,
            &self.current_edge,
            &self.seen_device,
            &self.seen_hops,
            &self.held_end,
        ] {
            word.store(0, Relaxed);
        }
    }
}
