//! Receivers that do not read.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::payload::Payload;
use crate::relay::Relay;
use crate::site::{Connection, PATIENCE, Site};
use crate::workload::Held;

/// Both senders blocked for this long: nothing moves any more.
const STILL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Per write.
const CHUNK_BYTES: usize = 256 << 10;

/// Writes from both ends until both are blocked, looks at the relay, then reads everything and
/// makes sure that nothing was lost. `relay` must serve no other connection meanwhile.
pub(crate) fn hold(site: &Site, relay: &Relay) -> Result<Held> {
    let before = relay.memory_bytes()?;
    let connection = site.connect(relay.address())?;
    for stream in [&connection.client, &connection.server] {
        stream.set_nonblocking(true)?;
    }
    let sent = write_until_blocked(&connection)?;
    let held = Held::now(site, relay, before)?;
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
