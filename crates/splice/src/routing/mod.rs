//! The ways of connections that an engine moves past the network stack: routes, rules, addresses, devices, and policies
//! of IPsec.
//!
//! The program of such an engine redirects segments to the device that the connection had when it was taken, and looks
//! for the next hop there. So a pair goes on only while the stack would do the same:
//!
//! ```text
//!        it is closed, or not the program's
//!      ┌─────────────────────────────────────▶ refused
//! pair ┤                 nothing leaves, or nothing may come in
//!      └─────▶ Open ◀────────────────────────▶ Closed: segments get lost
//!               │                                │
//!               └────────────▶ Moved ◀───────────┘
//!                 the stack takes another way: the pair goes back to it, once it is open
//! ```
//!
//! A closed way loses what the stack would lose, and does not end a connection: who has sent it sends it again.
//!
//! A way is another one as well if its route has become too narrow for what the peers may send: the stack would send
//! shorter segments, and nobody here can.
//!
//! The crate `splice-firewall` asks the kernel. A thread hears of changes (`watch`).

mod watch;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slab::Slab;
use splice_base::error::{Error, Result, ResultExt as _};
use splice_base::shortage::{Shortage, is_shortage};
pub(crate) use splice_firewall::Ends;
use splice_firewall::{Policies, Protection, Route, Way, Ways};

use crate::outcome::{PeerNames, Side};

/// The ways in one network namespace, watched while this lives.
pub(crate) struct Routing {
    ways: Mutex<Ways>,
    state: Mutex<State>,
    /// Readable once the watching thread should end.
    stop: OwnedFd,
    /// Tells the thread that there is something to watch.
    look: OwnedFd,
}

struct State {
    policies: std::result::Result<Policies, String>,
    /// The devices that are ports of others.
    ports: HashSet<u32>,
    /// How long packets of IPv6 may be on devices by which pairs send, where that is less than their MTU.
    ipv6_mtus: HashMap<u32, u32>,
    pairs: Slab<Arc<RoutedPair>>,
    /// So many are not watched any more of which the log says that their segments get lost.
    left_lost: usize,
}

/// A pair whose ways are watched.
struct RoutedPair {
    legs: [Leg; 2],
    peers: PeerNames,
    waker: Waker,
    /// As it was last seen.
    course: Mutex<Course>,
    shortage: Mutex<Shortage>,
    /// The log says that its segments get lost.
    is_told_lost: AtomicBool,
}

/// One connection of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    pub(crate) ends: Ends,
    /// The device to which its segments are redirected.
    pub(crate) device: u32,
    /// How long the packets are that leave here, at most, in bytes: what the other peer was told to send.
    pub(crate) longest: u32,
}

/// How a pair may go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Course {
    /// Why the segments of each side's peer get lost, or none if they do not.
    pub(crate) closed: [Option<String>; 2],
    /// Why it may not bypass the stack any more.
    pub(crate) moved: Option<String>,
    /// Both sockets have addresses and routes.
    pub(crate) is_routed: bool,
    /// The devices by which the stack sends now.
    pub(crate) devices: [u32; 2],
}

/// Why a pair is not admitted.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The reason.
    Because(String),
    /// Something is short for the moment: ask again later.
    Short,
}

/// Reads the course of a watched pair, from any thread.
#[derive(Clone)]
pub(crate) struct CourseReader(Arc<RoutedPair>);

/// Segments of a pair get lost.
#[derive(Debug, PartialEq, Eq)]
enum Loss {
    /// For this reason.
    Begins(String),
    Ends,
}

/// A watched pair's place. Dropping it ends that.
pub(crate) struct Routed {
    routing: Arc<Routing>,
    key: usize,
    pair: Arc<RoutedPair>,
}

/// What the stack would do with the segments of one connection.
#[derive(Default)]
struct Found {
    route: Option<Route>,
    /// The routes and rules let them come in.
    comes_in: bool,
    /// Why none comes in.
    incoming: Option<&'static str>,
    /// Why none leaves.
    outgoing: Option<&'static str>,
    /// Why those that leave do not take the way of those that are redirected.
    moved: Option<&'static str>,
    /// Why they may be too long.
    narrow: Option<&'static str>,
}

