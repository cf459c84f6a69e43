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

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::net::{getpeername, getsockname, sockopt};

use crate::bpf_types::{SegmentInspection, SegmentSocket, SegmentTuple};
use crate::bpf_types::{segment_mark as mark, segment_socket_flag as has};
use crate::endpoint::Endpoint;
use crate::outcome::{Reason, Side};
use crate::socket_option::{self, Repair};
use eligibility::{Obstacle, examine, plan, was_seen};
use flow::{Flow, now_ns};
use ground::Ground;

/// How long a pair waits to be seen by the program: a round trip to a far peer, and a repetition.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a pair that changes over is looked at: at first, and at last.
const SMALLEST_PAUSE: Duration = Duration::from_millis(1);
const LARGEST_PAUSE: Duration = Duration::from_millis(64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Watching,
    Overlap,
    Spliced,
}

/// What the pair tells about one of its directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes in the relay's hand.
    pub(crate) held: usize,
    /// Bytes that were given to the receiving socket.
    pub(crate) given_bytes: u64,
    /// The end of the stream was passed on by the relay.
    pub(crate) ended: bool,
}

/// How a change-over goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Go on copying, and look again after this long.
    Later(Duration),
    /// Stay with the engine that the pair has.
    Refused(Cow<'static, str>),
    /// Leave the sockets alone from now on.
    Spliced,
}

/// A pair on its way to, or on, this engine.
#[derive(Debug)]
pub(crate) struct Segment {
    flow: Flow,
    tuples: [SegmentTuple; 2],
    /// Of side 0 and side 1: the relay's end and the peer's.
    addresses: [(SocketAddr, SocketAddr); 2],
    cookies: [u64; 2],
    phase: Phase,
    began: Instant,
    pause: Duration,
    probed: bool,
    /// Where counting began: the bytes given by then, and the number of the next one.
    given_bytes: [u64; 2],
    next_byte: [u32; 2],
    seq_delta: [u32; 2],
}

