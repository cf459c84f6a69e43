//! The packet filters of this host, applied to connections that an engine moves past them.
//!
//! [`PacketFilters`] says what they would do with connections of which little is known, for messages to
//! the user. Every pair is judged by itself, with all that is known of it, unless
//! [`Options::bypass_firewall`](crate::Options::bypass_firewall) is set.
//!
//! An engine that takes segments out of the network stack moves them past netfilter and past the
//! filters of control groups. It may do so only while the filters would accept the segments anyway:
//!
//! ```text
//!        they may stop it: not admitted
//!      ┌────────────────────────────────▶ refused
//! pair ┤
//!      └─────▶ Admitted ──new rules may stop it─────────────────────▶ Revoked: the pair goes back to
//!                │  ▲ └──they cannot be read, or miss a hook──┐         ▲       the network stack
//!                │  └──────────────────────the next look: no──┤         │
//!                │                                        Unsettled ────┘ the next look: they still do
//!                └──▶ ended
//! ```
//!
//! The crate `splice-firewall` reads and evaluates the rules; `Hooks` tells whether the kernel
//! calls other filters. This module keeps the verdicts while the rules stay the same, and a thread
//! watches them (`watch`).

mod hooks;
mod pass;
mod snapshot;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slab::Slab;
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
pub use splice_firewall::{Connection, End, Family, Reason, Verdict};
use splice_firewall::{Device, Filters, Hook, HookCounts, Reader, Registry};

pub(crate) use self::hooks::Hooks;
use self::pass::{AdmittedPair, Change, GroupFilter};
pub(crate) use self::pass::{Pass, PassState};
use self::snapshot::{Snapshot, namespace_socket};

/// The packet filters of a network namespace, as they were when they were read.
#[derive(Debug)]
pub struct PacketFilters {
    filters: Filters,
    hooks: Registry,
}

impl PacketFilters {
    /// Reads the filters of this thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] if the rules or the kernel's hooks cannot be read, for example without
    /// a capability.
    pub fn read() -> Result<Self> {
        let refused = |why: String| Error::new(ErrorKind::BpfRefused, why);
        Ok(Self {
            filters: Filters::read().map_err(|error| refused(error.to_string()))?,
            // Protocol hooks belong to the namespace, whatever the device.
            hooks: Hooks::load()?.list(LOOPBACK)?,
        })
    }

    /// What they would do with the segments of a connection. Filters on a device count if the connection's
    /// device is known.
    pub fn judge(&self, connection: &Connection) -> Verdict {
        let accounted = self
            .filters
            .account_for(&self.hooks, connection.family, &Hook::OWN, "lo");
        match accounted {
            Ok(()) => self.filters.judge(connection),
            Err(why) => Verdict::Unknown(Reason { place: None, why }),
        }
    }
}

/// The index of lo in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// For how many pairs to look at once whether programs of control groups see their packets: it takes some 3 µs each.
const PAIRS_PER_LOOK: usize = 256;

/// The filters of one network namespace, watched while this lives.
pub(crate) struct Firewall {
    hooks: Arc<Hooks>,
    behind: Behind,
    look_around: LookAround,
    state: Mutex<State>,
    /// Readable once the watching thread should end.
    stop: OwnedFd,
    /// Makes the thread look at once.
    look: OwnedFd,
}

struct State {
    snapshot: Arc<Snapshot>,
    /// When the last look at the filters began.
    looked_at: Instant,
    pairs: Slab<Arc<AdmittedPair>>,
}

/// Whether tc programs or filters on a device, by its ifindex, come after the engine's program, in words that follow the
/// device's name.
pub(crate) type Behind =
    Box<dyn Fn(u32) -> std::result::Result<Option<String>, DeviceGone> + Send + Sync>;

/// There is no device with this index. One that is made later may get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceGone;

/// Looks after the engine's program on devices, at least once a second.
pub(crate) type LookAround = Box<dyn Fn() + Send + Sync>;

/// A pair's doubt that hooks are not accounted for.
#[derive(Clone)]
pub(crate) struct Doubt {
    began: Instant,
    /// Since when it is about the filters as they were read then.
    at: Instant,
    about: Arc<Snapshot>,
}

impl fmt::Debug for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doubt")
            .field("began", &self.began)
            .finish_non_exhaustive()
    }
}

