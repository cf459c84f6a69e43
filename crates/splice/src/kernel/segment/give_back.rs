//! The way back: both sockets of a spliced pair take their connections up again, where these stand now, and user space
//! moves the bytes.
//!
//! ```text
//!            no program runs that     both sockets stand where      they have sent what
//!            has not seen this        their peers are               was under way once more
//! Spliced ──▶ Held ─────────────────────────────────────▶ Returned ───────────────────────▶ over
//!    ▲       ▲  │
//!    │       │  ▼ a late segment has reached a socket, which has to deliver it
//!    └────▶ Overlap
//! ```
//!
//! Of a stream that is taken over, nobody here has what is under way. One socket claims to have received what
//! the other peer has acknowledged, and the other to have sent it; the peer sends the rest again. A stream that has not
//! left the sockets goes on where it is, with what they hold of it (`leftover.rs`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{getpeername, getsockname};

use super::Segment;
use super::change_over::{Asleep, Phase, Stream};
use super::flow::Flow;
use super::leftover::{self, Leftover, Way};
use super::sockets::{self, addresses_of, wake};
use super::standing::is_gone;
use crate::endpoint::Endpoint;
use crate::kernel::{
    self, Aftermath, Cause, KernelCounters as _, KernelEngine as _, Next, PairView, Returned, Turn,
};
use crate::outcome::{Reason, Side};
use splice_base::repair::{self, Refusal, Repair, RepairQueue};
use splice_base::shortage::{is_of_descriptors, is_shortage};
use splice_base::socket_option;
use splice_bpf::sequence::distance;
use splice_bpf::types::{SegmentInspection, SegmentSocket, segment_socket_flag as has};

/// How soon to look again for the end of a wait, should its call get lost.
const LOOKS_EVERY: Duration = Duration::from_millis(200);

/// How long a socket waits for an end of stream that its peer has sent without it: as long as a flow that is over translates
/// retransmissions.
const FIN_WAIT: Duration = Duration::from_secs(3);

/// After an answer to what it does not expect, a peer gives no other one for so long (`tcp_invalid_ratelimit`, half a second
/// unless it is set), and some more.
const ANSWERS_AGAIN_AFTER: Duration = Duration::from_millis(600);

/// Between two looks at sockets that catch up: each pause is twice the one before.
const SHORTEST_PAUSE: Duration = Duration::from_millis(8);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// How soon to try again whether a socket may take its connection up.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// How often to try it again at once with a socket that has left its connection already, and the pauses between. The loop
/// waits: at most 10 ms.
const TRIES: u32 = 25;
const TRY_PAUSE: Duration = Duration::from_micros(400);

