//! Command lines that a relay refuses when it starts, because it could serve no client.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;

use crate::socket_address::SocketAddress;
use crate::target::Target;

/// The command line asks for something that cannot work.
#[derive(Debug)]
pub(crate) struct WrongUsage(String);

impl WrongUsage {
    pub(crate) fn new(sentence: String) -> Self {
        Self(sentence)
    }
}

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

/// Refuses a target that is the relay itself: each connection would make another until the descriptors are
/// used up.
pub(crate) fn of_itself(
    backend: &str,
    targets: &[Arc<Target>],
    listening: &[SocketAddress],
) -> Result<()> {
    let leads_back = |target: &Arc<Target>| target.leads_back(listening);
    let Some(own) = targets.iter().map(leads_back).collect::<Option<Vec<_>>>() else {
        return Ok(());
    };
    let Some(address) = own.last() else {
        return Ok(());
    };
    Err(WrongUsage(format!(
        "the target {backend} is this relay itself ({address}); choose another target"
    ))
    .into())
}

/// Refuses targets and listeners without a common address family: `segment` does not translate between
/// families. If one pair of addresses fits, the relay starts, and the engine refuses pairs that do not.
pub(crate) fn of_families(targets: &[SocketAddress], listening: &[SocketAddress]) -> Result<()> {
    let fits = |target: &SocketAddress| {
        let accepts =
            |own: &SocketAddress| own.is_dual_stack() || own.is_ipv4() == target.is_ipv4();
        listening.iter().any(accepts)
    };
    let [target, ..] = targets else {
        return Ok(());
    };
    if targets.iter().any(fits) {
        return Ok(());
    }
    let [theirs, ours] = match target.is_ipv4() {
        true => ["IPv4", "IPv6"],
        false => ["IPv6", "IPv4"],
    };
    Err(WrongUsage(format!(
        "engine segment cannot be used: clients come over {ours} and the target {target} is reached \
         over {theirs}; give both the same family, or use copy or pipe"
    ))
    .into())
}
