//! The page of the engines and the reasons for them.

use ratatui_core::style::{Modifier, Style};

use super::super::engines::Share;
use super::super::model::Model;
use super::columns::{Column, Row, Table, figures, text};
use super::figures::bytes;
use super::{List, visible};
use crate::plural::counted;

const COLUMNS: [Column; 5] = [
    text("ENGINE", 8, 0),
    figures("SESSIONS", 8, 1),
    figures("RATE", 5, 3),
    figures("BYTES", 5, 4),
    text("WHY THIS ENGINE, AND NO FASTER ONE", 20, 2),
];

pub(super) fn list(model: &Model) -> List {
    let shares = model.shares();
    let rows = visible(model, shares.iter()).map(|share| {
        let engine = share.engine.as_deref().unwrap_or("none");
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let (engine, why, style) = match &share.why {
            None => (engine, " ", bold),
            // It is the one above.
            Some(why) => (" ", &**why, Style::new()),
        };
        Row {
            cells: vec![
                engine.into(),
                share.sessions.to_string(),
                bytes(share.bytes_per_second),
                bytes(share.bytes),
                why.into(),
            ],
            style,
        }
    });
    List {
        table: Table {
            columns: &COLUMNS,
            hidden: Vec::new(),
            rows: rows.collect(),
        },
        details: shares.get(model.rows().0).map(detail).into_iter().collect(),
        nothing: "no sessions",
    }
}

fn detail(share: &Share) -> String {
    let engine = share.engine.as_deref().unwrap_or("no engine");
    match &share.why {
        Some(why) => format!("{engine}: {why}"),
        None => format!("{engine}: {}", counted(share.sessions, "session")),
    }
}
