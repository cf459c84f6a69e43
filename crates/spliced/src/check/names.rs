//! The addresses of the servers, all asked for at once.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::backend::srv;
use crate::plan::{Plan, ServerAddress};
use crate::socket_address::SocketAddress;

/// For all names together: twice what a resolver waits for a server that does not answer
/// (resolv.conf(5), `timeout`).
const PATIENCE: Duration = Duration::from_secs(10);

/// What servers and listeners resolve to.
#[derive(Debug)]
pub(super) struct Resolved(HashMap<ServerAddress, Result<Vec<SocketAddress>, String>>);

impl Resolved {
    pub(super) fn of(&self, address: &ServerAddress) -> Result<&[SocketAddress], &str> {
        match self.0.get(address) {
            Some(Ok(addresses)) => Ok(addresses),
            Some(Err(why)) => Err(why),
            None => Err("no answer came in time; check the name and the resolver"),
        }
    }
}

/// Resolves every name of `plan`.
pub(super) fn resolve(plan: &Plan) -> Resolved {
    let (sender, answers) = mpsc::channel();
    let servers = plan.backends.iter().flat_map(|backend| &backend.servers);
    // Each once, in a fixed order.
    let wanted: BTreeMap<String, ServerAddress> = servers
        .map(|server| (format!("{:?}", server.address), server.address.clone()))
        .collect();
    let mut left = wanted.len();
    for address in wanted.into_values() {
        let sender = sender.clone();
        let ask = move || {
            let answer = ask(&address).map_err(|error| format!("{error:#}"));
            // Nobody listens after the deadline.
            let _ = sender.send((address, answer));
        };
        // A thread that cannot be started gives no answer.
        let _ = thread::Builder::new().name("resolve".into()).spawn(ask);
    }
    drop(sender);
    let deadline = Instant::now() + PATIENCE;
    let mut found = HashMap::new();
    while left > 0 {
        match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((address, answer)) => drop(found.insert(address, answer)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
        left -= 1;
    }
    Resolved(found)
}

fn ask(address: &ServerAddress) -> Result<Vec<SocketAddress>> {
    let name = match address {
        ServerAddress::Address(address) => return SocketAddress::resolve(address),
        ServerAddress::Srv(name) => name,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the resolver")?;
    let (servers, _) = runtime
        .block_on(srv::ask(name))
        .map_err(|why| anyhow!("it has no SRV records ({why}); check the name"))?;
    let mut found = Vec::new();
    for server in servers {
        if let ServerAddress::Address(address) = &server.address {
            found.extend(SocketAddress::resolve(address)?);
        }
    }
    anyhow::ensure!(!found.is_empty(), "it has no SRV records; check the name");
    Ok(found)
}

/// The addresses among `addresses` that are not UNIX sockets.
pub(super) fn inet(addresses: &[SocketAddress]) -> impl Iterator<Item = SocketAddr> + '_ {
    addresses.iter().filter_map(|address| match address {
        SocketAddress::Inet(address) => Some(*address),
        SocketAddress::Unix(_) => None,
    })
}
