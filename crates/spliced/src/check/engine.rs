//! Which engines the connections of a listener get here, and why not the others.

use std::collections::HashSet;
use std::fmt;

use serde::Serialize;
use splice::{EngineChoice, EngineName};

use crate::check::backends::{Backends, Clients, OfBackend, by_filters};
use crate::check::datagrams;
use crate::check::host::Host;
use crate::check::routes;
use crate::forwarding::needs_sockets;
use crate::plan::{Action, DatagramListenerPlan, ListenerPlan, RoutePlan};
use crate::printable::printable;
use crate::socket_address::SocketAddress;
use crate::target::{Meeting, leads_to};

/// What the connections of a listener get.
#[derive(Debug, Serialize)]
pub(super) struct OfListener {
    name: String,
    address: String,
    /// As the configuration has it.
    engine: String,
    /// Those that are used, each with when.
    uses: Vec<Use>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_syn: Option<FromSyn>,
    /// Connections that `segment` does not take.
    exceptions: Vec<Exception>,
    /// What else there is to say of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Use {
    engine: &'static str,
    when: &'static str,
}

/// Whether connections are translated from the SYN on, or why not.
#[derive(Debug, Serialize)]
struct FromSyn {
    why_not: Option<String>,
}

#[derive(Debug, Serialize)]
struct Exception {
    /// Such as `to backend web`, or `at all`.
    which: String,
    why: String,
}

impl fmt::Display for OfListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uses = self.uses.iter().map(|it| match it.when {
            "" => it.engine.to_owned(),
            when => format!("{} {when}", it.engine),
        });
        let uses: Vec<_> = uses.collect();
        let uses = match uses.is_empty() {
            true => "it cannot be used".to_owned(),
            false => uses.join(", "),
        };
        let (name, address) = (printable(&self.name), printable(&self.address));
        let engine = &self.engine;
        writeln!(f, "listener {name} on {address}, engine {engine}: {uses}")?;
        match &self.from_syn {
            Some(FromSyn { why_not: None }) => {
                writeln!(
                    f,
                    "  from the SYN on, where routes and packet filters allow it"
                )?;
            }
            Some(FromSyn { why_not: Some(why) }) => writeln!(f, "  not from the SYN on: {why}")?,
            None => {}
        }
        for Exception { which, why } in &self.exceptions {
            writeln!(f, "  not segment {}: {why}", printable(which))?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

/// What a check says of a listener.
pub(super) struct Report {
    pub(super) listener: OfListener,
    /// What keeps it from running.
    pub(super) obstacles: Vec<String>,
    /// Engines that `auto` goes on without, and why.
    pub(super) unusable: Vec<(EngineName, String)>,
}

/// `listening` is what the listener's address stands for.
pub(super) fn report(
    listener: &ListenerPlan,
    listening: &[SocketAddress],
    backends: &Backends<'_>,
    host: &Host,
) -> Report {
    let (mut obstacles, mut unusable) = (Vec::new(), Vec::new());
    let backends = backends.of(&listener.routes);
    obstacles.extend(circles(&listener.name, listening, &backends));
    let mut of_listener = OfListener {
        name: listener.name.clone(),
        address: listener.address.to_string(),
        engine: listener.engine.to_string(),
        uses: Vec::new(),
        from_syn: None,
        exceptions: Vec::new(),
        notes: routes::told_if_some_differ(&listener.routes),
    };
    for (engine, when) in uses(listener) {
        if let Err(error) = host.probe(engine) {
            match listener.engine {
                EngineChoice::Auto => unusable.push((engine, error.to_string())),
                _ => obstacles.push(format!("listener {:?}: {error}", listener.name)),
            }
            continue;
        }
        of_listener.uses.push(Use {
            engine: engine.as_str(),
            when,
        });
        if engine == EngineName::Segment {
            if listener.from_syn {
                let plans: Vec<_> = backends.iter().map(|backend| backend.plan).collect();
                let why_not = needs_sockets(listener, &plans);
                of_listener.from_syn = Some(FromSyn { why_not });
            }
            let exceptions = exceptions(listener, listening, &backends, host).into_iter();
            let exceptions = exceptions.map(|(which, why)| Exception { which, why });
            of_listener.exceptions = exceptions.collect();
        }
    }
    Report {
        listener: of_listener,
        obstacles,
        unusable,
    }
}

/// As [`report`], of a listener of datagrams.
pub(super) fn report_datagrams(
    listener: &DatagramListenerPlan,
    listening: &[SocketAddress],
    backends: &Backends<'_>,
) -> Report {
    let backends = backends.of(&listener.routes);
    Report {
        listener: OfListener {
            name: listener.name.clone(),
            address: listener.listen.to_string(),
            engine: EngineName::Copy.to_string(),
            uses: vec![Use {
                engine: EngineName::Copy.as_str(),
                when: "datagram by datagram",
            }],
            from_syn: None,
            exceptions: Vec::new(),
            notes: datagrams::notes(listener),
        },
        obstacles: circles(&listener.name, listening, &backends),
        unusable: Vec::new(),
    }
}

/// Servers that are the listener itself.
fn circles(
    listener: &str,
    listening: &[SocketAddress],
    backends: &[&OfBackend<'_>],
) -> Vec<String> {
    let meetings: HashSet<_> = listening.iter().map(Meeting::of).collect();
    let mut found = Vec::new();
    for backend in backends {
        let servers = meetings.iter().flat_map(|at| backend.servers_at(at));
        for server in servers.filter(|server| leads_to(server, listening)) {
            found.push(format!(
                "listener {listener:?}: server {server} of backend {:?} is the listener itself; choose another server",
                backend.plan.name
            ));
        }
    }
    found
}

/// The engines that its choice may come to, and when each is used.
fn uses(listener: &ListenerPlan) -> Vec<(EngineName, &'static str)> {
    match listener.engine {
        _ if listener.address.keeps_messages() => vec![(EngineName::Copy, "message by message")],
        EngineChoice::Auto if listener.address.vsock().is_some() => vec![(EngineName::Copy, "")],
        EngineChoice::Only(by_name @ (EngineName::Sockmap | EngineName::Segment)) => {
            vec![(by_name, "once it has taken over from copy")]
        }
        EngineChoice::Only(by_name) => vec![(by_name, "")],
        _ => vec![
            (EngineName::Copy, ""),
            (EngineName::Pipe, "for bulk"),
            (
                EngineName::Segment,
                "for connections that live for 50 ms or have moved 64 KiB",
            ),
        ],
    }
}

/// Connections that `segment` does not take, and why.
fn exceptions(
    listener: &ListenerPlan,
    listening: &[SocketAddress],
    backends: &[&OfBackend<'_>],
    host: &Host,
) -> Vec<(String, String)> {
    let any = |why: &str| vec![("at all".to_owned(), why.to_owned())];
    if listening.iter().any(|address| !address.kind().is_tcp()) {
        return any("clients come over a UNIX socket, and it translates the segments of TCP");
    }
    if listener.rate.is_some() {
        return any(
            "the listener has a rate, which its sockets keep, and segments do not pass them",
        );
    }
    let mut found = Vec::new();
    if !listener.bypass_firewall {
        for kept in host.clients_kept_back(listening) {
            found.push((format!("from {}", kept.whom), by_filters(&kept)));
        }
    }
    let clients = Clients::of(listener, listening);
    for backend in backends {
        found.extend_from_slice(&backend.exceptions(clients, host));
    }
    let asks = |route: &RoutePlan| matches!(route.action, Action::Requested(_));
    if listener.routes.iter().any(asks) {
        found.extend(clients.exception_of_requests());
    }
    found
}
