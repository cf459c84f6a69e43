//! `spliced sessions`: the live sessions as a table or as JSON.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;

use super::processes::{Reached, Searched, ask_all, search, wait_for, words};
use super::table::{Table, bytes, time};
use crate::admin::Failure;
use crate::session_args::{SessionOrder, SessionsArgs};
use crate::sessions::{Answer, Row};
use crate::standard_output::print;

/// The time between the two looks that the rates are taken from.
const LOOKS_APART: Duration = Duration::from_millis(500);

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
    let mut rated = rated(&before, after.told);
    rated.retain(|rated| args.filter.iter().all(|filter| filter.takes(&rated.row)));
    sort(&mut rated, args.sort.unwrap_or(SessionOrder::Age));
    print(&match args.json {
        true => format!("{:#}\n", json!({ "sessions": rated })),
        false => as_table(&rated, after.asked.len() > 1),
    })
}

/// The process of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
struct Of {
    process: u64,
    /// Where it was asked, which no other process has.
    socket: String,
}

impl Of {
    fn new(reached: &Reached) -> Self {
        Self {
            process: reached.process()["pid"].as_u64().unwrap_or_default(),
            socket: reached.socket.path.display().to_string(),
        }
    }
}

/// What processes have told of their sessions.
struct Look {
    told: Vec<(Of, Row)>,
    /// Those who have.
    asked: Vec<Reached>,
    /// Why others have not.
    silent: Vec<String>,
}

/// A session with its rates.
#[derive(Debug, Serialize)]
struct Rated {
    #[serde(flatten)]
    of: Of,
    #[serde(flatten)]
    row: Row,
    client_to_target_bytes_per_second: u64,
    target_to_client_bytes_per_second: u64,
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
        let answer = answer.told.and_then(|told| {
            serde_json::from_value::<Answer>(told).map_err(|_| {
                Failure::Told(
                    "it answers in another way than this version of spliced expects; use the version that runs".into(),
                )
            })
        });
        match answer {
            Ok(answer) => {
                let of = Of::new(&process);
                let sessions = answer.sessions.into_iter();
                look.told.extend(sessions.map(|row| (of.clone(), row)));
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

/// The sessions of the second look, with what has passed since the first one.
fn rated(before: &[(Of, Row)], after: Vec<(Of, Row)>) -> Vec<Rated> {
    let before: HashMap<_, _> = before.iter().map(|(of, row)| ((of, row.id), row)).collect();
    let rated = after.into_iter().map(|(of, row)| {
        // One that was not there then has its whole life to look at.
        let (age_ms, there, back) = before.get(&(&of, row.id)).map_or((0.0, 0, 0), |row| {
            let (there, back) = (row.client_to_target_bytes, row.target_to_client_bytes);
            (row.age_ms, there, back)
        });
        let seconds = (row.age_ms - age_ms) / 1000.0;
        let rate = |now: u64, then: u64| match seconds > 0.0 {
            true => (now.saturating_sub(then) as f64 / seconds) as u64,
            false => 0,
        };
        Rated {
            client_to_target_bytes_per_second: rate(row.client_to_target_bytes, there),
            target_to_client_bytes_per_second: rate(row.target_to_client_bytes, back),
            of,
            row,
        }
    });
    rated.collect()
}

fn sort(rated: &mut [Rated], order: SessionOrder) {
    match order {
        // RFC 3339 in UTC has the order of time.
        SessionOrder::Age => {
            rated.sort_by(|one, other| one.row.accepted_at.cmp(&other.row.accepted_at));
        }
        SessionOrder::Bytes => rated.sort_by_key(|one| {
            let row = &one.row;
            Reverse(row.client_to_target_bytes + row.target_to_client_bytes)
        }),
        SessionOrder::Rate => rated.sort_by_key(|one| {
            let there = one.client_to_target_bytes_per_second;
            Reverse(there + one.target_to_client_bytes_per_second)
        }),
    }
}

/// With the process of each session, if there are several.
fn as_table(rated: &[Rated], has_several: bool) -> String {
    if rated.is_empty() {
        return "no sessions\n".into();
    }
    let heads = [
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
        "WHY THIS ENGINE",
    ];
    let left_out = usize::from(!has_several);
    let mut table = Table::new(&heads[left_out..]);
    for one in rated {
        let row = &one.row;
        let cells = [
            one.of.process.to_string(),
            row.id.to_string(),
            row.listener.clone(),
            row.client.clone(),
            row.backend.clone().unwrap_or_default(),
            row.target.clone(),
            row.phase.word().into(),
            row.engine.clone().unwrap_or_default(),
            time(row.age_ms),
            time(row.idle_ms),
            bytes(row.client_to_target_bytes),
            format!("{}/s", bytes(one.client_to_target_bytes_per_second)),
            bytes(row.target_to_client_bytes),
            format!("{}/s", bytes(one.target_to_client_bytes_per_second)),
            row.why_engine.clone(),
        ];
        table.add(cells.into_iter().skip(left_out));
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::{End, Phase};

    fn of(process: u64) -> Of {
        Of {
            process,
            socket: process.to_string(),
        }
    }

    fn row(id: u64, age_ms: f64, there: u64, back: u64) -> (Of, Row) {
        let row = Row {
            id,
            unique_id: None,
            listener: "web".into(),
            client: "[::1]:4711".into(),
            server_name: None,
            backend: Some("b".into()),
            server: None,
            target: "192.0.2.1:80".into(),
            phase: Phase::HalfClosed,
            client_stream: End::Ended,
            target_stream: End::Open,
            engine: Some("copy".into()),
            why_engine: "asked for by name".into(),
            accepted_at: format!("{:06}", 100_000.0 - age_ms),
            age_ms,
            idle_ms: 0.0,
            client_to_target_bytes: there,
            target_to_client_bytes: back,
        };
        (of(7), row)
    }

    #[test]
    fn a_rate_is_what_has_passed_between_the_looks() {
        let before = [row(1, 1000.0, 500, 7), row(2, 1.0, 1, 1)];
        // Another process has a session with the same number.
        let other = (of(8), row(1, 100.0, 100, 0).1);
        let after = vec![row(1, 1500.0, 1500, 7), row(3, 100.0, 0, 50), other];
        let rated = rated(&before, after);
        let rates: Vec<_> = rated
            .iter()
            .map(|one| {
                (
                    one.row.id,
                    one.client_to_target_bytes_per_second,
                    one.target_to_client_bytes_per_second,
                )
            })
            .collect();
        assert_eq!(rates, [(1, 2000, 0), (3, 0, 500), (1, 1000, 0)]);
    }

    #[test]
    fn the_order_is_the_one_that_was_asked_for() {
        let before = [row(1, 1000.0, 0, 0), row(2, 900.0, 9000, 0)];
        let after = || {
            vec![
                row(1, 1500.0, 100, 0),
                row(2, 1400.0, 9000, 0),
                row(3, 1.0, 0, 1),
            ]
        };
        for (order, ids) in [
            (SessionOrder::Age, [1, 2, 3]),
            (SessionOrder::Bytes, [2, 1, 3]),
            (SessionOrder::Rate, [3, 1, 2]),
        ] {
            let mut rated = rated(&before, after());
            sort(&mut rated, order);
            let sorted: Vec<_> = rated.iter().map(|one| one.row.id).collect();
            assert_eq!(sorted, ids, "{order:?}");
        }
    }
}
