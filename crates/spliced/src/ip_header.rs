//! What the IP header of relayed datagrams says, beside addresses.

use std::num::NonZeroU8;
use std::str::FromStr;

use clap::ValueEnum;

/// The time to live (IPv4) or hop limit (IPv6) of a datagram that is sent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TimeToLive {
    /// What this host gives its own datagrams.
    #[default]
    Host,
    Fixed(NonZeroU8),
    /// What the datagram came with, less one, as a router does it.
    Keep,
}

impl FromStr for TimeToLive {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "host" => Ok(Self::Host),
            "keep" => Ok(Self::Keep),
            _ => text
                .parse()
                .map(Self::Fixed)
                .map_err(|_| "write host, keep or a number from 1 to 255"),
        }
    }
}

/// The don't-fragment bit of a datagram that is sent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DontFragment {
    /// Set while the datagram fits the path as far as this host knows; what does not fit leaves in fragments.
    #[default]
    Auto,
    /// Set: what does not fit is dropped.
    Yes,
    /// Not set, so that routers may split it (IPv4). Over IPv6 this host sends fragments, as with auto.
    No,
}
