//! The backends, each held against this host once, however many listeners lead to it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use splice::EngineChoice;

use crate::check::host::Host;
use crate::check::names::Resolved;
use crate::firewall::KeptBack;
use crate::plan::{Action, BackendPlan, ListenerPlan, Plan, RoutePlan};
use crate::socket_address::SocketAddress;
use crate::target::{Meeting, is_on_this_host};

/// How many servers of a backend are named as exceptions: a screen has some 50 lines. The others are counted.
const SERVERS_NAMED: usize = 20;

/// In the order of the plan.
pub(super) struct Backends<'p> {
    all: Vec<OfBackend<'p>>,
    by_name: HashMap<&'p str, usize>,
}

pub(super) struct OfBackend<'p> {
    pub(super) plan: &'p BackendPlan,
    /// What does not resolve is reported elsewhere.
    addresses: Vec<&'p SocketAddress>,
    by_meeting: HashMap<Meeting, Vec<&'p SocketAddress>>,
    exceptions: RefCell<HashMap<Clients, Exceptions>>,
}

/// Connections that `segment` does not take, and why.
type Exceptions = Rc<[(String, String)]>;

/// What of a listener decides which servers `segment` takes its clients to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Clients {
    over_ipv4: bool,
    over_ipv6: bool,
    bypass_firewall: bool,
    /// Where most of them are, if sizes of segments are not announced to fit theirs.
    unfit: Option<Whereabouts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whereabouts {
    /// Nobody else reaches the loopback addresses.
    ThisHost,
    OtherHosts,
}

impl Clients {
    pub(super) fn of(listener: &ListenerPlan, listening: &[SocketAddress]) -> Self {
        let over = |is_ipv4| {
            let fits = |own: &SocketAddress| own.is_dual_stack() || own.is_ipv4() == is_ipv4;
            listening.is_empty() || listening.iter().any(fits)
        };
        Self {
            over_ipv4: over(true),
            over_ipv6: over(false),
            bypass_firewall: listener.bypass_firewall,
            unfit: (listener.engine == EngineChoice::Auto && !listening.is_empty()).then(|| {
                match listening.iter().all(SocketAddress::is_of_loopback) {
                    true => Whereabouts::ThisHost,
                    false => Whereabouts::OtherHosts,
                }
            }),
        }
    }

    /// What is said of them if they ask for their destinations, which are other hosts as a rule.
    pub(super) fn exception_of_requests(self) -> Option<(String, String)> {
        let which = "to destinations that clients ask for".to_owned();
        (self.unfit == Some(Whereabouts::ThisHost)).then(|| (which, OF_OWN_CLIENTS.into()))
    }

    /// Why segments of the two connections differ in size: they pass the loopback device on the one side only.
    fn unfit_for(self, server: &SocketAddress) -> Option<&'static str> {
        match (self.unfit?, is_on_this_host(server)) {
            (Whereabouts::OtherHosts, true) => Some(OF_OWN_SERVER),
            (Whereabouts::ThisHost, false) => Some(OF_OWN_CLIENTS),
            _ => None,
        }
    }
}

impl<'p> Backends<'p> {
    pub(super) fn new(plan: &'p Plan, resolved: &'p Resolved) -> Self {
        let all: Vec<_> = (plan.backends.iter())
            .map(|backend| OfBackend::new(backend, resolved))
            .collect();
        let names = all.iter().map(|backend| backend.plan.name.as_str());
        let by_name = names.zip(0..).collect();
        Self { all, by_name }
    }

    /// Those that one of these routes leads to.
    pub(super) fn of(&self, routes: &[RoutePlan]) -> Vec<&OfBackend<'p>> {
        let mut found = BTreeSet::new();
        for route in routes {
            if let Action::Backend { name, fallback } = &route.action {
                let names = [Some(name), fallback.as_ref()].into_iter().flatten();
                found.extend(names.filter_map(|name| self.by_name.get(name.as_str()).copied()));
            }
        }
        found.into_iter().map(|at: usize| &self.all[at]).collect()
    }
}

impl<'p> OfBackend<'p> {
    fn new(plan: &'p BackendPlan, resolved: &'p Resolved) -> Self {
        let servers = plan.servers.iter();
        let addresses = servers.flat_map(|server| resolved.of(&server.address).unwrap_or_default());
        let addresses: Vec<_> = addresses.collect();
        let mut by_meeting = HashMap::<_, Vec<_>>::new();
        for address in &addresses {
            by_meeting
                .entry(Meeting::of(address))
                .or_default()
                .push(*address);
        }
        Self {
            plan,
            addresses,
            by_meeting,
            exceptions: RefCell::default(),
        }
    }

