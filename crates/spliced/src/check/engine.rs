//! Which engines the connections of a listener get here, and why not the others.

use std::fmt::Write as _;

use splice::{EngineChoice, EngineName, Kind};

use crate::check::Found;
use crate::check::host::Host;
use crate::check::names::Resolved;
use crate::firewall::KeptBack;
use crate::forwarding::needs_sockets;
use crate::plan::{Action, BackendPlan, ListenerPlan, Plan};
use crate::socket_address::SocketAddress;
use crate::target::leads_to;

/// Columns of the name of an engine.
const NAME_WIDTH: usize = 8;

/// How many servers of a backend are named as exceptions: a screen has some 50 lines. The others are counted.
const SERVERS_NAMED: usize = 20;

/// Adds what `listener` does to `found`.
pub(super) fn report(
    listener: &ListenerPlan,
    plan: &Plan,
    resolved: &Resolved,
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
    for backend in backends(listener, plan) {
        let servers = backend.servers.iter();
        let addresses = servers.filter_map(|server| resolved.of(&server.address).ok());
        for server in addresses.flatten() {
            if leads_to(server, &listening) {
                found.obstacles.push(format!(
                    "listener {:?}: server {server} of backend {:?} is the listener itself; choose another \
                     server",
                    listener.name, backend.name
                ));
            }
        }
    }
    for (engine, probed) in host.engines() {
        let engine = *engine;
        let words = match listener.engine {
            EngineChoice::Only(only) if only != engine => not_chosen(engine, only),
            chosen => match probed {
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
            let words = match needs_sockets(listener, &backends(listener, plan)) {
                None => "from the SYN on, where routes and packet filters allow it".into(),
                Some(why) => format!("but not from the SYN on: {why}"),
            };
            let _ = writeln!(found.report, "  {:NAME_WIDTH$} {words}", "");
        }
        if engine == EngineName::Segment && is_tried {
            for (whom, why) in exceptions(listener, &listening, plan, resolved, host) {
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
    plan: &Plan,
    resolved: &Resolved,
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
    for backend in backends(listener, plan) {
        let to = format!("to backend {}", backend.name);
        if let Some(why) = of_backend(backend) {
            found.push((to, why.to_owned()));
            continue;
        }
        let servers = backend.servers.iter();
        // What does not resolve is reported with its backend.
        let addresses = servers.flat_map(|server| resolved.of(&server.address).unwrap_or_default());
        let mut of_servers = addresses.flat_map(|address| {
            let whys = match of_server(address, listening) {
                Some(why) => vec![why],
                None if listener.bypass_firewall => Vec::new(),
                None => host
                    .server_kept_back(address)
                    .iter()
                    .map(by_filters)
                    .collect(),
            };
            whys.into_iter().map(move |why| (address, why))
        });
        for (address, why) in of_servers.by_ref().take(SERVERS_NAMED) {
            found.push((format!("{to}, server {address}"), why));
        }
        let more = of_servers.count();
        if more > 0 {
            found.push((to, format!("{more} more servers, for reasons like these")));
        }
    }
    found
}

fn by_filters(kept: &KeptBack) -> String {
    let why = &kept.why;
    match kept.certainly {
        true => format!(
            "the packet filters would stop the segments: {why}; bypass_firewall = true overrides this"
        ),
        false => format!("perhaps, because of the packet filters: {why}"),
    }
}

/// The backends that a route of the listener leads to, each once.
fn backends<'p>(listener: &ListenerPlan, plan: &'p Plan) -> Vec<&'p BackendPlan> {
    let leads_to = |backend: &&BackendPlan| {
        let is = |name: &String| *name == backend.name;
        listener.routes.iter().any(|route| match &route.action {
            Action::Backend { name, fallback } => is(name) || fallback.as_ref().is_some_and(is),
            _ => false,
        })
    };
    plan.backends
        .iter()
        .map(|backend| &**backend)
        .filter(leads_to)
        .collect()
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

fn of_server(server: &SocketAddress, listening: &[SocketAddress]) -> Option<String> {
    if server.kind() == Kind::Unix {
        return Some("it is a UNIX socket".into());
    }
    let fits = |own: &SocketAddress| own.is_dual_stack() || own.is_ipv4() == server.is_ipv4();
    let [theirs, ours] = match server.is_ipv4() {
        true => ["IPv4", "IPv6"],
        false => ["IPv6", "IPv4"],
    };
    (!listening.is_empty() && !listening.iter().any(fits))
        .then(|| format!("clients come over {ours} and the server is reached over {theirs}"))
}
