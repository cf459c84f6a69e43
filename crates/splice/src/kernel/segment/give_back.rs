//! The way back: both sockets of a spliced pair take their connections up again, where these stand now, and user space
//! moves the bytes.
//!
//! ```text
//!              no program runs that     both sockets stand where      they have sent what
//!              has not seen this        their peers are               was under way once more
//! Spliced ──▶ Held ───────────────────────────────────────▶ Returned ───────────────────────▶ over
//!    ▲          │
//!    │          ▼ a late segment has reached a socket, which has to deliver it
//!    └────── Overlap
//! ```
//!
//! A socket claims to have received what the other peer has acknowledged, and to have sent what its own has: nobody here
//! has the bytes between. Their sender sends them again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{getpeername, getsockname};

use super::Segment;
use super::change_over::Asleep;
use super::flow::Flow;
use super::sockets::{self, addresses_of, wake};
use crate::endpoint::Endpoint;
use crate::kernel::{Aftermath, KernelCounters as _, Next, PairView, Returned, Turn};
use crate::outcome::{Reason, Side};
use splice_base::repair;
use splice_bpf::types::{SegmentInspection, SegmentSocket, segment_socket_flag as has};
use splice_firewall::Tracking;

/// How soon to look again for the end of a wait, should its call get lost.
const LOOKS_EVERY: Duration = Duration::from_millis(200);

/// How long a socket waits for an end of stream that its peer has sent past it: as long as a flow that is over translates
/// retransmissions.
const FIN_WAIT: Duration = Duration::from_secs(3);

/// Between two looks at sockets that catch up: each pause is twice the one before.
const SHORTEST_PAUSE: Duration = Duration::from_millis(8);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

impl Segment {
    /// Takes the next step of a pair that the program holds.
    pub(super) fn give_back(&mut self, flow: &Arc<Flow>, pair: &mut PairView<'_>) -> Turn {
        let wait = self
            .wait
            .get_or_insert_with(|| self.datapath.grace().ask((pair.waker)()));
        if !wait.is_over() {
            return Turn::Holds(Next::ASLEEP.until(pair.now + LOOKS_EVERY));
        }
        self.wait = None;
        let found = match self.datapath.inspect(flow.tuples()) {
            Ok(found) if self.change_over.finds_both(&found) => found,
            // It was reset, of which the pair hears by its own event.
            Ok(_) | Err(_) => return Turn::Holds(Next::ASLEEP.until(pair.now + LOOKS_EVERY)),
        };
        let sleepers = self.change_over.look_at_sleepers(&found, false, pair.now);
        if sleepers == Asleep::Late {
            pair.ends.into_iter().for_each(wake);
            self.restore_timers(pair.ends);
            flow.overlap_again();
            self.change_over.overlap_again();
            return Turn::Holds(Next::PUMP);
        }
        for side in Side::BOTH {
            if let Err(errno) = take_up(pair.ends[side.index()], flow, &found, side) {
                let errno = errno.raw_os_error();
                return Turn::Ends(Reason::Failed { side, errno });
            }
        }
        let has_ended = [0, 1].map(|side| flow.has_ended(side));
        let moved_bytes = self.counters.moved_bytes();
        let why = match flow.untranslatable() {
            Some((side, how)) => format!("segment: {side:?}'s segments {how}"),
            None => "segment: the pair was given back".into(),
        };
        let_pass(flow);
        flow.return_to_sockets();
        for side in Side::BOTH {
            let end = pair.ends[side.index()];
            sockets::go_on(end);
            if has_ended[side.index()] {
                // It cannot fail.
                let _ = repair::expect_no_end(end, FIN_WAIT);
            }
            if has_ended[side.other().index()] {
                // It fails only if the peer has reset the connection, of which the pair hears by its own event.
                let _ = end.end_stream();
            }
        }
        self.restore_timers(pair.ends);
        for direction in pair.directions.iter_mut() {
            direction.hold_at(u64::MAX);
        }
        Turn::Returned(Returned {
            moved_bytes,
            has_ended,
            why: why.into(),
            left: Box::new(CatchUp {
                flow: Arc::clone(flow),
                pause: SHORTEST_PAUSE,
            }),
        })
    }

    /// Sets the sockets as they were before they slept.
    fn restore_timers(&mut self, ends: [&Endpoint; 2]) {
        if let Some(peers) = self.peers.take() {
            peers.restore(ends);
        }
    }
}

/// Connection tracking has seen nothing of what went past the sockets, and would call what comes now invalid.
fn let_pass(flow: &Flow) {
    let is_tracked = flow.is_tracked();
    if is_tracked == [false; 2] {
        return;
    }
    let Ok(mut tracking) = Tracking::new() else {
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

/// Keeps a flow until both sockets have caught up with their peers, or are gone.
#[derive(Debug)]
struct CatchUp {
    flow: Arc<Flow>,
    pause: Duration,
}

impl Aftermath for CatchUp {
    fn look(&mut self, now: Instant) -> Option<Instant> {
        if self.flow.has_caught_up() || !self.flow.has_sockets() {
            self.flow.stop();
            return None;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Some(now + pause)
    }
}

/// Has this side's socket take its connection up again. It stays in repair mode, and is silent.
fn take_up(
    end: &Endpoint,
    flow: &Flow,
    found: &SegmentInspection,
    side: Side,
) -> Result<(), Errno> {
    let socket: &SegmentSocket = &found.socket[side.index()];
    let stands = flow.standing(side.index());
    let timestamps = socket.flags & has::TIMESTAMPS != 0;
    let standing = repair::Standing {
        local: SocketAddr::try_from(getsockname(end)?)?,
        peer: SocketAddr::try_from(getpeername(end)?.ok_or(Errno::NOTCONN)?)?,
        send_next: stands.send_next,
        receive_next: stands.receive_next,
        peer_mss: socket.peer_mss.try_into().unwrap_or(u16::MAX),
        scales: [socket.peer_scale, socket.own_scale],
        sack: socket.flags & has::SACK != 0,
        timestamps,
        windows: [stands.window, stands.largest_window],
        room: stands.room,
    };
    repair::take_up(end, &standing)?;
    if timestamps && stands.timestamp != 0 {
        repair::advance_timestamps(end, stands.timestamp, stands.in_microseconds)?;
    }
    Ok(())
}
