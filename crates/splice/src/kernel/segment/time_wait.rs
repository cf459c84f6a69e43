//! TIME_WAIT of a spliced pair: late segments are still translated, as a connection in TIME_WAIT still
//! answers them.

use std::sync::Arc;
use std::time::Instant;

use super::flow::Flow;
use crate::kernel::Aftermath;

/// Keeps a flow until no late segment can come any more, or until another flow needs its slot.
#[derive(Debug)]
pub(super) struct TimeWait {
    flow: Arc<Flow>,
}

impl TimeWait {
    pub(super) fn new(flow: Arc<Flow>) -> Self {
        flow.offer_slot();
        Self { flow }
    }
}

impl Aftermath for TimeWait {
    fn look(&mut self, now: Instant) -> Option<Instant> {
        match self.flow.time_wait_left() {
            Some(left) if !left.is_zero() => Some(now + left),
            Some(_) => {
                // Late segments may have made connection tracking learn the connections again.
                self.flow.forget();
                None
            }
            None => None,
        }
    }
}
