//! `spliced sessions`: the live sessions as a table or as JSON.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::time::sleep;

use super::processes::{Of, Reached, Searched, ask_all, search, wait_for, words};
use super::rated::{Rated, rated, rows, sort};
use super::table::{Table, bytes, time};
use crate::control_args::WhichArgs;
use crate::session_args::{SessionOrder, SessionsArgs};
use crate::session_filter::{SessionField, SessionFilter};
use crate::sessions::Row;
use crate::standard_output::print;

/// The time between the two looks that the rates are taken from.
const LOOKS_APART: Duration = Duration::from_millis(500);

/// Of all columns; `>` before those of numbers.
const HEADS: [&str; 16] = [
    ">PROCESS",
    ">ID",
    "LISTENER",
    "CLIENT",
    "BACKEND",
    "TARGET",
    "PHASE",
    "ENGINE",
    ">AGE",
    ">IDLE",
    ">TO TARGET",
    ">RATE",
    ">TO CLIENT",
    ">RATE",
    ">DROPPED",
    "WHY THIS ENGINE",
];

/// Asks for the sessions and prints them.
///
/// # Errors
/// If no process answers, or the answer cannot be printed.
pub(crate) fn run(args: &SessionsArgs) -> Result<()> {
    let (before, after, silent) = wait_for(async {
        let Searched { reached, silent } = search(&args.which, "/v1/process").await?;
        let first = look(reached).await?;
        sleep(LOOKS_APART).await;
        // Whoever has not answered is not asked again.
        let mut second = look(first.asked).await?;
        let silent = [silent, first.silent, std::mem::take(&mut second.silent)].concat();
        Ok((first.told, second, silent))
    })?;
    for sentence in silent {
        tracing::warn!("{sentence}");
    }
    let rated = rated(before.iter().map(|(of, row)| (of, row)), after.told);
    let is_wanted = |rated: &&Rated| args.filter.iter().all(|filter| filter.takes(&rated.row));
    let mut rated: Vec<_> = rated.iter().filter(is_wanted).collect();
    sort(&mut rated, args.sort.unwrap_or(SessionOrder::Age));
    print(&match args.json {
        true => format!("{:#}\n", json!({ "sessions": rated })),
        false => as_table(&rated, after.asked.len() > 1 || has_draining(&rated)),
    })
}

/// The sessions that all `filters` take, of the processes that were asked for. Each has the number of its process.
///
/// # Errors
/// If no process answers.
pub(crate) fn live(which: &WhichArgs, filters: &[SessionFilter]) -> Result<Vec<(u64, Row)>> {
    let look = wait_for(async { look(search(which, "/v1/process").await?.reached).await })?;
    let mut told = look.told;
    told.retain(|(_, row)| filters.iter().all(|filter| filter.takes(row)));
    Ok(told
        .into_iter()
        .map(|(of, row)| (of.process(), row))
        .collect())
}

/// What processes have told of their sessions.
struct Look {
    told: Vec<(Of, Row)>,
    /// Those who have.
    asked: Vec<Reached>,
    /// Why others have not.
    silent: Vec<String>,
}

/// # Errors
/// If nobody tells anything.
async fn look(processes: Vec<Reached>) -> Result<Look> {
    let has_several = processes.len() > 1;
    let sockets: Vec<_> = processes.iter().map(|it| Arc::clone(&it.socket)).collect();
    let answers = ask_all(&sockets, "/v1/sessions").await;
    let mut look = Look {
        told: Vec::new(),
        asked: Vec::new(),
        silent: Vec::new(),
    };
    for (process, answer) in processes.into_iter().zip(answers) {
        let answer = answer.told.and_then(rows);
        match answer {
            Ok(rows) => {
                let of = process.of();
                look.told
                    .extend(rows.into_iter().map(|row| (of.clone(), row)));
                look.asked.push(process);
            }
            // A process that has ended has no sessions.
            Err(failure) => {
                let id = &process.process()["pid"];
                look.silent
                    .extend(words(&failure, None).map(|why| match has_several {
                        true => format!("process {id}: {why}"),
                        false => why,
                    }));
            }
        }
    }
    ensure!(
        !look.asked.is_empty() || look.silent.is_empty(),
        "{}",
        look.silent.join("; ")
    );
    Ok(look)
}

/// Whether a process is to be named, since it takes no new clients.
fn has_draining(rated: &[&Rated]) -> bool {
    rated.iter().any(|one| one.of.drains())
}

/// How many datagrams were dropped, of both directions; `None` for other sockets.
fn dropped(row: &Row) -> Option<u64> {
    let units = &row.units;
    Some(units.client_to_target_dropped? + units.target_to_client_dropped?)
}

/// With the process of each session, if that is asked for, and with dropped datagrams, if there are datagrams.
fn as_table(rated: &[&Rated], has_process: bool) -> String {
    if rated.is_empty() {
        return "no sessions\n".into();
    }
    let has_datagrams = rated.iter().any(|one| dropped(&one.row).is_some());
    let is_shown = |head: &str| match head {
        ">PROCESS" => has_process,
        ">DROPPED" => has_datagrams,
        _ => true,
    };
    let mut table = Table::new(
        &HEADS
            .into_iter()
            .filter(|head| is_shown(head))
            .collect::<Vec<_>>(),
    );
    for one in rated {
        let row = &one.row;
        let cells = [
            one.of.cell(),
            row.id.to_string(),
            one.cell(SessionField::Listener),
            one.cell(SessionField::Client),
            one.cell(SessionField::Backend),
            one.cell(SessionField::Target),
            one.cell(SessionField::Phase),
            one.cell(SessionField::Engine),
            time(row.age_ms),
            time(row.idle_ms),
            bytes(row.client_to_target_bytes),
            format!("{}/s", bytes(one.client_to_target_bytes_per_second)),
            bytes(row.target_to_client_bytes),
            format!("{}/s", bytes(one.target_to_client_bytes_per_second)),
            dropped(row).map_or_else(|| "-".into(), |count| count.to_string()),
            row.why_engine.clone(),
        ];
        let shown = HEADS.into_iter().zip(cells);
        table.add(
            shown
                .filter(|(head, _)| is_shown(head))
                .map(|(_, cell)| cell),
        );
    }
    table.text()
}
