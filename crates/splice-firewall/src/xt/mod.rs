//! Matches and targets of iptables, in legacy tables and within nftables (`nft_compat`).

use crate::known::Answer;
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
