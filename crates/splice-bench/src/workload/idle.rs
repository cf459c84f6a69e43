//! Pairs that have nothing to do.

use std::fs;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::entrant::Entrant;
use crate::site::Site;

/// Time for a relay to give back what it needs only while bytes move.
const SETTLE: Duration = Duration::from_secs(1);

/// Slab caches of file systems, by parts of their names: they come and go with whatever else the
/// machine does.
const FILE_SYSTEMS: [&str; 9] = [
    "btrfs",
    "buffer_head",
    "ext4",
    "jbd2",
    "kernfs",
    "overlayfs",
    "proc_",
    "radix_tree",
    "xfs",
];

/// What a pair costs while nothing happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Of the relay's own memory; `None` where there is no relay.
    pub(crate) process_bytes: Option<f64>,
    /// Of the kernel's, the client's and the server's end included.
    pub(crate) kernel_bytes: f64,
}

/// Opens `count` pairs, sends a byte each way through every one, and leaves them idle. The relay
/// should be fresh: one that has been busy before has memory to spare, and the pairs would look
/// cheaper than they are.
pub(crate) fn cost_per_pair(site: &Site, entrant: &Entrant, count: u32) -> Result<Cost> {
    let process = || entrant.relay.as_ref().map(|relay| relay.memory_bytes());
    let (before, kernel_before) = (process().transpose()?, kernel_bytes()?);
    let mut pairs = Vec::with_capacity(count as usize);
    for number in 0..count {
        let mut pair = site
            .connect(entrant.address())
            .with_context(|| format!("idle pair {number} of {count}"))?;
        let mut byte = [0];
        pair.client.write_all(&byte)?;
        pair.server.read_exact(&mut byte)?;
        pair.server.write_all(&byte)?;
        pair.client.read_exact(&mut byte)?;
        pairs.push(pair);
    }
    thread::sleep(SETTLE);
    let (after, kernel_after) = (process().transpose()?, kernel_bytes()?);
    let each = |after: u64, before: u64| (after as f64 - before as f64) / f64::from(count);
    let process_bytes = after.zip(before).map(|(after, before)| each(after, before));
    let kernel_bytes = each(kernel_after, kernel_before);
    // Closing from the server leaves TIME_WAIT at its fixed port.
    let (clients, servers): (Vec<_>, Vec<_>) = pairs
        .into_iter()
        .map(|pair| (pair.client, pair.server))
        .unzip();
    drop(servers);
    for mut client in clients {
        let _ = client.read(&mut [0]);
    }
    Ok(Cost {
        process_bytes,
        kernel_bytes,
    })
}

/// Kernel memory in use that sockets, their files and processes may be in: slab objects, kernel
/// stacks and page tables.
fn kernel_bytes() -> Result<u64> {
    let read = |path| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let slabs: u64 = read("/proc/slabinfo")?.lines().filter_map(in_use).sum();
    let meminfo = read("/proc/meminfo")?;
    let kibibytes: u64 = meminfo
        .lines()
        .filter(|line| line.starts_with("KernelStack:") || line.starts_with("PageTables:"))
        .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    Ok(slabs + (kibibytes << 10))
}

/// Reads `name active_objs num_objs objsize ...` (slabinfo(5)).
fn in_use(line: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let name = fields.next()?;
    if FILE_SYSTEMS.iter().any(|part| name.contains(part)) {
        return None;
    }
    let active: u64 = fields.next()?.parse().ok()?;
    let size: u64 = fields.nth(1)?.parse().ok()?;
    Some(active * size)
}

#[cfg(test)]
mod tests {
    use super::in_use;

    #[test]
    fn slab_objects_in_use_are_counted_but_those_of_file_systems() {
        let line = "TCP 10 13 2432 13 8 : tunables 0 0 0 : slabdata 1 1 0";
        assert_eq!(in_use(line), Some(24_320));
        assert_eq!(in_use("ext4_inode_cache 10 13 1104 13 8 : tunables"), None);
        assert_eq!(in_use("slabinfo - version: 2.1"), None);
        assert_eq!(in_use("# name  <active_objs> <num_objs> <objsize>"), None);
    }
}
