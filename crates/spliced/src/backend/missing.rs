//! Why no server of a backend gets a client, in words.

use std::time::Instant;

use super::health::State;
use super::server::Server;

/// What a server lacks. They are named in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Down,
    Out,
    Address,
    Drained,
    Disabled,
    Weight,
    /// It is up, but was of no use to this client.
    Use,
}

const ALL: [Missing; 7] = [
    Missing::Down,
    Missing::Out,
    Missing::Address,
    Missing::Drained,
    Missing::Disabled,
    Missing::Weight,
    Missing::Use,
];

impl Missing {
    fn of(server: &Server, now: Instant) -> Self {
        match server.state(now) {
            _ if server.is_disabled() => Self::Disabled,
            _ if server.is_drained() => Self::Drained,
            _ if server.weight() == 0 => Self::Weight,
            State::Down => Self::Down,
            State::Out(_) => Self::Out,
            State::Up if server.target.addresses().is_empty() => Self::Address,
            State::Up => Self::Use,
        }
    }

    /// What is said of one such server, or of several.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Down => ("is down", "are down"),
            Self::Out => ("is taken out", "are taken out"),
            Self::Address => ("has no address", "have no address"),
            Self::Drained => ("is drained", "are drained"),
            Self::Disabled => ("is disabled", "are disabled"),
            Self::Weight => ("has the weight 0", "have the weight 0"),
            Self::Use => ("cannot be used", "cannot be used"),
        }
    }
}

/// Why none of `servers` is left.
pub(super) fn why_none(servers: &[&Server], now: Instant) -> String {
    let missing: Vec<_> = servers
        .iter()
        .map(|server| Missing::of(server, now))
        .collect();
    if let ([only], [Missing::Address]) = (servers, &missing[..]) {
        return only.target.why_nowhere();
    }
    words(&missing)
}

fn words(missing: &[Missing]) -> String {
    let counted = ALL.iter().filter_map(|kind| {
        let count = missing.iter().filter(|it| *it == kind).count();
        (count > 0).then_some((count, kind.words()))
    });
    let counted: Vec<_> = counted.collect();
    match &counted[..] {
        [] => "its servers are not known yet".into(),
        [(1, (one, _))] => format!("its server {one}"),
        [(count, (_, several))] => format!("all {count} servers {several}"),
        kinds => {
            let parts = kinds.iter().map(|(count, (one, several))| match count {
                1 => format!("1 {one}"),
                count => format!("{count} {several}"),
            });
            let mut parts: Vec<_> = parts.collect();
            let last = parts.pop().unwrap_or_default();
            let count = missing.len();
            format!("of {count} servers, {} and {last}", parts.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted() {
        for (missing, expected) in [
            (&[][..], "its servers are not known yet"),
            (&[Missing::Weight], "its server has the weight 0"),
            (&[Missing::Down; 3], "all 3 servers are down"),
            (
                &[Missing::Drained, Missing::Out, Missing::Drained],
                "of 3 servers, 1 is taken out and 2 are drained",
            ),
            (
                &[Missing::Weight, Missing::Disabled, Missing::Down],
                "of 3 servers, 1 is down, 1 is disabled and 1 has the weight 0",
            ),
        ] {
            assert_eq!(words(missing), expected);
        }
    }
}
