//! A small message there and back, again and again.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::site::{Connection, Site};
use crate::statistics::Latencies;

/// Part of the round trips that goes first and does not count.
const WARM_UP_PART: u32 = 10;

/// How long it goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extent {
    /// So many round trips that count.
    Times(u32),
    /// Round trips that count for so long.
    For(Duration),
}

/// Plays on a new connection to `address`.
pub(crate) fn play(
    site: &Site,
    address: SocketAddr,
    bytes: usize,
    extent: Extent,
) -> Result<Latencies> {
    play_on(&site.connect(address)?, bytes, extent)
}

/// Plays with messages of `bytes` through blocking sockets. Returns how long the round trips took;
/// half of one is the way one way.
pub(crate) fn play_on(connection: &Connection, bytes: usize, extent: Extent) -> Result<Latencies> {
    let (mut client, mut server) = (&connection.client, &connection.server);
    let mut round_trip = {
        let mut message = vec![0; bytes];
        move || -> Result<Duration> {
            let sent = Instant::now();
            client
                .write_all(&message)
                .context("a ping did not go out")?;
            client
                .read_exact(&mut message)
                .context("a pong did not come back")?;
            Ok(sent.elapsed())
        }
    };
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> Result<()> {
            let mut message = vec![0; bytes];
            loop {
                let begun = server.read(&mut message)?;
                if begun == 0 {
                    return Ok(());
                }
                server.read_exact(&mut message[begun..])?;
                server.write_all(&message)?;
            }
        });
        let played = (|| -> Result<Latencies> {
            let mut latencies = Latencies::new();
            match extent {
                Extent::Times(count) => {
                    for _ in 0..count / WARM_UP_PART {
                        round_trip()?;
                    }
                    for _ in 0..count {
                        latencies.record(round_trip()?);
                    }
                }
                Extent::For(duration) => {
                    let begin = Instant::now();
                    while begin.elapsed() < duration / WARM_UP_PART {
                        round_trip()?;
                    }
                    let begin = Instant::now();
                    while begin.elapsed() < duration {
                        latencies.record(round_trip()?);
                    }
                }
            }
            Ok(latencies)
        })();
        // Whatever came of it, the echo has to be told, or it would wait for its patience.
        let _ = connection.client.shutdown(Shutdown::Write);
        let echoed = echo.join().map_err(|_| anyhow!("the echo panicked"))?;
        // How the connection ended after the last pong is no matter of this workload.
        match (played, echoed) {
            (Err(error), Err(cause)) => Err(error.context(format!("the echo failed: {cause:#}"))),
            (played, _) => played,
        }
    })
}
