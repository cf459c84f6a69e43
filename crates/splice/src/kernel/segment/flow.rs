//! One flow, in the memory that this process shares with the program.
//!
//! ```text
//! Free ──▶ Watch ──▶ Overlap ◀──▶ Spliced ──▶ TimeWait ──▶ Free
//!                       ▲            │
//!                       ▼            │
//!                      Held ◀────────┘
//!                       └──▶ Returned ──▶ Free
//! ```
//!
//! The states and who changes them are in `bpf/segment/shared.h`.

mod streams;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::datapath::Datapath;
use super::liveness::Silence;
use super::translation::Translation;
use splice_bpf::clock::now_ns;
use splice_bpf::sequence::{self, raise};
use splice_bpf::types::{
    SegmentChangeOverSide, SegmentFlow, SegmentInspection, SegmentPlace, SegmentSide, SegmentTuple,
};
use splice_bpf::types::{segment_mark as mark, segment_state as state, segment_tracked as tracked};

/// How long a flow in OVERLAP goes on without its owner, which renews this with every look: an
/// owner that is alive looks at least every `LONGEST_OVERLAP_PAUSE`.
const OWNER_SILENT: Duration = Duration::from_secs(10);

/// How long an ended flow still translates; `TIME_WAIT_NS` in `bpf/segment/reset.h` says why.
pub(super) const TIME_WAIT: Duration = Duration::from_millis(3200);

/// How far the timestamp clock is ahead of all timestamps when it is stopped again: half of what the program
/// accepts as late (`TRANSIT_LIMIT_NS` in `bpf/segment/timestamp.h`), since it goes on sending timestamps meanwhile.
const STANDS_AHEAD: Duration = Duration::from_millis(500);

/// A flow and its slot. Dropping it ends the translation at once.
#[derive(Debug)]
pub(crate) struct Flow {
    datapath: Arc<Datapath>,
    slot: u32,
    serial: u32,
    tuples: [SegmentTuple; 2],
    /// Counted among the flows whose sockets may still send.
    awake: AtomicBool,
    /// Connection tracking knew the connections when it was last asked, or was never asked.
    tracked: AtomicBool,
    /// Each stream's first byte that the relay had not written when the change-over began.
    next_byte: [AtomicU32; 2],
    /// When the flow ended.
    offered_at: OnceLock<Instant>,
}

impl Flow {
    /// Makes the program note the segments of two connections. It does not change them.
    ///
    /// # Errors
    /// Why the flow cannot be entered.
    pub(super) fn watch(
        datapath: Arc<Datapath>,
        tuples: [SegmentTuple; 2],
        devices: [u32; 2],
        scales: [u8; 2],
    ) -> Result<Self, String> {
        let (slot, serial) = datapath
            .take_slot()
            .ok_or("no slot is left: too many pairs are at work or have just ended")?;
        let flow = Self {
            datapath,
            slot,
            serial,
            tuples,
            awake: AtomicBool::new(false),
            tracked: AtomicBool::new(true),
            next_byte: [const { AtomicU32::new(0) }; 2],
            offered_at: OnceLock::new(),
        };
        let entry = flow.entry();
        entry.state.store(state::FREE, Relaxed);
        for (side, scale) in entry.side.iter().zip(scales) {
            side.clear();
            side.window_left.store(scale, Relaxed);
            side.note_accepted(now_ns());
        }
        for socket in flow.change_over() {
            socket.clear();
        }
        for bytes in &entry.payload_bytes {
            bytes.store(0, Relaxed);
        }
        flow.datapath.cold(slot).first_ns.store(0, Relaxed);
        entry.moved_ns.store(now_ns(), Relaxed);
        entry.serial.store(serial, Relaxed);
        entry.state.store(state::WATCH, Release);
        for (side, tuple) in tuples.iter().enumerate() {
            let place = SegmentPlace {
                flow: slot,
                side: side as u32,
                device: devices[side],
                serial,
            };
            flow.datapath
                .enter(tuple, &place)
                .map_err(|errno| format!("the table of connections takes no more: {errno}"))?;
        }
        Ok(flow)
    }

    /// Has the program wake the pair when it holds the flow.
    pub(super) fn call(&self, waker: Waker) {
        self.datapath.calls().listen(self.slot, self.serial, waker);
    }

    pub(super) fn datapath(&self) -> &Datapath {
        &self.datapath
    }

    /// What the segments of side 0's and side 1's peer carry.
    pub(super) fn tuples(&self) -> &[SegmentTuple; 2] {
        &self.tuples
    }

