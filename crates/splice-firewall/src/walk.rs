//! Walks the rules that apply to a segment, and collects what may happen to it.
//!
//! A rule that matches for certain decides. A rule that may match adds its decision to the possible ones,
//! and the walk continues. So a chain has a set of [`Outcomes`], not one.

use crate::action::Action;
use crate::expression::{Expression, Registers};
use crate::known::Answer;
use crate::rule::{Base, Chain, Rule, Step, Table};
use crate::segment::{DeviceAt, Hook, Segment};
use crate::verdict::{Reason, RuleId, RulePlace, Verdict};

/// The maximum depth of jumps. The kernel allows 16 (`NFT_JUMP_STACK_SIZE`); iptables-legacy has no loops.
const MOST_JUMPS: u32 = 64;

/// What may happen to a segment in a chain.
#[derive(Debug, Default)]
struct Outcomes {
    /// It may be accepted.
    accepts: bool,
    /// It may reach the end of the chain.
    falls: bool,
    /// The first rule that may stop it.
    stops: Option<Reason>,
    /// The first rule that may do something else with it, or something unknown.
    notes: Option<Reason>,
}

impl Outcomes {
    fn join(&mut self, other: Self) {
        self.accepts |= other.accepts;
        self.stops = self.stops.take().or(other.stops);
        self.notes = self.notes.take().or(other.notes);
    }

    fn verdict(self) -> Verdict {
        match (self.stops, self.notes) {
            (Some(reason), _) if !self.accepts => Verdict::Stops(reason),
            (_, Some(reason)) => Verdict::Unknown(reason),
            (Some(mut reason), None) => {
                reason.why = format!("may apply: it {}", reason.why);
                Verdict::Unknown(reason)
            }
            (None, None) => Verdict::Accepts,
        }
    }
}

/// What all base chains of a table at a hook do with segments. `segment_at` makes the segment that a chain of
/// a priority sees.
pub(crate) fn judge<'a>(
    table: &Table,
    hook: Hook,
    segment_at: impl Fn(i32) -> Segment<'a>,
) -> Verdict {
    let mut verdict = Verdict::Accepts;
    for (index, chain) in table.chains.iter().enumerate() {
        let Some(base) = chain.base.as_ref().filter(|base| base.hook == hook) else {
            continue;
        };
        let segment = segment_at(base.priority);
        if !applies(base, &segment) {
            continue;
        }
        let mut outcomes = Walk { table, segment }.chain(index, 0);
        if outcomes.falls {
            if base.drops {
                let reason = reason(table, chain, None, "drops");
                outcomes.stops = outcomes.stops.take().or(Some(reason));
            } else {
                outcomes.accepts = true;
            }
        }
        verdict = verdict.worse(outcomes.verdict());
    }
    verdict
}

/// Whether the chain may see the segment at all.
fn applies(base: &Base, segment: &Segment<'_>) -> bool {
    match segment.device() {
        DeviceAt::Known(device) => base.is_on(&device.name),
        DeviceAt::None | DeviceAt::Unknown => true,
    }
}

fn reason(table: &Table, chain: &Chain, rule: Option<RuleId>, why: &str) -> Reason {
    Reason {
        place: Some(RulePlace {
            family: table.family,
            table: table.name.clone(),
            chain: chain.name.clone(),
            rule,
        }),
        why: why.into(),
    }
}

struct Walk<'a> {
    table: &'a Table,
    segment: Segment<'a>,
}

/// How the walk continues after an action.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// With the rule's next step.
    Step,
    /// With the next rule.
    Rule,
    /// It is over.
    Over,
}

impl Walk<'_> {
    fn chain(&self, index: usize, depth: u32) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let Some(chain) = self.table.chains.get(index).filter(|_| depth < MOST_JUMPS) else {
            outcomes.notes = Some(Reason {
                place: None,
                why: "the rules of the packet filter jump too deep to be followed".into(),
            });
            return outcomes;
        };
        let mut registers = Registers::new();
        for rule in &chain.rules {
            let after = self.rule(chain, rule, depth, &mut registers, &mut outcomes);
            if after == After::Over {
                return outcomes;
            }
        }
        outcomes.falls = true;
        outcomes
    }

    fn rule(
        &self,
        chain: &Chain,
        rule: &Rule,
        depth: u32,
        registers: &mut Registers,
        outcomes: &mut Outcomes,
    ) -> After {
        let mut matches = Answer::Yes;
        for step in &rule.steps {
            let leaves_open = matches!(step, Step::Act(Action::Limit(_) | Action::Opaque(_)));
            match step {
                Step::Test(test) => matches = matches.and(test.holds(&self.segment)),
                Step::Act(action) => {
                    let after = self.act(chain, rule, action, matches, depth, outcomes);
                    if after != After::Step {
                        return after;
                    }
                }
                // The most frequent step.
                Step::Nft(Expression::Ask {
                    what,
                    is_equal,
                    value,
                }) => {
                    let answer = what.is(value, &self.segment).invert_if(!is_equal);
                    matches = matches.and(answer);
                }
                Step::Nft(expression) => {
                    let evaluated = expression.evaluate(&self.segment, registers);
                    for (answer, action) in &evaluated.actions {
                        let certain = matches.and(*answer);
                        let after = self.act(chain, rule, action, certain, depth, outcomes);
                        if after != After::Step {
                            return after;
                        }
                    }
                    matches = matches.and(evaluated.goes_on);
                }
            }
            if leaves_open {
                matches = matches.and(Answer::Maybe);
            }
            if matches == Answer::No {
                break;
            }
        }
        After::Rule
    }

    /// Applies an action of a rule that matches for certain, or may match.
    fn act(
        &self,
        chain: &Chain,
        rule: &Rule,
        action: &Action,
        matches: Answer,
        depth: u32,
        outcomes: &mut Outcomes,
    ) -> After {
        let unless_certain = |after| match matches {
            Answer::Yes => after,
            _ => After::Step,
        };
        let here = |why: &str| Some(reason(self.table, chain, Some(rule.id), why));
        match action {
            Action::Accept => {
                outcomes.accepts = true;
                unless_certain(After::Over)
            }
            Action::Stop(why) => {
                outcomes.stops = outcomes.stops.take().or_else(|| here(why));
                unless_certain(After::Over)
            }
            Action::Effect(why) | Action::Limit(why) | Action::Opaque(why) => {
                outcomes.notes = outcomes.notes.take().or_else(|| here(why));
                After::Step
            }
            Action::Return => {
                outcomes.falls = true;
                unless_certain(After::Over)
            }
            Action::Continue => After::Step,
            Action::Next => unless_certain(After::Rule),
            Action::Jump(to) => {
                let inner = self.chain(*to, depth + 1);
                let comes_back = inner.falls;
                outcomes.join(inner);
                if comes_back {
                    unless_certain(After::Rule)
                } else {
                    unless_certain(After::Over)
                }
            }
            Action::Goto(to) => {
                let inner = self.chain(*to, depth + 1);
                outcomes.falls |= inner.falls;
                outcomes.join(inner);
                unless_certain(After::Over)
            }
        }
    }
}
