//! The addresses of the servers. Names are asked for side by side.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::backend::srv;
use crate::plan::{Plan, ServerAddress};
use crate::socket_address::SocketAddress;

/// For all names together: twice what a resolver waits for a server that does not answer
/// (resolv.conf(5), `timeout`).
const PATIENCE: Duration = Duration::from_secs(10);

/// How many names are asked for at once. Each has a thread and up to two sockets, and a process may have 1024
/// descriptors at least.
const RESOLVERS: usize = 256;

/// The addresses, or why there are none.
type Answer = Result<Vec<SocketAddress>, String>;

/// What servers resolve to.
#[derive(Debug)]
pub(super) struct Resolved(HashMap<ServerAddress, Answer>);

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
    let servers = plan.backends.iter().flat_map(|backend| &backend.servers);
    let addresses: HashSet<_> = servers.map(|server| &server.address).collect();
    let (names, plain): (Vec<_>, Vec<_>) = addresses.into_iter().cloned().partition(is_name);
    let mut found: HashMap<_, _> = plain.into_iter().map(answered).collect();
    found.extend(resolve_names(names));
    Resolved(found)
}

fn is_name(address: &ServerAddress) -> bool {
    address.fixed().is_none_or(SocketAddress::needs_resolver)
}

/// Those of `names` that have an answer in time.
fn resolve_names(names: Vec<ServerAddress>) -> Vec<(ServerAddress, Answer)> {
    let (sender, answers) = mpsc::channel();
    let mut left = names.len();
    let names = Arc::new(Mutex::new(names));
    for _ in 0..left.min(RESOLVERS) {
        let (names, sender) = (Arc::clone(&names), sender.clone());
        let next = move || names.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Nobody listens after the deadline.
        let ask = move || while next().is_some_and(|name| sender.send(answered(name)).is_ok()) {};
        // A thread that cannot be started gives no answer.
        let _ = thread::Builder::new().name("resolve".into()).spawn(ask);
    }
    drop(sender);
    let deadline = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    while left > 0 {
        match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(answer) => found.push(answer),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
        left -= 1;
    }
    found
}

fn answered(address: ServerAddress) -> (ServerAddress, Answer) {
    let answer = ask(&address).map_err(|error| format!("{error:#}"));
    (address, answer)
}

fn ask(address: &ServerAddress) -> Result<Vec<SocketAddress>> {
    let name = match address {
        ServerAddress::Srv(name) => name,
        other => {
            let known = other.fixed().map(SocketAddress::resolve);
            return known.unwrap_or_else(|| Ok(Vec::new()));
        }
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

/// The addresses of TCP among `addresses`.
pub(super) fn inet(addresses: &[SocketAddress]) -> impl Iterator<Item = SocketAddr> + '_ {
    addresses.iter().filter_map(|address| match address {
        SocketAddress::Inet(address) => Some(*address),
        _ => None,
    })
}