impl Segment {
    /// Takes the next step of a pair that the program holds.
    pub(super) fn give_back(
        &mut self,
        flow: &Arc<Flow>,
        pair: &mut PairView<'_>,
        streams: [Stream; 2],
    ) -> Turn {
        // Of one that is spliced `end` tells.
        if let Some(side) = self.reset_by() {
            return fails(flow, pair.ends, Reason::Reset(side));
        }
        let strays = [0, 1].map(|side| flow.strays_to(side));
        for device in strays.into_iter().flatten() {
            // Where it cannot be attached, a socket waits until the other peer has sent again what was translated.
            if self.awaits_program(device, pair.now) {
                return Turn::Holds(Next::ASLEEP.until(pair.now + SHORTEST_PAUSE));
            }
        }
        let wait = self
            .wait
            .get_or_insert_with(|| self.datapath.grace().ask((pair.waker)()));
        if !wait.is_over() {
            return Turn::Holds(Next::ASLEEP.until(pair.now + LOOKS_EVERY));
        }
        // A socket takes its connection up only where there is a way. Nothing of it may come in by a device without the
        // program meanwhile: another socket would answer.
        if let Err(pause) = self.prepare_ways(pair.now) {
            return Turn::Holds(Next::ASLEEP.until(pair.now + pause));
        }
        // Nor where something refuses it that has not been asked about, such as a program of a control group.
        for side in Side::BOTH {
            match self.may_take_up(pair.ends[side.index()]) {
                Ok(()) => {}
                // Nobody can try it.
                Err(Refusal::Now(errno))
                    if is_of_descriptors(errno) && !self.shortage.bears(pair.now) => {}
                Err(Refusal::Now(_)) if self.bears_refusal(pair.now) => {
                    return Turn::Holds(Next::ASLEEP.until(pair.now + REFUSED_PAUSE));
                }
                Err(Refusal::Now(errno) | Refusal::Always(errno)) => {
                    return fails(flow, pair.ends, Reason::of_errno(side, errno));
                }
            }
        }
        self.wait = None;
        // From here on they send nothing.
        for end in pair.ends {
            let _ = repair::repair(end, Repair::On);
        }
        let found = self.datapath.inspect(flow.tuples()).ok();
        let found = found.filter(|found| self.change_over.finds_both(found));
        if found.is_none() && self.change_over.phase() == Phase::Spliced {
            // It was reset, which the pair learns by its own event.
            return Turn::Holds(Next::ASLEEP.until(pair.now + LOOKS_EVERY));
        }
        // In Overlap it may have ended in order, and the other one still has to deliver its stream.
        let ways = found.and_then(|found| {
            let ways = self.ways_back(flow, &found, streams, pair.now)?;
            Some((found, ways))
        });
        let Some((found, ways)) = ways else {
            pair.ends.into_iter().for_each(wake);
            self.restore_timers(pair.ends);
            flow.overlap_again();
            self.change_over.overlap_again();
            return Turn::Holds(Next::PUMP);
        };
        let has_ended = [0, 1].map(|from| match ways[from] {
            Way::TakenOver => flow.has_ended(from) || streams[from].has_ended,
            Way::BySockets => streams[from].has_ended,
        });
        let leftover = match leftover::of(flow, pair.ends, &found, ways, has_ended) {
            Ok(leftover) => leftover,
            Err((side, errno)) => return fails(flow, pair.ends, Reason::of_errno(side, errno)),
        };
        for (side, leftover) in Side::BOTH.into_iter().zip(&leftover) {
            let end = pair.ends[side.index()];
            if let Err(errno) = take_up(end, flow, &found, side, leftover) {
                return fails(flow, pair.ends, Reason::of_errno(side, errno));
            }
        }
        let moved_bytes = self.counters.moved_bytes();
        let refusal = self
            .why_back(flow)
            .unwrap_or_else(|| Cause::State.because("the reason is over"));
        // Whoever watches filters, routes and devices tells of them.
        if flow.untranslatable().is_some() {
            self.datapath.returns().tell(&refusal.why, pair.now);
        }
        self.let_pass(flow);
        flow.return_to_sockets(leftover.each_ref().map(Leftover::sent_to));
        // One that comes from here on goes to its socket.
        if let Some(side) = self.reset_by() {
            return Turn::Ends(Reason::Reset(side));
        }
        for (side, leftover) in Side::BOTH.into_iter().zip(&leftover) {
            let end = pair.ends[side.index()];
            sockets::go_on(end);
            if let Err(errno) = repair::write_all(end, RepairQueue::None, &leftover.unsent) {
                return fails(flow, pair.ends, Reason::of_errno(side, errno));
            }
            if leftover.has_end {
                // It cannot fail.
                let _ = repair::expect_no_end(end, FIN_WAIT);
            }
            if has_ended[side.other().index()] {
                // It fails only if the peer has reset the connection, which the pair learns by its own event.
                let _ = end.end_stream();
            }
        }
        self.restore_timers(pair.ends);
        for direction in pair.directions.iter_mut() {
            direction.hold_at(u64::MAX);
            // The events of what is left came before.
            direction.read_again();
        }
        Turn::Returned(Returned {
            moved_bytes,
            has_ended,
            ends_after_bytes: leftover
                .each_ref()
                .map(|left| left.has_end.then_some(left.unread.len() as u64)),
            refusal,
            left: Box::new(CatchUp {
                flow: Arc::clone(flow),
                pause: SHORTEST_PAUSE,
                gone_since: None,
            }),
        })
    }

    /// Whether to wait until sockets are no longer refused what they have to do. Meanwhile nothing gets through to the
    /// peers, and a socket would give them up after a time.
    fn bears_refusal(&mut self, now: Instant) -> bool {
        let since = *self.refused_since.get_or_insert(now);
        now < since + self.datapath.settings().retries().waits_at_most()
    }

    /// Why the pair has to go back, if it has.
    pub(super) fn why_back(&self, flow: &Flow) -> Option<kernel::Refusal> {
        let untranslatable = flow.untranslatable();
        untranslatable
            .map(|(side, how)| {
                let why = format!("{}'s segments {how}", self.asked.peers.of(side));
                Cause::Network.because(why)
            })
            // First: where the program comes first then, others count as filters after it.
            .or_else(|| self.why_not_seen())
            .or_else(|| self.why_not_bypassing())
    }

    /// How the streams go on, or `None` while they cannot: a socket has to deliver something first.
    pub(super) fn ways_back(
        &mut self,
        flow: &Flow,
        found: &SegmentInspection,
        streams: [Stream; 2],
        now: Instant,
    ) -> Option<[Way; 2]> {
        if self.change_over.phase() == Phase::Spliced {
            let sleepers = self.change_over.look_at_sleepers(found, false, now);
            return (sleepers != Asleep::Late).then_some([Way::TakenOver; 2]);
        }
        let [one, other] = [0, 1].map(|from| Way::of(flow, found, streams[from], from));
        Some([one?, other?])
    }

