//! The library's forwarding from the SYN on as a relay of its own.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use splice::{Forward, ForwardOptions};

use crate::delay;
use crate::usage::Usage;

/// Room for the crowd, whose servers take 16 384 connections each, and for the measured ones.
const ROOM: u32 = 131_072;

/// How often to look how many connections there are.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The first port of those that only a crowd connects to. Below the ephemeral ports of all namespaces.
pub(crate) const FIRST_CROWD_PORT: u16 = 9_500;

/// More than a server has ports: connections of a crowd open all at once.
const CROWD_HALF_OPEN: u32 = 1 << 16;

/// Forwards from `listen` to `target`. Who is not forwarded is relayed by copying. Where `crowd_at` says so, as many
/// as `crowd` further listeners lead to as many ports of that address, each with relay ports of its own.
///
/// Listens at `listen` last: who gets through there finds all others. The last line on stderr says how many
/// connections are forwarded. Never returns, except when it cannot forward.
pub(crate) fn run(
    listen: SocketAddr,
    target: SocketAddr,
    crowd: u16,
    crowd_at: Option<IpAddr>,
) -> Result<()> {
    let bind = |address: SocketAddr| {
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
    };
    let (mut forwards, mut crowd_listeners) = (Vec::new(), Vec::new());
    for port in (FIRST_CROWD_PORT..).take(crowd.into()) {
        let from = SocketAddr::new(listen.ip(), port);
        let to = SocketAddr::new(crowd_at.unwrap_or_else(|| target.ip()), port);
        crowd_listeners.push(bind(from)?);
        let mut options = ForwardOptions::new(vec![from], to);
        options.half_open = CROWD_HALF_OPEN;
        forwards.push(start(options)?);
    }
    let listener = bind(listen)?;
    forwards.push(start(ForwardOptions::new(vec![listen], target))?);
    thread::spawn(move || delay::serve(&listener, target, Duration::ZERO));
    let mut told = None;
    loop {
        let connections: usize = forwards.iter().map(Forward::connections).sum();
        if told.replace(connections) != Some(connections) {
            eprintln!("{}", said(connections));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// How the relay tells its number of connections.
pub(crate) fn said(connections: usize) -> String {
    format!("{connections} connections are forwarded")
}

fn start(options: ForwardOptions) -> Result<Forward> {
    Forward::make_room(ROOM);
    let forward = match Forward::start(options, |_| {}) {
        Ok(forward) => forward,
        Err(error) => bail!(Usage(error.to_string())),
    };
    match forward.obstacle() {
        Some(why) => bail!(Usage(why)),
        None => Ok(forward),
    }
}
