//! A pair on its loop's ring (`carrier/uring/`).

use std::os::fd::AsFd;

use super::{Pair, errno_of};
use crate::kernel::Watch;
use crate::outcome::{Reason, Side};
use crate::reactor::{Context, Interest};

impl Pair {
    /// Moves both directions to the loop's ring, which reports bytes in place of epoll.
    pub(super) fn enter_ring(&mut self, cx: &mut Context<'_>) -> Option<Reason> {
        match cx.lanes() {
            Ok(lanes) => {
                for (direction, lane) in self.directions.iter_mut().zip(lanes) {
                    direction.enter(lane);
                }
            }
            Err(error) => {
                self.declined = Some(Box::new(error.to_string().into()));
                return Some(Reason::Refused);
            }
        }
        if self.registered {
            return self.rewatch(cx, Watch::Ends);
        }
        None
    }

    /// Watches for room with epoll, since the ring does not wait for it. It begins when a lane
    /// first finds no room, so that a UNIX stream's reader does not wake a relay that needs none.
    ///
    /// A direction without room does not read. A receive that was submitted before may have taken
    /// the source's error, which neither epoll nor the socket reports again.
    pub(super) fn watch_room(&mut self, cx: &mut Context<'_>) -> Option<Reason> {
        let Some(ends) = &self.ends else {
            return None;
        };
        for from in Side::BOTH {
            let to = ends.across(from);
            let direction = &self.directions[from.index()];
            if !direction.is_blocked_on_ring() {
                continue;
            }
            if let Some(errno) = direction.source_error_on_ring(cx.carriers()) {
                return Some(Reason::of_errno(from, errno));
            }
            let watched = &mut self.room_watched[to.index()];
            if !*watched {
                *watched = true;
                let end = ends.sides()[to.index()].as_fd();
                if let Err(error) = cx.rewatch(end, to.index() as u8, Interest::ENDS_AND_ROOM) {
                    let errno = errno_of(&error);
                    return Some(Reason::Failed { side: to, errno });
                }
            }
        }
        None
    }
}
