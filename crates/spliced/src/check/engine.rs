//! Which engines the connections of a listener get here, and why not the others.

use std::collections::HashSet;
use std::fmt::Write as _;

use splice::{EngineChoice, EngineName, Kind};

use crate::check::Found;
use crate::check::backends::{Backends, Clients, OfBackend, by_filters};
use crate::check::host::Host;
use crate::forwarding::needs_sockets;
use crate::plan::ListenerPlan;
use crate::socket_address::SocketAddress;
use crate::target::{Meeting, leads_to};

/// Columns of the name of an engine.
const NAME_WIDTH: usize = 8;

/// Adds what `listener` does to `found`.
pub(super) fn report(
    listener: &ListenerPlan,
    backends: &Backends<'_>,
    host: &Host,
    found: &mut Found,
) {
    let _ = writeln!(
        found.report,
        "listener {} on {}, engine {}",
        listener.name, listener.address, listener.engine
    );
    let listening = SocketAddress::to_listen(&listener.address).unwrap_or_else(|error| {
        found
            .obstacles
            .push(format!("listener {:?}: {error:#}", listener.name));
        Vec::new()
    });
    let backends = backends.of(listener);
    let meetings: HashSet<_> = listening.iter().map(Meeting::of).collect();
    for backend in &backends {
        let servers = meetings.iter().flat_map(|at| backend.servers_at(at));
        for server in servers.filter(|server| leads_to(server, &listening)) {
            found.obstacles.push(format!(
                "listener {:?}: server {server} of backend {:?} is the listener itself; choose another server",
                listener.name, backend.plan.name
            ));
        }
    }
    for engine in EngineName::ALL {
        let words = match listener.engine {
            EngineChoice::Only(only) if only != engine => not_chosen(engine, only),
            chosen => match host.probe(engine) {
                Err(error) => {
                    if chosen != EngineChoice::Auto {
                        found
                            .obstacles
                            .push(format!("listener {:?}: {error}", listener.name));
                    }
                    format!("not used: {error}")
                }
                Ok(()) => used(engine, chosen),
            },
        };
        let _ = writeln!(found.report, "  {:NAME_WIDTH$} {words}", engine.as_str());
        let is_tried = words.starts_with("used");
        if engine == EngineName::Segment && is_tried && listener.from_syn {
            let plans: Vec<_> = backends.iter().map(|backend| backend.plan).collect();
            let words = match needs_sockets(listener, &plans) {
                None => "from the SYN on, where routes and packet filters allow it".into(),
                Some(why) => format!("but not from the SYN on: {why}"),
            };
            let _ = writeln!(found.report, "  {:NAME_WIDTH$} {words}", "");
        }
        if engine == EngineName::Segment && is_tried {
            for (whom, why) in exceptions(listener, &listening, &backends, host) {
                let _ = writeln!(found.report, "  {:NAME_WIDTH$} but not {whom}: {why}", "");
            }
        }
    }
    found.report.push('\n');
}

fn used(engine: EngineName, chosen: EngineChoice) -> String {
    let auto = chosen == EngineChoice::Auto;
    match engine {
        EngineName::Copy if auto => "used: every connection starts with it",
        EngineName::Pipe if auto => "used: for bulk",
        EngineName::Segment if auto => {
            "used: for connections that live for 50 ms or have moved 64 KiB"
        }
        EngineName::Sockmap | EngineName::Aio | EngineName::Uring if auto => {
            "not used: auto never picks it; ask for it by name"
        }
        EngineName::Sockmap | EngineName::Segment => "used: it takes over from copy",
        _ => "used: from the first byte on",
    }
    .into()
}

fn not_chosen(engine: EngineName, chosen: EngineName) -> String {
    let starts =
        engine == EngineName::Copy && matches!(chosen, EngineName::Sockmap | EngineName::Segment);
    match starts {
        true => format!("used: until {chosen} takes over"),
        false => format!("not used: the listener asks for {chosen}"),
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
    if listening.iter().any(|address| address.kind() == Kind::Unix) {
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
    found
}
