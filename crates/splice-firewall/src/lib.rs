//! Would the packet filters of this host let the segments of an established TCP connection through?
//!
//! An engine that moves segments past the network stack bypasses the stack's filters, too. It asks this
//! crate before it takes a connection, and again when the rules change. The crate only reads: it never
//! changes a rule.
//!
//! ```text
//! nftables (netlink) ──▶ nft ───┐
//!                               ├──▶ rule: tables, chains, rules ──▶ walk ──▶ Verdict
//! iptables-legacy ──▶ legacy ───┘                                     ▲
//!                  xt: matches and targets of both          segment: what is known of the segments
//!                  expression: what rules of nftables are made of
//! ```
//!
//! Answers have three values (yes, no, maybe), because a rule may test something that is not known
//! (`known`). A connection passes only if every filter accepts it for certain.

mod action;
mod expression;
mod filters;
mod hooks;
mod ipsec;
mod known;
mod legacy;
mod link;
mod netlink;
mod nft;
mod port_rule;
mod route;
mod rule;
mod segment;
mod setting;
mod tracked;
mod verdict;
mod walk;
mod way;
mod xt;

pub use filters::{Changes, Filters, ReadError, Reader};
pub use hooks::{HookCounts, HookKind, HookPlace, RegisteredHook, Registry, UnknownHook, classify};
pub use ipsec::{Policies, PolicyChanges, PolicyReader, Protection};
pub use link::{Discipline, Link, LinkChanges, Links, TrafficFilter};
pub use port_rule::PortRule;
pub use route::{Route, Routes};
pub use segment::{Connection, Device, End, Family, Forwarded, Hook};
pub use tracked::Tracking;
pub use verdict::{Reason, RuleId, RulePlace, Verdict};
pub use way::{Ends, Way, WayChanges, Ways};
