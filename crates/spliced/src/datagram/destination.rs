//! To whom the sessions of a listener go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};
use splice_route::Prefixes;

use super::held::Held;
use super::outcome::words;
use super::sender::Sender;
use super::socket::DatagramSocket;
use crate::backend::{Backend, Lease, PickKey, Tried};
use crate::connect_error::{self, Fault};
use crate::plan::DatagramTerms;
use crate::resource_limit::limit_met;
use crate::roster::Closer;
use crate::socket_address::SocketAddress;
use crate::tally::{OfListener, Tally};
use crate::target::Target;

pub(crate) enum Destination {
    /// Of `spliced relay`.
    Target(OneTarget),
    /// Of a listener that a configuration has.
    Routes(Routes),
}

/// The one target of a relay.
pub(crate) struct OneTarget {
    name: String,
    target: Arc<Target>,
    /// Which of the target's addresses a session takes: the next one, once one has refused.
    next_address: AtomicUsize,
}

/// The first route that takes a client says to which backend it goes.
pub(crate) struct Routes {
    pub(crate) routes: Vec<Route>,
    pub(crate) tallies: OfListener,
}

pub(crate) struct Route {
    /// `None`: every client.
    pub(crate) clients: Option<Prefixes>,
    pub(crate) backend: Arc<Backend>,
    pub(crate) fallback: Option<Arc<Backend>>,
}

/// What a session sends to.
pub(crate) struct Place {
    /// Connected to `target`.
    pub(crate) socket: DatagramSocket,
    pub(crate) target: SocketAddress,
    /// `None`: the target of a relay.
    pub(crate) held: Option<Held>,
}

impl Destination {
    /// A place for a new session of `client`, at none of the servers `tried`. `closer` wakes whoever looks whether
    /// the session is cut. Returns why there is none.
    pub(crate) fn place(
        &self,
        client: &Sender,
        tried: &mut Tried,
        terms: &DatagramTerms,
        closer: &task::Waker,
    ) -> Result<Place, String> {
        match self {
            Self::Target(target) => target.place(terms),
            Self::Routes(routes) => routes.place(client, tried, terms, closer),
        }
    }

    /// The target's side of a session has failed, which had no `held` place at a server.
    pub(crate) fn failed(&self, has_answered: bool) {
        if let Self::Target(target) = self
            && !has_answered
        {
            // The next session tries the next address, if the target has several.
            target.next_address.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The target of a relay, as it was typed.
    pub(crate) fn target_name(&self) -> Option<&str> {
        match self {
            Self::Target(target) => Some(&target.name),
            Self::Routes(_) => None,
        }
    }

    /// Where datagrams are counted that belong to no session.
    pub(crate) fn without_session(&self) -> Option<&Tally> {
        match self {
            Self::Target(_) => None,
            Self::Routes(routes) => Some(routes.tallies.without_backend()),
        }
    }

    /// The backends that the routes lead to.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        let routes = match self {
            Self::Target(_) => &[][..],
            Self::Routes(routes) => &routes.routes,
        };
        routes
            .iter()
            .flat_map(|route| [Some(&route.backend), route.fallback.as_ref()])
            .flatten()
    }
}

impl OneTarget {
    pub(crate) fn new(name: String, target: Arc<Target>) -> Self {
        Self {
            name,
            target,
            next_address: AtomicUsize::new(0),
        }
    }

    fn place(&self, terms: &DatagramTerms) -> Result<Place, String> {
        let addresses = self.target.addresses();
        if addresses.is_empty() {
            return Err(self.target.why_nowhere());
        }
        let first = self.next_address.load(Ordering::Relaxed);
        let mut why = String::new();
        for turn in 0..addresses.len() {
            let target = &addresses[first.wrapping_add(turn) % addresses.len()];
            match connect(target, terms, |_| Ok(())) {
                Ok(socket) => {
                    return Ok(Place {
                        socket,
                        target: target.clone(),
                        held: None,
                    });
                }
                Err((errno, _)) => why = why_unreachable(target, errno),
            }
        }
        Err(why)
    }
}

