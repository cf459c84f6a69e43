//! Many bytes, both ways at once, on one connection.
//!
//! Two passes, because on one shared CPU whatever the ends do takes time from the relay: a checked
//! pass whose bytes are all different and hashed at both ends, and timed passes that send the same
//! pseudo-random buffer over and over and count what arrives.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, Result, anyhow, ensure};

use crate::payload::{Digest, Payload};
use crate::site::{Connection, Cost, Site};

/// Per system call at the ends; fits the L2 cache of any server CPU together with its copy.
const CHUNK_BYTES: usize = 256 << 10;

/// Sent before the clock starts, so that windows and receive buffers have grown.
const WARM_UP_BYTES: u64 = 16 << 20;

/// Seeds of the two directions; any two different ones would do.
const SEEDS: [u64; 2] = [0x5eed_0001, 0x5eed_0002];

/// Sends `bytes` of random bytes each way and compares hashes. Fails when the transfer does;
/// `Ok(false)` means that all of it went through, but not the same.
pub(crate) fn check(site: &Site, address: SocketAddr, bytes: u64) -> Result<bool> {
    let connection = site.connect(address)?;
    let Connection { client, server } = &connection;
    let same = thread::scope(|scope| {
        let ways =
            [(client, server, SEEDS[0]), (server, client, SEEDS[1])].map(|(from, to, seed)| {
                let sending = scope.spawn(move || {
                    let (mut payload, mut digest) = (Payload::new(seed), Digest::default());
                    send(from, bytes, |chunk| {
                        payload.fill(chunk);
                        digest.update(chunk);
                    })?;
                    Ok(digest.finish())
                });
                let receiving = scope.spawn(move || {
                    let mut digest = Digest::default();
                    receive(to, bytes, |chunk| digest.update(chunk))?;
                    Ok(digest.finish())
                });
                (sending, receiving)
            });
        let mut same = true;
        for (sending, receiving) in ways {
            same &= finish(sending)? == finish(receiving)?;
        }
        anyhow::Ok(same)
    })?;
    ensure_nothing_follows(&connection)?;
    Ok(same)
}

/// Sends `bytes` each way and says what that cost.
pub(crate) fn time(site: &Site, address: SocketAddr, bytes: u64) -> Result<Cost> {
    let connection = site.connect(address)?;
    both_ways(&connection, WARM_UP_BYTES)?;
    let ((), cost) = site.time(|| both_ways(&connection, bytes))?;
    Ok(cost)
}

fn both_ways(connection: &Connection, bytes: u64) -> Result<()> {
    let Connection { client, server } = connection;
    thread::scope(|scope| {
        let threads = [
            scope.spawn(move || send(client, bytes, |_| {})),
            scope.spawn(move || send(server, bytes, |_| {})),
            scope.spawn(move || receive(server, bytes, |_| {})),
            scope.spawn(move || receive(client, bytes, |_| {})),
        ];
        threads.into_iter().try_for_each(finish)
    })
}

fn finish<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow!("an end of the transfer panicked")))
}

/// Sends `bytes`; `prepare` may change each chunk before it goes.
fn send(mut stream: &TcpStream, bytes: u64, mut prepare: impl FnMut(&mut [u8])) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    Payload::new(bytes).fill(&mut buffer);
    let mut left = bytes;
    while left > 0 {
        let chunk = &mut buffer[..left.min(CHUNK_BYTES as u64) as usize];
        prepare(chunk);
        stream
            .write_all(chunk)
            .with_context(|| format!("sending stopped {left} bytes before the end of {bytes}"))?;
        left -= chunk.len() as u64;
    }
    Ok(())
}

/// Receives exactly `bytes` and shows each chunk to `look`.
fn receive(mut stream: &TcpStream, bytes: u64, mut look: impl FnMut(&[u8])) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let room = left.min(CHUNK_BYTES as u64) as usize;
        let count = stream
            .read(&mut buffer[..room])
            .with_context(|| format!("receiving stopped {left} bytes before the end of {bytes}"))?;
        ensure!(
            count > 0,
            "the stream ended {left} bytes before the end of {bytes}"
        );
        look(&buffer[..count]);
        left -= count as u64;
    }
    Ok(())
}

/// A relay that doubled bytes would deliver more than was sent.
fn ensure_nothing_follows(connection: &Connection) -> Result<()> {
    for (from, mut to) in [
        (&connection.client, &connection.server),
        (&connection.server, &connection.client),
    ] {
        // The other way may have been closed together with the first, as nginx does.
        let _ = from.shutdown(Shutdown::Write);
        let count = to
            .read(&mut [0])
            .context("no end of stream after the last byte")?;
        ensure!(count == 0, "more bytes arrived than were sent");
    }
    Ok(())
}
