//! `spliced sessions`: the live sessions as a table or as JSON.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::table::{Table, bytes, time};
use crate::admin::{self, Request};
use crate::session_args::{SessionField, SessionFilter, SessionOrder, SessionsArgs};
use crate::sessions::{Answer, Row};

/// The time between the two looks that the rates are taken from.
const LOOKS_APART: Duration = Duration::from_millis(500);

/// Asks for the sessions and prints them.
///
/// # Errors
/// If no process answers, or the answer cannot be printed.
pub(crate) fn run(args: &SessionsArgs) -> Result<()> {
    let before = look(&args.config)?;
    thread::sleep(LOOKS_APART);
    let mut rated = rated(&before, look(&args.config)?);
    rated.retain(|rated| args.filter.iter().all(|filter| filter.takes(&rated.row)));
    if let Some(order) = args.sort {
        sort(&mut rated, order);
    }
    let text = match args.json {
        true => format!("{:#}\n", json!({ "sessions": rated })),
        false => as_table(&rated),
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // If the reader has gone away, nobody misses the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot print the sessions"),
    }
}

/// A session with its rates.
#[derive(Debug, Serialize)]
struct Rated {
    #[serde(flatten)]
    row: Row,
    client_to_target_bytes_per_second: u64,
    target_to_client_bytes_per_second: u64,
}

fn look(configuration: &Path) -> Result<Vec<Row>> {
    let told = admin::ask(configuration, Request::Sessions)?;
    let answer: Answer = serde_json::from_value(told).context(
        "the process answers in another way than this version of spliced expects; use the version that runs",
    )?;
    Ok(answer.sessions)
}

/// The sessions of the second look, with what has passed since the first one.
fn rated(before: &[Row], after: Vec<Row>) -> Vec<Rated> {
    let before: HashMap<_, _> = before.iter().map(|row| (row.id, row)).collect();
    let rated = after.into_iter().map(|row| {
        // One that was not there then has its whole life to look at.
        let (age_ms, there, back) = before.get(&row.id).map_or((0.0, 0, 0), |row| {
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
            row,
        }
    });
    rated.collect()
}

fn sort(rated: &mut [Rated], order: SessionOrder) {
    match order {
        // As they come.
        SessionOrder::Age => {}
        SessionOrder::Bytes => rated.sort_by_key(|one| {
            let row = &one.row;
            std::cmp::Reverse(row.client_to_target_bytes + row.target_to_client_bytes)
        }),
        SessionOrder::Rate => rated.sort_by_key(|one| {
            let there = one.client_to_target_bytes_per_second;
            std::cmp::Reverse(there + one.target_to_client_bytes_per_second)
        }),
    }
}

impl SessionFilter {
    fn takes(&self, row: &Row) -> bool {
        let phase = row.phase.word();
        let field = match self.field {
            SessionField::Listener => Some(&*row.listener),
            SessionField::Client => Some(&*row.client),
            SessionField::ServerName => row.server_name.as_deref(),
            SessionField::Backend => row.backend.as_deref(),
            SessionField::Server => row.server.as_deref(),
            SessionField::Target => Some(&*row.target),
            SessionField::Phase => Some(phase),
            SessionField::Engine => row.engine.as_deref(),
        };
        let is_address = matches!(
            self.field,
            SessionField::Client | SessionField::Server | SessionField::Target
        );
        field.is_some_and(|field| field == self.value || is_address && host(field) == self.value)
    }
}

/// An address without its port.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn as_table(rated: &[Rated]) -> String {
    if rated.is_empty() {
        return "no sessions\n".into();
    }
    let mut table = Table::new([
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
    ]);
    for one in rated {
        let row = &one.row;
        table.add([
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
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::{End, Phase};

    fn row(id: u64, age_ms: f64, there: u64, back: u64) -> Row {
        Row {
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
            accepted_at: String::new(),
            age_ms,
            idle_ms: 0.0,
            client_to_target_bytes: there,
            target_to_client_bytes: back,
        }
    }

    #[test]
    fn a_rate_is_what_has_passed_between_the_looks() {
        let before = [row(1, 1000.0, 500, 7), row(2, 1.0, 1, 1)];
        let after = vec![row(1, 1500.0, 1500, 7), row(3, 100.0, 0, 50)];
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
        assert_eq!(rates, [(1, 2000, 0), (3, 0, 500)]);
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

    #[test]
    fn a_filter_takes_what_has_its_value() {
        let row = row(1, 0.0, 0, 0);
        let takes = |field, value: &str| {
            let value = value.into();
            SessionFilter { field, value }.takes(&row)
        };
        for (field, value, is_taken) in [
            (SessionField::Listener, "web", true),
            (SessionField::Listener, "we", false),
            (SessionField::Client, "::1", true),
            (SessionField::Client, "[::1]:4711", true),
            (SessionField::Client, "[::1]:471", false),
            (SessionField::Target, "192.0.2.1", true),
            (SessionField::ServerName, "", false),
            (SessionField::Backend, "b", true),
            (SessionField::Phase, "half-closed", true),
            (SessionField::Engine, "pipe", false),
        ] {
            assert_eq!(takes(field, value), is_taken, "{field:?} {value}");
        }
    }
}
