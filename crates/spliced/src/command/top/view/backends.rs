//! The page of the servers.

use std::time::SystemTime;

use ratatui_core::style::{Color, Modifier, Style};

use super::super::known::ServerOf;
use super::super::model::Model;
use super::columns::{Column, Row, figures, text};
use super::figures::time;
use super::{List, visible};

const COLUMNS: [Column; 10] = [
    figures("PROCESS", 7, 4),
    text("BACKEND", 10, 0),
    text("SERVER", 21, 1),
    text("STATE", 11, 2),
    figures("FOR", 6, 6),
    figures("SESSIONS", 8, 3),
    figures("WEIGHT", 6, 8),
    figures("TOTAL", 5, 7),
    figures("FAILED", 6, 9),
    text("WHY, OR THE LAST ERROR", 20, 5),
];

const WEIGHT: usize = 6;

pub(super) fn list(model: &Model) -> List {
    let servers = model.servers();
    let has_one_process = model.known.count() < 2;
    // Not every kind of relay has weights.
    let has_weights = servers.iter().any(|of| of.server.weight.is_some());
    let is_shown = |number: &usize| match *number {
        0 => !has_one_process,
        WEIGHT => has_weights,
        _ => true,
    };
    let rows = visible(model, servers.iter()).map(|of| {
        let cells = cells(of, model.now).into_iter().enumerate();
        let cells = cells.filter(|(number, _)| is_shown(number));
        Row {
            cells: cells.map(|(_, cell)| cell).collect(),
            style: style(of, model),
        }
    });
    let columns = COLUMNS.into_iter().enumerate();
    let columns = columns.filter(|(number, _)| is_shown(number));
    List {
        columns: columns.map(|(_, column)| column).collect(),
        rows: rows.collect(),
        details: match servers.get(model.rows().0) {
            Some(of) => details(of),
            None => Vec::new(),
        },
        nothing: "no backends",
    }
}

fn cells(of: &ServerOf<'_>, now: SystemTime) -> [String; 10] {
    let server = of.server;
    let since = server.since.as_deref().unwrap_or_default();
    let since = humantime::parse_rfc3339(since).ok();
    // The clock of another host, or one that was set back.
    let age = since.map(|since| now.duration_since(since).unwrap_or_default());
    [
        of.process.to_string(),
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

fn style(of: &ServerOf<'_>, model: &Model) -> Style {
    let style = match &*of.server.state {
        "down" | "out" | "unresolved" => Style::new().fg(Color::Red),
        "up" | "not checked" => Style::new(),
        // Somebody takes it out of service.
        _ => Style::new().fg(Color::Yellow),
    };
    match model.known.is_silent(of.socket) {
        true => style.add_modifier(Modifier::DIM),
        false => style,
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
