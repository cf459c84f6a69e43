//! `spliced status`: processes, listeners and servers as tables or as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use splice::EngineName;

use super::processes::{Searched, search, wait_for};
use super::table::{Table, age, printable, shown};
use crate::cli::StatusArgs;
use crate::standard_output::print;

/// Prints the state of the processes that were asked for.
///
/// # Errors
/// If there is none.
pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    let Searched { reached, silent } = wait_for(search(&args.which, "/v1/status"))?;
    for sentence in silent {
        tracing::warn!("{sentence}");
    }
    let told = reached.into_iter().map(|reached| {
        let mut status = reached.told;
        status["socket"] = reached.socket.path.display().to_string().into();
        status
    });
    let told: Vec<_> = told.collect();
    print(&match args.json {
        true => format!("{:#}\n", Value::Array(told)),
        false => as_text(&told),
    })
}

/// The processes as text.
fn as_text(processes: &[Value]) -> String {
    let blocks: Vec<_> = processes.iter().map(process).collect();
    blocks.join("\n")
}

fn process(status: &Value) -> String {
    let process = &status["process"];
    let mut text = format!(
        "process {}: spliced {} {}",
        shown(&process["pid"]),
        shown(&process["version"]),
        shown(&process["command"])
    );
    if let Some(path) = process["configuration"].as_str() {
        let _ = write!(text, " {}", printable(path));
    }
    if process["state"] == "draining" {
        text.push_str(", draining");
    }
    let uptime = process["uptime_seconds"].as_u64().unwrap_or_default();
    let _ = writeln!(
        text,
        ", user {}, up {}, connections: {}",
        shown(&process["user"]),
        humantime::format_duration(Duration::from_secs(uptime)),
        shown(&status["connections"])
    );
    let _ = writeln!(text, "control socket: {}", shown(&status["socket"]));
    if let Some(why) = process["why_copied"].as_str() {
        let _ = writeln!(text, "copied and not spliced: {}", printable(why));
    }
    if let Some(engines) = engines(&status["engines"]) {
        let _ = writeln!(text, "sessions by engine: {engines}");
    }
    if let Some(why) = status["why_losing_segments"].as_str() {
        let (count, why) = (shown(&status["losing_segments"]), printable(why));
        let _ = writeln!(text, "sessions that lose segments: {count}: {why}");
    }
    if let Some(why) = status["why_not_spliced"].as_str() {
        let (count, why) = (shown(&status["not_spliced"]), printable(why));
        let _ = writeln!(text, "sessions that are not spliced: {count}: {why}");
    }
    for log in process["logs"].as_array().into_iter().flatten() {
        if let Some(why) = log["failure"].as_str() {
            let (name, why) = (shown(&log["log"]), printable(why));
            let waiting = shown(&log["lines_waiting"]);
            let _ = writeln!(
                text,
                "log {name} cannot be written: {why}; lines that wait: {waiting}"
            );
        }
    }
    let reload = &process["last_reload"];
    if !reload.is_null() {
        let how = match reload["error"].as_str() {
            Some(error) => format!("failed: {}", printable(error)),
            None => "done".into(),
        };
        let _ = writeln!(text, "last reload: {}, {how}", shown(&reload["time"]));
    }
    let listeners = rows(&status["listeners"], listener);
    append(
        &mut text,
        &[
            "LISTENER",
            "ADDRESS",
            "STATE",
            ">OPEN",
            ">ACCEPTED",
            ">JOINED",
            ">RESET",
        ],
        listeners,
    );
    let servers = rows(&status["backends"], |backend| {
        rows(&backend["servers"], |server| {
            vec![self::server(&backend["name"], server)]
        })
    });
    append(
        &mut text,
        &[
            "BACKEND",
            "SERVER",
            "STATE",
            ">FOR",
            ">OPEN",
            ">TOTAL",
            ">FAILURES",
            "WHY",
        ],
        servers,
    );
    text
}

