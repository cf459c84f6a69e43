//! Whether the packet filters of this host let a pair bypass them.

use rustix::io::Errno;
use splice_firewall::{Connection, Device, End, Family};
use std::net::SocketAddr;
use std::sync::Arc;

use super::Segment;
use super::eligibility::{Obstacle, device, refused, why_filtered};
use crate::firewall::{self, PassState};
use crate::kernel::{Cause, Refusal};
use crate::outcome::Side;
use splice_bpf::types::{SegmentInspection, SegmentTuple, segment_tracked as tracked};
use std::task::Waker;

impl Segment {
    /// Asks the packet filters, unless they are to be bypassed.
    pub(super) fn ask_packet_filters(
        &mut self,
        addresses: [(SocketAddr, SocketAddr); 2],
        tuples: &[SegmentTuple; 2],
        found: &SegmentInspection,
        waker: Waker,
    ) -> Result<(), Obstacle> {
        if self.asked.bypasses_firewall || self.is_admitted(found) {
            return Ok(());
        }
        let firewall = self.datapath.firewall();
        let firewall = firewall.map_err(|failure| failure.with_remedy(REMEDY))?;
        let mut connections = Vec::with_capacity(2);
        for (side, (local, peer)) in Side::BOTH.into_iter().zip(addresses) {
            let socket = &found.socket[side.index()];
            let index = device(socket);
            let Some(device) = firewall.device(index, socket.out_type as u16) else {
                let why = format!("the device towards {} is gone", self.asked.peers.of(side));
                return refused(Cause::Network, why);
            };
            connections.push(connection(local, peer, device));
        }
        let [a, b] = [0, 1].map(|side: usize| connections[side].clone());
        let ask_tracking = |connections: &mut [Connection; 2]| {
            learn_tracking(connections, self.datapath.tracked(tuples));
        };
        let mut doubted = self.doubted.take();
        let by_groups = self.filter_of_groups(*tuples, found);
        let admitted = firewall.admit([a, b], ask_tracking, by_groups, waker, &mut doubted);
        self.doubted = doubted;
        match admitted {
            Ok(pass) => {
                self.pass = Some(pass);
                Ok(())
            }
            Err(firewall::Refusal::NotYet) => Err(Obstacle::NotNow),
            Err(firewall::Refusal::Short) => Err(Obstacle::Short),
            Err(firewall::Refusal::Because(why)) => {
                refused(Cause::Filters, format!("packet filters: {why}; {REMEDY}"))
            }
        }
    }

    /// Asks whether programs of control groups see the packets of the pair's sockets, from any thread of this network
    /// namespace.
    fn filter_of_groups(
        &self,
        tuples: [SegmentTuple; 2],
        found: &SegmentInspection,
    ) -> Box<dyn Fn() -> Option<String> + Send + Sync> {
        // The datapath has the firewall, which keeps this.
        let datapath = Arc::downgrade(&self.datapath);
        let cookies = found.socket.each_ref().map(|socket| socket.cookie);
        let peers = self.asked.peers;
        Box::new(move || {
            let found = datapath.upgrade()?.inspect(&tuples).ok()?;
            why_filtered(&found, &cookies, peers)
        })
    }

    /// Whether the filters were asked about the devices that the connections use now. A route may have changed
    /// since.
    pub(super) fn is_admitted(&self, found: &SegmentInspection) -> bool {
        let devices = [0, 1].map(|side: usize| device(&found.socket[side]));
        self.pass.as_ref().is_some_and(|pass| pass.is_for(devices))
    }

    /// Why the pair may not bypass the filters any more, if they have changed.
    pub(super) fn why_revoked(&self) -> Option<Refusal> {
        match self.pass.as_ref()?.state() {
            PassState::Revoked(why) => {
                let why = format!("packet filters: {why}; {REMEDY}");
                Some(Cause::Filters.because(why))
            }
            PassState::Gone(why) => Some(Cause::Network.because(why)),
            PassState::Admitted | PassState::Unsettled => None,
        }
    }
}

/// What to do when the filters are in the way.
const REMEDY: &str =
    "change that, or bypass them knowingly (--bypass-firewall, Options::bypass_firewall)";

/// What connection tracking knows of connections. Without an answer they stay as they have been judged, which was
/// not admitted.
fn learn_tracking(connections: &mut [Connection; 2], known: Result<[u32; 2], Errno>) {
    for (connection, known) in connections.iter_mut().zip(known.into_iter().flatten()) {
        connection.tracked = known & tracked::TRACKED != 0;
        connection.accepted = known & tracked::TRACKED_OPENED_HERE == 0;
    }
}

fn connection(local: SocketAddr, peer: SocketAddr, device: Device) -> Connection {
    let end = |address: SocketAddr| End {
        address: Some(address.ip()),
        port: Some(address.port()),
    };
    Connection {
        family: if local.is_ipv4() {
            Family::Ipv4
        } else {
            Family::Ipv6
        },
        local: end(local),
        peer: end(peer),
        device: Some(device),
        accepted: false,
        tracked: false,
        opening: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_stay_as_they_were_judged_if_tracking_gives_no_answer() {
        let judged = Connection::any(Family::Ipv4);
        let both = || [judged.clone(), judged.clone()];
        let mut connections = both();
        learn_tracking(&mut connections, Err(Errno::NOMEM));
        assert_eq!(connections, both());
        let opened_here = tracked::TRACKED | tracked::TRACKED_OPENED_HERE;
        learn_tracking(&mut connections, Ok([opened_here, 0]));
        let learnt = connections.map(|it| (it.tracked, it.accepted));
        assert_eq!(learnt, [(true, false), (false, true)]);
    }
}
