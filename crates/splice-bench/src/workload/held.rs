//! The bytes that a relay holds.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::relay::Relay;
use crate::site::{PATIENCE, Site};

/// Sockets of an established pair.
const SOCKETS: usize = 2;

/// How often it is looked whether sockets of an earlier pair are gone.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a relay holds of one pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// In the relay's two sockets, as the kernel accounts for them (`SO_MEMINFO`).
    pub(crate) sockets_bytes: u64,
    /// In the relay's pipes.
    pub(crate) pipes_bytes: u64,
    /// Growth of the relay's own memory.
    pub(crate) process_bytes: u64,
}

impl Held {
    /// Looks at `relay`, which serves one pair and had `before` bytes of memory without it.
    pub(crate) fn now(site: &Site, relay: &Relay, before: u64) -> Result<Self> {
        Ok(Self {
            sockets_bytes: socket_bytes(site)?,
            pipes_bytes: relay.piped_bytes()?,
            process_bytes: relay.memory_bytes()?.saturating_sub(before),
        })
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.sockets_bytes + self.pipes_bytes + self.process_bytes
    }
}

/// What the established sockets of the relay's namespace hold.
fn socket_bytes(site: &Site) -> Result<u64> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let sockets = established(site)?;
        if sockets.len() == SOCKETS {
            return Ok(sockets.iter().sum());
        }
        ensure!(
            Instant::now() < deadline,
            "the relay has {} established sockets where one pair has {SOCKETS}, so nobody knows \
             which hold the bytes",
            sockets.len()
        );
        thread::sleep(LOOK_EVERY);
    }
}

/// What each established socket of the relay's namespace holds.
fn established(site: &Site) -> Result<Vec<u64>> {
    let output = site
        .lab
        .relay()
        .command("ss")
        .args([
            "--tcp",
            "--memory",
            "--numeric",
            "--no-header",
            "state",
            "established",
        ])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run `ss`: install the package iproute2")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(held_by).collect())
}

/// Reads `skmem:(r1,rb2,t3,tb4,f5,w6,o7,bl8,d9)`: received and not read (r), sent and not
/// acknowledged or not yet sent (w), and backlog (bl).
fn held_by(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("skmem:(")?;
    let (fields, _) = rest.split_once(')')?;
    let field = |wanted: &str| {
        fields.split(',').find_map(|field| {
            let digits = field.find(|letter: char| letter.is_ascii_digit())?;
            let (name, number) = field.split_at(digits);
            (name == wanted).then(|| number.parse::<u64>().ok())?
        })
    };
    Some(field("r")? + field("w")? + field("bl").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::held_by;

    #[test]
    fn the_memory_of_a_socket_is_read_field_by_field() {
        let line = "\t skmem:(r100,rb131072,t7,tb2626560,f1024,w20,o0,bl3,d0) cubic";
        assert_eq!(held_by(line), Some(123));
        assert_eq!(held_by("ESTAB 0 0 198.18.1.1:9001 198.18.1.2:40000"), None);
    }
}
