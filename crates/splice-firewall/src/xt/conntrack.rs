//! `-m conntrack` and `-m state`.

use crate::known::Answer;
use crate::segment::{Segment, TCP};
use crate::xt::Info;

/// `struct xt_conntrack_mtinfo1` to `3`, as far as its answers are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conntrack {
    /// The tested fields: `XT_CONNTRACK_*`.
    asked: u16,
    inverted: u16,
    states: u16,
    statuses: u16,
    protocol: u16,
}

/// `XT_CONNTRACK_*` in `match_flags` and `invert_flags`.
mod ask {
    pub(super) const STATE: u16 = 1 << 0;
    pub(super) const PROTOCOL: u16 = 1 << 1;
    pub(super) const STATUS: u16 = 1 << 6;
    pub(super) const DIRECTION: u16 = 1 << 12;
    /// `XT_CONNTRACK_STATE_ALIAS`: the rule was written with `-m state`. It tests nothing.
    pub(super) const STATE_ALIAS: u16 = 1 << 13;
}

/// Bits of `state_mask`.
mod state {
    /// `XT_CONNTRACK_STATE_BIT(IP_CT_ESTABLISHED)`, and the same in `-m state`.
    pub(super) const ESTABLISHED: u16 = 1 << 1;
    /// `XT_CONNTRACK_STATE_SNAT` and `XT_CONNTRACK_STATE_DNAT`, which a connection has in addition to
    /// its state.
    pub(super) const TRANSLATED: u16 = (1 << 6) | (1 << 7);
}

/// Bits of `status_mask` (`enum ip_conntrack_status`).
mod status {
    /// `IPS_SEEN_REPLY` and `IPS_CONFIRMED`.
    pub(super) const CERTAIN: u16 = (1 << 1) | (1 << 3);
}

impl Conntrack {
    pub(super) fn decode(revision: u8, info: Info<'_>) -> Option<Self> {
        let (states, statuses) = if revision == 1 {
            (info.u8(150)?.into(), info.u8(151)?.into())
        } else {
            (info.u16(150)?, info.u16(152)?)
        };
        Some(Self {
            asked: info.u16(146)?,
            inverted: info.u16(148)?,
            states,
            statuses,
            protocol: info.u16(136)?,
        })
    }

    /// `struct xt_state_info`.
    pub(super) fn decode_state(info: Info<'_>) -> Option<Self> {
        let states = u16::try_from(info.u32(0)?).ok()?;
        Some(Self {
            asked: ask::STATE,
            inverted: 0,
            // It does not support address translation: bit 6 is `XT_STATE_UNTRACKED`.
            states: states & !state::TRANSLATED,
            statuses: 0,
            protocol: 0,
        })
    }

    /// As `conntrack_mt` with an entry in the state ESTABLISHED. Addresses and ports are unknown, because
    /// they may be translated.
    pub(super) fn holds(&self, segment: &Segment<'_>) -> Answer {
        if !segment.is_tracked {
            return Answer::Maybe;
        }
        let ask = |bit: u16, answer: Answer| {
            if self.asked & bit == 0 {
                Answer::Yes
            } else {
                answer.invert_if(self.inverted & bit != 0)
            }
        };
        let others =
            !(ask::STATE | ask::PROTOCOL | ask::STATUS | ask::DIRECTION | ask::STATE_ALIAS);
        ask(
            ask::STATE,
            one_of(self.states, state::ESTABLISHED, state::TRANSLATED),
        )
        .and(ask(ask::PROTOCOL, (self.protocol == TCP.into()).into()))
        .and(ask(
            ask::STATUS,
            one_of(self.statuses, status::CERTAIN, !status::CERTAIN),
        ))
        .and(ask(ask::DIRECTION, segment.is_original().into()))
        .and(if self.asked & others == 0 {
            Answer::Yes
        } else {
            Answer::Maybe
        })
    }
}

/// Whether a bit of `mask` is set, given the bits that are known to be set and those that may be.
fn one_of(mask: u16, set: u16, perhaps: u16) -> Answer {
    if mask & set != 0 {
        Answer::Yes
    } else if mask & perhaps != 0 {
        Answer::Maybe
    } else {
        Answer::No
    }
}
