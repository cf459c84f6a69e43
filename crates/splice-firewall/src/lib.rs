//! Would the packet filters of this host let the segments of an established TCP connection through?
//!
//! An engine that moves segments past the network stack moves them past its filters too. Before it takes
//! a connection it asks here, and again whenever the rules change. Nothing is ever changed here.
//!
//! ```text
//! nftables (netlink) ──▶ nft ───┐
//!                               ├──▶ rule: tables, chains, rules ──▶ walk ──▶ Verdict
//! iptables-legacy ──▶ legacy ───┘                                     ▲
//!                  xt: matches and targets of both          segment: what is known of the segments
//!                  expression: what rules of nftables are made of
//! ```
//!
//! Answers have three values, because a rule may ask for what is not known
//! (`known`): a connection passes only if every filter accepts it for certain.

mod action;
mod expression;
mod filters;
mod hooks;
mod known;
mod legacy;
mod netlink;
mod nft;
mod rule;
mod segment;
mod verdict;
mod walk;
mod xt;

pub use filters::{Changes, Filters, ReadError, Reader};
pub use hooks::{HookCounts, HookKind, HookPlace, RegisteredHook, Registry, UnknownHook, classify};
pub use segment::{Connection, Device, End, Family, Hook};
pub use verdict::{Reason, RuleId, RulePlace, Verdict};