    /// The servers that may be a listener there.
    pub(super) fn servers_at(&self, at: &Meeting) -> &[&'p SocketAddress] {
        self.by_meeting.get(at).map_or(&[], Vec::as_slice)
    }

    /// What `segment` does not take of these clients to the servers.
    pub(super) fn exceptions(&self, clients: Clients, host: &Host) -> Exceptions {
        let mut known = self.exceptions.borrow_mut();
        let judge = || self.judge(clients, host).into();
        Rc::clone(known.entry(clients).or_insert_with(judge))
    }

    fn judge(&self, clients: Clients, host: &Host) -> Vec<(String, String)> {
        let to = format!("to backend {}", self.plan.name);
        if let Some(why) = of_backend(self.plan) {
            return vec![(to, why.to_owned())];
        }
        let by_host = |address: &SocketAddress| {
            let kept_back = match clients.bypass_firewall {
                true => Vec::new(),
                false => host.server_kept_back(address),
            };
            let unfit = clients.unfit_for(address).map(str::to_owned);
            unfit
                .into_iter()
                .chain(kept_back.iter().map(by_filters))
                .collect()
        };
        let mut of_servers = self.addresses.iter().flat_map(|address| {
            let whys = match of_server(address, clients) {
                Some(why) => vec![why],
                None => by_host(address),
            };
            whys.into_iter().map(move |why| (address, why))
        });
        let named = of_servers.by_ref().take(SERVERS_NAMED);
        let mut found: Vec<_> = named
            .map(|(address, why)| (format!("{to}, server {address}"), why))
            .collect();
        let more = of_servers.count();
        if more > 0 {
            let why = format!("{more} more servers, for reasons like these");
            found.push((to.clone(), why));
        }
        found.extend(
            self.of_one_family(clients)
                .map(|(which, why)| (format!("for {which} {to}"), why)),
        );
        found
    }

    /// Clients over a family by which no server is reached, while others come over the other one.
    fn of_one_family(&self, clients: Clients) -> Option<(&'static str, String)> {
        let is_reached = |over_ipv4| {
            let mut servers = self.addresses.iter();
            servers.any(|it| it.kind().is_tcp() && it.is_ipv4() == over_ipv4)
        };
        let why = |family: &str| format!("no server is reached over {family}");
        let come_over_both = clients.over_ipv4 && clients.over_ipv6;
        match (is_reached(true), is_reached(false)) {
            (true, false) if come_over_both => Some(("clients over IPv6", why("IPv6"))),
            (false, true) if come_over_both => Some(("clients over IPv4", why("IPv4"))),
            _ => None,
        }
    }
}

const OF_OWN_SERVER: &str = "clients of other hosts have segments of other sizes than a server on this one; engine = \"segment\" announces \
                             sizes that fit";

const OF_OWN_CLIENTS: &str = "clients of this host have segments of other sizes than a server on another one; engine = \"segment\" announces \
                              sizes that fit";

pub(super) fn by_filters(kept: &KeptBack) -> String {
    let why = &kept.why;
    match kept.certainly {
        true => format!(
            "the packet filters would stop the segments: {why}; bypass_firewall = true overrides this"
        ),
        false => format!("perhaps, because of the packet filters: {why}"),
    }
}

/// Why `segment` does not take connections to `backend`.
fn of_backend(backend: &BackendPlan) -> Option<&'static str> {
    if backend.mark.is_some() {
        return Some("it has a mark, which segments that the kernel translates do not carry");
    }
    if backend.interface.is_some() {
        return Some("it has an interface, which translated segments are not bound to");
    }
    None
}

fn of_server(server: &SocketAddress, clients: Clients) -> Option<String> {
    match server.kind() {
        kind if kind.is_tcp() => {}
        kind if kind.is_vsock() => return Some("it is a VSOCK socket".into()),
        _ => return Some("it is a UNIX socket".into()),
    }
    let (is_reached, theirs, ours) = match server.is_ipv4() {
        true => (clients.over_ipv4, "IPv4", "IPv6"),
        false => (clients.over_ipv6, "IPv6", "IPv4"),
    };
    if !is_reached {
        return Some(format!(
            "clients come over {ours} and the server is reached over {theirs}"
        ));
    }
    None
}
