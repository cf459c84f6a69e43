//! What is said of a listener of datagrams beside its engine: its sessions, and to whom they go.

use crate::check::routes;
use crate::plan::{DatagramListenerPlan, DatagramTerms};
use crate::plural::counted;

/// A sentence for its sessions, and one for each route.
pub(super) fn notes(listener: &DatagramListenerPlan) -> Vec<String> {
    let mut notes = vec![sessions(&listener.terms)];
    notes.extend(routes::told(&listener.routes));
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
