//! A small message there and back, again and again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
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

/// Plays with messages of `bytes`. Returns how long the round trips took; half of one is the way one way.
pub(crate) fn play_on(connection: Connection, bytes: usize, window: Window) -> Result<Latencies> {
    let mut game = Game::begin(connection, bytes)?;
    game.warm_up(window.warm_up)?;
    game.measure(window.length)
}

/// The two ends of a connection, which play through blocking sockets.
pub(crate) struct Game {
    /// Ends before the client: see [`Server`].
    _echo: Server,
    client: TcpStream,
    message: Vec<u8>,
}

impl Game {
    /// Starts the echo, and plays once: until then it may not even run.
    pub(crate) fn begin(connection: Connection, bytes: usize) -> Result<Self> {
        let mut game = Self {
            _echo: Server::start(Service::Echo, bytes, connection.server.into())?,
            client: connection.client,
            message: vec![0; bytes],
        };
        game.round_trip()?;
        Ok(game)
    }

    fn round_trip(&mut self) -> Result<Duration> {
        let sent = Instant::now();
        self.client
            .write_all(&self.message)
            .context("a ping did not go out")?;
        self.client
            .read_exact(&mut self.message)
            .context("a pong did not come back")?;
        Ok(sent.elapsed())
    }

    /// Plays for `time`, which does not count.
    pub(crate) fn warm_up(&mut self, time: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.round_trip()?;
        }
        Ok(())
    }

    /// How long the round trips of `time` took.
    pub(crate) fn measure(&mut self, time: Duration) -> Result<Latencies> {
        let mut latencies = Latencies::new();
        let begin = Instant::now();
        while begin.elapsed() < time {
            latencies.record(self.round_trip()?);
        }
        Ok(latencies)
    }
}
