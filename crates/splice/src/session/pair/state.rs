//! The states of a pair that has not ended, as drawn at the top of `mod.rs`.

use std::borrow::Cow;
use std::time::Instant;

use super::Plan;
use super::promotion::Promotion;
use crate::kernel::KernelEngine;

#[derive(Debug)]
pub(super) enum State {
    /// User space moves the bytes.
    UserSpace(Alone),
    /// An engine tries to take the pair. Until then, user space moves the bytes.
    Trying {
        alone: Alone,
        engaged: Engaged,
        /// The loop watches the engine's notifier.
        is_notified: bool,
    },
    /// The engine has taken the pair.
    InKernel(Engaged),
    /// The byte limit was reached. The receiver has until then to take what was written.
    Parting { until: Instant, before: Box<Self> },
}

/// A pair without an engine in the kernel.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// Why no engine has the pair, if one was tried or none may be.
    pub(super) declined: Option<Box<Cow<'static, str>>>,
    /// What decides on the next engine.
    pub(super) promotion: Option<Box<dyn Promotion>>,
}

#[derive(Debug)]
pub(super) struct Engaged {
    pub(super) engine: Box<dyn KernelEngine>,
    /// The engine gets a turn then.
    pub(super) look_at: Option<Instant>,
}

impl State {
    pub(super) fn new(plan: Plan) -> Self {
        let mut state = Self::UserSpace(Alone {
            declined: plan.stays.map(|why| Box::new(why.into())),
            promotion: plan.promotion,
        });
        if let Some(engine) = plan.kernel {
            state.try_engine(engine);
        }
        state
    }

    fn leave(&mut self) -> (Alone, Option<Engaged>) {
        match std::mem::replace(self, Self::UserSpace(Alone::default())) {
            Self::UserSpace(alone) => (alone, None),
            Self::Trying { alone, engaged, .. } => (alone, Some(engaged)),
            Self::InKernel(engaged) => (Alone::default(), Some(engaged)),
            Self::Parting { mut before, .. } => before.leave(),
        }
    }

    /// The engine tries the pair with its next turn.
    pub(super) fn try_engine(&mut self, engine: Box<dyn KernelEngine>) {
        let (alone, _) = self.leave();
        *self = Self::Trying {
            alone,
            engaged: Engaged {
                engine,
                look_at: None,
            },
            is_notified: false,
        };
    }

    /// The engine that has tried the pair has taken it. No other one will.
    pub(super) fn take(&mut self) {
        if let (_, Some(engaged)) = self.leave() {
            *self = Self::InKernel(engaged);
        }
    }

    /// The engine has not taken the pair, or not for good.
    pub(super) fn decline(&mut self, why: Cow<'static, str>) {
        let (mut alone, _) = self.leave();
        alone.declined = Some(Box::new(why));
        *self = Self::UserSpace(alone);
    }

    /// Returns `until`.
    pub(super) fn part(&mut self, until: Instant) -> Instant {
        let before = std::mem::replace(self, Self::UserSpace(Alone::default()));
        let before = Box::new(before);
        *self = Self::Parting { until, before };
        until
    }

    /// Takes the engine of a pair that has ended.
    pub(super) fn end(mut self) -> Option<Box<dyn KernelEngine>> {
        self.leave().1.map(|engaged| engaged.engine)
    }

    pub(super) fn is_parting(&self) -> bool {
        matches!(self, Self::Parting { .. })
    }

    pub(super) fn alone(&self) -> Option<&Alone> {
        match self {
            Self::UserSpace(alone) | Self::Trying { alone, .. } => Some(alone),
            Self::InKernel(_) => None,
            Self::Parting { before, .. } => before.alone(),
        }
    }

    /// Tells the policy something. An idle pair is to be small, so it keeps none that is over.
    pub(super) fn tell<T>(&mut self, tell: impl FnOnce(&mut dyn Promotion) -> T) -> Option<T> {
        let (Self::UserSpace(alone) | Self::Trying { alone, .. }) = self else {
            return None;
        };
        let promotion = alone.promotion.as_mut()?;
        let told = tell(promotion.as_mut());
        alone.promotion.take_if(|promotion| promotion.is_over());
        Some(told)
    }

    pub(super) fn promotion(&self) -> Option<&dyn Promotion> {
        self.alone()?.promotion.as_deref()
    }

    /// The engine that tries the pair, or has taken it.
    pub(super) fn engine(&self) -> Option<&dyn KernelEngine> {
        match self {
            Self::UserSpace(_) => None,
            Self::Trying { engaged, .. } | Self::InKernel(engaged) => Some(&*engaged.engine),
            Self::Parting { before, .. } => before.engine(),
        }
    }

    pub(super) fn engaged(&mut self) -> Option<&mut Engaged> {
        match self {
            Self::UserSpace(_) => None,
            Self::Trying { engaged, .. } | Self::InKernel(engaged) => Some(engaged),
            Self::Parting { before, .. } => before.engaged(),
        }
    }

    /// Whether the engine has taken the pair.
    pub(super) fn was_taken(&self) -> bool {
        self.alone().is_none()
    }
}