/// The engines that have sessions, the cheapest first; `None` if there are none.
fn engines(counts: &Value) -> Option<String> {
    let names = EngineName::ALL.map(EngineName::as_str);
    let names = names.into_iter().chain(["none"]);
    let counts = names.filter_map(|name| {
        let count = counts[name].as_u64().filter(|count| *count > 0)?;
        Some(format!("{name} {count}"))
    });
    let counts: Vec<_> = counts.collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

/// Nothing if there are no rows.
fn append(text: &mut String, heads: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let mut table = Table::new(heads);
    for row in rows {
        table.add(row);
    }
    text.push('\n');
    text.push_str(&table.text());
}

fn listener(listener: &Value) -> Vec<Vec<String>> {
    let counts = &listener["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap_or_default();
    let reset = [
        "without_route",
        "without_server",
        "queue_full",
        "queue_timeout",
        "denied",
        "client_connections",
        "client_rate",
    ];
    let reset: u64 = reset.into_iter().map(count).sum();
    let addresses = listener["addresses"].as_array();
    let addresses = addresses.into_iter().flatten().map(shown);
    let addresses = addresses.collect::<Vec<_>>().join(",");
    vec![vec![
        shown(&listener["name"]),
        addresses,
        shown(&listener["state"]),
        shown(&listener["connections"]),
        count("accepted").to_string(),
        count("joined").to_string(),
        reset.to_string(),
    ]]
}

fn server(backend: &Value, server: &Value) -> Vec<String> {
    let last = &server["last_error"];
    let why = match (server["why"].as_str(), last["error"].as_str()) {
        (Some(why), _) => printable(why),
        // Its state does not follow from that: it has no checks, or is the last server of its backend.
        (None, Some(error)) => {
            format!(
                "last error {} ago: {}",
                age(&last["time"]),
                printable(error)
            )
        }
        (None, None) => "-".into(),
    };
    vec![
        shown(backend),
        shown(&server["server"]),
        shown(&server["state"]),
        age(&server["since"]),
        shown(&server["connections"]),
        shown(&server["total"]),
        shown(&server["failures"]),
        why,
    ]
}

fn rows<T>(list: &Value, of_one: impl Fn(&Value) -> Vec<T>) -> Vec<T> {
    let list = list.as_array().into_iter().flatten();
    list.flat_map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_process_is_shown_with_its_tables() {
        let status = json!({
            "socket": "/run/spliced/7.sock",
            "connections": 3,
            "engines": {"copy": 1, "pipe": 0, "segment": 2, "none": 4},
            "losing_segments": 2,
            "why_losing_segments": "the connection with the server has no route",
            "not_spliced": 1,
            "why_not_spliced": "no direction moved bulk; segment: packet filters: ip filter INPUT handle 9 may apply",
            "process": {
                "pid": 7, "version": "0.1.0", "command": "run", "configuration": "/etc/\u{1b}[31m.toml",
                "state": "draining", "user": 0, "uptime_seconds": 61,
                "last_reload": {"time": "2026-11-27T00:00:00.000Z", "error": "line 3"},
            },
            "listeners": [{
                "name": "web", "addresses": ["[::1]:80", "127.0.0.1:80"], "state": "draining",
                "connections": 2,
                "counts": {"accepted": 5, "joined": 2, "without_route": 1, "client_rate": 2},
            }],
            "backends": [{"name": "b", "servers": [
                {"server": "10.0.0.7:80", "state": "not checked", "since": null, "connections": 2, "total": 9,
                 "failures": 0, "why": null},
                {"server": "x", "state": "down", "since": "2999-01-01T00:00:00Z", "connections": 0, "total": 0,
                 "failures": 3, "why": "refused"},
            ]}],
        });
        let expected = "\
process 7: spliced 0.1.0 run /etc/\\u{1b}[31m.toml, draining, user 0, up 1m 1s, connections: 3
control socket: /run/spliced/7.sock
sessions by engine: copy 1, segment 2, none 4
sessions that lose segments: 2: the connection with the server has no route
sessions that are not spliced: 1: no direction moved bulk; segment: packet filters: ip filter INPUT handle 9 may apply
last reload: 2026-11-27T00:00:00.000Z, failed: line 3

LISTENER  ADDRESS                STATE     OPEN  ACCEPTED  JOINED  RESET
web       [::1]:80,127.0.0.1:80  draining     2         5       2      3

BACKEND  SERVER       STATE        FOR  OPEN  TOTAL  FAILURES  WHY
b        10.0.0.7:80  not checked    -     2      9         0  -
b        x            down           -     0      0         3  refused
";
        assert_eq!(as_text(&[status]), expected);
    }
}
