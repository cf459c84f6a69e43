//! `spliced matrix`: the tables of redirects of SOCKMAP that work on this kernel, as text or JSON.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};
use splice::doctor::kernel;
use splice_sockmap::matrix::{Cell, Table, matrix};
use splice_sockmap::{Failure, MapType, Redirect, SocketKind};

use crate::cli::{MatrixArgs, MatrixMap, MatrixRedirect};
use crate::standard_output::print;

/// Columns of the name of a kind, and of a cell.
const NAME_WIDTH: usize = 16;
const CELL_WIDTH: usize = 16;

/// Tries every redirect and prints the tables.
///
/// # Errors
/// Without the rights to use maps of sockets, or if the tables cannot be printed.
pub(crate) fn run(args: &MatrixArgs) -> Result<()> {
    let redirects = match args.redirect {
        Some(redirect) => vec![redirect.of_library()],
        None => Redirect::ALL.into(),
    };
    let map_types = match args.map {
        Some(map) => vec![map.of_library()],
        None => MapType::ALL.into(),
    };
    let tables = matrix(&redirects, &map_types)?;
    let text = if args.json {
        format!("{:#}\n", as_json(&tables))
    } else {
        as_text(&tables)
    };
    print(&text)
}

impl MatrixRedirect {
    fn of_library(self) -> Redirect {
        match self {
            Self::SendToLocal => Redirect::SendToLocal,
            Self::SendToEgress => Redirect::SendToEgress,
            Self::IngressToEgress => Redirect::IngressToEgress,
            Self::IngressToLocal => Redirect::IngressToLocal,
        }
    }
}

impl MatrixMap {
    fn of_library(self) -> MapType {
        match self {
            Self::Sockmap => MapType::Map,
            Self::Sockhash => MapType::Hash,
        }
    }
}

fn pairs() -> impl Iterator<Item = (SocketKind, SocketKind)> {
    let kinds = SocketKind::ALL.into_iter();
    kinds.flat_map(|source| {
        SocketKind::ALL
            .into_iter()
            .map(move |target| (source, target))
    })
}

fn as_json(tables: &[Table]) -> Value {
    let cell = |table: &Table, (source, target): (SocketKind, SocketKind)| {
        let cell = table.cell(source, target);
        json!({
            "source": source.name(),
            "target": target.name(),
            // null where it could not be tried.
            "works": match cell {
                Cell::Yes => Some(true),
                Cell::No(_) | Cell::Refused(_) => Some(false),
                Cell::Untried(_) => None,
            },
            "reason": cell.to_string(),
        })
    };
    let table = |table: &Table| {
        json!({
            "redirect": table.redirect.name(),
            "map": table.map_type.name(),
            "cells": pairs().map(|pair| cell(table, pair)).collect::<Vec<_>>(),
        })
    };
    json!({
        "kernel": kernel(),
        "tables": tables.iter().map(table).collect::<Vec<_>>(),
    })
}

fn as_text(tables: &[Table]) -> String {
    let mut notes = Notes::default();
    let mut text = format!(
        "Linux {}\n\nRows: the source of the messages. Columns: their target.\n",
        kernel()
    );
    // Two tables of a redirect in a row, one of each type of map.
    for of in tables.chunk_by(|one, next| one.redirect == next.redirect) {
        let are_alike = of.iter().all(|table| table.rows == of[0].rows);
        let shown = if are_alike { &of[..1] } else { of };
        for table in shown {
            let types: Vec<_> = if are_alike {
                of.iter().map(|table| table.map_type.name()).collect()
            } else {
                vec![table.map_type.name()]
            };
            let _ = writeln!(text, "\n{} ({})", table.redirect, types.join(" and "));
            add_table(&mut text, table, &mut notes);
        }
    }
    notes.add_to(&mut text);
    text
}

fn add_table(text: &mut String, table: &Table, notes: &mut Notes) {
    let mut row = |name: &str, cells: [String; 6]| {
        let mut line = format!("  {name:NAME_WIDTH$}");
        for cell in cells {
            let _ = write!(line, "{cell:CELL_WIDTH$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    };
    row("", SocketKind::ALL.map(|kind| kind.name().into()));
    for source in SocketKind::ALL {
        let cells = SocketKind::ALL.map(|target| notes.word(table.cell(source, target)));
        row(source.name(), cells);
    }
}

/// What the words in the cells mean, in the order in which they came.
#[derive(Default)]
struct Notes(Vec<(String, String)>);

impl Notes {
    fn word(&mut self, cell: &Cell) -> String {
        let word = match cell {
            Cell::Yes => return "yes".into(),
            Cell::No(Failure::NeverRuns) => "no: usual peer".into(),
            Cell::No(Failure::SendRefused) => "no: EACCES".into(),
            Cell::No(Failure::Lost) => "no: lost".into(),
            Cell::Refused(why) => self.numbered("no", why),
            Cell::Untried(why) => self.numbered("?", why),
        };
        self.note(word, cell)
    }

    /// Each reason has a number of its own.
    fn numbered(&self, word: &str, why: &str) -> String {
        let numbered = self.0.iter().filter(|(word, _)| word.ends_with(']'));
        let known = numbered.clone().position(|(_, meaning)| meaning == why);
        format!("{word} [{}]", known.unwrap_or_else(|| numbered.count()) + 1)
    }

    fn note(&mut self, word: String, cell: &Cell) -> String {
        let note = (word.clone(), cell.to_string());
        if !self.0.contains(&note) {
            self.0.push(note);
        }
        word
    }

    fn add_to(&self, text: &mut String) {
        text.push('\n');
        for (word, meaning) in &self.0 {
            let _ = writeln!(text, "{word}: {meaning}");
        }
    }
}
