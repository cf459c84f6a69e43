//! What a rule does with a segment.

/// What setting a packet's mark is told as.
pub(crate) const SETS_A_MARK: &str = "sets a mark";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The segment passes this base chain.
    Accept,
    /// What is done instead, as a verb and what follows it: "drops", "rejects", "queues to user space".
    Stop(String),
    /// The segment passes and something else is done or asked, which a translated segment would miss:
    /// "logs", "sets a mark", "counts against a quota".
    Effect(String),
    /// The same, and it decides whether the rule goes on: "limits a rate".
    Limit(String),
    /// Nobody can tell what it does: "is of a kind that is not understood (xt target TEE)".
    Opaque(String),
    /// To another chain and back.
    Jump(usize),
    /// To another chain without coming back.
    Goto(usize),
    /// Back to where the chain was called; in a base chain: its policy.
    Return,
    /// To the rule's next step.
    Continue,
    /// To the next rule.
    Next,
}
