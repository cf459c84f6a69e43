//! Tables, chains and rules, the same for nftables and iptables-legacy.

use crate::action::{Action, SETS_A_MARK};
use crate::expression::Expression;
use crate::known::Answer;
use crate::segment::{Family, Hook, Segment};
use crate::verdict::RuleId;
use crate::xt::{Header, Match};

/// A table of one family. Jumps name chains by their index in `chains`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// As [`RulePlace::family`](crate::verdict::RulePlace::family).
    pub(crate) family: &'static str,
    pub(crate) name: String,
    pub(crate) chains: Vec<Chain>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) name: String,
    /// The hook that calls it; `None` if it is reached by jumps only.
    pub(crate) base: Option<Base>,
    pub(crate) rules: Vec<Rule>,
}

/// Where a base chain is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) hook: Hook,
    pub(crate) priority: i32,
    /// The names of the devices, with [`Hook::Ingress`] and [`Hook::Egress`]. A trailing `*` is a
    /// wildcard.
    pub(crate) devices: Vec<String>,
    /// The policy: whether it drops a packet that no rule decides on.
    pub(crate) drops: bool,
}

impl Chain {
    /// Whether one of its rules sets marks.
    pub(crate) fn sets_marks(&self) -> bool {
        let mut steps = self.rules.iter().flat_map(|rule| &rule.steps);
        steps.any(|step| matches!(step, Step::Act(Action::Effect(what)) if what == SETS_A_MARK))
    }

    /// The chains that its rules may go to.
    pub(crate) fn leads_to(&self) -> impl Iterator<Item = usize> {
        let steps = self.rules.iter().flat_map(|rule| &rule.steps);
        steps.flat_map(|step| match step {
            Step::Act(Action::Jump(to) | Action::Goto(to)) => vec![*to],
            Step::Nft(expression) => expression.leads_to(),
            _ => Vec::new(),
        })
    }
}

impl Table {
    /// Whether it sees packets of this family when IP does; `bridge` sees frames instead.
    pub(crate) fn has(&self, family: Family) -> bool {
        match self.family {
            "ip" | "iptables" => family == Family::Ipv4,
            "ip6" | "ip6tables" => family == Family::Ipv6,
            "bridge" => false,
            _ => true,
        }
    }

    /// Whether it sees the frames that a bridge forwards.
    pub(crate) fn is_of_bridges(&self) -> bool {
        self.family == "bridge"
    }
}

impl Base {
    /// Whether it sees packets on this device.
    pub(crate) fn is_on(&self, device: &str) -> bool {
        let is_it = |name: &String| match name.strip_suffix('*') {
            Some(prefix) => device.starts_with(prefix),
            None => name == device,
        };
        match self.hook {
            Hook::Ingress | Hook::Egress => self.devices.iter().any(is_it),
            _ => true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: RuleId,
    pub(crate) steps: Vec<Step>,
}

/// One step of a rule. The steps run in order until one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Continues if this matches.
    Test(Test),
    /// Does this.
    Act(Action),
    /// An expression of nftables.
    Nft(Expression),
}

impl Step {
    /// The steps of a match of iptables. A match with a side effect has it whenever the earlier steps
    /// match, whether or not it matches itself.
    pub(crate) fn of_match(one: Match) -> Vec<Self> {
        match one {
            Match::Stateful { effect, .. } => vec![
                Self::Act(Action::Effect(effect.into())),
                Self::Test(Test::Match(one)),
            ],
            Match::Foreign(name) => vec![Self::Act(Action::Opaque(format!(
                "is of a kind that is not understood (xt match {name})"
            )))],
            _ => vec![Self::Test(Test::Match(one))],
        }
    }
}

/// A test of iptables, in a legacy table or within nftables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// The fixed part of an iptables rule: addresses, devices, protocol.
    Header(Header),
    /// `-m NAME`.
    Match(Match),
}

impl Test {
    pub(crate) fn holds(&self, segment: &Segment<'_>) -> Answer {
        match self {
            Self::Header(header) => header.holds(segment),
            Self::Match(one) => one.holds(segment),
        }
    }
}
