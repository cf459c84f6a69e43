//! Pairs that have nothing to do.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::relay::Relay;
use crate::site::Site;

/// Time for a relay to give back what it needs only while bytes move.
const SETTLE: Duration = Duration::from_secs(1);

/// Opens `count` pairs, sends a byte each way through every one, leaves them idle, and returns the
/// bytes of the relay's own memory that each has cost. `relay` should be fresh: one that has been
/// busy before has memory to spare, and the pairs would look cheaper than they are.
pub(crate) fn bytes_per_pair(site: &Site, relay: &Relay, count: u32) -> Result<f64> {
    let before = relay.memory_bytes()?;
    let mut pairs = Vec::with_capacity(count as usize);
    for number in 0..count {
        let mut pair = site
            .connect(relay.address())
            .with_context(|| format!("idle pair {number} of {count}"))?;
        let mut byte = [0];
        pair.client.write_all(&byte)?;
        pair.server.read_exact(&mut byte)?;
        pair.server.write_all(&byte)?;
        pair.client.read_exact(&mut byte)?;
        pairs.push(pair);
    }
    thread::sleep(SETTLE);
    let after = relay.memory_bytes()?;
    Ok((after as f64 - before as f64) / f64::from(count))
}
