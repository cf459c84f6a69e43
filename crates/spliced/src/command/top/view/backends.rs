//! The page of the servers.

use ratatui_core::style::{Color, Style};

use super::super::known::ServerOf;
use super::super::model::Model;
use super::columns::{Column, Row, Table, figures, name, text};
use super::figures::time;
use super::{List, PROCESS, hidden, process, style, visible};

const WEIGHT: &str = "WEIGHT";

const COLUMNS: [Column; 10] = [
    figures(PROCESS, 7, 5),
    name("BACKEND", 10, 0),
    name("SERVER", 21, 1),
    text("STATE", 11, 2),
    figures("FOR", 6, 7),
    figures("SESSIONS", 8, 3),
    figures(WEIGHT, 6, 4),
    figures("TOTAL", 5, 8),
    figures("FAILED", 6, 9),
    text("WHY, OR THE LAST ERROR", 16, 6),
];

pub(super) fn list(model: &Model) -> List {
    let servers = model.servers();
    let mut hidden = hidden(model);
    // Not every kind of relay has weights.
    if servers.iter().all(|of| of.server.weight.is_none()) {
        hidden.push(WEIGHT);
    }
    let rows = visible(model, servers.iter()).map(|of| Row {
        cells: cells(of, model).into(),
        style: style(model, of.of, style_of_state(&of.server.state)),
    });
    List {
        table: Table {
            columns: &COLUMNS,
            hidden,
            rows: rows.collect(),
        },
        details: match servers.get(model.rows().0) {
            Some(of) => details(of),
            None => Vec::new(),
        },
        nothing: "no backends",
    }
}

fn cells(of: &ServerOf<'_>, model: &Model) -> [String; 10] {
    let server = of.server;
    let since = server.since.as_deref().unwrap_or_default();
    let since = humantime::parse_rfc3339(since).ok();
    // The clock of another host, or one that was set back.
    let age = since.map(|since| model.now.duration_since(since).unwrap_or_default());
    [
        process(model, of.of),
        of.backend.name.clone(),
        server.server.clone(),
        server.state.clone(),
        age.map_or_else(String::new, |age| time(age.as_secs_f64() * 1000.0)),
        server.connections.to_string(),
        server
            .weight
            .map_or_else(String::new, |weight| weight.to_string()),
        server.total.to_string(),
        server.failures.to_string(),
        why(of),
    ]
}

fn why(of: &ServerOf<'_>) -> String {
    let error = of.server.last_error.as_ref().map(|last| &last.error);
    of.server
        .why
        .as_ref()
        .or(error)
        .cloned()
        .unwrap_or_default()
}

fn style_of_state(state: &str) -> Style {
    match state {
        "down" | "out" | "unresolved" => Style::new().fg(Color::Red),
        "up" | "not checked" => Style::new(),
        // Somebody takes it out of service.
        _ => Style::new().fg(Color::Yellow),
    }
}

fn details(of: &ServerOf<'_>) -> Vec<String> {
    let server = of.server;
    let first = match (&server.why, &server.last_error) {
        (Some(why), _) => format!("{}: {}: {why}", server.server, server.state),
        (None, Some(last)) => {
            format!(
                "{}: the last error, at {}: {}",
                server.server, last.time, last.error
            )
        }
        (None, None) => format!("{}: {}, no error so far", server.server, server.state),
    };
    let addresses = match server.addresses.is_empty() {
        true => "none".into(),
        false => server.addresses.join(", "),
    };
    let queued = of.backend.queued;
    let backend = &of.backend.name;
    let second = format!("addresses: {addresses}; clients in the queue of {backend}: {queued}");
    vec![first, second]
}