    pub(super) fn entry(&self) -> &SegmentFlow {
        self.datapath.flow(self.slot)
    }

    pub(super) fn side(&self, index: usize) -> &SegmentSide {
        &self.entry().side[index]
    }

    /// What is known of both sides until the flow is spliced.
    pub(super) fn change_over(&self) -> &[SegmentChangeOverSide; 2] {
        &self.datapath.change_over(self.slot).side
    }

    /// Starts Overlap: each stream goes through the sockets until they are empty.
    pub(super) fn overlap(&self, plan: &Translation) {
        for (next_byte, plan) in self.next_byte.iter().zip(&plan.sides) {
            next_byte.store(plan.next_byte, Relaxed);
        }
        let sides = self.entry().side.iter().zip(self.change_over());
        for ((side, socket), plan) in sides.zip(&plan.sides) {
            for (word, value) in side.out.iter().zip(words(&plan.out)) {
                word.store(value, Relaxed);
            }
            side.out_device.store(plan.out_device, Relaxed);
            side.seq_delta.store(plan.seq_delta, Relaxed);
            side.ack_delta.store(plan.ack_delta, Relaxed);
            for (byte, value) in [
                (&side.window_left, plan.window_left),
                (&side.window_right, plan.window_right),
                (&side.flags, plan.flags),
                (&side.own_scale, plan.own_scale),
            ] {
                byte.store(value, Relaxed);
            }
            socket.clock.store(plan.clock, Relaxed);
            side.announced_edge.store(plan.announced_edge, Relaxed);
            socket.current_edge.store(plan.announced_edge, Relaxed);
            socket
                .acknowledged_by_socket
                .store(plan.acknowledged_by_socket, Relaxed);
            socket
                .takeover_seq
                .store(plan.acknowledged_by_socket, Relaxed);
            socket.sent.store(plan.sent, Relaxed);
            side.acked.store(plan.next_byte.into(), Relaxed);
            side.raise_recent_timestamp(plan.recent_timestamp, now_ns());
            side.largest_window.store(plan.largest_window, Relaxed);
            side.first_ack.store(plan.first_ack, Relaxed);
            // What the program noted may be newer, or forged.
            side.high_ack.store(plan.high_ack, Relaxed);
            side.edge.store(plan.edge, Relaxed);
            side.begin_high_seq(plan.high_seq);
        }
        self.wake();
        self.renew();
        // An inspection after this must not return a state from before.
        self.entry().state.store(state::OVERLAP, SeqCst);
        fence(SeqCst);
    }

    /// Adopts the state of the sockets; the program may have seen newer segments. Sequence numbers beyond what
    /// a peer may send were forged or damaged. Nobody would ever acknowledge them, and a stream that goes
    /// through the sockets would wait for that.
    pub(super) fn catch_up(&self, found: &SegmentInspection) {
        let are_distant = [0, 1].map(|side| self.is_distant(side));
        for (at, socket) in found.socket.iter().enumerate() {
            let (side, own) = (self.side(at), &self.change_over()[at]);
            if !are_distant[at] {
                side.raise_high_seq(socket.rcv_nxt);
                // A FIN takes one more.
                side.bound_high_seq(
                    side.announced_edge.load(Relaxed).wrapping_add(1),
                    socket.rcv_nxt,
                );
                // The last ACK that the socket sent, in case the program missed it.
                raise(&own.acknowledged_by_socket, socket.rcv_wup);
            }
            if !are_distant[1 - at] {
                raise(&side.high_ack, socket.snd_una);
                raise(&side.edge, socket.snd_una.wrapping_add(socket.snd_wnd));
                raise(&own.sent, socket.snd_nxt);
            }
        }
    }

    /// Returns to Overlap: the sockets have something to deliver.
    pub(super) fn overlap_again(&self) {
        self.wake();
        self.renew();
        let entry = self.entry();
        for side in &entry.side {
            // 0 would make the program choose one.
            if side.timestamp_floor.load(Relaxed) != 0 {
                let ahead = timestamp_ahead(side);
                side.timestamp_floor.store(ahead, Relaxed);
            }
        }
        // If the program has ended the flow meanwhile, it stays ended.
        for from in [state::SPLICED, state::HELD] {
            let _ = entry
                .state
                .compare_exchange(from, state::OVERLAP, SeqCst, Relaxed);
        }
        // This thread may have been off the CPU for longer than that.
        for side in &entry.side {
            let latest = side.latest_timestamp.load(SeqCst);
            if latest != 0 {
                raise(&side.timestamp_floor, latest);
            }
        }
    }

