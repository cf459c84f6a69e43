//! What a rule does with a segment.

/// The [`Action::Effect`] of setting a packet's mark.
pub(crate) const SETS_A_MARK: &str = "sets a mark";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The segment passes this base chain.
    Accept,
    /// The segment does not pass. The text is a verb phrase: "drops", "rejects", "queues to user space".
    Stop(String),
    /// The segment passes with a side effect, which a translated segment would not have: "logs", "sets a
    /// mark", "counts against a quota".
    Effect(String),
    /// A side effect that also decides whether the rule continues: "limits a rate".
    Limit(String),
    /// Its effect is unknown: "is of a kind that is not understood (xt target TEE)".
    Opaque(String),
    /// Continues in another chain, and comes back.
    Jump(usize),
    /// Continues in another chain, and does not come back.
    Goto(usize),
    /// Returns to the calling chain; in a base chain, applies the policy.
    Return,
    /// Continues with the rule's next step.
    Continue,
    /// Continues with the next rule.
    Next,
}
