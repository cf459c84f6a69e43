//! Receivers that do not read.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::payload::Payload;
use crate::relay::Relay;
use crate::site::{Connection, PATIENCE, Site};

/// Both senders blocked for this long: nothing moves any more.
const STILL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Per write.
const CHUNK_BYTES: usize = 256 << 10;

/// Where the bytes lie while nobody reads.
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
    pub(crate) fn total_bytes(&self) -> u64 {
        self.sockets_bytes + self.pipes_bytes + self.process_bytes
    }
}

/// Writes from both ends until both are blocked, looks at the relay, then reads everything and
/// makes sure that nothing was lost. `relay` must serve nobody else meanwhile.
pub(crate) fn hold(site: &Site, relay: &Relay) -> Result<Held> {
    let before = relay.memory_bytes()?;
    let connection = site.connect(relay.address())?;
    for stream in [&connection.client, &connection.server] {
        stream.set_nonblocking(true)?;
    }
    let sent = write_until_blocked(&connection)?;
    let held = Held {
        sockets_bytes: socket_bytes(site)?,
        pipes_bytes: relay.piped_bytes()?,
        process_bytes: relay.memory_bytes()?.saturating_sub(before),
    };
    read_back(&connection, sent)?;
    Ok(held)
}

/// Bytes written by the client and by the server.
fn write_until_blocked(connection: &Connection) -> Result<[u64; 2]> {
    let streams = [&connection.client, &connection.server];
    let mut chunk = vec![0; CHUNK_BYTES];
    Payload::new(1).fill(&mut chunk);
    let mut sent = [0; 2];
    loop {
        let mut polled = streams.map(|stream| PollFd::new(stream, PollFlags::OUT));
        if poll(&mut polled, Some(&STILL))? == 0 {
            return Ok(sent);
        }
        for (mut stream, sent) in streams.into_iter().zip(&mut sent) {
            match stream.write(&chunk) {
                Ok(count) => *sent += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("a sender failed instead of waiting"),
            }
        }
    }
}

/// Reads what the other end has sent, at both ends, and no more.
fn read_back(connection: &Connection, [by_client, by_server]: [u64; 2]) -> Result<()> {
    let mut ends: [(&TcpStream, u64); 2] = [
        (&connection.client, by_server),
        (&connection.server, by_client),
    ];
    let patience = Timespec::try_from(PATIENCE).context("a wait that long has no timespec")?;
    let mut buffer = vec![0; CHUNK_BYTES];
    while ends.iter().any(|&(_, left)| left > 0) {
        let mut polled = ends.map(|(stream, _)| PollFd::new(stream, PollFlags::IN));
        let moved = poll(&mut polled, Some(&patience))? > 0;
        ensure!(
            moved,
            "the flow did not resume: {} and {} bytes are missing",
            ends[0].1,
            ends[1].1
        );
        for (stream, left) in &mut ends {
            match stream.read(&mut buffer) {
                Ok(count) => {
                    ensure!(count > 0, "the stream ended with {left} bytes missing");
                    *left = left
                        .checked_sub(count as u64)
                        .context("more bytes arrived than were sent")?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("a receiver failed"),
            }
        }
    }
    Ok(())
}

/// What the established sockets of the relay's namespace hold.
fn socket_bytes(site: &Site) -> Result<u64> {
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
    let sockets: Vec<u64> = text.lines().filter_map(held_by).collect();
    ensure!(
        sockets.len() == 2,
        "the relay has {} established sockets where one pair has 2, so nobody knows which hold \
         the bytes",
        sockets.len()
    );
    Ok(sockets.iter().sum())
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
