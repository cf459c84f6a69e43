//! What becomes of a pair whose segments may not pass any more as they did: they get lost, or it goes back.

use std::net::SocketAddr;
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use splice_base::socket_option;

use super::Segment;
use super::change_over::Phase;
use super::eligibility::{Obstacle, device, longest_packet, refused};
use super::flow::Flow;
use crate::endpoint::Endpoint;
use crate::kernel::{Cause, Refusal};
use crate::outcome::Side;
use crate::routing::{self, Ends, Leg, Routed};
use splice_bpf::types::{SegmentInspection, segment_socket_flag as has};
use splice_firewall::PortRule;

/// How soon to look again whether a pair that the program holds can go back.
const UNROUTED_PAUSE: Duration = Duration::from_millis(200);

/// How soon to look again while another thread attaches the program to a device.
const ATTACHING_PAUSE: Duration = Duration::from_millis(16);

impl Segment {
    /// Asks where the stack would send the pair's segments, and has that watched.
    pub(super) fn ask_routing(
        &mut self,
        ends: [&Endpoint; 2],
        addresses: [(SocketAddr, SocketAddr); 2],
        found: &SegmentInspection,
        waker: Waker,
    ) -> Result<(), Obstacle> {
        if self.routed.is_some() {
            return Ok(());
        }
        if found
            .socket
            .iter()
            .any(|socket| socket.flags & has::RULED != 0)
        {
            return refused(Cause::Network, self.why_ruled(addresses));
        }
        let routing = self.datapath.routing()?;
        let legs = [0, 1].map(|side: usize| {
            let (local, peer) = addresses[side];
            Leg {
                ends: Ends {
                    local,
                    peer,
                    type_of_service: type_of_service(ends[side], local),
                    is_transparent: socket_option::is_transparent(ends[side]).unwrap_or(false),
                },
                device: device(&found.socket[side]),
                longest: longest_packet(found, Side::BOTH[side].other()),
            }
        });
        match routing.admit(legs, self.asked.peers, waker) {
            Ok(routed) => {
                self.counters.set_course(routed.reader());
                self.routed = Some(routed);
            }
            Err(routing::Refusal::Because(why)) => return refused(Cause::Network, why),
            Err(routing::Refusal::Short) => return Err(Obstacle::Short),
        }
        Ok(())
    }

    /// Which rule may route the pair's connections by what translated segments do not tell. The kernel looks at ports as soon
    /// as one rule asks for them, whomever that concerns.
    fn why_ruled(&self, addresses: [(SocketAddr, SocketAddr); 2]) -> String {
        const WHAT: &str = "may be routed by port or protocol, which translated segments are not";
        let rules = PortRule::all(addresses[0].0.is_ipv4()).unwrap_or_default();
        for rule in &rules {
            for (side, (local, peer)) in Side::BOTH.into_iter().zip(addresses) {
                let ends = Ends {
                    local,
                    peer,
                    type_of_service: 0,
                    is_transparent: false,
                };
                if rule.may_concern(&ends) {
                    let whose = self.asked.peers.of(side);
                    return format!("the connection with {whose} {WHAT} ({rule})");
                }
            }
        }
        match rules.first() {
            Some(rule) => format!("connections of this host {WHAT} ({rule})"),
            None => format!("connections of this host {WHAT} (ip rule)"),
        }
    }

    /// Why the pair may not bypass the stack any more, if so.
    pub(super) fn why_not_bypassing(&self) -> Option<Refusal> {
        let moved = || Some(Cause::Network.because(self.why_moved()?));
        self.why_revoked().or_else(moved)
    }

    /// Why the network stack would not send as the program does any more, if so.
    pub(super) fn why_moved(&self) -> Option<String> {
        self.routed.as_ref()?.course().moved
    }

    /// Why some of the pair's segments may not reach the program any more, if so.
    pub(super) fn why_not_seen(&self) -> Option<Refusal> {
        let mut attached = self.attached.iter().flatten();
        let why = attached.find_map(|attached| attached.why_lost())?;
        Some(Cause::Filters.because(why.to_owned()))
    }

    /// Some of the pair's segments would get lost now.
    pub(super) fn is_closed(&self) -> bool {
        let routed = self.routed.as_ref();
        routed.is_some_and(|routed| routed.course().closed.iter().any(Option::is_some))
    }

    /// Has the program lose what the stack would lose, and hold a pair that has to go back.
    pub(super) fn follow_course(&mut self) {
        let Some(flow) = self.counters.flow() else {
            return;
        };
        let course = self.routed.as_ref().map(Routed::course).unwrap_or_default();
        let goes_back = self.why_not_bypassing().is_some() || self.why_not_seen().is_some();
        let has_to_wait = goes_back && !self.is_routed();
        for (side, closed) in course.closed.iter().enumerate() {
            flow.close(side, has_to_wait || closed.is_some());
        }
        // In Overlap it may have to wait until the sockets have delivered something. For segments that it cannot translate
        // the program itself holds the pair.
        if goes_back && !has_to_wait && self.change_over.phase() == Phase::Spliced {
            flow.hold();
        }
    }

    /// Whether the pair has to go back, and can.
    pub(super) fn goes_back(&self, flow: &Flow) -> bool {
        self.why_back(flow).is_some() && self.is_routed()
    }

    /// Where there is no way, a socket cannot take its connection up.
    fn is_routed(&self) -> bool {
        let routed = self.routed.as_ref();
        routed.is_none_or(|routed| routed.course().is_routed)
    }

    /// Whether both sockets could take their connections up, and the program is attached to the devices by which their
    /// segments come then.
    ///
    /// # Errors
    /// When to ask again.
    pub(super) fn prepare_ways(&mut self, now: Instant) -> Result<(), Duration> {
        let Some(routed) = &self.routed else {
            return Ok(());
        };
        let course = routed.course_now();
        if !course.is_routed {
            return Err(UNROUTED_PAUSE);
        }
        match course
            .devices
            .into_iter()
            .any(|device| self.awaits_program(device, now))
        {
            true => Err(ATTACHING_PAUSE),
            false => Ok(()),
        }
    }

    /// Whether another thread still attaches the program to a device, or is soon to try again. Not to every device can it be
    /// attached.
    pub(super) fn awaits_program(&mut self, device: u32, now: Instant) -> bool {
        match self.datapath.attach_beside(device) {
            None => true,
            Some(Err(failure)) if failure.is_short() => self.shortage.bears(now),
            Some(_) => false,
        }
    }
}

/// That of what a socket sends.
fn type_of_service(end: &Endpoint, local: SocketAddr) -> u8 {
    if local.is_ipv4() {
        return sockopt::ip_tos(end).unwrap_or(0);
    }
    let class = sockopt::ipv6_tclass(end).unwrap_or(0);
    u8::try_from(class).unwrap_or(0)
}
