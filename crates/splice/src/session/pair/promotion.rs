//! What decides which kernel engine tries a pair, and when. The pair asks; the policy, which knows
//! the engines, answers (`policy/promotion.rs`).

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use super::ends::Ends;
use crate::kernel::KernelEngine;
use crate::name::EngineName;
use crate::reactor::Context;

/// Why a pair asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// The pair starts.
    Start,
    /// The pair has moved as much as the policy [`wants`](Promotion::wants).
    Moved,
    /// The time of [`ask_at`](Promotion::ask_at) has come.
    Deadline,
}

/// What a policy sees of the pair.
pub(crate) struct Candidate<'a> {
    pub(crate) ends: &'a Ends,
    pub(crate) moved_bytes: u64,
    /// A kernel engine has the pair, or tries to take it.
    pub(crate) is_held: bool,
}

/// A policy's answer.
pub(crate) enum Proposal {
    /// The pair stays as it is.
    Nothing,
    /// This engine tries the pair.
    Try(Box<dyn KernelEngine>),
    /// No engine can try it, and why.
    Unavailable(Cow<'static, str>),
}

/// The policy for one pair on its way into the kernel.
pub(crate) trait Promotion: Send + fmt::Debug {
    /// Whether a pair that has moved so much should ask.
    fn wants(&self, moved_bytes: u64) -> bool;

    /// When the pair should ask, whatever it has moved.
    fn ask_at(&self) -> Option<Instant>;

    fn propose(
        &mut self,
        trigger: Trigger,
        candidate: &Candidate<'_>,
        cx: &mut Context<'_>,
    ) -> Proposal;

    /// The engine could not take the pair. Once one has taken it, the pair has no policy any more.
    fn declined(&mut self, engine: EngineName, now: Instant);

    /// Whether the pair may still get an engine that keeps receive buffers empty. Until then they
    /// must stay small ([`redirected_receive_bytes`](crate::endpoint::redirected_receive_bytes)).
    fn may_redirect(&self) -> bool;

    /// It will propose nothing more, so the pair need not keep it.
    fn is_over(&self) -> bool;
}
