//! The two connections of a live session of a relay.

use anyhow::{Result, bail};
use splice::trace::{ConnectionFilter, Points};

use super::live::Watched;
use crate::command::live_sessions;
use crate::session_filter::{SessionField, SessionFilter};
use crate::sessions::Row;
use crate::trace_arguments::TraceArgs;

/// Of the sessions that were asked for, the one that was the last to move bytes.
///
/// # Errors
/// If there is none that can be traced.
pub(super) fn pick(args: &TraceArgs) -> Result<Watched> {
    let mut filters = args.filter.clone();
    filters.extend(args.listener.as_ref().map(|name| SessionFilter {
        field: SessionField::Listener,
        value: name.clone(),
    }));
    let mut found = live_sessions(&args.which, &filters)?;
    if let Some(id) = args.session {
        found.retain(|(_, row)| row.id == id);
        if found.len() > 1 {
            let processes: Vec<_> = found.iter().map(|(id, _)| id.to_string()).collect();
            bail!(
                "the processes {} have a session {id} each; choose with --control",
                processes.join(" and ")
            );
        }
    }
    let count = found.len();
    let mut why_not = None;
    let mut best: Option<(f64, Watched)> = None;
    for (_, row) in found {
        match watched(&row) {
            Ok(watched) if best.as_ref().is_none_or(|(idle, _)| row.idle_ms < *idle) => {
                best = Some((row.idle_ms, watched));
            }
            Ok(_) => {}
            Err(why) => why_not = Some(format!("session {} {why}", row.id)),
        }
    }
    match (best, why_not) {
        (Some((_, watched)), _) => Ok(watched),
        (None, Some(why)) if count == 1 => bail!("{why}"),
        (None, Some(why)) => bail!("none of {count} sessions can be traced: {why}"),
        (None, None) => {
            bail!("there is no such session; 'spliced sessions' lists those that there are")
        }
    }
}

/// # Errors
/// Why it cannot be traced, in words.
fn watched(row: &Row) -> Result<Watched, String> {
    let Some(source) = &row.source else {
        return Err(
            "has no TCP connection with a target; name its connections with --connection".into(),
        );
    };
    let client = row.peer.as_ref().unwrap_or(&row.client);
    let filter = |text: &str| {
        let filter = text.parse::<ConnectionFilter>();
        filter.map_err(|_| format!("has a connection that is not TCP over IP ({text})"))
    };
    Ok(Watched {
        filters: vec![
            filter(client)?,
            filter(&format!("{source}-{}", row.target))?,
        ],
        name: format!(
            "session {} of {} with {} ({})",
            row.id,
            client,
            row.target,
            row.engine.as_deref().unwrap_or("no engine")
        ),
        points: Points::SparseTcp,
        are_known: true,
    })
}
