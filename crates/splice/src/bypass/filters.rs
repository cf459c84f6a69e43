//! The filters that a connection would meet if it went over TCP: those of every namespace on its way, and of the control
//! groups of both ends.
//!
//! A pair that they may stop, delay, count or change stays on TCP. A redirected pair is judged again when anything on
//! its way changes, and leaves the map if it does not pass any more.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use splice_base::error::{Error, Result};
use splice_bpf::types::{BypassKey, BypassPair, bypass_state};
use splice_bpf::{open_control_group, packet_filter_of};
use splice_firewall::{End, Family};

use super::namespaces::Namespaces;
use super::network::Network;
use super::site::{Question, Site};
use super::tables::{Tables, address};
use super::way::Way;
use crate::firewall::Hooks;

/// How long a namespace is watched that no connection crosses: descriptors keep those of containers that have ended.
const FORGET_AFTER: Duration = Duration::from_secs(5);

/// How long what is known of a control group's programs counts.
const GROUP_LOOK_EVERY: Duration = Duration::from_millis(700);

/// How often all namespaces may be read.
const NETWORK_READ_EVERY: Duration = Duration::from_millis(200);

/// What a refused pair is told if its way is not known yet.
const NOT_YET: &str = "the namespaces on the way are being read";

/// The filters of all namespaces that covered connections cross.
pub(super) struct Filters {
    hooks: Arc<Hooks>,
    /// Any directory of the file system of control groups.
    groups_at: File,
    groups: HashMap<u64, (Instant, Option<String>)>,
    network: Option<(Instant, Network)>,
    ways: HashMap<(u64, u64, bool), Arc<Way>>,
    sites: HashMap<u64, Site>,
    /// Redirected pairs.
    admitted: HashMap<(u32, u32), Arc<Way>>,
    groups_looked_at: Instant,
}

impl Filters {
    pub(super) fn start(groups: &[PathBuf]) -> Result<Self> {
        let group = groups.first().cloned().unwrap_or_default();
        let groups_at = File::open(&group).map_err(|error| {
            Error::system(
                format!("cannot open the control group {}", group.display()),
                error,
            )
        })?;
        Ok(Self {
            hooks: Hooks::load()?,
            groups_at,
            groups: HashMap::new(),
            network: None,
            ways: HashMap::new(),
            sites: HashMap::new(),
            admitted: HashMap::new(),
            groups_looked_at: Instant::now(),
        })
    }

    /// Whether every filter lets a pair pass.
    ///
    /// # Errors
    /// What they would do, in words.
    pub(super) fn judge(
        &mut self,
        namespaces: &mut Namespaces,
        pair: &BypassPair,
    ) -> std::result::Result<(), String> {
        let way = self.way(namespaces, pair)?;
        self.judge_on(namespaces, pair, &way)
    }

    /// Keeps an eye on a pair that has become redirected.
    pub(super) fn admit(&mut self, namespaces: &mut Namespaces, key: BypassKey, pair: &BypassPair) {
        if let Ok(way) = self.way(namespaces, pair) {
            self.admitted.insert(id(key), way);
        }
    }

    /// Looks for changes. Returns the redirected pairs that do not pass any more, with the reasons.
    pub(super) fn look(
        &mut self,
        namespaces: &mut Namespaces,
        tables: &Tables,
    ) -> Vec<(BypassKey, String)> {
        let now = Instant::now();
        let mut changed = Vec::new();
        let mut other_ways = false;
        for cookie in self.told(now) {
            let Some(site) = self.sites.get_mut(&cookie) else {
                continue;
            };
            let Ok(namespace) = site.namespace.try_clone() else {
                continue;
            };
            match namespaces.at(&namespace, || site.look(&self.hooks)) {
                Some(Ok(change)) => {
                    other_ways |= change.of_devices;
                    if change.any {
                        changed.push(cookie);
                    }
                }
                // It is opened anew, or the pairs learn why not.
                Some(Err(_)) | None => {
                    self.sites.remove(&cookie);
                    changed.push(cookie);
                }
            }
        }
        if other_ways {
            self.network = None;
            self.ways.clear();
        }
        let groups_are_due = now - self.groups_looked_at >= GROUP_LOOK_EVERY;
        if groups_are_due {
            self.groups_looked_at = now;
            self.forget(tables, now);
            tables.forget_explanations();
        }
        if changed.is_empty() && !groups_are_due {
            return Vec::new();
        }
        let mut stopped = Vec::new();
        for (id, way) in self.admitted.clone() {
            let is_met = way
                .stations
                .iter()
                .any(|station| changed.contains(&station.namespace));
            if !is_met && !groups_are_due {
                continue;
            }
            let key = BypassKey {
                client_isn: id.0,
                server_isn: id.1,
            };
            let pair = tables
                .pair(key)
                .filter(|pair| pair.state == bypass_state::ACTIVE);
            let Some(pair) = pair else {
                self.admitted.remove(&id);
                continue;
            };
            let judged = if is_met {
                self.judge(namespaces, &pair)
            } else {
                self.judge_groups(&pair)
            };
            match judged {
                Ok(()) if other_ways => self.admit(namespaces, key, &pair),
                Ok(()) => {}
                Err(why) => {
                    self.admitted.remove(&id);
                    stopped.push((key, why));
                }
            }
        }
        stopped
    }

