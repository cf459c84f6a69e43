//! The ways of connections that an engine moves past the network stack: routes, rules, addresses, devices, and policies
//! of IPsec.
//!
//! The program of such an engine redirects segments to the device that the connection had when it was taken, and looks
//! for the next hop there. So a pair goes on only while the stack would do the same:
//!
//! ```text
//!        it is closed, or not the program's
//!      ┌─────────────────────────────────────▶ refused
//! pair ┤                 nothing may pass
//!      └─────▶ Open ◀────────────────────────▶ Closed: the pair stands still
//!               │                                │
//!               └────────────▶ Moved ◀───────────┘
//!                 the stack takes another way: the pair goes back to it
//! ```
//!
//! A closed way loses segments, and does not end a connection: both peers send again once it is open.
//!
//! The crate `splice-firewall` asks the kernel. A thread hears of changes (`watch`).

mod watch;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;
use splice_base::error::{Result, ResultExt as _};
pub(crate) use splice_firewall::Ends;
use splice_firewall::{Policies, Protection, Route, Way, Ways};

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
    pairs: Slab<Arc<RoutedPair>>,
}

/// A pair whose ways are watched.
struct RoutedPair {
    legs: [Leg; 2],
    waker: Waker,
    standing: Mutex<Standing>,
}

/// One connection of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    pub(crate) ends: Ends,
    /// The device to which its segments are redirected.
    pub(crate) device: u32,
}

struct Standing {
    /// By which the segments go that the program redirects.
    routes: [Option<Route>; 2],
    course: Course,
}

/// How a pair may go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Course {
    /// Why none of its segments may pass now.
    pub(crate) closed: Option<String>,
    /// Why it may not bypass the stack any more.
    pub(crate) moved: Option<String>,
    /// The devices by which the stack sends now.
    pub(crate) devices: [u32; 2],
}

/// A watched pair's place. Dropping it ends that.
pub(crate) struct Routed {
    routing: Arc<Routing>,
    key: usize,
    pair: Arc<RoutedPair>,
}

/// What was found of one connection.
enum Found {
    Open(Route),
    Closed(&'static str),
    Moved(Option<Route>, &'static str),
}

/// The sides of a pair, as they are named to the user.
const SIDES: [&str; 2] = ["A", "B"];

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
                policies: watch.read_policies(),
                pairs: Slab::new(),
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

    /// Watches a pair.
    ///
    /// # Errors
    /// Why its segments may not bypass the stack.
    pub(crate) fn admit(
        self: &Arc<Self>,
        legs: [Leg; 2],
        waker: Waker,
    ) -> std::result::Result<Routed, String> {
        let pair = Arc::new(RoutedPair {
            legs,
            waker,
            standing: Mutex::new(Standing {
                routes: [None; 2],
                course: Course {
                    devices: legs.map(|leg| leg.device),
                    ..Course::default()
                },
            }),
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
        let mut standing = routed.pair.standing();
        for (at, (leg, side)) in legs.iter().zip(SIDES).enumerate() {
            match self.find(leg, None) {
                Ok(Found::Open(route)) => standing.routes[at] = Some(route),
                Ok(Found::Closed(why) | Found::Moved(_, why)) => {
                    return Err(format!("{side} {why}"));
                }
                Err(error) => return Err(format!("the route of {side} cannot be read: {error}")),
            }
        }
        drop(standing);
        Ok(routed)
    }

    /// What the stack would do with the segments of one connection, for which the program has a `known` route.
    fn find(&self, leg: &Leg, known: Option<&Route>) -> io::Result<Found> {
        let Leg { ends, device } = leg;
        let mut ways = self.ways();
        // A pair that is admitted has just been in use.
        let way = match known {
            Some(_) => ways.of(ends)?,
            None => ways.out(ends)?,
        };
        let route = match way {
            Way::Open(route) => route,
            Way::NoRoute => return Ok(Found::Closed("has no route to its peer")),
            Way::NoAddress => {
                return Ok(Found::Closed("has an address that this host does not have"));
            }
        };
        let moved = |why| Ok(Found::Moved(Some(route), why));
        match self.protection(ends, route.device) {
            Ok(None) => {}
            Ok(Some(Protection::Blocked)) => {
                return Ok(Found::Closed(
                    "is blocked by a policy of IPsec (ip xfrm policy)",
                ));
            }
            Ok(Some(Protection::Required)) => {
                return moved("is protected by a policy of IPsec (ip xfrm policy)");
            }
            Err(()) => return moved("may be protected by policies of IPsec, which cannot be read"),
        }
        if route.device != *device {
            return moved("is reached over another device");
        }
        if route.encapsulates {
            return moved("is reached by a route that encapsulates (ip route ... encap)");
        }
        if known.is_some_and(|known| known.next_hop == route.next_hop) {
            return Ok(Found::Open(route));
        }
        let redirected = ways.by(ends, *device)?;
        if redirected.is_none_or(|redirected| redirected.next_hop != route.next_hop) {
            return moved("is reached by a route that translated segments do not take");
        }
        Ok(Found::Open(route))
    }

    /// What the policies of IPsec do with a connection.
    fn protection(&self, ends: &Ends, device: u32) -> std::result::Result<Option<Protection>, ()> {
        let state = self.state();
        let policies = state.policies.as_ref().map_err(|_| ())?;
        Ok(policies.on(ends, device))
    }

    /// Looks at a pair again. Returns its course if that has changed.
    fn look_at(&self, pair: &RoutedPair) -> Option<Course> {
        let mut standing = pair.standing();
        let Standing { routes, course } = &mut *standing;
        let mut now = Course {
            moved: course.moved.take(),
            devices: course.devices,
            closed: None,
        };
        for (at, leg) in pair.legs.iter().enumerate() {
            let side = SIDES[at];
            match self.find(leg, routes[at].as_ref()) {
                Ok(Found::Open(route)) => {
                    routes[at] = Some(route);
                    now.devices[at] = route.device;
                }
                Ok(Found::Closed(why)) => {
                    now.closed.get_or_insert_with(|| format!("{side} {why}"));
                }
                Ok(Found::Moved(route, why)) => {
                    now.devices[at] = route.map_or(now.devices[at], |route| route.device);
                    now.moved.get_or_insert_with(|| format!("{side} {why}"));
                }
                // The kernel is short of memory. The next look is a second away.
                Err(_) => {}
            }
        }
        let is_new = now != *course;
        course.clone_from(&now);
        drop(standing);
        is_new.then(|| {
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
    fn standing(&self) -> MutexGuard<'_, Standing> {
        // Every update is complete before anything can panic.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Routed {
    /// How the pair may go on, as it was last seen.
    pub(crate) fn course(&self) -> Course {
        self.pair.standing().course.clone()
    }

    /// The same, seen now.
    pub(crate) fn course_now(&self) -> Course {
        self.routing.look_at(&self.pair);
        self.course()
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.routing.state().pairs.try_remove(self.key);
    }
}

impl fmt::Debug for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routed")
            .field("course", &self.course())
            .finish_non_exhaustive()
    }
}
