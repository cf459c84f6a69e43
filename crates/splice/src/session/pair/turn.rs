//! A pair's turns with a kernel engine.

use std::os::fd::AsFd;

use super::Running;
use super::aftermath::AftermathTask;
use super::promotion::{Candidate, Proposal, Trigger};
use super::state::{Engaged, State};
use crate::direction::Direction;
use crate::endpoint::redirected_receive_bytes;
use crate::kernel::{
    Aftermath, DirectionView as _, Next, PairView, Refusal, Returned, Turn, Watch,
};
use crate::name::{EngineChoice, EngineName};
use crate::outcome::{Reason, Side};
use crate::reactor::{Context, Interest};
use crate::session::attempts::Attempt;

impl Running {
    pub(super) fn in_kernel_bytes(&self) -> [u64; 2] {
        let engine = self.state.engine();
        engine.map_or([0, 0], |engine| engine.counters().moved_bytes())
    }

    /// Gives the kernel engine its turn, if the pair has one. True if the pair is to be pumped again.
    pub(super) fn kernel_turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Reason> {
        if let State::Trying {
            engaged,
            is_notified,
            ..
        } = &mut self.state
            && !std::mem::replace(is_notified, true)
            && let Some(notifier) = engaged.engine.notifier()
        {
            cx.watch_notifier(notifier)
                .map_err(|error| Reason::of_error(Side::A, &error))?;
        }
        let Some(Engaged { engine, look_at }) = self.state.engaged() else {
            return Ok(false);
        };
        let name = engine.profile().name;
        let turn = engine.turn(&mut PairView {
            ends: self.ends.sides(),
            directions: self.directions.each_mut().map(|direction| direction as _),
            buffer_bytes: self.shares.buffer_bytes,
            byte_limit: self.byte_limit,
            waker: &|| cx.waker().into(),
            now: cx.now(),
        });
        let next = match turn {
            Turn::Holds(next) => {
                *look_at = next.look_at;
                if engine.has_taken() && !self.state.was_taken() {
                    self.state.take();
                    self.status.attempts.note(Attempt::Taken);
                    if let Some(engine) = self.state.engine() {
                        self.status.meter.set_kernel(engine.counters());
                    }
                    self.status.set_engine(self.engine());
                }
                next
            }
            Turn::Refused(Refusal { cause, why }) => {
                self.status.attempts.note(cause.into());
                self.state.decline(why);
                if self.choice != EngineChoice::Auto && cause.ends_by_name() {
                    return Err(Reason::Refused);
                }
                let now = cx.now();
                self.state.tell(|promotion| promotion.declined(name, now));
                self.status.set_engine(self.engine());
                Next {
                    again: self.directions.iter().any(|direction| direction.can_move()),
                    ..Next::watching(Watch::Stream)
                }
            }
            Turn::Returned(returned) => {
                cx.spawn(Box::new(AftermathTask(self.take_back(name, returned))));
                self.note_ended_stream(cx);
                Next::PUMP
            }
            Turn::Ends(reason) => return Err(reason),
        };
        self.watch_both(cx, next.watch)?;
        self.set_deadline(cx);
        Ok(next.again)
    }

    /// Goes on alone, where the kernel has got to.
    fn take_back(&mut self, name: EngineName, returned: Returned) -> Box<dyn Aftermath> {
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
        let bytes: u64 = returned.moved_bytes.iter().sum();
        let had = format!("{name} moved {bytes} bytes and gave the pair back: {why}");
        // It had the pair, and no other engine will.
        self.state.take();
        self.state.decline(had.into());
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
        let promotion = self.state.promotion();
        let engine = self.state.engine();
        if promotion.is_some_and(|promotion| promotion.may_redirect())
            || engine.is_some_and(|engine| engine.profile().redirects)
        {
            redirected_receive_bytes(self.shares.buffer_bytes)
        } else {
            self.shares.buffer_bytes
        }
    }

    /// Asks the policy which kernel engine tries the pair. The next turn begins with it.
    pub(super) fn ask(&mut self, cx: &mut Context<'_>, trigger: Trigger) {
        let candidate = Candidate {
            ends: &self.ends,
            moved_bytes: self.status.meter.read().total(),
            is_held: self.state.engine().is_some(),
        };
        let asked = self.state.tell(|promotion| {
            let ask_at = promotion.ask_at();
            let proposal = promotion.propose(trigger, &candidate, cx);
            (proposal, promotion.ask_at() != ask_at)
        });
        let Some((proposal, is_put_off)) = asked else {
            return;
        };
        match proposal {
            Proposal::Nothing => {}
            Proposal::Try(engine) => self.state.try_engine(engine),
            Proposal::Unavailable(why) => {
                self.status.attempts.note(Attempt::Unavailable);
                self.state.decline(why);
                self.status.set_engine(self.engine());
            }
        }
        if is_put_off {
            self.set_deadline(cx);
        }
    }
}
