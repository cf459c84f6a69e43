//! The page of the sessions.

use ratatui_core::style::Style;

use super::super::super::rated::Rated;
use super::super::model::Model;
use super::columns::{Column, Row, Table, figures, name, text};
use super::figures::{bytes, time};
use super::{List, PROCESS, hidden, process, style, visible};
use crate::session_filter::SessionField;

/// An IPv4 address with its port: less would say nothing.
const ADDRESS: usize = 21;

const COLUMNS: [Column; 16] = [
    figures(PROCESS, 7, 4),
    figures("ID", 2, 0),
    name("LISTENER", ADDRESS, 9),
    name("CLIENT", ADDRESS, 1),
    name("BACKEND", ADDRESS, 10),
    name("TARGET", ADDRESS, 3),
    name("NAME", 16, 12),
    text("PHASE", 11, 11),
    text("ENGINE", 7, 5),
    figures("RATE", 5, 2),
    figures("BYTES", 5, 6),
    figures("AGE", 6, 7),
    figures("IDLE", 6, 8),
    figures("TO TARGET/S", 5, 13),
    figures("TO CLIENT/S", 5, 13),
    text("WHY THIS ENGINE", 20, 14),
];

pub(super) fn list(model: &Model, sessions: &[&Rated]) -> List {
    let rows = visible(model, sessions.iter()).map(|one| Row {
        cells: cells(one, model).into(),
        style: style(model, &one.of, Style::new()),
    });
    List {
        table: Table {
            columns: &COLUMNS,
            hidden: hidden(model),
            rows: rows.collect(),
        },
        details: match sessions.get(model.rows().0) {
            Some(one) => details(one),
            None => Vec::new(),
        },
        nothing: match model.filters.is_empty() {
            true => "no sessions",
            false => "no session that the filters take; change them with F4",
        },
    }
}

fn cells(one: &Rated, model: &Model) -> [String; 16] {
    let row = &one.row;
    [
        process(model, &one.of),
        row.id.to_string(),
        one.cell(SessionField::Listener),
        one.cell(SessionField::Client),
        one.cell(SessionField::Backend),
        one.cell(SessionField::Target),
        one.cell(SessionField::ServerName),
        one.cell(SessionField::Phase),
        one.cell(SessionField::Engine),
        bytes(one.bytes_per_second()),
        bytes(one.bytes()),
        time(row.age_ms),
        time(row.idle_ms),
        bytes(one.client_to_target_bytes_per_second),
        bytes(one.target_to_client_bytes_per_second),
        row.why_engine.clone(),
    ]
}

/// What has no room in the row of a narrow terminal: the reason first.
fn details(one: &Rated) -> Vec<String> {
    let row = &one.row;
    let engine = row.engine.as_deref().unwrap_or("no engine");
    let mut more = format!(
        "{}, {} to the target ({}/s), {} to the client ({}/s), listener {}",
        row.phase.word(),
        bytes(row.client_to_target_bytes),
        bytes(one.client_to_target_bytes_per_second),
        bytes(row.target_to_client_bytes),
        bytes(one.target_to_client_bytes_per_second),
        row.listener,
    );
    for (what, value) in [
        ("backend", &row.backend),
        ("server", &row.server),
        ("name", &row.server_name),
        ("unique id", &row.unique_id),
    ] {
        if let Some(value) = value {
            more.push_str(&format!(", {what} {value}"));
        }
    }
    vec![format!("{}: {engine}: {}", row.id, row.why_engine), more]
}
