//! nftables: its rule set as the kernel tells it over netlink.

/// One expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {}
