//! The servers of a backend: which are usable, and whose turn it is.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::health::{State, leaves_enough};
use super::maglev::Maglev;
use super::missing::why_none;
use super::server::Server;
use crate::plan::{BackendPlan, Balance, HashKey};
use crate::target::Prospect;

#[derive(Default)]
pub(super) struct Pool {
    entries: Vec<Entry>,
    /// Those that were removed, as long as somebody has them.
    former: Vec<Weak<Server>>,
    /// For consistent hashing: the table, and the servers that it was made for.
    table: Option<(Vec<Arc<Server>>, Maglev)>,
}

struct Entry {
    server: Arc<Server>,
    /// How far the server is due, for smooth weighted round-robin as in nginx: each turn adds the weight
    /// of every server to it and takes the sum from the one that is picked.
    due: i64,
}

/// What decides between servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PickKey<'a> {
    pub(crate) client: Option<IpAddr>,
    /// The context identifier of a client of VSOCK.
    pub(crate) client_cid: Option<u32>,
    pub(crate) server_name: Option<&'a str>,
    /// Somebody else serves the client if names take long to resolve.
    pub(crate) has_fallback: bool,
}

impl PickKey<'_> {
    /// What consistent hashing takes of it; `None` if nothing tells one client from another, as over UNIX sockets.
    fn hashed(&self, hash: HashKey) -> Option<Vec<u8>> {
        match (hash, self.server_name, self.client, self.client_cid) {
            (HashKey::ServerName, Some(name), _, _) => Some(name.as_bytes().to_vec()),
            (_, _, Some(IpAddr::V4(ip)), _) => Some(ip.octets().to_vec()),
            (_, _, Some(IpAddr::V6(ip)), _) => Some(ip.octets().to_vec()),
            (_, _, None, Some(cid)) => Some(cid.to_be_bytes().to_vec()),
            (_, _, None, None) => None,
        }
    }
}

/// The servers that a connection has tried.
#[derive(Clone, Default)]
pub(crate) struct Tried(Vec<Arc<Server>>);

impl Tried {
    pub(super) fn add(&mut self, server: &Arc<Server>) {
        self.0.push(Arc::clone(server));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, server: &Arc<Server>) -> bool {
        self.0.iter().any(|tried| Arc::ptr_eq(tried, server))
    }
}

impl Pool {
    pub(super) fn add(&mut self, server: Arc<Server>) {
        self.entries.push(Entry { server, due: 0 });
        self.table = None;
    }

    /// Removes the servers that `gone` confirms.
    pub(super) fn remove(&mut self, gone: impl Fn(&Server) -> bool) -> Vec<Arc<Server>> {
        self.table = None;
        let gone = self.entries.extract_if(.., |entry| gone(&entry.server));
        let gone: Vec<_> = gone.map(|entry| entry.server).collect();
        self.former.retain(|server| server.strong_count() > 0);
        self.former.extend(gone.iter().map(Arc::downgrade));
        gone
    }

    /// Those that were removed and still have connections.
    pub(super) fn former(&self) -> impl Iterator<Item = Arc<Server>> {
        let alive = self.former.iter().filter_map(Weak::upgrade);
        alive.filter(|server| server.open() > 0)
    }

    /// A server that was removed has come back, or another one has taken its place.
    pub(super) fn forget_former(&mut self, name: &str) {
        self.former
            .retain(|server| server.upgrade().is_some_and(|it| it.name() != name));
    }

    /// Weights may have changed.
    pub(super) fn weigh_again(&mut self) {
        self.table = None;
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.entries.iter().map(|entry| &entry.server)
    }

    pub(super) fn server(&self, index: usize) -> &Arc<Server> {
        &self.entries[index].server
    }

    /// How many servers a connection may still try.
    pub(super) fn others(&self, tried: &Tried, now: Instant) -> usize {
        self.servers()
            .filter(|server| !tried.has(server) && server.takes_clients() && server.is_up(now))
            .count()
    }

    /// Whether traffic may take `server` out.
    pub(super) fn may_take_out(&self, server: &Arc<Server>, now: Instant) -> bool {
        let mut is_here = false;
        // Others that get no clients count neither way.
        let (mut up_others, mut out, mut servers) = (0, 0, 1);
        for other in self.servers() {
            if Arc::ptr_eq(other, server) {
                is_here = true;
                continue;
            }
            if !other.takes_clients() {
                continue;
            }
            servers += 1;
            match other.state(now) {
                State::Up if other.target.prospect() == Prospect::Good => up_others += 1,
                State::Out(_) => out += 1,
                State::Up | State::Down => {}
            }
        }
        is_here && leaves_enough(up_others, out, servers)
    }