impl Routes {
    fn place(
        &self,
        client: &Sender,
        tried: &mut Tried,
        terms: &DatagramTerms,
        closer: &task::Waker,
    ) -> Result<Place, String> {
        let ip = client.ip();
        let takes = |route: &Route| match (&route.clients, ip) {
            (None, _) => true,
            (Some(clients), Some(ip)) => clients.contain(ip),
            (Some(_), None) => false,
        };
        let index = self.routes.iter().position(takes);
        let Some((index, route)) = index.and_then(|index| Some((index, self.routes.get(index)?)))
        else {
            return Err("no route takes it".into());
        };
        let mut why = None;
        let mut fallback = route.fallback.as_ref();
        let mut backend = &route.backend;
        loop {
            let key = PickKey {
                client: ip,
                server_name: None,
                has_fallback: fallback.is_some(),
            };
            match backend.pick_now(&key, tried) {
                Ok(lease) => {
                    lease.note_in(tried);
                    match reach(backend, &lease, terms, ip) {
                        Ok((socket, target)) => {
                            let seat = lease.sit(Closer::Thread(closer.clone()));
                            let tally = self.tallies.with(backend.name());
                            let held = Held::new(index + 1, lease, seat, backend, tally);
                            return Ok(Place {
                                socket,
                                target,
                                held: Some(held),
                            });
                        }
                        Err(unreachable) => why = Some(unreachable),
                    }
                }
                Err(none) => match fallback.take() {
                    Some(other) => backend = other,
                    None => {
                        return Err(format!(
                            "backend {}: {}",
                            backend.name(),
                            why.unwrap_or(none)
                        ));
                    }
                },
            }
        }
    }
}

/// A socket that is connected to the server of `lease`. Returns why there is none, which the server knows then.
fn reach(
    backend: &Arc<Backend>,
    lease: &Lease,
    terms: &DatagramTerms,
    client: Option<std::net::IpAddr>,
) -> Result<(DatagramSocket, SocketAddress), String> {
    let mut why = String::new();
    for target in lease.addresses()?.iter() {
        match connect(target, terms, |socket| {
            backend.prepare_socket(socket, target, client)
        }) {
            Ok(socket) => return Ok((socket, target.clone())),
            Err((errno, fault)) => {
                why = why_unreachable(target, errno);
                match fault {
                    Fault::Server | Fault::Reset => lease.refused(target, &words(errno)),
                    Fault::Shortage | Fault::NoWay => lease.could_not_be_tried(&why),
                }
            }
        }
    }
    Err(why)
}

/// A socket of a session's own to `target`, which `prepare` has had before it was connected. An error comes with what
/// it says of the server.
fn connect(
    target: &SocketAddress,
    terms: &DatagramTerms,
    prepare: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
) -> Result<DatagramSocket, (Errno, Fault)> {
    let of_socket = |errno| (errno, connect_error::of_socket(errno));
    let socket = DatagramSocket::new(target, terms).map_err(of_socket)?;
    prepare(socket.fd()).map_err(of_socket)?;
    if matches!(target, SocketAddress::Unix(_)) {
        // The kernel picks a name, to which the target can send its answers (unix(7), autobind).
        bind(socket.fd(), &SocketAddrUnix::new_unnamed()).map_err(of_socket)?;
    }
    let connected = target.connect(socket.fd());
    connected.map_err(|errno| (errno, connect_error::of_connect(errno, target)))?;
    Ok(socket)
}

fn why_unreachable(target: &SocketAddress, errno: Errno) -> String {
    let lacks_interface = || target.lacks_interface().filter(|_| errno == Errno::INVAL);
    let known = limit_met(errno).or_else(lacks_interface);
    let reason = known.unwrap_or_else(|| words(errno));
    format!("{target} cannot be reached: {reason}")
}
