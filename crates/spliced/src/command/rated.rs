//! A session of a process with its rates, and the order of several.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::processes::Of;
use crate::admin::Failure;
use crate::session_args::SessionOrder;
use crate::session_filter::SessionField;
use crate::sessions::{Answer, Row};

/// A session with its rates.
#[derive(Debug, Serialize)]
pub(super) struct Rated {
    #[serde(flatten)]
    pub(super) of: Of,
    #[serde(flatten)]
    pub(super) row: Row,
    pub(super) client_to_target_bytes_per_second: u64,
    pub(super) target_to_client_bytes_per_second: u64,
}

impl Rated {
    /// A cell with what the session has in the field.
    pub(super) fn cell(&self, field: SessionField) -> String {
        self.row.text(field).unwrap_or_default().into()
    }

    /// Of both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.row.client_to_target_bytes + self.row.target_to_client_bytes
    }

    /// Of both directions.
    pub(super) fn bytes_per_second(&self) -> u64 {
        self.client_to_target_bytes_per_second + self.target_to_client_bytes_per_second
    }
}

/// The sessions that a process has told.
///
/// # Errors
/// If they are not what this version knows.
pub(super) fn rows(told: Value) -> Result<Vec<Row>, Failure> {
    let answer = serde_json::from_value::<Answer>(told).map_err(|_| {
        Failure::Told(
            "it answers in another way than this version of spliced expects; use the version that runs".into(),
        )
    })?;
    Ok(answer.sessions)
}

/// The sessions of `after`, with what has passed since `before`.
pub(super) fn rated<'a>(
    before: impl IntoIterator<Item = (&'a Of, &'a Row)>,
    after: Vec<(Of, Row)>,
) -> Vec<Rated> {
    let before = before.into_iter().map(|(of, row)| ((of, row.id), row));
    let before: HashMap<_, _> = before.collect();
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

/// Sessions that are the same in what they are ordered by stay as they are.
pub(super) fn sort(rated: &mut [&Rated], order: SessionOrder) {
    match order {
        SessionOrder::Rate => rated.sort_by_key(|one| Reverse(one.bytes_per_second())),
        SessionOrder::Bytes => rated.sort_by_key(|one| Reverse(one.bytes())),
        // RFC 3339 in UTC has the order of time.
        SessionOrder::Age => {
            rated.sort_by(|one, other| one.row.accepted_at.cmp(&other.row.accepted_at));
        }
        SessionOrder::Idle => {
            rated.sort_by(|one, other| other.row.idle_ms.total_cmp(&one.row.idle_ms));
        }
        SessionOrder::Listener => sort_by_text(rated, SessionField::Listener),
        SessionOrder::Client => sort_by_text(rated, SessionField::Client),
        SessionOrder::Target => sort_by_text(rated, SessionField::Target),
        SessionOrder::Engine => sort_by_text(rated, SessionField::Engine),
    }
}

fn sort_by_text(rated: &mut [&Rated], field: SessionField) {
    rated.sort_by(|one, other| one.row.text(field).cmp(&other.row.text(field)));
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::admin::ControlSocket;

    pub(in crate::command) fn of(process: u64) -> Of {
        let path = PathBuf::from(format!("/run/{process}.sock"));
        Of::new(process, Arc::new(ControlSocket::named(&path)))
    }

    pub(in crate::command) fn row(id: u64, age_ms: f64, there: u64, back: u64) -> (Of, Row) {
        let row = Row {
            accepted_at: format!("{:06}", 100_000.0 - age_ms),
            age_ms,
            client_to_target_bytes: there,
            target_to_client_bytes: back,
            ..Row::example(id)
        };
        (of(7), row)
    }

    fn since(before: &[(Of, Row)], after: Vec<(Of, Row)>) -> Vec<Rated> {
        rated(before.iter().map(|(of, row)| (of, row)), after)
    }

    #[test]
    fn a_rate_is_what_has_passed_between_the_looks() {
        let before = [row(1, 1000.0, 500, 7), row(2, 1.0, 1, 1)];
        // Another process has a session with the same number.
        let other = (of(8), row(1, 100.0, 100, 0).1);
        let after = vec![row(1, 1500.0, 1500, 7), row(3, 100.0, 0, 50), other];
        let rated = since(&before, after);
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
        let mut after = vec![
            row(1, 1500.0, 100, 0),
            row(2, 1400.0, 9000, 0),
            row(3, 1.0, 0, 1),
        ];
        for (number, idle_ms, listener, client, target, engine) in [
            (0, 5.0, "b", "c", "a", None),
            (1, 7.0, "a", "a", "b", Some("pipe")),
            (2, 6.0, "c", "b", "c", Some("copy")),
        ] {
            let row: &mut Row = &mut after[number].1;
            row.idle_ms = idle_ms;
            row.listener = listener.into();
            row.client = client.into();
            row.target = target.into();
            row.engine = engine.map(Into::into);
        }
        let rated = since(&before, after);
        for (order, ids) in [
            (SessionOrder::Age, [1, 2, 3]),
            (SessionOrder::Bytes, [2, 1, 3]),
            (SessionOrder::Rate, [3, 1, 2]),
            (SessionOrder::Idle, [2, 3, 1]),
            (SessionOrder::Listener, [2, 1, 3]),
            (SessionOrder::Client, [2, 3, 1]),
            (SessionOrder::Target, [1, 2, 3]),
            (SessionOrder::Engine, [1, 3, 2]),
        ] {
            let mut rated: Vec<_> = rated.iter().collect();
            sort(&mut rated, order);
            let sorted: Vec<_> = rated.iter().map(|one| one.row.id).collect();
            assert_eq!(sorted, ids, "{order:?}");
        }
    }
}