impl Segment {
    /// Takes a pair on, or says why not.
    pub(crate) fn begin(
        ground: &Arc<Ground>,
        ends: &[Endpoint; 2],
    ) -> Result<Self, Cow<'static, str>> {
        let mut cookies = [0; 2];
        let mut addresses = Vec::with_capacity(2);
        for (end, cookie) in ends.iter().zip(&mut cookies) {
            let pair = address_pair(end).ok_or("an end is not a TCP connection")?;
            addresses.push(pair);
            *cookie = sockopt::socket_cookie(end)
                .map_err(|errno| format!("a socket has no cookie: {errno}"))?;
        }
        let addresses = [addresses[0], addresses[1]];
        let tuples = addresses.map(|(local, peer)| tuple_of(local, peer));
        let found = ground
            .inspect(&tuples)
            .map_err(|errno| format!("the sockets cannot be looked at: {errno}"))?;
        examine(&found, &cookies).map_err(|obstacle| match obstacle {
            Obstacle::Refused(why) => why,
            Obstacle::NotNow(why) => why.into(),
        })?;
        let devices = [0, 1].map(|side: usize| eligibility::device(&found.socket[side]));
        for device in devices {
            ground
                .stand_on(device)
                .map_err(|error| Cow::from(error.to_string()))?;
        }
        let scales = [0, 1].map(|side: usize| found.socket[side].peer_scale);
        let flow = Flow::watch(Arc::clone(ground), tuples, devices, scales)?;
        Ok(Self {
            flow,
            tuples,
            addresses,
            cookies,
            phase: Phase::Watching,
            began: Instant::now(),
            pause: SMALLEST_PAUSE,
            probed: false,
            given_bytes: [0; 2],
            next_byte: [0; 2],
            seq_delta: [0; 2],
        })
    }

    pub(crate) fn is_spliced(&self) -> bool {
        self.phase == Phase::Spliced
    }

    /// Bytes may already go past the sockets.
    pub(crate) fn has_begun(&self) -> bool {
        self.phase != Phase::Watching
    }

    /// Sees how far the change-over has come, and takes the next step.
    pub(crate) fn look(&mut self, ends: &[Endpoint; 2], loads: [Load; 2]) -> Progress {
        let found = match self.flow.ground().inspect(&self.tuples) {
            Ok(found) => found,
            Err(errno) => {
                return self.later_or(format!("the sockets cannot be looked at: {errno}"));
            }
        };
        match self.phase {
            Phase::Watching => self.watch(ends, &found, loads),
            Phase::Overlap => self.overlap(ends, &found, loads),
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
        ends: &[Endpoint; 2],
        found: &SegmentInspection,
        loads: [Load; 2],
    ) -> Progress {
        if let Err(Obstacle::Refused(why)) = examine(found, &self.cookies) {
            return Progress::Refused(why);
        }
        for side in Side::BOTH {
            let entry = self.flow.side(side.index());
            let noted = (self.flow.marks(side.index()) & mark::NOTED != 0).then(|| {
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
            Err(Obstacle::NotNow(why)) => return self.later_or(why),
        };
        // Should this process die, the peers must not take a FIN for the end of the stream.
        ends.iter().for_each(Endpoint::reset_on_close);
        self.given_bytes = loads.map(|load| load.given_bytes);
        self.next_byte = plan.sides.map(|side| side.next_byte);
        self.seq_delta = plan.sides.map(|side| side.seq_delta);
        self.flow.overlap(&plan);
        self.phase = Phase::Overlap;
        self.pause = SMALLEST_PAUSE;
        // Often there is nothing to empty.
        self.look(ends, loads)
    }

    /// Makes both peers send a segment, so that the program sees one.
    fn probe(&mut self, ends: &[Endpoint; 2]) {
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
        ends: &[Endpoint; 2],
        found: &SegmentInspection,
        loads: [Load; 2],
    ) -> Progress {
        self.flow.renew();
        let mut settled = true;
        for from in 0..2 {
            let (near, far) = (&found.socket[from], &found.socket[1 - from]);
            if near.flags & has::FOUND == 0 {
                // It was reset; the pair hears of it by its socket.
                return self.later();
            }
            self.flow.side(from).cut.store(near.rcv_nxt, Relaxed);
            settled &= near.copied_seq == near.rcv_nxt
                && loads[from].held == 0
                && far.write_seq == near.rcv_nxt.wrapping_add(self.seq_delta[from])
                && self.is_acknowledged(1 - from, far);
        }
        if !settled {
            return self.later();
        }
        for from in 0..2 {
            let (near, far) = (&found.socket[from], &found.socket[1 - from]);
            let side = self.flow.side(from);
            let promised = near.rcv_wup.wrapping_add(near.rcv_wnd);
            side.promised.store(promised, Relaxed);
            side.stamp_floor.store(stamp_now(far), Relaxed);
            if loads[from].ended {
                // It went through the sockets, and was acknowledged with the rest.
                side.fin_end.store(near.rcv_nxt, Relaxed);
                side.marks.fetch_or(mark::FIN | mark::FIN_ACKED, Relaxed);
            }
        }
        self.flow.splice();
        self.phase = Phase::Spliced;
        ends.iter().for_each(put_to_sleep);
        Progress::Spliced
    }

    /// The peer has all that the relay's own socket sent.
    fn is_acknowledged(&self, side: usize, socket: &SegmentSocket) -> bool {
        let high_ack = self.flow.side(side).high_ack.load(Relaxed);
        socket.snd_una == socket.write_seq || high_ack.wrapping_sub(socket.write_seq) < 1 << 31
    }

    /// Why the flow is over, once it is.
    pub(crate) fn end(&self) -> Option<Reason> {
        let marks = [0, 1].map(|side| self.flow.marks(side));
        if !self.is_spliced() {
            return None;
        }
        for side in Side::BOTH {
            if marks[side.index()] & mark::RST != 0 {
                return Some(Reason::Reset(side));
            }
        }
        let all_over = marks.iter().all(|marks| marks & mark::FIN_ACKED != 0);
        if all_over && !self.flow.is_over() {
            // The last of it was seen in OVERLAP, where the program leaves the end to us.
            self.flow.linger();
        }
        all_over.then_some(Reason::EndOfStream)
    }

    /// What a direction has moved so far, in bytes.
    pub(crate) fn moved_bytes(&self, direction: usize) -> u64 {
        if self.phase == Phase::Watching {
            return 0;
        }
        let acked = self.flow.acked_since(direction, self.next_byte[direction]);
        self.given_bytes[direction] + acked
    }

    /// For how long no byte has moved.
    pub(crate) fn idle_for(&self) -> Duration {
        self.flow.idle_for()
    }

    /// Payload that the program has translated, in bytes.
    pub(crate) fn translated_bytes(&self) -> u64 {
        self.flow.payload_bytes()
    }

    /// Ends the flow before its end. To be called when the sockets are closed.
    pub(crate) fn reset_both(self) {
        let numbers = [0, 1].map(|side| {
            let (near, far) = (self.flow.side(side), self.flow.side(1 - side));
            let seq = far.high_seq.load(Relaxed).wrapping_add(far.seq_delta.load(Relaxed));
            (seq, near.high_seq.load(Relaxed))
        });
        let addresses = self.addresses;
        drop(self.flow);
        for ((local, peer), (seq, ack)) in addresses.into_iter().zip(numbers) {
            // Should it fail, the peer's next segment finds no socket and is answered with a
            // reset by the kernel.
            let _ = socket_option::reset(local, peer, seq, ack);
        }
    }

    /// Lets late segments through for a while after the end.
    pub(crate) fn into_flow(self) -> Flow {
        self.flow
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
