//! How far a pair has changed over, and what to do next.
//!
//! ```text
//!     the program is          both peers'      both streams bypass the sockets,
//!     attached to both        segments were    which are empty
//!     devices                 seen
//! New ────────────────▶ Watching ────▶ Overlap ───────────────────────────────▶ Spliced ──▶ over
//!  │                        │             ▲                                        │
//!  └───────────┬────────────┘             └────────────────────────────────────────┘
//!              ▼                              a late segment reached a socket
//!           refused
//! ```
//!
//! Of these the program knows Watching to Spliced (`enum segment_state` in `bpf/segment/shared.h`).
//!
//! This file neither reads a clock nor asks the kernel: `turn.rs` passes in the sockets, the streams and the
//! time, and does what is decided here.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use super::Asked;
use super::eligibility::{
    NotedSegment, Obstacle, announced_edge, can_go_on, device, examine, has_ended, is_own, was_seen,
};
use super::translation::Translation;
use crate::kernel::{Cause, Refusal};
use crate::outcome::Side;
use splice_bpf::types::{SegmentInspection, SegmentSocket};

/// The first pause between two looks at a pair, which is one tick of the loop's timer, and the longest one
/// while its segments are watched.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// The longest pause in Overlap. Each pause is twice the one before, so a delayed acknowledgement, which
/// often comes last (`TCP_DELACK_MAX`, 200 ms), is found soon enough. A receiver that does not read may keep
/// a pair in Overlap for hours, and thousands of pairs at once. Their streams bypass the sockets all the same.
pub(super) const LONGEST_OVERLAP_PAUSE: Duration = Duration::from_secs(1);

/// How often to look at a pair whose sockets sleep. A reset wakes the pair, but any packet can get lost. This
/// is often enough that ended pairs do not pile up, and rare enough to cost nothing.
pub(super) const SLEEPING_PAUSE: Duration = Duration::from_secs(20);

/// How long a pair waits until the program sees its segments, or until a gap closes: a round trip to a far
/// peer, and a retransmission.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// How often the peers are probed, and how far apart. A peer that does not read answers only now and then
/// (`net.ipv4.tcp_invalid_ratelimit`, 500 ms), and its last answer may have gone to the socket's own window
/// probe.
const PROBES: u32 = 3;
const BETWEEN_PROBES: Duration = Duration::from_millis(600);

/// How soon a socket without a route looks for one again: it does so when it sends, which that of an idle pair does not. Each
/// time is twice the one before.
const FIRST_SEARCH_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_SEARCH_PAUSE: Duration = Duration::from_secs(64);

/// More may have been announced to a silent peer than the other peer has room for, but no more than this: a
/// connection's first window (`tcp_rmem[1]` leaves room for 64 KiB) and a half. To overrun the receiver it
/// would have to send more than the receiver's whole window before it learns of that window.
const FIRST_WINDOW_BYTES: i32 = 96 << 10;

/// Silence of this length is no gap in a transfer.
const IDLE: Duration = Duration::from_millis(16);

/// How long a socket may still send after it was put to sleep: a delayed acknowledgement waits for 200 ms at
/// most (`TCP_DELACK_MAX`).
const LAST_ACK_WITHIN: Duration = Duration::from_millis(250);

/// Why the engine declines a pair one of whose streams is closed.
pub(super) const ENDED_BEFORE: &str = "a stream had ended before it was taken";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    New,
    Watching,
    Overlap,
    Spliced,
}

/// What user space has of one side's stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    /// Read from one socket, and not yet written to the other.
    pub(super) in_flight_bytes: usize,
    /// User space has passed on the end of the stream.
    pub(super) has_ended: bool,
}

/// What a look at the pair came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// User space goes on copying; look again after this long.
    Copying(Duration),
    /// The pair stays in user space.
    Refused(Refusal),
    /// The sockets sleep; look again after this long.
    Spliced(Duration),
    /// Look again at once: a sleeping socket has something to deliver, or the pair goes back.
    Again,
    /// This side's peer has been silent for too long.
    GivenUp(Side),
}

