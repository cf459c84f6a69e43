//! Matches and targets of iptables, in legacy tables and within nftables (`nft_compat`).

use crate::known::Answer;
use crate::rule::{Action, Step, Test};
use crate::segment::{Family, Segment};

/// `-m NAME`, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// One that is not decoded: it may match or not.
    Opaque(String),
}

impl Match {
    /// Reads what the kernel keeps of a match (`struct xt_entry_match`): its name, revision and data.
    pub(crate) fn decode(_family: Family, name: &str, _revision: u8, _info: &[u8]) -> Self {
        Self::Opaque(name.into())
    }

    pub(crate) fn holds(&self, _segment: &Segment<'_>) -> Answer {
        Answer::Maybe
    }
}

/// The steps of a match within a rule.
pub(crate) fn match_steps(family: Family, name: &str, revision: u8, info: &[u8]) -> Vec<Step> {
    vec![Step::Test(Test::Match(Match::decode(family, name, revision, info)))]
}

/// The steps of a target.
pub(crate) fn target_steps(_family: Family, name: &str, _revision: u8, _info: &[u8]) -> Vec<Step> {
    vec![Step::Act(Action::Opaque(name.into()))]
}
