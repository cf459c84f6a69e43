//! The servers of the backends, and who waits for one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::family::{Family, Labels};

/// The states of a server, as `GET /v1/backends` has them.
const STATES: [&str; 9] = [
    "up",
    "not checked",
    "down",
    "out",
    "unresolved",
    "weight 0",
    "draining",
    "drained",
    "disabled",
];

/// The kinds of failures, and the fields that count them.
const FAILURES: [(&str, &str); 3] = [
    ("check", "failed_checks"),
    ("connection", "failed_connections"),
    ("early_reset", "early_resets"),
];

/// What is known of one server.
#[derive(Debug, Default)]
struct Server<'a> {
    state: &'a str,
    weight: u64,
    open: u64,
    total: u64,
    failures: [u64; FAILURES.len()],
}

/// `backends` is what `GET /v1/backends` answers, so that both tell the same.
pub(super) fn families(backends: &Value) -> Vec<Family> {
    let mut queued = Family::gauge(
        "spliced_backend_queue_length",
        "Clients that wait for a server of the backend.",
    );
    let mut state = Family::gauge(
        "spliced_server_state",
        "Whether the server is in this state (1), or in another one (0).",
    );
    let mut weight = Family::gauge("spliced_server_weight", "The weight of the server.");
    let mut open = Family::gauge(
        "spliced_server_open_connections",
        "Connections to the server that are open or being made.",
    );
    let mut total = Family::counter(
        "spliced_server_connections",
        "Connections to the server that have begun.",
    );
    let mut failures = Family::counter(
        "spliced_server_failures",
        "What has spoken against the server: checks and connections that failed, and early resets.",
    );
    for backend in list(backends) {
        let name = text(backend, "name");
        queued.add(vec![("backend", name.into())], number(backend, "queued"));
        for (server, told) in by_name(list(&backend["servers"])) {
            let labels = || vec![("backend", name.into()), ("server", server.into())];
            for one in STATES {
                let mut labels: Labels = labels();
                labels.push(("state", one.replace(' ', "_")));
                state.add(labels, one == told.state);
            }
            weight.add(labels(), told.weight);
            open.add(labels(), told.open);
            total.add(labels(), told.total);
            for ((kind, _), count) in FAILURES.iter().zip(told.failures) {
                let mut labels: Labels = labels();
                labels.push(("kind", (*kind).into()));
                failures.add(labels, count);
            }
        }
    }
    vec![queued, state, weight, open, total, failures]
}

/// A server that begins anew while its former connections go on is there twice.
fn by_name(servers: &[Value]) -> BTreeMap<&str, Server<'_>> {
    let mut all = BTreeMap::<_, Server<'_>>::new();
    for told in servers {
        let server = all.entry(text(told, "server")).or_insert_with(|| Server {
            state: text(told, "state"),
            weight: number(told, "weight"),
            ..Server::default()
        });
        server.open += number(told, "connections");
        server.total += number(told, "total");
        for (count, (_, field)) in server.failures.iter_mut().zip(FAILURES) {
            *count += number(told, field);
        }
    }
    all
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::family::Value as Sampled;
    use super::*;

    #[test]
    fn a_server_that_is_there_twice_has_one_sample() {
        let server = |state: &str, open: u64| {
            json!({
                "server": "x", "state": state, "weight": 3, "connections": open, "total": 10,
                "failed_checks": 1, "failed_connections": 2, "early_resets": 4,
            })
        };
        let backends = json!([{
            "name": "b", "queued": 5, "servers": [server("weight 0", 1), server("draining", 2)],
        }]);
        let families = families(&backends);
        let samples = |name: &str| {
            let family = families.iter().find(|family| family.name == name);
            let samples = &family.expect("a family").samples;
            samples
                .iter()
                .map(|sample| sample.value.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(samples("spliced_backend_queue_length"), [Sampled::Whole(5)]);
        assert_eq!(
            samples("spliced_server_open_connections"),
            [Sampled::Whole(3)]
        );
        assert_eq!(samples("spliced_server_connections"), [Sampled::Whole(20)]);
        assert_eq!(
            samples("spliced_server_failures"),
            [2, 4, 8].map(Sampled::Whole)
        );
        let states = samples("spliced_server_state");
        let current = STATES.map(|state| Sampled::Whole((state == "weight 0").into()));
        assert_eq!(states, current);
    }
}