    /// What can be known of it while the socket still has its connection. In Overlap it may have none any more.
    fn may_take_up(&self, end: &Endpoint) -> Result<(), Refusal> {
        let Ok([local, peer]) = addresses(end) else {
            return Ok(());
        };
        let is_transparent = socket_option::is_transparent(end).unwrap_or(false);
        self.datapath.may_take_up(&local, &peer, is_transparent)
    }

    /// Connection tracking has seen nothing of what was translated, and would call what comes now invalid.
    fn let_pass(&self, flow: &Flow) {
        let is_tracked = flow.is_tracked();
        if is_tracked == [false; 2] {
            return;
        }
        let Some(mut tracking) = self.datapath.tracking() else {
            return;
        };
        for (tuple, _) in flow
            .tuples()
            .iter()
            .zip(is_tracked)
            .filter(|(_, known)| *known)
        {
            let (local, peer) = addresses_of(tuple);
            // Without the module nf_conntrack_netlink nobody can tell it.
            let _ = tracking.be_liberal(peer, local);
        }
    }

    /// Sets the sockets as they were before they slept.
    pub(super) fn restore_timers(&mut self, ends: [&Endpoint; 2]) {
        if let Some(peers) = self.peers.take() {
            peers.restore(ends);
        }
    }
}

/// Keeps a flow until both sockets have caught up with their peers, or are gone.
///
/// The reset of a socket that is gone may not have counted: it stood where its peer can have got, and not where it is.
/// The peer has answered that only if it had not just answered the socket's question. So both are reset once more.
#[derive(Debug)]
struct CatchUp {
    flow: Arc<Flow>,
    pause: Duration,
    gone_since: Option<Instant>,
}

impl Aftermath for CatchUp {
    fn look(&mut self, now: Instant) -> Option<Instant> {
        // Should it fail, the next look finds them.
        let found = self.flow.datapath().inspect(self.flow.tuples());
        if found.is_ok_and(|found| found.socket.iter().all(is_gone)) {
            let resets_at = *self.gone_since.get_or_insert(now) + ANSWERS_AGAIN_AFTER;
            if now < resets_at {
                return Some(resets_at);
            }
            self.flow.reset_where_peers_are();
            self.flow.stop();
            return None;
        }
        if found.is_ok_and(|found| self.flow.has_caught_up(&found)) {
            self.flow.stop();
            return None;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Some(now + pause)
    }
}

/// Without a route, by a route or a rule that says so, and by a policy (`fib_props`, `xfrm_lookup_with_ifid`).
fn is_no_way(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL | Errno::PERM
    )
}

/// Ends a pair that cannot go back. A socket that still has its connection resets it when it is closed, with the number
/// that the program gives it. `closed` resets those that have none.
fn fails(flow: &Flow, ends: [&Endpoint; 2], reason: Reason) -> Turn {
    ends.into_iter().for_each(wake);
    flow.overlap_again();
    Turn::Ends(reason)
}

fn addresses(end: &Endpoint) -> Result<[SocketAddr; 2], Errno> {
    let local = SocketAddr::try_from(getsockname(end)?)?;
    let peer = getpeername(end)?.ok_or(Errno::NOTCONN)?;
    Ok([local, SocketAddr::try_from(peer)?])
}

/// Has this side's socket take its connection up again. It stays in repair mode, and is silent.
fn take_up(
    end: &Endpoint,
    flow: &Flow,
    found: &SegmentInspection,
    side: Side,
    leftover: &Leftover,
) -> Result<(), Errno> {
    let socket: &SegmentSocket = &found.socket[side.index()];
    let stands = flow.standing(side.index());
    let timestamps = socket.flags & has::TIMESTAMPS != 0;
    let [local, peer] = addresses(end)?;
    let standing = repair::Standing {
        local,
        peer,
        send_next: leftover.send_next,
        receive_next: leftover.receive_next,
        sent: &leftover.sent,
        unread: &leftover.unread,
        peer_mss: socket.peer_mss.try_into().unwrap_or(u16::MAX),
        scales: [socket.peer_scale, socket.own_scale],
        sack: socket.flags & has::SACK != 0,
        timestamps,
        windows: [
            distance(leftover.send_next, stands.window_end),
            stands.largest_window,
        ],
        room: distance(leftover.receive_next, stands.announced_edge),
    };
    let mut tries = 0..TRIES;
    loop {
        match repair::take_up(end, &standing) {
            // Its way was open a moment ago, and most are soon open again. There is nothing to go back to.
            Err(errno) if (is_no_way(errno) || is_shortage(errno)) && tries.next().is_some() => {
                thread::sleep(TRY_PAUSE);
            }
            done => break done?,
        }
    }
    if timestamps && stands.timestamp != 0 {
        repair::advance_timestamps(end, stands.timestamp, stands.in_microseconds)?;
    }
    Ok(())
}
