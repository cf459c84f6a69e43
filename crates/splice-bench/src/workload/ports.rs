//! A relay that uses every port it has.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::server::{Server, Service};
use crate::site::{OWN_PORTS, Site};

use super::request_response;

/// As many as the ports that a relay has for itself.
const PORTS: usize = (OWN_PORTS.end - OWN_PORTS.start) as usize;

/// How many are timed at a time.
const COUNTED: usize = 1_000;

/// How many come when no port is left.
const BEYOND: usize = 200;

/// How many connections a second were opened, one after the other, each with a request and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// Of the first ones.
    pub(crate) first: f64,
    /// Of those that took the last ports.
    pub(crate) last: f64,
    /// Of those for whom no port was left.
    pub(crate) beyond: f64,
    /// Of those that came when all had just been closed.
    pub(crate) again: f64,
}

/// The connections that are open in the end.
pub(crate) const CONNECTIONS: u32 = (PORTS + BEYOND) as u32;

/// Fills all ports, closes all connections, and opens some more.
pub(crate) fn play(site: &Site, address: SocketAddr) -> Result<Rates> {
    let serve = || -> Result<Server> {
        let listener = site.listener().as_fd().try_clone_to_owned()?;
        Server::start(Service::Answer, 0, listener)
    };
    let server = serve()?;
    let mut open = Vec::with_capacity(PORTS + BEYOND);
    // Until then the server may not even run.
    more(address, 1, &mut open)?;
    let first = more(address, COUNTED, &mut open)?;
    let between = PORTS - COUNTED - open.len();
    more(address, between, &mut open)?;
    let last = more(address, COUNTED, &mut open)?;
    let beyond = more(address, BEYOND, &mut open)?;
    close(server, open)?;

    let server = serve()?;
    let mut open = Vec::with_capacity(COUNTED + 1);
    more(address, 1, &mut open)?;
    let again = more(address, COUNTED, &mut open)?;
    close(server, open)?;
    Ok(Rates {
        first,
        last,
        beyond,
        again,
    })
}

/// Opens `count` more. Returns how many it were in a second.
fn more(address: SocketAddr, count: usize, open: &mut Vec<TcpStream>) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..count {
        let number = open.len();
        let stream = request_response::connect(address);
        open.push(stream.with_context(|| format!("connection {number} of those that stay open"))?);
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// Closes all, the server's ends first.
fn close(server: Server, open: Vec<TcpStream>) -> Result<()> {
    drop(server);
    for mut stream in open {
        stream.set_nonblocking(false)?;
        let _ = stream.read(&mut [0]);
    }
    Ok(())
}
