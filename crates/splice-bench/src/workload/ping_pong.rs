//! A small message there and back, again and again.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::server::{Server, Service};
use crate::site::{Connection, Site};
use crate::statistics::Latencies;

use super::Window;

/// Plays on a new connection to `address`.
pub(crate) fn play(
    site: &Site,
    address: SocketAddr,
    bytes: usize,
    window: Window,
) -> Result<Latencies> {
    play_on(site.connect(address)?, bytes, window)
}

/// Plays with messages of `bytes` through blocking sockets. Returns how long the round trips took;
/// half of one is the way one way.
pub(crate) fn play_on(connection: Connection, bytes: usize, window: Window) -> Result<Latencies> {
    let echo = Server::start(Service::Echo, bytes, connection.server.into())?;
    let mut client = connection.client;
    let mut message = vec![0; bytes];
    let mut round_trip = || -> Result<Duration> {
        let sent = Instant::now();
        client
            .write_all(&message)
            .context("a ping did not go out")?;
        client
            .read_exact(&mut message)
            .context("a pong did not come back")?;
        Ok(sent.elapsed())
    };
    // Until then the echo may not even run.
    round_trip()?;
    let mut latencies = Latencies::new();
    let begin = Instant::now();
    while begin.elapsed() < window.warm_up {
        round_trip()?;
    }
    let begin = Instant::now();
    while begin.elapsed() < window.length {
        latencies.record(round_trip()?);
    }
    drop(echo);
    Ok(latencies)
}