impl Routing {
    /// Starts to watch the ways of this thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::System`](splice_base::error::ErrorKind::System) if nothing can watch.
    pub(crate) fn watch() -> Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let [stop, look] = [eventfd(0, flags), eventfd(0, flags)];
        let stop = stop.context("cannot create an eventfd")?;
        let look = look.context("cannot create an eventfd")?;
        let mut watch = watch::Watch::new(&stop, &look)?;
        let routing = Arc::new(Self {
            ways: Mutex::new(Ways::new().context("cannot ask for routes")?),
            state: Mutex::new(State {
                policies: match watch.read_policies() {
                    Err(error) if Errno::from_io_error(&error).is_some_and(is_shortage) => {
                        return Err(Error::system("cannot read the IPsec policies", error));
                    }
                    read => read.map_err(|error| error.to_string()),
                },
                ports: watch.read_ports().context("cannot list the devices")?,
                ipv6_mtus: HashMap::new(),
                pairs: Slab::new(),
                left_lost: 0,
            }),
            stop,
            look,
        });
        watch.start(&routing)?;
        Ok(routing)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every update of the state is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        // After a request that failed the next one has another number.
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a pair. If its route has become too narrow since it was connected, it is moved already.
    ///
    /// # Errors
    /// Why its segments may not bypass the stack.
    pub(crate) fn admit(
        self: &Arc<Self>,
        legs: [Leg; 2],
        peers: PeerNames,
        waker: Waker,
    ) -> std::result::Result<Routed, Refusal> {
        let pair = Arc::new(RoutedPair {
            legs,
            peers,
            waker,
            course: Mutex::new(Course {
                devices: legs.map(|leg| leg.device),
                ..Course::default()
            }),
            shortage: Mutex::default(),
            is_told_lost: AtomicBool::new(false),
        });
        // First, so that no change after the look is missed.
        let mut state = self.state();
        let key = state.pairs.insert(Arc::clone(&pair));
        if state.pairs.len() == 1 {
            // The write fails only if the counter is full, and then the thread looks anyway.
            let _ = rustix::io::write(&self.look, &1u64.to_ne_bytes());
        }
        drop(state);
        let routed = Routed {
            routing: Arc::clone(self),
            key,
            pair,
        };
        let mut course = routed.pair.course();
        for (leg, side) in legs.iter().zip(Side::BOTH) {
            let peer = peers.of(side);
            // It has just been in use.
            let comes_in = true;
            let found = self.find(leg, comes_in).map_err(|error| {
                match Errno::from_io_error(&error).is_some_and(is_shortage) {
                    true => Refusal::Short,
                    false => {
                        Refusal::Because(format!("the route to {peer} cannot be read: {error}"))
                    }
                }
            })?;
            if let Some(why) = found.incoming.or(found.outgoing).or(found.moved) {
                return Err(Refusal::Because(format!(
                    "the connection with {peer} {why}"
                )));
            }
            let narrow = found
                .narrow
                .map(|why| format!("the connection with {peer} {why}"));
            course.moved = course.moved.take().or(narrow);
        }
        course.is_routed = true;
        drop(course);
        Ok(routed)
    }

    /// What the stack would do with the segments of one connection, of which some may be known to have come in just now.
    fn find(&self, leg: &Leg, comes_in: bool) -> io::Result<Found> {
        let Leg { ends, device, .. } = leg;
        let mut ways = self.ways();
        let way = match comes_in {
            false => ways.of(ends, *device)?,
            true => Way {
                comes_in,
                route: ways.out(ends)?,
            },
        };
        let mut found = Found {
            route: way.route,
            comes_in: way.comes_in,
            ..Found::default()
        };
        if !way.comes_in {
            found.incoming = Some(
                "has an address that this host does not have any more, or a route or rule stops what comes in",
            );
        }
        match way.route {
            None => {
                found.outgoing = Some("has no route");
            }
            // First: which of them the kernel names is up to a hash with a seed of its own.
            Some(_) if ways.is_spread(ends, *device)? => {
                found.moved = Some("is reached over several devices (ip -6 route ... nexthop)");
            }
            Some(route) if route.device != *device => {
                found.moved = Some("is reached over another device");
            }
            Some(route) if route.encapsulates => {
                found.moved = Some("is reached by a route that encapsulates (ip route ... encap)");
            }
            Some(route) => {
                let redirected = ways.by(ends, *device)?;
                let is_other = redirected.is_none_or(|by| by.next_hop != route.next_hop);
                // The route may have changed between the two questions, and is looked at again then.
                if is_other && ways.out(ends)? == Some(route) {
                    found.moved =
                        Some("is reached by a route that translated segments do not take");
                }
            }
        }
        drop(ways);
        self.apply_state(leg, &mut found)?;
        Ok(found)
    }

    /// Adds what the policies of IPsec and devices do with a connection.
    fn apply_state(&self, leg: &Leg, found: &mut Found) -> io::Result<()> {
        let Leg { ends, device, .. } = leg;
        let out_device = found.route.map_or(*device, |route| route.device);
        let state = self.state();
        let of_device = || {
            let mtu = state.ipv6_mtus.get(&out_device);
            mtu.copied().filter(|_| ends.peer.is_ipv6())
        };
        let mtu = found.route.and_then(|route| route.mtu).or_else(of_device);
        if mtu.is_some_and(|mtu| mtu < leg.longest) {
            found.narrow = Some(
                "is reached by a route whose MTU is smaller than what the other peer may send (ip route get)",
            );
        }
        // A bridge takes what comes in on its port, and what that is subject to there is not known here.
        if state.ports.contains(device) {
            found.moved = Some("is reached over a port of another device (bridge, bond)");
        }
        let Ok(policies) = &state.policies else {
            found.moved = Some("may be protected by policies of IPsec, which cannot be read");
            return Ok(());
        };
        for (protection, closed) in [
            (policies.on_incoming(ends, *device)?, &mut found.incoming),
            (policies.on_outgoing(ends, out_device)?, &mut found.outgoing),
        ] {
            match protection {
                None => {}
                Some(Protection::Blocked) => {
                    closed.get_or_insert("is blocked by a policy of IPsec (ip xfrm policy)");
                }
                Some(Protection::Required) => {
                    found.moved = Some("is protected by a policy of IPsec (ip xfrm policy)");
                }
                Some(Protection::Unclear) => {
                    found.moved = Some(
                        "may be subject to a policy of IPsec, which only the network stack can tell (ip xfrm policy)",
                    );
                }
            }
        }
        Ok(())
    }

