//! What remains of a pair whose segments were translated: late ones still are, as those of a
//! connection in TIME_WAIT are still answered.

use std::sync::Arc;
use std::time::Instant;

use super::flow::Flow;
use crate::kernel::Aftermath;

/// Keeps a flow until nothing more comes of it, or until others need its slot.
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
        match self.flow.lingers() {
            Some(left) if !left.is_zero() => Some(now + left),
            Some(_) => {
                // Late segments for the sockets may have had it come back.
                self.flow.forget();
                None
            }
            None => None,
        }
    }
}
