//! A rule set of a known host, and the expected verdicts.
//!
//! A fixture is a text file: first lines of words, then sections, each loaded by one program.
//!
//! ```text
//! # What this host is.
//! expect accepted 198.18.1.2:50000 -> 198.18.1.1:8080 on eth0: accepts
//! expect opened 198.18.1.1:50001 -> 198.18.1.2:25 on eth0: stops at ip filter OUTPUT: drops
//!
//! [iptables]
//! *filter
//! ```
//!
//! An expectation names the opener of the connection first. After the device comes one of
//!
//! - `accepts`
//! - `stops at FAMILY TABLE CHAIN`, and `policy` if the chain's policy decides
//! - `unknown at ...`
//! - `refused at ...`: one of these two, if both are correct
//!
//! and then, if it matters, `: ` and the start of the reason. `accepts`, `drops` and `rejects` imply what
//! really happens to the bytes; otherwise `(passes)` or `(blocked)` says it.
//!
//! Sections: `[nft]`, `[iptables]`, `[ip6tables]`, `[ipset]`. A fixture with a section of iptables is loaded
//! twice, into nftables and into the legacy tables; its expectations use the names of nftables.
//! `backend nft` or `backend legacy` among the first lines leaves out the other one.

use std::net::SocketAddr;

use splice_firewall::{Connection, Device, End, Family};

/// The backend of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Nft,
    Legacy,
}

/// The programs that load a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loader {
    Nft,
    Iptables,
    Ip6tables,
    Ipset,
}

#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) expectations: Vec<Expectation>,
    pub(crate) sections: Vec<(Loader, String)>,
    pub(crate) backends: Vec<Backend>,
}

/// A connection, and the expected verdict.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    /// Its line.
    pub(crate) text: String,
    /// The peer opened the connection.
    pub(crate) accepted: bool,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) device: String,
    pub(crate) answer: Answer,
    pub(crate) truth: Option<Truth>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    Passes,
    Blocked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepts,
    Not(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Whether the verdict may be `Stops`.
    pub(crate) may_stop: bool,
    /// Whether the verdict may be `Unknown`.
    pub(crate) may_be_unknown: bool,
    /// Family, table, chain.
    pub(crate) place: [String; 3],
    /// Whether the chain's policy decides, not a rule.
    pub(crate) policy: bool,
    /// The start of the reason.
    pub(crate) why: String,
}

impl Fixture {
    /// The fixture `tests/fixtures/NAME.rules`.
    pub(crate) fn read(name: &str) -> Self {
        let path = format!("{}/tests/fixtures/{name}.rules", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        Self::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut expectations = Vec::new();
        let mut sections: Vec<(Loader, String)> = Vec::new();
        let mut only = None;
        for line in text.lines() {
            if let Some(loader) = Loader::of_header(line) {
                sections.push((loader, String::new()));
            } else if let Some((_, section)) = sections.last_mut() {
                section.push_str(line);
                section.push('\n');
            } else if line.is_empty() || line.starts_with('#') {
            } else if let Some(text) = line.strip_prefix("expect ") {
                let read = Expectation::read(text);
                expectations.push(read.unwrap_or_else(|| panic!("not an expectation: {line}")));
            } else if line == "backend nft" {
                only = Some(Backend::Nft);
            } else if line == "backend legacy" {
                only = Some(Backend::Legacy);
            } else {
                panic!("neither a comment nor a known word: {line}");
            }
        }
        assert!(!expectations.is_empty(), "the fixture expects nothing");
        let two = sections
            .iter()
            .any(|(loader, _)| matches!(loader, Loader::Iptables | Loader::Ip6tables));
        let backends = match only {
            Some(backend) => vec![backend],
            None if two => vec![Backend::Nft, Backend::Legacy],
            None => vec![Backend::Nft],
        };
        Self {
            expectations,
            sections,
            backends,
        }
    }
}

impl Loader {
    fn of_header(line: &str) -> Option<Self> {
        match line {
            "[nft]" => Some(Self::Nft),
            "[iptables]" => Some(Self::Iptables),
            "[ip6tables]" => Some(Self::Ip6tables),
            "[ipset]" => Some(Self::Ipset),
            _ => None,
        }
    }
}

impl Expectation {
    fn read(text: &str) -> Option<Self> {
        let (how, rest) = text.split_once(' ')?;
        let (opener, rest) = rest.split_once(" -> ")?;
        let (other, rest) = rest.split_once(" on ")?;
        let (device, answer) = rest.split_once(": ")?;
        let (opener, other) = (opener.parse().ok()?, other.parse().ok()?);
        let accepted = match how {
            "accepted" => true,
            "opened" => false,
            _ => return None,
        };
        let (local, peer) = if accepted {
            (other, opener)
        } else {
            (opener, other)
        };
        let (answer, said) = match answer.rsplit_once(" (") {
            Some((answer, "passes)")) => (answer, Some(Truth::Passes)),
            Some((answer, "blocked)")) => (answer, Some(Truth::Blocked)),
            _ => (answer, None),
        };
        let answer = Answer::read(answer)?;
        let truth = said.or_else(|| answer.implies());
        Some(Self {
            text: text.into(),
            accepted,
            local,
            peer,
            device: device.into(),
            answer,
            truth,
        })
    }

    pub(crate) fn connection(&self, device_index: u32) -> Connection {
        let end = |address: SocketAddr| End {
            address: Some(address.ip()),
            port: Some(address.port()),
        };
        Connection {
            family: if self.local.is_ipv4() {
                Family::Ipv4
            } else {
                Family::Ipv6
            },
            local: end(self.local),
            peer: end(self.peer),
            tracked: true,
            opening: false,
            device: Some(Device {
                index: device_index,
                name: self.device.clone(),
                // ARPHRD_LOOPBACK and ARPHRD_ETHER of linux/if_arp.h.
                hardware_type: if self.is_on_loopback() { 772 } else { 1 },
            }),
            accepted: self.accepted,
        }
    }

    pub(crate) fn is_on_loopback(&self) -> bool {
        self.device == "lo"
    }
}

impl Answer {
    fn read(text: &str) -> Option<Self> {
        if text == "accepts" {
            return Some(Self::Accepts);
        }
        let (kind, rest) = text.split_once(" at ")?;
        let (place, why) = rest.split_once(": ").unwrap_or((rest, ""));
        let mut words = place.split(' ').map(String::from);
        let place = [words.next()?, words.next()?, words.next()?];
        let policy = match words.next().as_deref() {
            None => false,
            Some("policy") => true,
            Some(_) => return None,
        };
        let (may_stop, may_be_unknown) = match kind {
            "stops" => (true, false),
            "unknown" => (false, true),
            "refused" => (true, true),
            _ => return None,
        };
        Some(Self::Not(Refusal {
            may_stop,
            may_be_unknown,
            place,
            policy,
            why: why.into(),
        }))
    }

    fn implies(&self) -> Option<Truth> {
        match self {
            Self::Accepts => Some(Truth::Passes),
            Self::Not(refusal)
                if !refusal.may_be_unknown && ["drops", "rejects"].contains(&&*refusal.why) =>
            {
                Some(Truth::Blocked)
            }
            Self::Not(_) => None,
        }
    }
}
