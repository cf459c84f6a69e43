//! The namespaces of a demonstration, its connections, and what redirects their messages.

use std::cell::RefCell;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use splice::bypass::{Bypass, Options, State, status};
use splice_sockmap::{Link, MapType, Redirect, Redirections};

use super::Way;
use super::game::{Game, Players};
use crate::bypass::LEAVE_WITHIN;
use crate::bypass::OwnGroup;
use crate::own_network::{Inhabitant, Namespace, connection};

/// From RFC 5737, so that nobody takes them for real ones.
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PROXY_TO_CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PROXY_TO_SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Longer messages than those of a demonstration.
const BULK_BYTES: u32 = 4096;

/// How long a connection may take until it is redirected; some 50 ms without load.
const TAKEN_WITHIN: Duration = Duration::from_secs(20);
const BURST: Duration = Duration::from_millis(5);

/// Three namespaces with a veth from one to the next: client, proxy, server. Without the proxy, its namespace has the server.
pub(super) struct Stage {
    client: Namespace,
    proxy: Namespace,
    server: Namespace,
    /// Of client and server without the proxy, by which the bypass finds the namespaces.
    _inhabitants: [Inhabitant; 2],
}

impl Stage {
    pub(super) fn new() -> Result<Self> {
        let [client, proxy, server] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        proxy.connect("to-client", PROXY_TO_CLIENT, &client, CLIENT)?;
        proxy.connect("to-server", PROXY_TO_SERVER, &server, SERVER)?;
        Ok(Self {
            _inhabitants: [client.inhabit()?, proxy.inhabit()?],
            client,
            proxy,
            server,
        })
    }

    pub(super) fn players(&self, has_proxy: bool) -> Result<Players> {
        let (client, near) = connection(
            PROXY_TO_CLIENT,
            [Some(&self.client), Some(&self.proxy)],
            &|| Ok(()),
        )?;
        if !has_proxy {
            return Ok(Players {
                client,
                server: near,
                proxy: None,
            });
        }
        let (far, server) =
            connection(SERVER, [Some(&self.proxy), Some(&self.server)], &|| Ok(()))?;
        Ok(Players {
            client,
            server,
            proxy: Some([near, far]),
        })
    }
}

/// What redirects the messages of one round.
pub(super) enum Redirecting {
    Nothing,
    /// A program without conditions.
    Bare(Box<[Link; 2]>),
    Bypass(Turned),
}

impl Redirecting {
    pub(super) fn begin(
        way: Way,
        (group, pins): (&OwnGroup, &Path),
        players: &Players,
    ) -> Result<Self> {
        let Players {
            client,
            server,
            proxy,
        } = players;
        Ok(match (way, proxy) {
            (Way::SendToLocal, _) => Self::Bare(links(
                Redirect::SendToLocal,
                [(client, server), (server, client)],
            )?),
            (Way::SendToEgress, Some([near, far])) => Self::Bare(links(
                Redirect::SendToEgress,
                [(client, far), (server, near)],
            )?),
            (Way::Bypass, _) => Self::Bypass(Turned::start(group, pins)?),
            _ => Self::Nothing,
        })
    }

    /// Plays until the bypass has taken the connection.
    pub(super) fn until_taken(&self, game: &mut Game) -> Result<()> {
        let Self::Bypass(turned) = self else {
            return Ok(());
        };
        let deadline = Instant::now() + TAKEN_WITHIN;
        loop {
            game.play(BURST, &mut Vec::new())?;
            let status = status(&turned.pins)?.context("the bypass has ended")?;
            let connection = status.connections.first();
            if connection.is_some_and(|of| of.state == State::Redirected) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let reason = connection.and_then(|of| of.reason);
                let why = reason.map_or_else(|| "it was not seen".into(), |why| why.to_string());
                bail!("the connection is not redirected: {why}");
            }
        }
    }

    /// How many messages were redirected so far.
    pub(super) fn redirected(&self) -> Result<u64> {
        Ok(match self {
            Self::Nothing => 0,
            Self::Bare(links) => links.iter().map(|link| link.counters().messages).sum(),
            Self::Bypass(turned) => {
                let status = status(&turned.pins)?.context("the bypass has ended")?;
                status.sum().redirected_messages
            }
        })
    }

    pub(super) fn end(self) -> Result<()> {
        match self {
            Self::Bypass(turned) => turned.stop(),
            _ => Ok(()),
        }
    }
}

fn links(redirect: Redirect, ways: [(&TcpStream, &TcpStream); 2]) -> Result<Box<[Link; 2]>> {
    let maps = Redirections::new(redirect, MapType::Hash, 2)?.despite_defects();
    let [there, back] = ways;
    let link = |(from, to): (&TcpStream, &TcpStream)| maps.link(from.as_fd(), to.as_fd());
    Ok(Box::new([link(there)?, link(back)?]))
}

/// A bypass that a thread of its own turns.
pub(super) struct Turned {
    pins: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: RefCell<Option<JoinHandle<Bypass>>>,
}

impl Turned {
    fn start(group: &OwnGroup, pins: &Path) -> Result<Self> {
        let options = Options {
            pins: pins.to_path_buf(),
            bulk_bytes: Some(BULK_BYTES),
            // The players never ask.
            despite_fionread: true,
            ..Options::of(vec![group.path().to_path_buf()])
        };
        let mut bypass = Bypass::start(&options)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let work = move || {
            while bypass.turn() && !told.load(Ordering::Relaxed) {
                bypass.wait();
            }
            bypass
        };
        let thread = thread::Builder::new().name("bypass".into()).spawn(work);
        Ok(Self {
            pins: pins.to_path_buf(),
            is_over,
            thread: RefCell::new(Some(thread.context("cannot start a thread")?)),
        })
    }

    fn stop(&self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.borrow_mut().take() else {
            return Ok(());
        };
        let mut bypass = thread
            .join()
            .map_err(|_| anyhow!("its thread has failed"))?;
        Ok(bypass.stop(LEAVE_WITHIN)?)
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        // Only after an error it has not ended yet.
        let _ = self.stop();
    }
}
