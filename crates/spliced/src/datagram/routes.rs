//! To whom the sessions of a listener go.

use std::sync::Arc;
use std::task;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};
use splice_route::Prefixes;

use super::held::Held;
use super::outcome::words;
use super::plan::shown;
use super::sender::Sender;
use super::socket::DatagramSocket;
use crate::backend::{Backend, Lease, PickKey, Tried};
use crate::connect_error::{self, Fault};
use crate::plan::DatagramTerms;
use crate::resource_limit::{is_among_the_last, limit_met};
use crate::roster::Closer;
use crate::socket_address::SocketAddress;
use crate::tally::{OfListener, Tally};

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
    pub(crate) held: Held,
}

/// Why there is no place for a session.
#[derive(Debug, Default)]
pub(crate) struct Nowhere {
    pub(crate) why: String,
    /// Of the address that was tried last.
    pub(crate) errno: Option<Errno>,
    fault: Option<Fault>,
}

impl<T: Into<String>> From<T> for Nowhere {
    fn from(why: T) -> Self {
        Self {
            why: why.into(),
            ..Self::default()
        }
    }
}

impl Nowhere {
    fn at(target: &SocketAddress, errno: Errno, fault: Fault) -> Self {
        Self {
            why: why_unreachable(target, errno),
            errno: Some(errno),
            fault: Some(fault),
        }
    }

    /// What the server has answered that was tried last, if it has.
    pub(crate) fn refusal(&self) -> Option<Errno> {
        let is_refused = matches!(self.fault, Some(Fault::Server | Fault::Reset));
        self.errno.filter(|_| is_refused)
    }

    /// This host has no descriptor or port left, for example.
    pub(crate) fn is_shortage(&self) -> bool {
        self.fault == Some(Fault::Shortage)
    }
}

impl Routes {
    /// The backends that they lead to.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        let backends = self.routes.iter();
        backends
            .flat_map(|route| [Some(&route.backend), route.fallback.as_ref()])
            .flatten()
    }

    /// Where datagrams are counted that belong to no session.
    pub(crate) fn without_session(&self) -> &Tally {
        self.tallies.without_backend()
    }

    /// A place for a new session of `client`, at none of the servers `tried`. `closer` wakes whoever looks whether
    /// the session is cut. Returns why there is none.
    pub(crate) fn place(
        &self,
        client: &Sender,
        tried: &mut Tried,
        terms: &DatagramTerms,
        closer: &task::Waker,
    ) -> Result<Place, Nowhere> {
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
                client_cid: None,
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
                                held,
                            });
                        }
                        Err(unreachable) => {
                            if unreachable.is_shortage() {
                                lease.has_not_begun();
                            }
                            why = Some(unreachable);
                        }
                    }
                }
                Err(none) => match fallback.take() {
                    Some(other) => backend = other,
                    None => {
                        let why = why.unwrap_or_else(|| none.into());
                        return Err(Nowhere {
                            why: format!("backend {}: {}", backend.name(), why.why),
                            ..why
                        });
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
) -> Result<(DatagramSocket, SocketAddress), Nowhere> {
    let mut why = Nowhere::default();
    for target in lease.addresses()?.iter() {
        match connect(target, terms, |socket| {
            backend.prepare_socket(socket, target, client)
        }) {
            Ok(socket) => return Ok((socket, target.clone())),
            Err((errno, fault)) => {
                why = Nowhere::at(target, errno, fault);
                match fault {
                    Fault::Server | Fault::Reset => {
                        lease.address_failed(target);
                        lease.refused(&words(errno));
                    }
                    Fault::Shortage | Fault::NoWay => lease.could_not_be_tried(&why.why),
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
    if is_among_the_last(socket.fd()) {
        return Err(of_socket(Errno::MFILE));
    }
    prepare(socket.fd()).map_err(of_socket)?;
    if matches!(target, SocketAddress::Unix(_)) {
        // The kernel picks a name, to which the target can send its answers (unix(7), autobind).
        bind(socket.fd(), &SocketAddrUnix::new_unnamed()).map_err(of_socket)?;
    }
    let connected = target.connect(socket.fd());
    connected.map_err(|errno| match (errno, target) {
        // No port is free (`udp_lib_get_port`).
        (Errno::AGAIN, SocketAddress::Inet(_)) => (Errno::ADDRNOTAVAIL, Fault::Shortage),
        _ => (errno, connect_error::of_connect(errno, target)),
    })?;
    Ok(socket)
}

fn why_unreachable(target: &SocketAddress, errno: Errno) -> String {
    let lacks_interface = || target.lacks_interface().filter(|_| errno == Errno::INVAL);
    let known = limit_met(errno).or_else(lacks_interface);
    let reason = known.unwrap_or_else(|| words(errno));
    format!("{} cannot be reached: {reason}", shown(target))
}
