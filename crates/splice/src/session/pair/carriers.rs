//! What a pair's carriers need from its loop: an AIO context (`carrier/aio/`), or a ring
//! (`carrier/uring/`).

use super::Running;
use super::last_words::{Call, Failure};
use crate::direction::CarrierChoice;
use crate::kernel::{DirectionView as _, Watch};
use crate::outcome::{Reason, Side};
use crate::reactor::Context;

impl Running {
    /// Has the loop create what the carriers need, and returns what epoll is to watch: a ring
    /// reports bytes in its place.
    pub(super) fn prepare_carriers(&mut self, cx: &mut Context<'_>) -> Result<Watch, Reason> {
        let prepared = match self.directions[0].carrier_choice {
            CarrierChoice::Ring => cx.lanes().map(|lanes| {
                for (direction, lane) in self.directions.iter_mut().zip(lanes) {
                    direction.enter(lane);
                }
                Watch::Ends
            }),
            CarrierChoice::Aio => cx.carriers().prepare_aio().map(|()| Watch::Stream),
            _ => Ok(Watch::Stream),
        };
        prepared.map_err(|error| {
            self.state.decline(error.to_string().into());
            Reason::Refused
        })
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
            if direction.has_ended() || !direction.is_blocked_on_ring() {
                continue;
            }
            // Of others than TCP, what waits for room comes before the reset.
            if let Some(errno) = direction.source_error_on_ring(cx.carriers())
                && self.last_words.is_none()
            {
                let call = Call::TakeError;
                self.hear_out(
                    cx,
                    Failure {
                        side: from,
                        errno,
                        call,
                    },
                )?;
            }
            let watch = match self.last_words {
                // What its peer sends is dropped.
                Some(_) => Watch::Stream,
                None => Watch::EndsAndRoom,
            };
            self.watch(cx, to, watch)?;
        }
        Ok(())
    }
}
