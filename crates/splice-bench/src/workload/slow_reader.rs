//! A receiver that reads more slowly than its sender writes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::payload::Payload;
use crate::relay::Relay;
use crate::site::Site;
use crate::workload::Held;

/// Per write and read.
const CHUNK_BYTES: usize = 64 << 10;

/// Between two reads: with 64 KiB each, 6.4 MB/s are read, a thousandth of what a relay can do.
const READ_EVERY: Duration = Duration::from_millis(10);

/// How often it is looked what the relay holds; each look runs `ss`, which takes some ms.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Sends as fast as the relay takes it and reads slowly for `duration`. Returns what the relay
/// held, each with the time since the sending began. `relay` must serve no other connection meanwhile.
pub(crate) fn watch(
    site: &Site,
    relay: &Relay,
    duration: Duration,
) -> Result<Vec<(Duration, Held)>> {
    let before = relay.memory_bytes()?;
    let connection = site.connect(relay.address())?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let sender = scope.spawn(|| send(&connection.client, over));
        let reader = scope.spawn(|| read(&connection.server, over));
        let begin = Instant::now();
        let seen = (|| {
            let mut seen = Vec::new();
            while begin.elapsed() < duration && netlab::interrupted().is_none() {
                seen.push((begin.elapsed(), Held::now(site, relay, before)?));
                thread::sleep(LOOK_EVERY);
            }
            Ok(seen)
        })();
        over.store(true, Ordering::Release);
        let ends = [sender.join(), reader.join()];
        for end in ends {
            end.map_err(|_| anyhow!("an end panicked"))??;
        }
        seen
    })
}

fn send(mut stream: &TcpStream, over: &AtomicBool) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    Payload::new(1).fill(&mut chunk);
    while !over.load(Ordering::Acquire) {
        let sent = stream.write_all(&chunk);
        if !over.load(Ordering::Acquire) {
            sent.context("the sender failed instead of waiting")?;
        }
    }
    Ok(())
}

fn read(mut stream: &TcpStream, over: &AtomicBool) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    while !over.load(Ordering::Acquire) {
        stream
            .read_exact(&mut chunk)
            .context("the slow reader failed")?;
        thread::sleep(READ_EVERY);
    }
    // The sender may stand in a write, which the end of this stream ends.
    let _ = stream.shutdown(std::net::Shutdown::Both);
    Ok(())
}