    /// The timestamp that a peer gets while the clock is stopped, and whether it counts microseconds. `None`
    /// while the clock runs.
    pub(super) fn standing_timestamp(&self, peer: usize) -> Option<(u32, bool)> {
        let from = self.side(1 - peer);
        let timestamp = from.timestamp_floor.load(Relaxed);
        (timestamp != 0).then(|| (timestamp, from.ticks_in_microseconds()))
    }

    pub(super) fn wake(&self) {
        if !self.awake.swap(true, Relaxed) {
            self.datapath.awake().fetch_add(1, Relaxed);
        }
    }

    /// The sockets send nothing more.
    pub(super) fn silence(&self) {
        if self.awake.swap(false, Relaxed) {
            self.datapath.awake().fetch_sub(1, Relaxed);
        }
    }

    /// Shows the program that the owner is alive.
    pub(super) fn renew(&self) {
        let deadline = now_ns() + OWNER_SILENT.as_nanos() as u64;
        self.entry().deadline_ns.store(deadline, Relaxed);
    }

    /// The owner looks at the flow. If it was silent for too long, the sockets have sent segments of their own
    /// with later timestamps. If the clock stayed where it was stopped, their peers would drop all segments.
    pub(super) fn look(&self, announced_edges: [u32; 2]) {
        let entry = self.entry();
        let now = now_ns();
        // Half of the time, since the deadline may pass at this moment.
        let soon = now + OWNER_SILENT.as_nanos() as u64 / 2;
        if entry.deadline_ns.load(Relaxed) < soon {
            let sides = entry.side.iter().zip(self.change_over());
            for (at, ((side, socket), announced_edge)) in sides.zip(announced_edges).enumerate() {
                if side.timestamp_floor.load(Relaxed) != 0 {
                    raise(
                        &side.timestamp_floor,
                        side.standing_at(now, socket.clock.load(Relaxed)),
                    );
                }
                if !self.is_distant(at) {
                    raise(&side.announced_edge, announced_edge);
                }
            }
        }
        self.renew();
    }

    /// Starts Spliced: the program translates every segment, and the timestamp clock runs on from where it
    /// was stopped.
    pub(super) fn splice(&self, found: &SegmentInspection) {
        let entry = self.entry();
        for (side, socket) in entry.side.iter().zip(&found.socket) {
            side.timestamp_delta.store(0, Relaxed);
            side.latest_timestamp.store(0, Relaxed);
            side.raise_recent_timestamp(socket.recent_timestamp, now_ns());
        }
        entry.state.store(state::SPLICED, Release);
    }

    /// The flow has ended, but the program translates late segments for a while.
    pub(super) fn begin_time_wait(&self) {
        let now = now_ns();
        let entry = self.entry();
        entry.last_ns.store(now, Relaxed);
        entry
            .deadline_ns
            .store(now + TIME_WAIT.as_nanos() as u64, Relaxed);
        entry.state.store(state::TIME_WAIT, Release);
    }

    /// Lets other flows have the slot once this one has been in TIME_WAIT for a while.
    pub(super) fn offer_slot(&self) {
        self.offered_at.get_or_init(|| {
            self.datapath
                .offer_slot(self.slot, self.serial, self.tuples)
        });
    }

    /// No other flow has taken the slot.
    fn has_slot(&self) -> bool {
        self.entry().serial.load(Acquire) == self.serial
    }

    /// How long the program still translates late segments. `None` if a new connection has taken the tuple, or
    /// another flow the slot.
    pub(super) fn time_wait_left(&self) -> Option<Duration> {
        let entry = self.entry();
        let in_time_wait = entry.state.load(Acquire) == state::TIME_WAIT;
        let deadline = entry.deadline_ns.load(Acquire);
        // Checked last: it proves that the values above are those of this flow.
        (in_time_wait && self.has_slot())
            .then(|| Duration::from_nanos(deadline.saturating_sub(now_ns())))
    }

    /// Makes connection tracking forget both connections. If it did not know them when they had just been in
    /// use, it is not asked again.
    pub(super) fn forget(&self) {
        if self.tracked.load(Relaxed) {
            // If the kernel cannot do it, the entries time out.
            let known = self.datapath.forget(&self.tuples).unwrap_or_default();
            self.tracked.store(known > 0, Relaxed);
        }
    }

    /// The program, or `begin_time_wait`, has ended the flow.
    pub(super) fn is_over(&self) -> bool {
        matches!(
            self.entry().state.load(Acquire),
            state::TIME_WAIT | state::FREE
        )
    }

