//! Which kinds of socket a pair joins.

use std::sync::OnceLock;

use splice::Kind;

use crate::support::peer::mptcp_missing;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mix {
    pub(crate) a: Kind,
    pub(crate) b: Kind,
}

impl std::fmt::Debug for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} to {:?}", self.a, self.b)
    }
}

impl Mix {
    pub(crate) const TCP4: Self = Self {
        a: Kind::Tcp4,
        b: Kind::Tcp4,
    };

    pub(crate) fn all() -> Vec<Self> {
        static MPTCP: OnceLock<bool> = OnceLock::new();
        let mut kinds = vec![Kind::Tcp4, Kind::Tcp6, Kind::Unix];
        if *MPTCP
            .get_or_init(|| netlab::present("mptcp", mptcp_missing().map(|why| why.to_string())))
        {
            kinds.push(Kind::Mptcp);
        }
        kinds
            .iter()
            .flat_map(|&a| kinds.iter().map(move |&b| Self { a, b }))
            .collect()
    }

    /// Whether a reset that crosses data may get lost, as MPTCP's occasionally does on 6.18. Its
    /// subflow is gone, and the other end waits for another one for `net.mptcp.close_timeout`, 60 s
    /// (seen without a relay, too). More rarely the subflow lives on, although the socket that it
    /// led to is closed.
    pub(crate) fn may_lose_reset(self) -> bool {
        self.kinds().contains(&Kind::Mptcp)
    }

    pub(crate) fn kinds(self) -> [Kind; 2] {
        [self.a, self.b]
    }
}