    /// The namespaces to look at.
    fn told(&self, now: Instant) -> Vec<u64> {
        let sites: Vec<_> = self.sites.iter().collect();
        let mut fds: Vec<_> = sites
            .iter()
            .flat_map(|(_, site)| site.watched())
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // What an interruption hides is found in the next turn.
        let _ = poll(&mut fds, Some(&at_once));
        let told = fds
            .chunks(2)
            .map(|two| two.iter().any(|fd| !fd.revents().is_empty()));
        sites
            .iter()
            .zip(told)
            .filter(|((_, site), told)| site.is_due(now, *told))
            .map(|((cookie, _), _)| **cookie)
            .collect()
    }

    /// Lets go of what no connection needs any more.
    fn forget(&mut self, tables: &Tables, now: Instant) {
        self.admitted.retain(|(client_isn, server_isn), way| {
            let key = BypassKey {
                client_isn: *client_isn,
                server_isn: *server_isn,
            };
            let is_there = tables
                .pair(key)
                .is_some_and(|pair| pair.state == bypass_state::ACTIVE && pair.closed == 0);
            if is_there {
                for station in &way.stations {
                    if let Some(site) = self.sites.get_mut(&station.namespace) {
                        site.used_at = now;
                    }
                }
            }
            is_there
        });
        self.sites
            .retain(|_, site| now - site.used_at < FORGET_AFTER);
        self.groups.retain(|_, (at, _)| now - *at < FORGET_AFTER);
        if self.sites.is_empty() {
            self.ways.clear();
            self.network = None;
        }
    }

    fn way(
        &mut self,
        namespaces: &mut Namespaces,
        pair: &BypassPair,
    ) -> std::result::Result<Arc<Way>, String> {
        let [client, server] = [&pair.ends[0], &pair.ends[1]].map(|end| end.network);
        let key = (client, server, is_translated(pair));
        if let Some(way) = self.ways.get(&key) {
            return Ok(Arc::clone(way));
        }
        let has_both = |network: &Network| {
            [client, server]
                .iter()
                .all(|end| network.devices(*end).is_some())
        };
        let now = Instant::now();
        let is_old = |at: &Instant| now - *at >= NETWORK_READ_EVERY;
        match &self.network {
            Some((_, network)) if has_both(network) => {}
            Some((at, _)) if !is_old(at) => return Err(NOT_YET.into()),
            _ => self.network = Some((now, Network::read(namespaces))),
        }
        let Some((_, network)) = self.network.as_ref().filter(|(_, of)| has_both(of)) else {
            return Err("the network namespace of one end cannot be read".into());
        };
        let way = Arc::new(Way::find(network, client, server, key.2)?);
        // A namespace that is watched from now on may differ from what was read of it before.
        for station in &way.stations {
            let site = open(&mut self.sites, namespaces, station.namespace)?;
            if Some(site.devices()) != network.devices(station.namespace) {
                self.network = None;
                return Err(NOT_YET.into());
            }
        }
        self.ways.insert(key, Arc::clone(&way));
        Ok(way)
    }

    fn judge_on(
        &mut self,
        namespaces: &mut Namespaces,
        pair: &BypassPair,
        way: &Way,
    ) -> std::result::Result<(), String> {
        let mut translating = 0;
        for station in &way.stations {
            let site = open(&mut self.sites, namespaces, station.namespace)?;
            translating += usize::from(site.translates());
        }
        let question = question(pair, translating)?;
        for station in &way.stations {
            let site = open(&mut self.sites, namespaces, station.namespace)?;
            let Ok(namespace) = site.namespace.try_clone() else {
                return Err(NOT_YET.into());
            };
            let judged = namespaces.at(&namespace, || site.judge(&self.hooks, station, &question));
            let judged = judged.unwrap_or_else(|| Err("it cannot be entered".into()));
            judged.map_err(|why| format!("{}: {why}", namespaces.name(station.namespace)))?;
        }
        self.judge_groups(pair)
    }

