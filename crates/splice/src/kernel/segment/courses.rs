//! What becomes of a pair whose segments may not pass any more as they did: it stands still, or goes back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use super::Segment;
use super::change_over::{Phase, Progress, Stream};
use super::eligibility::{Obstacle, refused};
use super::flow::Flow;
use crate::endpoint::Endpoint;
use crate::kernel::{Next, PairView, Turn, Watch};
use crate::outcome::{Reason, Side};
use crate::routing::{Ends, Leg};

/// How soon to look again at a pair that stands still, should a call get lost.
const STANDS_FOR: Duration = Duration::from_secs(1);

/// How soon to look again while another thread attaches the program to a device.
const ATTACHING_PAUSE: Duration = Duration::from_millis(16);

impl Segment {
    /// Asks where the stack would send the pair's segments, and has that watched.
    pub(super) fn ask_routing(
        &mut self,
        ends: [&Endpoint; 2],
        addresses: [(SocketAddr, SocketAddr); 2],
        devices: [u32; 2],
        waker: Waker,
    ) -> Result<(), Obstacle> {
        if self.routed.is_some() {
            return Ok(());
        }
        let routing = match self.datapath.routing() {
            Ok(routing) => routing,
            Err(why) => return refused(why.to_owned()),
        };
        let legs = [0, 1].map(|side: usize| {
            let (local, peer) = addresses[side];
            Leg {
                ends: Ends {
                    local,
                    peer,
                    type_of_service: type_of_service(ends[side], local),
                },
                device: devices[side],
            }
        });
        match Arc::clone(routing).admit(legs, waker) {
            Ok(routed) => self.routed = Some(routed),
            Err(why) => return refused(why),
        }
        Ok(())
    }

    /// Why the pair may not bypass the stack any more, if so.
    pub(super) fn why_not_bypassing(&self) -> Option<String> {
        let moved = || self.routed.as_ref()?.course().moved;
        self.why_revoked().or_else(moved)
    }

    /// None of the pair's segments may pass now.
    pub(super) fn is_closed(&self) -> bool {
        let routed = self.routed.as_ref();
        routed.is_some_and(|routed| routed.course().closed.is_some())
    }

    /// Holds a pair whose segments may not go on, and lets it go. Returns what the turn comes to where it stands still.
    pub(super) fn follow_course(
        &mut self,
        pair: &mut PairView<'_>,
        streams: [Stream; 2],
    ) -> Option<Turn> {
        let flow = Arc::clone(self.counters.flow()?);
        if self.is_closed() {
            return Some(self.stand_still(&flow, pair, streams));
        }
        let goes_back = self.why_back(&flow).is_some();
        if std::mem::take(&mut self.stands_still) && flow.is_held() && !goes_back {
            match self.change_over.phase() {
                Phase::Spliced => flow.let_go(),
                _ => flow.overlap_again(),
            }
        }
        // In Overlap it may have to wait until the sockets have delivered something. For segments that it cannot translate
        // the program itself holds the pair.
        if self.change_over.phase() == Phase::Spliced && self.why_not_bypassing().is_some() {
            flow.hold();
        }
        None
    }

    /// Both peers' segments get lost, as they would in the stack, until there is a way again or a peer is given up.
    fn stand_still(
        &mut self,
        flow: &Arc<Flow>,
        pair: &mut PairView<'_>,
        streams: [Stream; 2],
    ) -> Turn {
        self.stands_still = true;
        let mut next = Next::ASLEEP;
        let mut pause = STANDS_FOR;
        if self.change_over.phase() == Phase::Spliced {
            match self.look(pair.ends, streams, pair.now) {
                Progress::Spliced(soon) => pause = pause.min(soon),
                Progress::GivenUp(side) => return gives_up(side),
                // A socket has something to deliver.
                _ => next = Next::PUMP,
            }
        } else {
            flow.renew();
            next.watch = Watch::Stream;
            let found = self.datapath.inspect(flow.tuples()).ok();
            let found = found.filter(|found| self.change_over.finds_both(found));
            match found.map(|found| self.look_for_gone(flow, pair.ends, &found)) {
                Some(Ok(soon)) => pause = pause.min(soon),
                Some(Err(side)) => return gives_up(side),
                // It was reset, of which the pair hears by its own event.
                None => {}
            }
        }
        flow.hold();
        Turn::Holds(next.until(pair.now + pause))
    }

    /// Whether both sockets could take their connections up, and the program is attached to the devices by which their
    /// segments come then.
    ///
    /// # Errors
    /// When to ask again.
    pub(super) fn prepare_ways(&self) -> Result<(), Duration> {
        let Some(routed) = &self.routed else {
            return Ok(());
        };
        let course = routed.course_now();
        if course.closed.is_some() {
            return Err(ATTACHING_PAUSE);
        }
        for device in course.devices {
            // Not to every device can it be attached.
            if self.datapath.attach_beside(device).is_none() {
                return Err(ATTACHING_PAUSE);
            }
        }
        Ok(())
    }
}

fn gives_up(side: Side) -> Turn {
    let errno = Errno::TIMEDOUT.raw_os_error();
    Turn::Ends(Reason::Failed { side, errno })
}

/// That of what a socket sends.
fn type_of_service(end: &Endpoint, local: SocketAddr) -> u8 {
    if local.is_ipv4() {
        return sockopt::ip_tos(end).unwrap_or(0);
    }
    let class = sockopt::ipv6_tclass(end).unwrap_or(0);
    u8::try_from(class).unwrap_or(0)
}