fn stays(cause: Cause, why: impl Into<Cow<'static, str>>) -> Watched {
    Watched::Stays(Progress::Refused(cause.because(why)))
}

/// What a look at a watched pair came to.
#[derive(Debug)]
pub(super) enum Watched {
    /// Overlap can begin.
    Translatable(Translation),
    /// The program has seen no segment of this side's peer, which is to come in on this device.
    Unseen {
        side: Side,
        device: u32,
        is_probe_due: bool,
    },
    /// This side's socket has no route.
    Unrouted(Side),
    Stays(Progress),
}

/// What a look at sleeping sockets came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asleep {
    /// A late segment has reached one of them, which has to deliver it.
    Late,
    /// They may still send a delayed acknowledgement; look again after this long.
    MaySend(Duration),
    Silent,
}

/// Where a pair stands on its way from user space into the kernel.
#[derive(Debug)]
pub(super) struct ChangeOver {
    phase: Phase,
    cookies: [u64; 2],
    asked: Asked,
    /// The next pause between two looks.
    pause: Duration,
    probed_at: Option<Instant>,
    probes_left: u32,
    /// When a socket without a route looks for one again, and the pause after that.
    search: Option<(Instant, Duration)>,
    seq_delta: [u32; 2],
    /// In Overlap: where each stream was last found empty, and since when it has stood there.
    idle_since: [Option<(u32, Instant)>; 2],
    /// In Overlap: what each peer had acknowledged at the last look.
    acked: [u32; 2],
    /// What the sockets had received when they were put to sleep. `rcv_wup` would not do: a segment that
    /// came in between was acknowledged, and still has to be delivered.
    slept_with: [u32; 2],
    /// The first look at the sleeping sockets.
    asleep_since: Option<Instant>,
}