    fn judge_groups(&mut self, pair: &BypassPair) -> std::result::Result<(), String> {
        let now = Instant::now();
        for group in pair
            .ends
            .iter()
            .map(|end| end.group)
            .filter(|group| *group != 0)
        {
            let known = self.groups.get(&group);
            let is_fresh = |at: Instant| now - at < GROUP_LOOK_EVERY;
            let found = match known {
                Some((at, found)) if is_fresh(*at) => found.clone(),
                _ => {
                    let found = self.look_at_group(group);
                    self.groups.insert(group, (now, found.clone()));
                    found
                }
            };
            if let Some(why) = found {
                return Err(why);
            }
        }
        Ok(())
    }

    fn look_at_group(&self, group: u64) -> Option<String> {
        let opened = open_control_group(self.groups_at.as_fd(), group);
        let filter = match opened {
            Ok(directory) => packet_filter_of(directory.as_fd()),
            // Its processes have left it, and with it the filters.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                return Some(format!(
                    "the control group of one end cannot be opened: {error}"
                ));
            }
        };
        match filter {
            Ok(program) => program.map(|program| {
                format!("the BPF program {program} filters the packets of one end's control group")
            }),
            Err(errno) => Some(format!(
                "the programs of the control group of one end cannot be listed: {errno}"
            )),
        }
    }
}

fn id(key: BypassKey) -> (u32, u32) {
    (key.client_isn, key.server_isn)
}

/// The namespace's filters, watched from now on.
fn open<'a>(
    sites: &'a mut HashMap<u64, Site>,
    namespaces: &mut Namespaces,
    cookie: u64,
) -> std::result::Result<&'a mut Site, String> {
    let site = match sites.entry(cookie) {
        Entry::Occupied(site) => site.into_mut(),
        Entry::Vacant(place) => {
            let namespace = namespaces.file(cookie);
            let namespace = namespace.ok_or("a network namespace on the way is gone")?;
            let held = namespace.try_clone().map_err(|error| error.to_string())?;
            let site = namespaces.at(&namespace, || Site::open(held));
            let site = site.unwrap_or_else(|| Err("it cannot be entered".into()));
            place.insert(site.map_err(|why| format!("{}: {why}", namespaces.name(cookie)))?)
        }
    };
    site.used_at = Instant::now();
    Ok(site)
}

/// What each end calls itself and its peer: client and server twice.
fn sockets(pair: &BypassPair) -> [[SocketAddr; 2]; 2] {
    let socket = |ip, port: u32| SocketAddr::new(address(ip), port as u16);
    let [client, server] = &pair.ends;
    [
        [
            socket(client.local, client.local_port),
            socket(client.remote, client.remote_port),
        ],
        [
            socket(server.remote, server.remote_port),
            socket(server.local, server.local_port),
        ],
    ]
}

fn is_translated(pair: &BypassPair) -> bool {
    let [of_client, of_server] = sockets(pair);
    of_client != of_server
}

/// What hooks may see of a connection if some namespaces on its way translate addresses.
fn question(pair: &BypassPair, translating: usize) -> std::result::Result<Question, String> {
    let [of_client, of_server] = sockets(pair);
    let all = of_client.iter().chain(&of_server);
    let is_ipv4 = of_client[0].is_ipv4();
    if all.clone().any(|socket| socket.is_ipv4() != is_ipv4) {
        return Err("its ends use different network protocols".into());
    }
    let known = |socket: SocketAddr| End {
        address: Some(socket.ip()),
        port: Some(socket.port()),
    };
    let distinct = |side: usize| {
        let mut sockets = vec![of_client[side], of_server[side]];
        sockets.dedup();
        sockets
    };
    let (clients, servers) = (distinct(0), distinct(1));
    let pairs = |clients: &[SocketAddr], servers: &[SocketAddr]| -> Vec<(SocketAddr, SocketAddr)> {
        let of = |client: SocketAddr| servers.iter().map(move |server| (client, *server));
        clients.iter().flat_map(|client| of(*client)).collect()
    };
    let tuples = pairs(&clients, &servers);
    let mut views: Vec<[End; 2]> = tuples
        .iter()
        .map(|(client, server)| [known(*client), known(*server)])
        .collect();
    let translated = of_client != of_server;
    // Between two that translate, the addresses may be those of neither end.
    if translated && translating != 1 {
        let any = |sockets: &[SocketAddr]| match sockets {
            [only] => known(*only),
            _ => End::default(),
        };
        views = vec![[any(&clients), any(&servers)]];
    }
    Ok(Question {
        family: if is_ipv4 { Family::Ipv4 } else { Family::Ipv6 },
        views,
        translated,
        tuples,
    })
}
