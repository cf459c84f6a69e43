//! What a relay refuses when it starts, because no client could be served.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;

use crate::place::Place;
use crate::target::Target;

/// The command line asks for what cannot be had.
#[derive(Debug)]
pub(crate) struct WrongUsage(String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

/// A relay to itself would go on until its descriptors are used up.
pub(crate) fn of_itself(target: &Arc<Target>, listening: &[Place]) -> Result<()> {
    let Some(place) = target.keep_off(listening)? else {
        return Ok(());
    };
    Err(WrongUsage(format!(
        "the target {} is this relay itself ({place}); choose another target",
        target.address
    ))
    .into())
}

/// `segment` translates addresses of one family. Where one target address fits one listener, the
/// relay starts, and a pair of both families is refused when it comes.
pub(crate) fn of_families(targets: &[Place], listening: &[Place]) -> Result<()> {
    let fits = |target: &Place| {
        let takes = |own: &Place| own.takes_both_families() || own.is_ipv4() == target.is_ipv4();
        listening.iter().any(takes)
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