    pub(super) fn marks(&self, side: usize) -> u32 {
        self.side(side).marks()
    }

    /// Whose reset the other peer may have accepted, and its number: nothing has come since that says otherwise.
    pub(super) fn doubtful_reset(&self) -> Option<(usize, u32)> {
        let side = (0..2).find(|side| self.marks(*side) & mark::DOUBTED != 0)?;
        Some((side, self.side(side).doubted_seq.load(Relaxed)))
    }

    /// For how long this side's peer has been silent.
    pub(super) fn silence_of(&self, side: usize) -> Silence {
        Silence::of(self.entry(), side, now_ns())
    }

    /// Which of the connections connection tracking knows. It may not be asked in vain.
    pub(super) fn is_tracked(&self) -> [bool; 2] {
        let known = self.datapath.tracked(&self.tuples).unwrap_or_default();
        known.map(|known| known & tracked::TRACKED != 0)
    }

    /// The end of this peer's window, if the other one has filled it and has asked for room since.
    pub(super) fn withholds_room(&self, side: usize) -> Option<u32> {
        let other = self.side(1 - side);
        other.asks_for_room(self.side(side))
    }

    /// Counts only what the other peer asks from now on.
    pub(super) fn forget_asking_for_room(&self, side: usize) {
        self.side(1 - side).take_mark(mark::PROBES);
    }

    /// Lets this side's socket, which sleeps, send to its peer.
    pub(super) fn begin_question(&self, side: usize) {
        self.side(side).add_mark(mark::ASKED);
        self.wake();
    }

    /// Both sockets sleep again.
    pub(super) fn end_questions(&self) {
        for side in &self.entry().side {
            side.take_mark(mark::ASKED);
        }
        self.silence();
    }

    /// This side's peer has reset the connection.
    pub(super) fn reset_by(&self, side: usize) {
        self.side(side).add_mark(mark::RST);
    }

    /// Ends the translation.
    pub(super) fn stop(&self) {
        self.entry().state.store(state::FREE, Release);
        self.silence();
    }

    /// How long ago the last byte was acknowledged.
    pub(super) fn idle_for(&self) -> Duration {
        let moved_ns = self.entry().moved_ns.load(Relaxed);
        Duration::from_nanos(now_ns().saturating_sub(moved_ns))
    }

    /// How long ago the first payload of side 1's peer was translated.
    pub(super) fn since_first(&self) -> Option<Duration> {
        let first_ns = self.datapath.cold(self.slot).first_ns.load(Relaxed);
        (first_ns != 0 && self.has_slot())
            .then(|| Duration::from_nanos(now_ns().saturating_sub(first_ns)))
    }

    #[cfg(test)]
    /// Translated payload, retransmissions included, in bytes.
    pub(super) fn payload_bytes(&self) -> u64 {
        let both = &self.entry().payload_bytes;
        both.iter().map(|bytes| bytes.load(Relaxed)).sum()
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.silence();
        self.datapath.calls().hang_up(self.slot, self.serial);
        let offered_at = self.offered_at.get().copied();
        self.datapath
            .give_back_slot(self.slot, self.serial, &self.tuples, offered_at);
    }
}

/// A timestamp that no translated one of this side's peer has reached; 0 where none is known. Retransmissions carry
/// those of the running clock, too, but the program notes none.
pub(super) fn timestamp_ahead(side: &SegmentSide) -> u32 {
    let stood = side.timestamp_floor.load(Relaxed);
    let latest = side.latest_timestamp.load(Relaxed);
    let newest = match (stood, latest) {
        (0, 0) => return 0,
        (0, one) | (one, 0) => one,
        (one, other) => sequence::later(one, other),
    };
    let ahead = ticks(STANDS_AHEAD, side.ticks_in_microseconds());
    newest.wrapping_add(ahead).max(1)
}

/// How often a timestamp clock ticks in `time`.
pub(super) fn ticks(time: Duration, in_microseconds: bool) -> u32 {
    let ticks = if in_microseconds {
        time.as_micros()
    } else {
        time.as_millis()
    };
    ticks as u32
}

/// A tuple as nine words, as the shared memory holds it.
fn words(tuple: &SegmentTuple) -> [u32; 9] {
    let mut bytes = [0; 36];
    bytes[..16].copy_from_slice(&tuple.source);
    bytes[16..32].copy_from_slice(&tuple.destination);
    bytes[32..34].copy_from_slice(&tuple.source_port);
    bytes[34..].copy_from_slice(&tuple.destination_port);
    let mut words = [0; 9];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    words
}