/// How long a pair doubts filters that change all the time.
const LONGEST_DOUBT: Duration = Duration::from_secs(5);

/// The filters as somebody has last seen them.
pub(crate) struct Known(Arc<Snapshot>);

impl Firewall {
    /// Starts to watch the filters of this thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] if the hooks cannot be read, [`ErrorKind::System`] if nothing can
    /// watch. Unreadable rules are no error: then no pair is admitted.
    pub(crate) fn watch(behind: Behind, look_around: LookAround) -> Result<Arc<Self>> {
        let hooks = Hooks::load()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).context("cannot create an eventfd")?;
        // Subscribe first, so that no change after the first look is missed.
        let look = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot create an eventfd")?;
        let looked_at = Instant::now();
        let watch = watch::Watch::new(&stop, &look)?;
        let firewall = Arc::new(Self {
            hooks,
            behind,
            look_around,
            state: Mutex::new(State {
                snapshot: Arc::new(Snapshot::new(watch.first(), HashMap::new())),
                looked_at,
                pairs: Slab::new(),
            }),
            stop,
            look,
        });
        watch.start(&firewall)?;
        Ok(firewall)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every update of the state is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.lock().snapshot)
    }

    /// What the filters would do with a connection's segments now. Call it in the filters'
    /// namespace.
    fn judge(&self, snapshot: &Snapshot, connection: &Connection) -> Judgement {
        let filters = match &snapshot.filters {
            Ok(filters) => filters,
            Err(why) => return Judgement::Unread(why.clone()),
        };
        match self.account_for_hooks(snapshot, filters, connection) {
            Ok(None) => {}
            Ok(Some((counts, why))) => return Judgement::Unaccounted(counts, why),
            Err(why) => return Judgement::Unknown(why),
        }
        if let Some(device) = &connection.device {
            match snapshot.behind(device.index, &self.behind) {
                Ok(None) => {}
                Ok(Some(why)) => return Judgement::Unknown(format!("{} {why}", device.name)),
                Err(DeviceGone) => {
                    return Judgement::Gone(format!("device {} is gone", device.name));
                }
            }
        }
        match filters.judge(connection) {
            Verdict::Accepts => Judgement::Accepts,
            Verdict::Stops(reason) => Judgement::Stops(reason.to_string()),
            Verdict::Unknown(reason) => Judgement::Unknown(reason.to_string()),
        }
    }

    /// Returns the hooks that the filters do not account for, and why.
    ///
    /// # Errors
    /// If they cannot be read, the reason in words.
    fn account_for_hooks(
        &self,
        snapshot: &Snapshot,
        filters: &Filters,
        connection: &Connection,
    ) -> std::result::Result<Option<(HookCounts, String)>, String> {
        let Some(device) = &connection.device else {
            return Ok(None);
        };
        let site = (device.index, connection.family);
        let failed = |error: Error| error.to_string();
        let counts = self.hooks.counts(device.index).map_err(failed)?;
        if snapshot.accounted().get(&site) == Some(&counts) {
            return Ok(None);
        }
        let registry = self.hooks.list(device.index).map_err(failed)?;
        match filters.account_for(&registry, connection.family, &Hook::OWN, &device.name) {
            Ok(()) => {
                snapshot.accounted().insert(site, registry.counts);
                Ok(None)
            }
            Err(why) => Ok(Some((registry.counts, why))),
        }
    }

    /// Whether to believe that hooks are not accounted for. Chains that are newer than the rules
    /// that were read will be accounted for soon. A pair that has `doubted` before gets the answer
    /// once the filters were read again, and are the same.
    fn is_settled(
        &self,
        snapshot: &Arc<Snapshot>,
        connection: &Connection,
        found: (HookCounts, &str),
        doubted: &mut Option<Doubt>,
    ) -> bool {
        let Some(device) = &connection.device else {
            return true;
        };
        let site = (device.index, connection.family);
        let mut unaccounted = snapshot.unaccounted();
        if unaccounted
            .get(&site)
            .is_some_and(|(counts, _)| *counts == found.0)
        {
            return true;
        }
        let now = Instant::now();
        let doubt = doubted.get_or_insert_with(|| Doubt {
            began: now,
            at: now,
            about: Arc::clone(snapshot),
        });
        if !Arc::ptr_eq(&doubt.about, snapshot) && now < doubt.began + LONGEST_DOUBT {
            // The filters have changed since, and may have again.
            (doubt.at, doubt.about) = (now, Arc::clone(snapshot));
        }
        let state = self.lock();
        if Arc::ptr_eq(&state.snapshot, snapshot) && state.looked_at > doubt.at {
            unaccounted.insert(site, (found.0, found.1.into()));
            return true;
        }
        drop(state);
        drop(unaccounted);
        // The write fails only if the counter is full, and then the thread looks anyway.
        let _ = rustix::io::write(&self.look, &1u64.to_ne_bytes());
        false
    }

    /// Admits a pair past the filters, unless they may stop it. Connection tracking is asked only
    /// if a rule needs its state.
    ///
    /// # Errors
    /// What may stop the pair, or that it has to ask again; `doubted` holds since when it asks.
    pub(crate) fn admit(
        self: &Arc<Self>,
        mut connections: [Connection; 2],
        ask_tracking: impl FnOnce(&mut [Connection; 2]),
        by_groups: GroupFilter,
        waker: Waker,
        doubted: &mut Option<Doubt>,
    ) -> std::result::Result<Pass, Refusal> {
        let mut ask_tracking = Some(ask_tracking);
        loop {
            let snapshot = self.snapshot();
            let mut judgement = self.judge_both(&snapshot, &connections);
            if judgement != Judgement::Accepts
                && let Some(ask) = ask_tracking.take()
            {
                ask(&mut connections);
                judgement = self.judge_both(&snapshot, &connections);
            }
            match judgement {
                Judgement::Accepts => {}
                Judgement::Stops(why)
                | Judgement::Unknown(why)
                | Judgement::Unread(why)
                | Judgement::Gone(why) => {
                    return Err(Refusal::Because(why));
                }
                Judgement::Unaccounted(counts, why) => {
                    let mut all = connections.iter();
                    let is_settled =
                        all.all(|one| self.is_settled(&snapshot, one, (counts, &why), doubted));
                    return Err(if is_settled {
                        Refusal::Because(why)
                    } else {
                        Refusal::NotYet
                    });
                }
            }
            let mut state = self.lock();
            // A change of the rules in between was applied only to the pairs of that moment.
            if Arc::ptr_eq(&state.snapshot, &snapshot) {
                let pair = Arc::new(AdmittedPair {
                    connections,
                    by_groups,
                    waker,
                    state: Mutex::new(PassState::Admitted),
                });
                let key = state.pairs.insert(Arc::clone(&pair));
                drop(state);
                return Ok(Pass {
                    firewall: Arc::clone(self),
                    key,
                    pair,
                });
            }
        }
    }

    /// Whether the filters have changed since the last call with the same `known`. The first call says no.
    pub(crate) fn has_changed(&self, known: &mut Option<Known>) -> bool {
        let snapshot = self.snapshot();
        let is_same = |known: &Known| Arc::ptr_eq(&known.0, &snapshot);
        let changed = known.as_ref().is_some_and(|known| !is_same(known));
        *known = Some(Known(snapshot));
        changed
    }

    /// Why the filters would stop a pair of connections for certain, if they would.
    pub(crate) fn why_stopped(&self, connections: &[Connection; 2]) -> Option<String> {
        match self.judge_again(&self.snapshot(), connections) {
            Judgement::Stops(why) => Some(why),
            _ => None,
        }
    }

    /// What rules may ask about a connection's device; `None` if the device is gone.
    pub(crate) fn device(
        &self,
        socket: impl AsFd,
        index: u32,
        hardware_type: u16,
    ) -> Option<Device> {
        let name = self.snapshot().name(index, || Ok(socket)).ok()?;
        Some(Device {
            index,
            name,
            hardware_type,
        })
    }

    /// Judges connections again, whose devices may have been renamed.
    fn judge_again(&self, snapshot: &Snapshot, connections: &[Connection; 2]) -> Judgement {
        let mut connections = connections.clone();
        for connection in &mut connections {
            let Some(device) = &mut connection.device else {
                continue;
            };
            match snapshot.name(device.index, namespace_socket) {
                Ok(name) => device.name = name,
                Err(Errno::NODEV) => {
                    return Judgement::Gone(format!("device {} is gone", device.name));
                }
                Err(errno) => {
                    let why = format!("cannot read the name of device {}: {errno}", device.name);
                    return Judgement::Unknown(why);
                }
            }
        }
        self.judge_both(snapshot, &connections)
    }

    fn judge_both(&self, snapshot: &Snapshot, connections: &[Connection; 2]) -> Judgement {
        let mut worst = Judgement::Accepts;
        for connection in connections {
            match self.judge(snapshot, connection) {
                Judgement::Accepts => {}
                stops @ Judgement::Stops(_) => return stops,
                other => worst = other,
            }
        }
        worst
    }

    /// Whether the hooks that pairs meet have changed, or a device was renamed.
    fn has_other_hooks(&self, snapshot: &Snapshot) -> bool {
        if snapshot.has_renamed_devices() {
            return true;
        }
        let accounted = snapshot.accounted().clone();
        accounted.iter().any(|((device, _), counts)| {
            let now = self.hooks.counts(*device);
            now.map_or(true, |now| now != *counts)
        })
    }

    /// Applies new filters: judges every pair again. Returns how many were revoked, and one reason.
    fn change(&self, snapshot: Snapshot, looked_at: Instant) -> Change {
        let snapshot = Arc::new(snapshot);
        let pairs: Vec<_> = {
            let mut state = self.lock();
            state.looked_at = looked_at;
            state.snapshot = Arc::clone(&snapshot);
            state
                .pairs
                .iter()
                .map(|(_, pair)| Arc::clone(pair))
                .collect()
        };
        let mut change = Change::default();
        for pair in pairs {
            let judgement = self.judge_again(&snapshot, &pair.connections);
            let mut state = pair.state();
            *state = match (judgement, &*state) {
                // The pair is going back already.
                (_, PassState::Revoked(_) | PassState::Gone(_)) => continue,
                (Judgement::Accepts, _) => PassState::Admitted,
                (Judgement::Unread(_) | Judgement::Unaccounted(..), PassState::Admitted) => {
                    change.is_unsettled = true;
                    PassState::Unsettled
                }
                (Judgement::Gone(why), _) => {
                    drop(state);
                    change.lose(&pair, why);
                    continue;
                }
                (judgement, _) => {
                    let why = judgement.into_words();
                    drop(state);
                    change.revoke(&pair, why);
                    continue;
                }
            };
        }
        change
    }

    /// Looks whether programs of control groups see the packets of some pairs now, from the `next` one on; if one is seen
    /// there, of all pairs.
    fn look_at_groups(&self, next: &mut usize, change: &mut Change) {
        let pairs: Vec<_> = {
            let state = self.lock();
            let pairs = state.pairs.iter();
            pairs.map(|(_, pair)| Arc::clone(pair)).collect()
        };
        let mut most = pairs.len().min(PAIRS_PER_LOOK);
        let mut looked = 0;
        let from_next = pairs.iter().cycle().skip(*next % pairs.len().max(1));
        for pair in from_next.take(pairs.len()) {
            if looked == most {
                break;
            }
            looked += 1;
            if let Some(why) = (pair.by_groups)() {
                most = pairs.len();
                change.revoke(pair, why);
            }
        }
        *next = next.wrapping_add(looked);
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        // It fails only if the counter is full, which it is not.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

impl fmt::Debug for Firewall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Firewall").finish_non_exhaustive()
    }
}

/// The filters' verdict on a pair, with a reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judgement {
    Accepts,
    Stops(String),
    Unknown(String),
    /// The filters could not be read.
    Unread(String),
    /// The filters do not account for these hooks.
    Unaccounted(HookCounts, String),
    /// A device is.
    Gone(String),
}

impl Judgement {
    /// The reason; of a pair that may pass there is none.
    fn into_words(self) -> String {
        match self {
            Self::Accepts => String::new(),
            Self::Stops(why)
            | Self::Unknown(why)
            | Self::Unread(why)
            | Self::Gone(why)
            | Self::Unaccounted(_, why) => why,
        }
    }
}

/// Why a pair is not admitted.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The reason.
    Because(String),
    /// The filters are being read: ask again soon.
    NotYet,
}

/// Reads the filters once, without watching them.
fn read(reader: &mut Option<Reader>) -> std::result::Result<Filters, String> {
    let reader = match reader {
        Some(reader) => reader,
        None => reader.insert(Reader::new().map_err(|error| error.to_string())?),
    };
    reader.read().map_err(|error| error.to_string())
}
