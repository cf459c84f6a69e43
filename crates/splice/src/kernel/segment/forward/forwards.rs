//! All forwards of a network namespace, and the thread that looks after their connections.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake as _;
use std::thread;
use std::time::{Duration, Instant};

use splice_base::error::{Result, ResultExt as _};
use splice_bpf::clock::now_ns;
use splice_bpf::types::SegmentFlow;

use super::super::datapath::Datapath;
use super::super::liveness::KeepAlive;
use super::alarm::Alarm;
use super::ended::{ForwardEnd, ForwardTimes};
use super::network::Network;
use super::origin::{Origin, Terms};
use super::owner::{ForwardEvent, ForwardOptions, OnEvent, Owner};
use super::raw_socket::RawSocket;
use crate::firewall::Known;

/// Those of this process, one for each network namespace.
static ALL: Mutex<Vec<Weak<Forwards>>> = Mutex::new(Vec::new());

/// What all forwards of a network namespace share.
pub(super) struct Forwards {
    pub(super) datapath: Arc<Datapath>,
    state: Mutex<State>,
    pub(super) alarm: Arc<Alarm>,
}

pub(super) struct State {
    /// At their indices in segment_origins.
    pub(super) origins: Vec<Origin>,
    /// The first slot that no origin has.
    pub(super) next_slot: u32,
    pub(super) owners: Vec<Arc<Owner>>,
    /// Addresses of this host that the program knows.
    pub(super) own: HashSet<IpAddr>,
    /// Devices that connections may come in on.
    pub(super) devices: HashSet<u32>,
    /// Or why there is none.
    pub(super) raw: std::result::Result<RawSocket, String>,
    pub(super) looked_at: Option<Instant>,
    filters: Option<Known>,
    looks: usize,
    pub(super) network: Network,
}

/// How often to look at all connections. A connection that waits for its timeout notices it this much later.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// So many servers' connections are looked at in each look, at most 16 384 of each: together some 0.2 ms.
const ORIGINS_PER_LOOK: usize = 2;

/// How often to look at addresses, devices and routes: a change is followed within a second.
const LOOK_AROUND_EVERY: Duration = Duration::from_millis(500);

/// Time between two questions, as a part of the time before: a socket asks every 75 s after two hours.
const ASKED_EVERY: u32 = 96;

/// How long the program goes on without a look. A thread that the machine does not run for so long has lost it.
const ALIVE_FOR: Duration = Duration::from_secs(3);

