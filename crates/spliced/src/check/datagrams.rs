//! What is said of a listener of datagrams beside its engine: its sessions, and to whom they go.

use splice_route::Prefixes;

use crate::plan::{Action, DatagramListenerPlan, DatagramTerms};
use crate::plural::counted;
use crate::printable::printable;

/// So many routes have a line of their own: a screen has some 50.
const ROUTES_NAMED: usize = 20;

/// So many prefixes or files of a route are named.
const CLIENTS_NAMED: usize = 3;

/// A sentence for its sessions, and one for each route.
pub(super) fn notes(listener: &DatagramListenerPlan) -> Vec<String> {
    let mut notes = vec![sessions(&listener.terms)];
    let routes = listener.routes.iter();
    let mut routes = routes.filter_map(|route| match &route.action {
        Action::Backend { name, fallback } => {
            let clients = clients(route.conditions.clients.as_ref());
            Some(match fallback {
                Some(fallback) => format!("{clients} to backend {name}, or else {fallback}"),
                None => format!("{clients} to backend {name}"),
            })
        }
        // Those are for streams.
        _ => None,
    });
    notes.extend(routes.by_ref().take(ROUTES_NAMED));
    match routes.count() {
        0 => {}
        more => notes.push(format!("{} more", counted(more, "route"))),
    }
    notes
}

fn sessions(terms: &DatagramTerms) -> String {
    let idle_timeout = humantime::format_duration(terms.idle_timeout);
    let mut told = format!(
        "at most {}, each until it is idle for {idle_timeout}",
        counted(terms.max_sessions, "session")
    );
    if let Some(replies) = terms.replies {
        told += &format!(
            "; one that has its answers ({replies} for each datagram of its client) ends soon"
        );
    }
    if let Some(most) = terms.per_client.max_connections {
        told += &format!("; {most} of a client");
    }
    told
}

fn clients(prefixes: Option<&Prefixes>) -> String {
    let Some(prefixes) = prefixes else {
        return "every client".into();
    };
    let files = prefixes.files.iter().map(|(path, _)| printable(path));
    let mut all = prefixes.fixed.iter().map(ToString::to_string).chain(files);
    let mut told: Vec<_> = all.by_ref().take(CLIENTS_NAMED).collect();
    match all.count() {
        0 => {}
        more => told.push(format!("{more} more")),
    }
    format!("clients in {}", told.join(", "))
}
