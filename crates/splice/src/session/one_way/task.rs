//! The task that moves a one-way splice on its loop.

use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use super::mover::Mover;
use crate::direction::Progress;
use crate::outcome::{Reason, Side};
use crate::reactor::{Context, Interest, Readiness, Remote, Step, Task};

/// What the two duplicates are registered as.
const SOURCE: u8 = 0;
const DESTINATION: u8 = 1;

pub(super) struct OneWayTask {
    shared: Arc<Shared>,
    home: Remote,
    /// When the task last told the loop of a deadline.
    deadline: Option<Instant>,
    has_carriers: bool,
}

impl OneWayTask {
    pub(super) fn new(shared: Arc<Shared>, home: Remote) -> Self {
        Self {
            shared,
            home,
            deadline: None,
            has_carriers: false,
        }
    }

    fn leave(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.has_carriers) {
            cx.carriers().leave();
        }
    }

    /// Changes the mover, then moves what can move.
    fn turn(&mut self, cx: &mut Context<'_>, change: impl FnOnce(&mut Mover)) -> Step {
        let now = cx.now();
        let shared = Arc::clone(&self.shared);
        let mut mover = shared.lock();
        change(&mut mover);
        let progress = mover.pump(cx.carriers(), now);
        if mover.reason().is_some() {
            shared.conclude(mover, &self.home);
            self.leave(cx);
            return Step::Done;
        }
        let deadline = mover.idle_at();
        drop(mover);
        // While bytes move, the deadline that was told before is early: it then looks again.
        if self.deadline.is_none() && deadline.is_some() {
            self.deadline = deadline;
            cx.set_deadline(deadline);
        }
        match progress {
            Progress::TurnOver => Step::Again,
            Progress::Waits => Step::Wait,
        }
    }
}

impl Task for OneWayTask {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        let shared = Arc::clone(&self.shared);
        let mut mover = shared.lock();
        // Set under the lock, so that whoever ends it later finds the task.
        let _ = shared.key.set(cx.key());
        mover.direction.carrier_choice.may_pipe();
        let Some([source, destination]) = mover.ends() else {
            return Step::Done;
        };
        cx.carriers().enter();
        self.has_carriers = true;
        let registered = cx
            .register(source, SOURCE, Interest::SOURCE)
            .map_err(|error| (Side::A, error))
            .and_then(|()| {
                cx.register(destination, DESTINATION, Interest::ROOM)
                    .map_err(|error| (Side::B, error))
            });
        if let Err((side, error)) = registered {
            mover.end(Reason::of_error(side, &error));
        }
        drop(mover);
        self.turn(cx, |_| ())
    }

    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        let side = match source {
            SOURCE => Side::A,
            _ => Side::B,
        };
        self.turn(cx, |mover| mover.became(side, readiness))
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        self.deadline = None;
        let now = cx.now();
        self.turn(cx, |mover| {
            if mover.idle_at().is_some_and(|at| at <= now) && !mover.is_between() {
                mover.end(Reason::Idle);
            }
        })
    }

    fn resume(&mut self, cx: &mut Context<'_>) -> Step {
        self.turn(cx, |_| ())
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        let mut mover = self.shared.lock();
        mover.end(Reason::Shutdown);
        self.shared.conclude(mover, &self.home);
        self.leave(cx);
    }
}