impl Forwards {
    /// Those of a datapath.
    pub(super) fn of(datapath: &Arc<Datapath>) -> Result<Arc<Self>> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|forwards| forwards.strong_count() > 0);
        let mut known = all.iter().filter_map(Weak::upgrade);
        if let Some(forwards) = known.find(|one| Arc::ptr_eq(&one.datapath, datapath)) {
            return Ok(forwards);
        }
        let mut filters = None;
        if let Ok(firewall) = datapath.firewall() {
            firewall.has_changed(&mut filters);
        }
        let alarm = Arc::new(Alarm::default());
        let forwards = Arc::new(Self {
            datapath: Arc::clone(datapath),
            state: Mutex::new(State {
                origins: Vec::new(),
                next_slot: datapath.forward_slots().start,
                owners: Vec::new(),
                own: HashSet::new(),
                devices: HashSet::new(),
                raw: RawSocket::new().map_err(|error| error.to_string()),
                looked_at: None,
                filters,
                looks: 0,
                network: Network::new()?,
            }),
            alarm: Arc::clone(&alarm),
        });
        let weak = Arc::downgrade(&forwards);
        // The new thread inherits this thread's network namespace.
        thread::Builder::new()
            .name("forward".into())
            .spawn(move || watch(&weak, &alarm))
            .context("cannot start the thread that looks after forwarded connections")?;
        all.push(Arc::downgrade(&forwards));
        Ok(forwards)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Every change of it is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, options: ForwardOptions, on_event: OnEvent) -> Result<Arc<Owner>> {
        let owner = Arc::new(Owner {
            options: Mutex::new(Arc::new(options)),
            on_event: Mutex::new(Some(on_event)),
            live: Mutex::default(),
            cut: Mutex::default(),
            is_closed: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            way: Mutex::default(),
        });
        let mut state = self.state();
        state.network.look()?;
        self.know_own_addresses(&mut state);
        state.owners.push(Arc::clone(&owner));
        // Filters that have just changed are read again beside this thread.
        let until = Instant::now() + ALIVE_FOR;
        while !self.follow(&mut state, &owner) && Instant::now() < until {
            drop(state);
            thread::sleep(LOOK_EVERY);
            state = self.state();
        }
        drop(state);
        Ok(owner)
    }

    pub(super) fn keep_alive(&self, state: &State) {
        let until_ns = now_ns() + ALIVE_FOR.as_nanos() as u64;
        for origin in &state.origins {
            origin.keep_alive(&self.datapath, until_ns);
        }
    }

    /// One look at everything. Only the thread of the namespace takes it.
    fn look(&self) {
        let mut state = self.state();
        self.keep_alive(&state);
        let is_due = state
            .looked_at
            .is_none_or(|at| at.elapsed() >= LOOK_AROUND_EVERY);
        if is_due {
            state.looked_at = Some(Instant::now());
            if let Err(error) = state.network.look() {
                tracing::warn!("{error}; forwarded connections go on as they are");
            }
            self.know_own_addresses(&mut state);
        }
        for owner in state.owners.clone() {
            if is_due || owner.is_in_doubt() {
                self.follow(&mut state, &owner);
            }
        }
        drop(state);
        // No more come that the filters have not let past.
        self.sweep(true);
    }

    /// Looks at every connection. With `judges_all`, each is held against packet filters that have changed.
    pub(super) fn sweep(&self, judges_all: bool) {
        let mut state = self.state();
        let owners = state.owners.clone();
        let mut events = Vec::new();
        let mut counts = vec![BTreeMap::<_, Count>::new(); owners.len()];
        let State {
            origins,
            raw,
            filters,
            network,
            looks,
            ..
        } = &mut *state;
        let firewall = self.datapath.firewall().ok();
        let changed = firewall
            .as_ref()
            .filter(|firewall| judges_all && firewall.has_changed(filters));
        // Of many origins, a few are looked at in each turn, which would take too long otherwise.
        let turns = match changed {
            None if judges_all => origins.len().div_ceil(ORIGINS_PER_LOOK),
            _ => 1,
        };
        *looks += 1;
        let retries = self.datapath.settings().retries();
        for (at, origin) in origins.iter_mut().enumerate() {
            let owner = Arc::clone(&origin.owner);
            let options = owner.options();
            let is_filtered = |flow: &SegmentFlow| {
                let connections = network.connections(flow);
                let reason = changed.zip(connections);
                reason.and_then(|(firewall, pair)| firewall.why_stopped(&pair))
            };
            let filter =
                (changed.is_some() && !options.bypass_firewall).then_some(&is_filtered as _);
            let terms = Terms {
                connect_timeout: options.connect_timeout,
                idle_timeout: options.idle_timeout,
                half_close_timeout: options.half_close_timeout,
                patience: retries.unmeasured(keep_alive_of(&options), options.user_timeout),
                end: owner.is_cut(origin.server).then_some(ForwardEnd::Dropped),
                filter,
            };
            let begun = origin.begun(&self.datapath);
            let has_turn = (at + *looks).is_multiple_of(turns);
            if has_turn {
                origin.sweep(&self.datapath, raw.as_ref().ok(), &terms, |one| {
                    events.push((Arc::clone(&owner), ForwardEvent::Ended(one)));
                });
            }
            if let Some(at) = owners.iter().position(|one| Arc::ptr_eq(one, &owner)) {
                let count = counts[at].entry(origin.server).or_default();
                count.open += origin.live;
                count.begun += begun;
                if has_turn {
                    for (sum, moved) in count.moved_bytes.iter_mut().zip(origin.moved_bytes) {
                        *sum += moved;
                    }
                    count.times.append(&mut origin.times);
                }
            }
        }
        for (owner, mut counts) in owners.into_iter().zip(counts) {
            let mut live = owner.live();
            // Another server may have the place of one whose connections are over.
            for server in live.keys() {
                counts.entry(*server).or_default();
            }
            for (server, count) in counts {
                let Count {
                    open,
                    begun,
                    moved_bytes,
                    times,
                } = count;
                let before = match (live.get(&server), open) {
                    (None | Some(0), 0) => live.remove(&server),
                    // None is told twice: another thread may be late to tell what it has counted before.
                    _ => live.insert(server, open),
                };
                if before.is_some() || open != 0 || begun != 0 || moved_bytes != [0; 2] {
                    let counted = ForwardEvent::Counted {
                        server,
                        open,
                        begun,
                        moved_bytes,
                        times,
                    };
                    events.push((Arc::clone(&owner), counted));
                }
            }
        }
        drop(state);
        for (owner, event) in events {
            owner.tell(event);
        }
    }
}

impl Drop for Forwards {
    fn drop(&mut self) {
        for origin in &self.state().origins {
            self.datapath.unlead(&origin.route());
        }
        self.alarm.wake_by_ref();
    }
}

impl fmt::Debug for Forwards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwards").finish_non_exhaustive()
    }
}

/// What has happened at one server of an owner.
#[derive(Clone, Default)]
struct Count {
    open: usize,
    begun: u64,
    moved_bytes: [u64; 2],
    times: Vec<ForwardTimes>,
}

fn keep_alive_of(options: &ForwardOptions) -> Option<KeepAlive> {
    let idle = options.keep_alive;
    (idle != Duration::MAX).then(|| KeepAlive {
        idle,
        interval: options.keep_alive_interval.unwrap_or(idle / ASKED_EVERY),
        probes: options.keep_alive_probes,
    })
}

/// Looks after all connections until nobody forwards any.
fn watch(forwards: &Weak<Forwards>, alarm: &Alarm) {
    while let Some(forwards) = forwards.upgrade() {
        forwards.look();
        drop(forwards);
        alarm.wait(LOOK_EVERY);
    }
}
