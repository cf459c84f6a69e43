//! A pair on its loop's ring (`carrier/uring/`).

use super::Running;
use crate::kernel::Watch;
use crate::outcome::{Reason, Side};
use crate::reactor::Context;

impl Running {
    /// Moves both directions to the loop's ring, which reports bytes in place of epoll.
    pub(super) fn enter_ring(&mut self, cx: &mut Context<'_>) -> Result<(), Reason> {
        let lanes = cx.lanes().map_err(|error| {
            self.declined = Some(Box::new(error.to_string().into()));
            Reason::Refused
        })?;
        for (direction, lane) in self.directions.iter_mut().zip(lanes) {
            direction.enter(lane);
        }
        Ok(())
    }

    /// Watches for room with epoll, since the ring does not wait for it. It begins when a lane
    /// first finds no room, so that a UNIX stream's reader does not wake a relay that needs none.
    ///
    /// A direction without room does not read. A receive that was submitted before may have taken
    /// the source's error, which neither epoll nor the socket reports again.
    pub(super) fn watch_room(&mut self, cx: &mut Context<'_>) -> Result<(), Reason> {
        for from in Side::BOTH {
            let to = self.ends.across(from);
            let direction = &self.directions[from.index()];
            if !direction.is_blocked_on_ring() {
                continue;
            }
            if let Some(errno) = direction.source_error_on_ring(cx.carriers()) {
                return Err(Reason::of_errno(from, errno));
            }
            self.watch(cx, to, Watch::EndsAndRoom)?;
        }
        Ok(())
    }
}
