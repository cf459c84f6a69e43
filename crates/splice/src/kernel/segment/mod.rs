//! `segment`: a tc program translates the segments of each connection into those of the other, and the
//! relay's sockets sleep.
//!
//! ```text
//! peer of a ──segment──▶ tc ingress: addresses, ports, sequence numbers, timestamps ──segment──▶ peer of b
//! ```
//!
//! `change_over.rs` has the states in which a pair gets there, while bytes are under way, without losing
//! or holding back a segment.
//!
//! Once the relay stops adding bytes of its own, the offset between the two sequence spaces is fixed. With
//! `in_flight` bytes in user space it is `b.write_seq + in_flight - a.copied_seq`. So every byte has one
//! place in the receiver's sequence space, whichever way it travels.
//!
//! In Overlap the program sends a stream through the sockets until nothing of it is under way; then the stream
//! bypasses them. The window stops a sender in full flow: the program lets the sockets announce no window
//! beyond the one before. The sender reaches the end of that, and the relay delivers what it has. The
//! acknowledgement of the last byte carries the window of the other peer. The earlier window may be larger
//! than that window; the other peer would drop what lies beyond it, so those bytes go through the sockets.

mod admission;
mod calls;
mod change_over;
mod counters;
mod courses;
pub(crate) mod datapath;
pub(crate) mod eligibility;
pub(crate) mod flow;
mod flow_slots;
pub(crate) mod forward;
mod give_back;
mod grace;
mod leftover;
mod liveness;
pub(crate) mod pace;
mod patience;
mod returns;
#[cfg(test)]
mod sample;
mod sleepers;
mod sockets;
mod standing;
#[cfg(test)]
mod tests;
mod time_wait;
mod translation;
mod turn;

/// The change-over has taken a step. Tests halt there, or kill the process.
#[cfg(not(test))]
fn reached(_step: &str) {}
#[cfg(test)]
use tests::halt::reached;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::{Aftermath, DirectionView, KernelCounters, KernelEngine, PairView, Profile, Turn};
use crate::endpoint::Endpoint;
use crate::firewall::{Doubt, Pass};
use crate::name::EngineName;
use crate::options::Options;
use crate::outcome::{PeerNames, Reason, Side};
use crate::reactor::Notifier;
use crate::routing::Routed;
use change_over::{ChangeOver, Phase};
use counters::SegmentCounters;
use datapath::{Attached, Datapath};
use flow::Flow;
use grace::Wait;
use sleepers::Peers;
use sockets::addresses_of;
use splice_base::shortage::Shortage;
use splice_bpf::types::segment_mark as mark;
use time_wait::TimeWait;

/// What the caller has asked for, of one pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// The packet filters are not asked.
    pub(crate) bypasses_firewall: bool,
    /// What the peers are called.
    pub(crate) peers: PeerNames,
}

impl Asked {
    pub(crate) fn by(options: &Options) -> Self {
        Self {
            bypasses_firewall: options.bypass_firewall,
            peers: options.peer_names,
        }
    }
}

/// A pair on its way to this engine, or on it.
#[derive(Debug)]
pub(crate) struct Segment {
    datapath: Arc<Datapath>,
    /// The loop waits while the program is attached to a device.
    waits: bool,
    asked: Asked,
    /// The packet filters let the pair's segments pass.
    pass: Option<Pass>,
    /// Where the pair's segments go is watched.
    routed: Option<Routed>,
    /// The program is attached to the device of each side, or was.
    attached: [Option<Arc<Attached>>; 2],
    /// The pair waits for the packet filters to be examined.
    doubted: Option<Doubt>,
    /// Another thread attaches the program: nothing changes before then.
    begins_at: Option<Instant>,
    change_over: ChangeOver,
    counters: Arc<SegmentCounters>,
    /// Once a peer has been silent, or the sockets sleep.
    peers: Option<Box<Peers>>,
    /// The program holds the pair, and may still run as if it did not.
    wait: Option<Wait>,
    /// Since when a socket may not take its connection up, which it should.
    refused_since: Option<Instant>,
    /// Of what it takes to go back.
    shortage: Shortage,
}

impl Segment {
    /// With `waits`, the loop of the first pair on a device waits while the program is attached to it.
    /// Otherwise the pair goes on in user space until then.
    pub(crate) fn new(datapath: Arc<Datapath>, waits: bool, asked: Asked) -> Self {
        Self {
            datapath,
            waits,
            asked,
            pass: None,
            routed: None,
            attached: [None, None],
            doubted: None,
            begins_at: None,
            change_over: ChangeOver::new(asked),
            counters: Arc::default(),
            peers: None,
            wait: None,
            refused_since: None,
            shortage: Shortage::default(),
        }
    }

    /// Why the flow is over, if it is.
    fn end(&self) -> Option<Reason> {
        let flow = self.counters.flow()?;
        if self.change_over.phase() != Phase::Spliced {
            return None;
        }
        if let Some(side) = self.reset_by() {
            return Some(Reason::Reset(side));
        }
        let all_over = flow.is_all_acknowledged();
        if all_over && !flow.is_over() {
            // The program saw the last of it in OVERLAP, where user space ends the flow.
            flow.begin_time_wait();
        }
        all_over.then_some(Reason::EndOfStream)
    }

