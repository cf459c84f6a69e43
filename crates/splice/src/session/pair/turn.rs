//! A pair's turns with a kernel engine.

use std::os::fd::AsFd;

use super::aftermath::AftermathTask;
use super::promotion::{Candidate, Promotion, Proposal, Trigger};
use super::{Held, Running};
use crate::direction::Direction;
use crate::endpoint::redirected_receive_bytes;
use crate::kernel::{
    Aftermath, DirectionView as _, Next, PairView, Refusal, Returned, Turn, Watch,
};
use crate::name::EngineChoice;
use crate::outcome::{Reason, Side};
use crate::reactor::{Context, Interest};
use crate::session::attempts::Attempt;

impl Running {
    pub(super) fn in_kernel_bytes(&self) -> [u64; 2] {
        self.kernel
            .as_ref()
            .map_or([0, 0], |held| held.engine.counters().moved_bytes())
    }

    /// Gives the kernel engine its turn, if the pair has one. True if the pair is to be pumped again.
    pub(super) fn kernel_turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Reason> {
        let Some(held) = &mut self.kernel else {
            return Ok(false);
        };
        if !std::mem::replace(&mut held.is_notified, true)
            && let Some(notifier) = held.engine.notifier()
        {
            cx.watch_notifier(notifier)
                .map_err(|error| Reason::of_error(Side::A, &error))?;
        }
        let name = held.engine.profile().name;
        let turn = held.engine.turn(&mut PairView {
            ends: self.ends.sides(),
            directions: self.directions.each_mut().map(|direction| direction as _),
            buffer_bytes: self.shares.buffer_bytes,
            byte_limit: self.byte_limit,
            waker: &|| cx.waker().into(),
            now: cx.now(),
        });
        let next = match turn {
            Turn::Holds(next) => {
                held.look_at = next.look_at;
                if held.engine.has_taken() && !std::mem::replace(&mut held.has_taken, true) {
                    self.status.attempts.note(Attempt::Taken);
                    self.status.meter.set_kernel(held.engine.counters());
                    self.tell_promotion(|promotion| promotion.taken(name));
                    self.status.set_engine(self.engine());
                }
                next
            }
            Turn::Refused(Refusal { cause, why }) => {
                self.status.attempts.note(cause.into());
                self.kernel = None;
                self.declined = Some(Box::new(why));
                if self.choice != EngineChoice::Auto && cause.ends_by_name() {
                    return Err(Reason::Refused);
                }
                let now = cx.now();
                self.tell_promotion(|promotion| promotion.declined(name, now));
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
            Turn::Ends(reason) => return Err(reason),
        };
        self.watch_both(cx, next.watch)?;
        self.set_deadline(cx);
        Ok(next.again)
    }

    /// Tells the policy of what an engine did. An idle pair is to be small, so it keeps none that is
    /// over.
    fn tell_promotion(&mut self, tell: impl FnOnce(&mut dyn Promotion)) {
        self.promotion.take_if(|promotion| {
            tell(promotion.as_mut());
            promotion.is_over()
        });
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
        let moved_at = self.status.meter.moved_at();
        self.status.meter.settle(given);
        self.status.meter.moved(moved_at);
        let Refusal { cause, why } = returned.refusal;
        if let Some(held) = self.kernel.take() {
            let bytes: u64 = returned.moved_bytes.iter().sum();
            let had = format!(
                "{} moved {bytes} bytes and gave the pair back: {why}",
                held.engine.profile().name
            );
            self.declined = Some(Box::new(had.into()));
        }
        self.promotion = None;
        self.status.attempts.note(Attempt::given_back(cause));
        self.status.set_engine(self.engine());
        returned.left
    }

    pub(super) fn watch_both(&mut self, cx: &mut Context<'_>, watch: Watch) -> Result<(), Reason> {
        let mut sides = Side::BOTH.into_iter().take(self.ends.each().len());
        sides.try_for_each(|side| self.watch(cx, side, watch))
    }

    pub(super) fn watch(
        &mut self,
        cx: &mut Context<'_>,
        side: Side,
        watch: Watch,
    ) -> Result<(), Reason> {
        let end = self.ends.sides()[side.index()].as_fd();
        let source = side.index() as u8;
        let interest = match watch {
            Watch::Ends => Interest::ENDS,
            Watch::EndsAndRoom => Interest::ENDS_AND_ROOM,
            Watch::Stream => Interest::STREAM,
        };
        let watched = match self.watched[side.index()].replace(watch) {
            Some(before) if before == watch => Ok(()),
            Some(_) => cx.rewatch(end, source, interest),
            None => cx.register(end, source, interest),
        };
        watched.map_err(|error| Reason::of_error(side, &error))
    }

    /// The size at which this pair fixes its receive buffers.
    pub(super) fn receive_bytes(&self) -> usize {
        let promotion = self.promotion.as_ref();
        let held = self.kernel.as_ref();
        if promotion.is_some_and(|promotion| promotion.may_redirect())
            || held.is_some_and(|held| held.engine.profile().redirects)
        {
            redirected_receive_bytes(self.shares.buffer_bytes)
        } else {
            self.shares.buffer_bytes
        }
    }

    /// Asks the policy which kernel engine tries the pair. The next turn begins with it.
    pub(super) fn ask(&mut self, cx: &mut Context<'_>, trigger: Trigger) {
        let Some(promotion) = &mut self.promotion else {
            return;
        };
        let candidate = Candidate {
            ends: &self.ends,
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
            Proposal::Try(engine) => self.kernel = Some(Held::new(engine)),
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
