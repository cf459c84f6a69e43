//! What decides which engine in the kernel tries a pair, and when. The pair asks; a policy, which
//! knows the engines, answers (`policy/promotion.rs`).

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use super::ends::Ends;
use crate::kernel::KernelEngine;
use crate::name::EngineName;
use crate::reactor::Context;

/// When a pair asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// It starts.
    Start,
    /// It has moved as much as the policy [`wants`](Promotion::wants).
    Moved,
    /// The time has come at which it was to [ask](Promotion::ask_at).
    Deadline,
}

/// What a policy may know of the pair that asks.
pub(crate) struct Candidate<'a> {
    pub(crate) ends: &'a Ends,
    pub(crate) moved_bytes: u64,
    /// An engine in the kernel has it, or tries to take it.
    pub(crate) is_held: bool,
}

/// A policy's answer.
pub(crate) enum Proposal {
    /// The pair stays as it is.
    Nothing,
    /// This engine is to try the pair.
    Try(Box<dyn KernelEngine>),
    /// An engine was to try it and cannot be used; why.
    Unavailable(Cow<'static, str>),
}

/// A pair's way into the kernel, as far as a policy knows it.
pub(crate) trait Promotion: Send + fmt::Debug {
    /// Whether the pair is to ask, having moved so much.
    fn wants(&self, moved_bytes: u64) -> bool;

    /// When the pair is to ask, whatever it has moved.
    fn ask_at(&self) -> Option<Instant>;

    fn propose(
        &mut self,
        trigger: Trigger,
        candidate: &Candidate<'_>,
        cx: &mut Context<'_>,
    ) -> Proposal;

    /// The engine has taken the pair.
    fn taken(&mut self, engine: EngineName);

    /// The engine has given the pair up, or was not able to take it.
    fn declined(&mut self, engine: EngineName, now: Instant);

    /// The pair may still come to an engine that keeps receive buffers empty, and must not have
    /// large ones before ([`redirected_receive_bytes`](crate::endpoint::redirected_receive_bytes)).
    fn may_redirect(&self) -> bool;
}