    /// Resets the other connection once more, whose socket is closed. The program may have passed the reset on to where it got
    /// lost: by a way that has just changed, or nowhere, where there was none a moment ago. Nobody else sends it again.
    fn pass_reset_on(&self, flow: &Flow, by: Side) {
        let other = by.other().index();
        let [seq, ack] = [flow.got_by(other), flow.side(other).high_seq()];
        // A peer that has got it discards another one. Should it fail, there is no way to the peer.
        let _ = self
            .datapath
            .reset(addresses_of(&flow.tuples()[other]), seq, ack);
    }

    /// Resets both connections, whose sockets are closed, where the flow ends early.
    fn reset_both(&self, flow: &Flow) {
        let seq_ack = [0, 1].map(|side| {
            let (near, far) = (flow.side(side), flow.side(1 - side));
            let seq = if flow.is_taken_over(1 - side) {
                let past = far.high_seq();
                past.wrapping_add(far.seq_delta.load(Relaxed))
            } else {
                flow.change_over()[side].sent.load(Relaxed)
            };
            (seq, near.high_seq())
        });
        for (tuple, (seq, ack)) in flow.tuples().iter().zip(seq_ack) {
            // Should it fail, the peer's next segment finds no socket, and the kernel answers it with a
            // reset.
            let _ = self.datapath.reset(addresses_of(tuple), seq, ack);
        }
    }
}

impl KernelEngine for Segment {
    fn profile(&self) -> &'static Profile {
        &Profile {
            name: EngineName::Segment,
            why_picked: "it lived long or moved much, and its segments can be translated",
            left_to_user_space: "segment leaves all bytes before its change-over to user space",
            redirects: false,
        }
    }

    fn has_taken(&self) -> bool {
        self.change_over.has_taken()
    }

    fn turn(&mut self, pair: &mut PairView<'_>) -> Turn {
        let turn = self.step(pair);
        if matches!(turn, Turn::Refused(_) | Turn::Returned(_))
            && self.change_over.phase() != Phase::New
        {
            pair.ends.into_iter().for_each(Endpoint::end_on_close);
        }
        turn
    }

    fn counters(&self) -> Arc<dyn KernelCounters> {
        Arc::clone(&self.counters) as Arc<dyn KernelCounters>
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        // Of the end of a pair the program tells through its own socket, by a reset that it makes of the last segment.
        Some(Arc::clone(self.datapath.calls()) as Arc<dyn Notifier>)
    }

    fn reset_by(&self) -> Option<Side> {
        let flow = self.counters.flow().filter(|_| self.has_taken())?;
        Side::BOTH
            .into_iter()
            .find(|side| flow.marks(side.index()) & mark::RST != 0)
    }

    fn release(&mut self, ends: [&Endpoint; 2], _directions: [&dyn DirectionView; 2]) -> [u64; 2] {
        match self.change_over.phase() {
            Phase::New => {}
            // A process that is being started may hold duplicates until its exec. The tuples have to be free
            // for `reset_both` all the same. Sleeping sockets send nothing when they are disconnected.
            Phase::Spliced => {
                let all_over = self.end().is_some();
                let held = ends.into_iter().filter(|end| !all_over || end.is_shared());
                held.for_each(sockets::disconnect);
            }
            // Both streams go through the sockets, which end them.
            Phase::Watching => ends.into_iter().for_each(Endpoint::end_on_close),
            Phase::Overlap => {
                let flow = self.counters.flow();
                for (peer, end) in ends.into_iter().enumerate() {
                    let stopped = flow.and_then(|flow| flow.standing_timestamp(peer));
                    if let Some((timestamp, in_microseconds)) = stopped {
                        sockets::advance_timestamps(end, timestamp, in_microseconds);
                    }
                    end.end_on_close();
                }
            }
        }
        self.counters.moved_bytes()
    }

    fn closed(&mut self, reason: Reason) -> Option<Box<dyn Aftermath>> {
        let flow = Arc::clone(self.counters.flow()?);
        flow.silence();
        // After a doubtful reset its receiver may still be there.
        let is_sure = flow.doubtful_reset().is_none();
        // A reset that came while it went back, or while there was no way, has not been passed on. Nor would what a peer
        // sends afterwards, so that nobody would answer it.
        let has_passed = !flow.goes_back() && !flow.loses_segments();
        let is_over = self.end() == Some(reason) && is_sure && has_passed;
        if !is_over {
            flow.stop();
            if self.has_taken() && reason.is_truncation() {
                self.reset_both(&flow);
            }
        } else if let Reason::Reset(by) = reason {
            self.pass_reset_on(&flow, by);
        }
        // The rules of a host may let only what belongs to a known connection pass.
        if self.has_taken() {
            flow.forget();
        }
        is_over.then(|| Box::new(TimeWait::new(flow)) as Box<dyn Aftermath>)
    }

    #[cfg(test)]
    fn carried_bytes(&self) -> u64 {
        let flow = self.counters.flow();
        flow.map_or(0, |flow| flow.payload_bytes())
    }
}
