//! How a pair ends: its reason, its final counts, and its sockets, closed in order or with a reset.

use std::time::Duration;

use super::Running;
use super::aftermath::AftermathTask;
use super::state::{Engaged, State};
use crate::endpoint::Endpoint;
use crate::kernel::DirectionView as _;
use crate::outcome::{Outcome, Reason, Side};
use crate::reactor::{Context, Step, Task};
use crate::session::meter::Stream;
use crate::session::status::Chosen;

/// How long a pair that has reached its byte limit waits for slow peers. The kernel has no event
/// for "all acknowledged", so the pair polls, which is cheap for the few pairs with a limit.
const PARTING_MOST: Duration = Duration::from_secs(10);
const PARTING_LOOK: Duration = Duration::from_millis(5);

impl Running {
    /// Ends a pair that has reached its byte limit, once the receiver has all of those bytes.
    ///
    /// A peer may still send. A TCP socket that is closed with unread bytes sends a reset and drops
    /// what it has not sent yet (`__tcp_close`). After EOF the reset does no harm.
    pub(super) fn part(&mut self, cx: &mut Context<'_>) -> Result<Step, Reason> {
        let sides = self.ends.sides();
        let has_engine = self.state.engine().is_some();
        let in_kernel = self.in_kernel_bytes();
        let moved =
            |from: &Side| self.directions[from.index()].given_bytes() + in_kernel[from.index()];
        let receivers: Vec<_> = Side::BOTH
            .into_iter()
            .filter(|from| !has_engine || Some(moved(from)) == self.byte_limit)
            .map(|from| sides[from.other().index()])
            .collect();
        let until = match self.state {
            State::Parting { until, .. } => until,
            _ => {
                for end in &receivers {
                    // It fails if the peer is gone, and then there is nothing to wait for.
                    let _ = end.end_stream();
                }
                self.state.part(cx.now() + PARTING_MOST)
            }
        };
        let has_all = receivers.iter().all(|end| end.has_delivered_all());
        for direction in &mut self.directions {
            direction.release(cx.carriers());
        }
        if has_all || cx.now() >= until {
            return Err(Reason::ByteLimit);
        }
        cx.set_deadline(Some(cx.now() + PARTING_LOOK));
        Ok(Step::Wait)
    }

    /// Takes leave of the loop.
    pub(super) fn leave(&mut self, cx: &mut Context<'_>) {
        // epoll drops a socket when its last descriptor is closed.
        let shared = self.ends.each().iter().filter(|end| end.is_shared());
        shared.for_each(|end| cx.deregister(end));
        for (index, direction) in self.directions.iter_mut().enumerate() {
            direction.release(cx.carriers());
            self.status.meter.set(index, direction.given_bytes());
        }
        cx.carriers().leave();
    }

    /// Closes both ends and reports the reason. Returns the task that looks after what remains in
    /// the kernel, if anything does.
    pub(super) fn finish(mut self, reason: Reason) -> Option<Box<dyn Task>> {
        let reason = if self.ends.is_echo() {
            reason.of_echo()
        } else {
            reason
        };
        let mut moved_in_kernel = [0, 0];
        if let Some(Engaged { engine, .. }) = self.state.engaged() {
            #[cfg(test)]
            let carried = engine.carried_bytes();
            #[cfg(test)]
            self.status
                .meter
                .carried_bytes
                .store(carried, std::sync::atomic::Ordering::Relaxed);
            let directions = self.directions.each_ref().map(|direction| direction as _);
            moved_in_kernel = engine.release(self.ends.sides(), directions);
            let by_user_space = [0, 1].map(|index| self.directions[index].given_bytes());
            self.status
                .meter
                .settle([0, 1].map(|index: usize| moved_in_kernel[index] + by_user_space[index]));
        }
        if reason == Reason::EndOfStream {
            (0..2).for_each(|direction| self.status.meter.set_stream(direction, Stream::Ended));
        }
        if reason.is_truncation() {
            self.ends.each().iter().for_each(Endpoint::cut);
        }
        let Chosen { name, why } =
            self.engine_at_end(self.given_bytes(), moved_in_kernel.into_iter().sum());
        drop(self.ends);
        let remains = self
            .state
            .end()
            .and_then(|mut engine| engine.closed(reason))
            .map(|left| Box::new(AftermathTask(left)) as Box<dyn Task>);
        let outcome = Outcome {
            reason,
            moved: self.status.meter.read(),
            messages: self.status.meter.read_messages(),
            engine: name,
            why_engine: why,
            duration: self.status.meter.lasted(),
        };
        if let Some(on_end) = self.on_end {
            on_end(outcome.clone());
        }
        self.status.finish(outcome);
        remains
    }
}
