//! A pair's turns with a kernel engine.

use std::os::fd::AsFd;
use std::time::Instant;

use super::aftermath::AftermathTask;
use super::promotion::{Candidate, Proposal, Trigger};
use super::{Pair, errno_of};
use crate::endpoint::redirected_receive_bytes;
use crate::flow::Direction;
use crate::kernel::{
    Aftermath, DirectionView as _, Next, PairView, Refusal, Returned, Turn, Watch,
};
use crate::name::EngineChoice;
use crate::outcome::{Reason, Side};
use crate::reactor::{Context, Interest, Step};
use crate::session::attempts::Attempt;

impl Pair {
    pub(super) fn in_kernel_bytes(&self) -> [u64; 2] {
        self.kernel
            .as_ref()
            .map_or([0, 0], |kernel| kernel.counters().moved_bytes())
    }

    pub(super) fn kernel_turn(&mut self, cx: &mut Context<'_>, turn_over: bool) -> Step {
        let (Some(kernel), Some(ends)) = (&mut self.kernel, &self.ends) else {
            return Step::Wait;
        };
        if !self.is_notified {
            self.is_notified = true;
            if let Some(notifier) = kernel.notifier()
                && let Err(error) = cx.watch_notifier(notifier)
            {
                let (side, errno) = (Side::A, errno_of(&error));
                return self.end(cx, Reason::Failed { side, errno });
            }
        }
        let name = kernel.name();
        let turn = kernel.turn(&mut PairView {
            ends: ends.sides(),
            directions: self.directions.each_mut().map(|direction| direction as _),
            buffer_bytes: self.shares.buffer_bytes,
            byte_limit: self.byte_limit,
            waker: &|| cx.waker().into(),
            now: cx.now(),
        });
        let next = match turn {
            Turn::Holds(next) => {
                if kernel.has_taken() && !self.taken {
                    self.taken = true;
                    self.status.attempts.note(Attempt::Taken);
                    self.status.meter.set_kernel(kernel.counters());
                    if let Some(promotion) = &mut self.promotion {
                        promotion.taken(name);
                        self.promotion.take_if(|promotion| promotion.is_over());
                    }
                    self.status.set_engine(self.engine());
                }
                next
            }
            Turn::Refused(Refusal { cause, why }) => {
                self.status.attempts.note(cause.into());
                if self.choice != EngineChoice::Auto && cause.ends_by_name() {
                    self.kernel = None;
                    self.declined = Some(Box::new(why));
                    return self.end(cx, Reason::Refused);
                }
                if let Some(promotion) = &mut self.promotion {
                    promotion.declined(name, cx.now());
                    self.promotion.take_if(|promotion| promotion.is_over());
                }
                self.kernel = None;
                self.is_notified = false;
                self.declined = Some(Box::new(why));
                self.status.set_engine(self.engine());
                Next {
                    again: self.directions.iter().any(|direction| direction.can_move()),
                    ..Next::watching(Watch::Stream)
                }
            }
            Turn::Returned(returned) => {
                cx.spawn(Box::new(AftermathTask(self.take_back(returned))));
                self.note_ended_stream(cx);
                Next::PUMP
            }
            Turn::Ends(reason) => return self.end(cx, reason),
        };
        if next.watch != self.watch
            && let Some(reason) = self.rewatch(cx, next.watch)
        {
            return self.end(cx, reason);
        }
        self.kernel_look_at = next.look_at;
        self.set_deadline(cx);
        if next.again || turn_over {
            Step::Again
        } else {
            Step::Wait
        }
    }

    /// Goes on alone, where the kernel has got to.
    fn take_back(&mut self, returned: Returned) -> Box<dyn Aftermath> {
        for (from, direction) in self.directions.iter_mut().enumerate() {
            direction.was_moved(returned.moved_bytes[from], returned.has_ended[from]);
            if let Some(bytes) = returned.ends_after_bytes[from] {
                direction.ends_after(bytes);
            }
        }
        let given = self.directions.each_ref().map(Direction::given_bytes);
        self.status.meter.settle(given);
        self.moved_at = self.last_moved_at(Instant::now());
        self.status.meter.moved(self.moved_at);
        let Refusal { cause, why } = returned.refusal;
        if let Some(kernel) = self.kernel.take() {
            let bytes: u64 = returned.moved_bytes.iter().sum();
            let had = format!(
                "{} moved {bytes} bytes and gave the pair back: {why}",
                kernel.name()
            );
            self.declined = Some(Box::new(had.into()));
        }
        self.taken = false;
        self.is_notified = false;
        self.promotion = None;
        self.status.attempts.note(Attempt::given_back(cause));
        self.status.set_engine(self.engine());
        returned.left
    }

    pub(super) fn rewatch(&mut self, cx: &mut Context<'_>, watch: Watch) -> Option<Reason> {
        let interest = match watch {
            Watch::Stream => Interest::STREAM,
            Watch::Ends => Interest::ENDS,
        };
        for (source, end) in self.each_end().iter().enumerate() {
            if let Err(error) = cx.rewatch(end.as_fd(), source as u8, interest) {
                let (side, errno) = (Side::BOTH[source], errno_of(&error));
                return Some(Reason::Failed { side, errno });
            }
        }
        self.watch = watch;
        None
    }

    /// The size at which this pair fixes its receive buffers.
    pub(super) fn receive_bytes(&self) -> usize {
        let promotion = self.promotion.as_ref();
        let kernel = self.kernel.as_ref();
        if promotion.is_some_and(|promotion| promotion.may_redirect())
            || kernel.is_some_and(|kernel| kernel.redirects())
        {
            redirected_receive_bytes(self.shares.buffer_bytes)
        } else {
            self.shares.buffer_bytes
        }
    }

    /// Asks the policy which kernel engine tries the pair. The next turn begins with it.
    pub(super) fn ask(&mut self, cx: &mut Context<'_>, trigger: Trigger) {
        let (Some(promotion), Some(ends)) = (&mut self.promotion, &self.ends) else {
            return;
        };
        let candidate = Candidate {
            ends,
            moved_bytes: self.status.meter.read().total(),
            is_held: self.kernel.is_some(),
        };
        let asked_at = promotion.ask_at();
        let proposal = promotion.propose(trigger, &candidate, cx);
        let is_put_off = promotion.ask_at() != asked_at;
        // An idle pair is to be small.
        self.promotion.take_if(|promotion| promotion.is_over());
        match proposal {
            Proposal::Nothing => {}
            Proposal::Try(engine) => self.kernel = Some(engine),
            Proposal::Unavailable(why) => {
                self.status.attempts.note(Attempt::Unavailable);
                self.declined = Some(Box::new(why));
                self.status.set_engine(self.engine());
            }
        }
        if is_put_off {
            self.set_deadline(cx);
        }
    }
}