    /// Looks at a pair again. Returns its course if that has changed.
    fn look_at(&self, pair: &RoutedPair) -> Option<Course> {
        let mut course = pair.course();
        let mut now = Course {
            moved: course.moved.clone(),
            devices: course.devices,
            is_routed: true,
            closed: [None, None],
        };
        let mut is_short = false;
        for (side, leg) in Side::BOTH.into_iter().zip(&pair.legs) {
            let at = side.index();
            let peer = pair.peers.of(side);
            let found = match self.find(leg, false) {
                Ok(found) => found,
                // Something is short. The next look is a second away.
                Err(error) => {
                    is_short = true;
                    now.is_routed &= course.is_routed;
                    for from in 0..2 {
                        let before = || course.closed[from].clone();
                        now.closed[from] = now.closed[from].take().or_else(before);
                    }
                    if !pair.shortage().bears(Instant::now()) {
                        let why = || {
                            format!(
                                "the connection with {peer} is reached by a route that cannot be read: {error}"
                            )
                        };
                        now.moved.get_or_insert_with(why);
                    }
                    continue;
                }
            };
            let words = |why| format!("the connection with {peer} {why}");
            // What comes from the other side leaves here.
            for (from, why) in [(at, found.incoming), (1 - at, found.outgoing)] {
                now.closed[from] = now.closed[from].take().or_else(|| why.map(words));
            }
            let why = found.moved.or(found.narrow);
            now.moved = now.moved.take().or_else(|| why.map(words));
            now.is_routed &= found.comes_in && found.outgoing.is_none();
            if let Some(route) = found.route {
                now.devices[at] = route.device;
            }
        }
        if !is_short {
            pair.shortage().end();
        }
        let before = mem::replace(&mut *course, now.clone());
        drop(course);
        (now != before).then(|| {
            pair.waker.wake_by_ref();
            now
        })
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        // It fails only if the counter is full, which it is not.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

impl fmt::Debug for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routing").finish_non_exhaustive()
    }
}

impl RoutedPair {
    /// Whether the log is to say that segments of the pair get lost from now on, or no longer do.
    fn news_of_loss(&self) -> Option<Loss> {
        let why = self.course().why_closed().map(str::to_owned);
        let was_told = self.is_told_lost.swap(why.is_some(), Ordering::Relaxed);
        match (was_told, why) {
            (false, Some(why)) => Some(Loss::Begins(why)),
            (true, None) => Some(Loss::Ends),
            _ => None,
        }
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        // Every update is complete before anything can panic.
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shortage(&self) -> MutexGuard<'_, Shortage> {
        // As above.
        self.shortage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Course {
    /// Why segments of the pair get lost, if they do.
    fn why_closed(&self) -> Option<&str> {
        self.closed.iter().flatten().next().map(String::as_str)
    }
}

impl CourseReader {
    /// Why segments of the pair get lost, as it was last seen; `None` if they do not.
    pub(crate) fn why_closed(&self) -> Option<String> {
        self.0.course().why_closed().map(str::to_owned)
    }
}

impl fmt::Debug for CourseReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CourseReader")
            .field(&self.0.course())
            .finish()
    }
}

impl Routed {
    pub(crate) fn reader(&self) -> CourseReader {
        CourseReader(Arc::clone(&self.pair))
    }

    /// How the pair may go on, as it was last seen.
    pub(crate) fn course(&self) -> Course {
        self.pair.course().clone()
    }

    /// The same, seen now.
    pub(crate) fn course_now(&self) -> Course {
        self.routing.look_at(&self.pair);
        self.course()
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        let mut state = self.routing.state();
        state.pairs.try_remove(self.key);
        if self.pair.is_told_lost.load(Ordering::Relaxed) {
            state.left_lost += 1;
            drop(state);
            // The write fails only if the counter is full, and then the thread looks anyway.
            let _ = rustix::io::write(&self.routing.look, &1u64.to_ne_bytes());
        }
    }
}

impl fmt::Debug for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routed")
            .field("course", &self.course())
            .finish_non_exhaustive()
    }
}