    /// The servers to choose from: those that are up; if there is none, the backups that are. Those that
    /// their traffic has taken out are better than nothing, and so are those whose names take long to resolve.
    pub(super) fn usable(&self, tried: &Tried, has_fallback: bool, now: Instant) -> Vec<usize> {
        let that = |condition: &dyn Fn(&Server) -> bool| -> Vec<usize> {
            let entries = self.entries.iter().enumerate();
            entries
                .filter(|(_, entry)| {
                    let server = &entry.server;
                    server.takes_clients() && condition(server) && !tried.has(server)
                })
                .map(|(index, _)| index)
                .collect()
        };
        let is_good = |server: &Server| server.target.prospect() == Prospect::Good;
        let up = that(&|server| !server.is_backup() && server.is_up(now) && is_good(server));
        if !up.is_empty() {
            return up;
        }
        let backups = that(&|server| server.is_backup() && server.is_up(now) && is_good(server));
        if !backups.is_empty() {
            return backups;
        }
        let out = that(&|server| server.state(now) != State::Down && is_good(server));
        if !out.is_empty() || has_fallback {
            return out;
        }
        that(&|server| {
            server.state(now) != State::Down && server.target.prospect() != Prospect::None
        })
    }

    pub(super) fn has_room(&self, index: usize, most: u32) -> bool {
        self.entries[index].server.open() < most
    }

    /// Why a client gets none of its servers.
    pub(super) fn why_none(&self, now: Instant) -> String {
        let servers: Vec<_> = self.servers().map(|server| &**server).collect();
        why_none(&servers, now)
    }

    pub(super) fn choose(
        &mut self,
        plan: &BackendPlan,
        free: &[usize],
        key: &PickKey<'_>,
        now: Instant,
    ) -> usize {
        if let [only] = free {
            return *only;
        }
        match plan.balance {
            Balance::RoundRobin => self.next_in_turn(plan.slow_start, free, now),
            Balance::LeastConnections => {
                // Those with the same load take turns.
                let load = |index: &usize| {
                    let server = &self.entries[*index].server;
                    let share = u64::from(server.share(plan.slow_start, now).max(1));
                    (u64::from(server.open()) + 1) * 1_000_000 / share
                };
                let least = free.iter().map(load).min().unwrap_or_default();
                let ties: Vec<_> = free
                    .iter()
                    .copied()
                    .filter(|index| load(index) == least)
                    .collect();
                self.next_in_turn(plan.slow_start, &ties, now)
            }
            Balance::Consistent(hash) => match key.hashed(hash) {
                Some(bytes) => self.consistent(&bytes, free),
                // One hash for all of them would give them to one server.
                None => self.next_in_turn(plan.slow_start, free, now),
            },
        }
    }

    fn next_in_turn(
        &mut self,
        slow_start: Option<Duration>,
        free: &[usize],
        now: Instant,
    ) -> usize {
        let mut sum = 0;
        for index in free {
            let entry = &mut self.entries[*index];
            let share = i64::from(entry.server.share(slow_start, now));
            entry.due += share;
            sum += share;
        }
        // The first of those that are due most.
        let due = |index: &&usize| (self.entries[**index].due, std::cmp::Reverse(**index));
        let picked = free.iter().max_by_key(due).copied().unwrap_or_default();
        self.entries[picked].due -= sum;
        picked
    }

    fn consistent(&mut self, bytes: &[u8], free: &[usize]) -> usize {
        if self.table.is_none() {
            // All servers, down or not: so a server that comes back finds its clients again, and the
            // clients of one that is down are spread.
            let servers: Vec<_> = self.servers().cloned().collect();
            let named = servers
                .iter()
                .map(|server| (server.name(), server.weight()));
            self.table = Maglev::new(named).map(|table| (servers.clone(), table));
        }
        let Some((_, table)) = &self.table else {
            return free[0];
        };
        let mut order = table.servers(bytes);
        order.find(|index| free.contains(index)).unwrap_or(free[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_consistent_hashing_knows_a_client_by() {
        let key = |client, client_cid, server_name| PickKey {
            client,
            client_cid,
            server_name,
            has_fallback: false,
        };
        let ip = Some(IpAddr::from([10, 0, 0, 7]));
        for (key, of_client, of_name) in [
            (key(None, None, None), None, None),
            (key(None, None, Some("a")), None, Some(&b"a"[..])),
            (
                key(None, Some(3), None),
                Some(&[0, 0, 0, 3][..]),
                Some(&[0, 0, 0, 3][..]),
            ),
            // A PROXY header says more than where it came from.
            (
                key(ip, Some(3), Some("a")),
                Some(&[10, 0, 0, 7][..]),
                Some(b"a"),
            ),
        ] {
            let hashed = |hash| key.hashed(hash);
            assert_eq!(hashed(HashKey::Client).as_deref(), of_client, "{key:?}");
            assert_eq!(hashed(HashKey::ServerName).as_deref(), of_name, "{key:?}");
        }
    }
}
