//! What filters would do with the segments of a connection.

use std::fmt;

/// What the filters of a host would do with the segments of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They accept every segment and have no side effect on it.
    Accepts,
    /// They stop a segment, whatever is unknown about the connection.
    Stops(Reason),
    /// Unknown, for this reason.
    Unknown(Reason),
}

/// The rule that decides, and what it would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The rule; `None` if no rule of a table decides.
    pub place: Option<RulePlace>,
    /// What it would do: "drops", "may reject", "is of a kind that is not understood: xt bpf".
    pub why: String,
}

/// Identifies a rule by its table and chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePlace {
    /// The family of its table as nft writes it (`ip`, `inet`, `netdev`), or `iptables`, `ip6tables`
    /// for the tables of iptables-legacy.
    pub family: &'static str,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The rule in it; `None` for the chain's policy.
    pub rule: Option<RuleId>,
}

/// The identifier of a rule in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleId {
    /// nftables: its handle (`nft -a list chain`).
    Handle(u64),
    /// iptables-legacy: its number (`iptables -L CHAIN --line-numbers`).
    Number(u32),
}

impl Verdict {
    /// The stricter of the two.
    pub(crate) fn worse(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Stops(_), _) | (_, Self::Accepts) => self,
            (_, Self::Stops(_)) | (Self::Accepts, _) => other,
            (Self::Unknown(_), Self::Unknown(_)) => self,
        }
    }

    /// The reason, unless they accept.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Accepts => None,
            Self::Stops(reason) | Self::Unknown(reason) => Some(reason),
        }
    }
}

impl fmt::Display for RulePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            table,
            chain,
            rule,
        } = self;
        write!(f, "{family} {table} {chain}")?;
        match rule {
            Some(RuleId::Handle(handle)) => write!(f, " handle {handle}"),
            Some(RuleId::Number(number)) => write!(f, " rule {number}"),
            None => f.write_str(" policy"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place} {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}