impl ChangeOver {
    pub(super) fn new(asked: Asked) -> Self {
        Self {
            phase: Phase::New,
            cookies: [0; 2],
            asked,
            pause: SHORTEST_PAUSE,
            probed_at: None,
            probes_left: PROBES,
            search: None,
            seq_delta: [0; 2],
            idle_since: [None; 2],
            acked: [0; 2],
            slept_with: [0; 2],
            asleep_since: None,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes may bypass the sockets.
    pub(super) fn has_taken(&self) -> bool {
        matches!(self.phase, Phase::Overlap | Phase::Spliced)
    }

    /// The program watches the segments of the sockets with these cookies.
    pub(super) fn begin_watching(&mut self, cookies: [u64; 2]) {
        self.phase = Phase::Watching;
        self.cookies = cookies;
    }

    /// Whether Overlap can begin. `noted` is what the program has noted of each peer's segments, and whether only that
    /// tells that it sees them.
    pub(super) fn watch(
        &self,
        found: &SegmentInspection,
        streams: [Stream; 2],
        noted: [Option<NotedSegment>; 2],
        only_noted: [bool; 2],
        is_admitted: bool,
        now: Instant,
    ) -> Watched {
        // A peer whose stream has ended may send nothing more that the program could see.
        if !self.finds_both(found) || found.socket.iter().any(has_ended) {
            return stays(Cause::State, ENDED_BEFORE);
        }
        match examine(found, &self.cookies, self.asked) {
            Err(Obstacle::Refused(refusal)) => return Watched::Stays(Progress::Refused(refusal)),
            Err(Obstacle::Ended) => return stays(Cause::State, ENDED_BEFORE),
            Err(Obstacle::Unrouted(side)) => return Watched::Unrouted(side),
            Err(Obstacle::NotNow | Obstacle::Short) => {
                return Watched::Stays(Progress::Copying(LONGEST_PAUSE));
            }
            Ok(()) => {}
        }
        if !self.asked.bypasses_firewall && !is_admitted {
            let why = "its route has changed since the packet filters were asked";
            return stays(Cause::Network, why);
        }
        for side in Side::BOTH {
            let noted = noted[side.index()];
            if !was_seen(found, side.index(), noted, only_noted[side.index()]) {
                return Watched::Unseen {
                    side,
                    device: device(&found.socket[side.index()]),
                    is_probe_due: self.is_probe_due(now),
                };
            }
            if !can_go_on(found, side.index(), noted) {
                let why = format!(
                    "{}'s segments arrive with a TTL of 1, so they cannot be forwarded",
                    self.asked.peers.of(side)
                );
                return stays(Cause::Network, why);
            }
        }
        let in_flight = streams.map(|stream| stream.in_flight_bytes);
        Watched::Translatable(Translation::between(found, in_flight))
    }

    fn is_probe_due(&self, now: Instant) -> bool {
        match self.probed_at {
            // Where bytes flow, a segment comes without a probe.
            None => self.pause > SHORTEST_PAUSE,
            Some(at) => self.probes_left > 0 && now.duration_since(at) > BETWEEN_PROBES,
        }
    }

    pub(super) fn probed(&mut self, now: Instant) {
        self.probed_at = Some(now);
        self.probes_left -= 1;
    }

    /// Whether a socket that has no route is to look for one now. It is told so once.
    pub(super) fn begins_search(&mut self, now: Instant) -> bool {
        let (due_at, pause) = self.search.unwrap_or((now, FIRST_SEARCH_PAUSE));
        let is_due = due_at <= now;
        if is_due {
            self.search = Some((now + pause, (pause * 2).min(LONGEST_SEARCH_PAUSE)));
        }
        is_due
    }

    /// Looks again later, or gives up when the last probe has had no answer. Once bytes may bypass the
    /// sockets it is too late for that.
    pub(super) fn later_or(&mut self, now: Instant, refusal: Refusal) -> Progress {
        let is_unanswered = |at| now.duration_since(at) > SEEN_WITHIN;
        if self.probes_left == 0 && self.probed_at.is_some_and(is_unanswered) && !self.has_taken() {
            return Progress::Refused(refusal);
        }
        self.later()
    }

    /// Looks again after a pause that is twice the one before.
    pub(super) fn later(&mut self) -> Progress {
        let pause = self.pause;
        let longest = match self.phase {
            Phase::Overlap => LONGEST_OVERLAP_PAUSE,
            _ => LONGEST_PAUSE,
        };
        self.pause = (pause * 2).min(longest);
        Progress::Copying(pause)
    }

    /// How the sequence spaces lie to one another, before the program knows.
    pub(super) fn prepare_overlap(&mut self, translation: &Translation) {
        self.seq_delta = translation.sides.map(|side| side.seq_delta);
    }

    /// The program acts on the translation.
    pub(super) fn begin_overlap(&mut self) {
        self.phase = Phase::Overlap;
        self.pause = SHORTEST_PAUSE;
    }

    /// None of the pair's own sockets is gone.
    pub(super) fn finds_both(&self, found: &SegmentInspection) -> bool {
        let mut sockets = found.socket.iter().zip(self.cookies);
        sockets.all(|(socket, cookie)| is_own(socket, cookie))
    }

    /// This is the pair's own socket on that side.
    pub(super) fn is_own(&self, socket: &SegmentSocket, side: usize) -> bool {
        is_own(socket, self.cookies[side])
    }

    /// Where the side's stream bypasses the sockets from the start of Overlap, if it does: it is empty, and
    /// not much more was announced to its peer, which is silent, than the other peer has room for.
    pub(super) fn takeover_seq_at_once(
        &self,
        translation: &Translation,
        found: &SegmentInspection,
        stream: Stream,
        from: usize,
    ) -> Option<u32> {
        let near = &found.socket[from];
        let edge = translation.sides[1 - from]
            .edge
            .wrapping_sub(self.seq_delta[from]);
        let room = edge.wrapping_sub(near.rcv_nxt).cast_signed();
        let announced = announced_edge(near)
            .wrapping_sub(near.rcv_nxt)
            .cast_signed();
        let is_safe = announced <= room.max(FIRST_WINDOW_BYTES);
        (is_safe && self.is_empty(found, stream, from)).then_some(near.rcv_nxt)
    }

    /// Where the side's stream, which goes through the sockets, begins to bypass them, if it does: it is empty,
    /// and has been for a while.
    pub(super) fn takeover_seq_when_idle(
        &mut self,
        found: &SegmentInspection,
        stream: Stream,
        from: usize,
        now: Instant,
    ) -> Option<u32> {
        let end = found.socket[from].rcv_nxt;
        (self.is_empty(found, stream, from) && self.idle_for(from, end, now) > IDLE).then_some(end)
    }

    /// For how long the side's stream has stood at `end`.
    fn idle_for(&mut self, from: usize, end: u32, now: Instant) -> Duration {
        match &mut self.idle_since[from] {
            Some((at, since)) if *at == end => now.duration_since(*since),
            idle_since => {
                *idle_since = Some((end, now));
                Duration::ZERO
            }
        }
    }

    /// Everything that the socket has of this side's stream has arrived at the other peer.
    pub(super) fn is_empty(&self, found: &SegmentInspection, stream: Stream, from: usize) -> bool {
        let (near, far) = (&found.socket[from], &found.socket[1 - from]);
        near.copied_seq == near.rcv_nxt
            && stream.in_flight_bytes == 0
            && far.write_seq == near.rcv_nxt.wrapping_add(self.seq_delta[from])
            && far.snd_una == far.write_seq
    }

    /// The sockets are not empty yet. Looks often as long as the peers acknowledge more, and after `most` at the latest.
    pub(super) fn keep_emptying(&mut self, found: &SegmentInspection, most: Duration) -> Progress {
        let acked = found.socket.map(|socket| socket.snd_una);
        if std::mem::replace(&mut self.acked, acked) != acked {
            self.pause = SHORTEST_PAUSE;
        }
        self.pause = self.pause.min(most);
        self.later()
    }

    /// The program translates everything, and the sockets sleep.
    pub(super) fn splice(&mut self, found: &SegmentInspection) -> Progress {
        self.phase = Phase::Spliced;
        self.asleep_since = None;
        self.slept_with = found.socket.map(|socket| socket.rcv_nxt);
        // The next look shows what reached a socket in the meantime.
        Progress::Spliced(SHORTEST_PAUSE)
    }

    /// Both streams have ended without the sockets, which sleep now. `found` is missing where the kernel did
    /// not answer.
    pub(super) fn end_in_overlap(&mut self, found: Option<&SegmentInspection>) {
        self.phase = Phase::Spliced;
        self.asleep_since = None;
        if let Some(found) = found {
            self.slept_with = found.socket.map(|socket| socket.rcv_nxt);
        }
    }

    /// Whether the sockets have received nothing since they were put to sleep. A segment that the program
    /// let pass before Overlap may reach a socket late. The socket acknowledges it, so it has to deliver it.
    /// The socket of a flow that is over has nobody to deliver it to.
    pub(super) fn look_at_sleepers(
        &mut self,
        found: &SegmentInspection,
        is_over: bool,
        now: Instant,
    ) -> Asleep {
        let is_late = |from: usize| {
            let near = &found.socket[from];
            self.is_own(near, from) && near.rcv_nxt != self.slept_with[from]
        };
        if !is_over && (0..2).any(is_late) {
            return Asleep::Late;
        }
        // From the first look on: the turn that put the sockets to sleep may have begun long before.
        let since = *self.asleep_since.get_or_insert(now);
        let left = LAST_ACK_WITHIN.saturating_sub(now.duration_since(since));
        if left.is_zero() {
            Asleep::Silent
        } else {
            Asleep::MaySend(left)
        }
    }

    /// The sockets were woken to deliver what came late.
    pub(super) fn overlap_again(&mut self) {
        self.phase = Phase::Overlap;
        self.pause = SHORTEST_PAUSE;
    }
}
