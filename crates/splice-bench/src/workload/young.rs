//! Connections that are opened while many others are open.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::server::{Server, Service};
use crate::site::{PATIENCE, Site};
use crate::statistics::Latencies;

use super::Window;

/// How many connections are open all the time, the youngest ones that there are.
pub(crate) const OPEN: usize = 1_000;

/// The times from the beginning of a connection to the answer to its first byte. One connection is opened after the
/// other, and the oldest one is closed for it, by the server first (`short_connections` says why).
pub(crate) fn play(site: &Site, address: SocketAddr, window: Window) -> Result<Latencies> {
    let listener = site.listener().as_fd().try_clone_to_owned()?;
    let server = Server::start(Service::Keep, OPEN, listener)?;
    // One more than the server keeps: it has closed the one that is dropped here.
    let mut open = VecDeque::with_capacity(OPEN + 2);
    let mut next = || -> Result<Duration> {
        let (stream, took) = begin(address)?;
        open.push_back(stream);
        if open.len() > OPEN + 1 {
            open.pop_front();
        }
        Ok(took)
    };
    for number in 0..=OPEN {
        next().with_context(|| format!("connection {number} of {OPEN}"))?;
    }
    let started = Instant::now();
    while started.elapsed() < window.warm_up {
        next()?;
    }
    let mut latencies = Latencies::new();
    let started = Instant::now();
    while started.elapsed() < window.length {
        latencies.record(next()?);
    }
    drop(server);
    for mut stream in open {
        // The end of the server, which comes first.
        let _ = stream.read(&mut [0]);
    }
    Ok(latencies)
}

fn begin(address: SocketAddr) -> Result<(TcpStream, Duration)> {
    let started = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    let mut byte = [0];
    stream.write_all(&byte)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read_exact(&mut byte).context("no answer")?;
    Ok((stream, started.elapsed()))
}
