//! `spliced backends`: the servers as a table or as JSON.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::processes::{Of, Searched, search, wait_for, words};
use super::servers::backends_of;
use super::table::{Table, age, printable, shown};
use crate::server_args::BackendsArgs;
use crate::standard_output::print;

/// Asks for the backends and prints their servers.
///
/// # Errors
/// If no process answers, or the answer cannot be printed.
pub(crate) fn run(args: &BackendsArgs) -> Result<()> {
    let (told, silent) = wait_for(async {
        let Searched {
            reached,
            mut silent,
        } = search(&args.which, "/v1/process").await?;
        let mut told = Vec::new();
        for (of, answer) in backends_of(reached).await {
            match answer {
                Ok(backends) => told.push((of, backends)),
                // A process that has ended has no servers.
                Err(failure) => silent.extend(words(&failure, None)),
            }
        }
        ensure!(
            !told.is_empty() || silent.is_empty(),
            "{}",
            silent.join("; ")
        );
        Ok((told, silent))
    })?;
    for sentence in silent {
        tracing::warn!("{sentence}");
    }
    for (of, backend) in told
        .iter()
        .flat_map(|(of, backends)| backends.iter().map(move |it| (of, it)))
    {
        if let Some(why) = backend["why_none"].as_str() {
            tracing::warn!(
                "{}, backend {}: new clients get no server: {}",
                of.in_words(),
                shown(&backend["name"]),
                printable(why)
            );
        }
    }
    print(&match args.json {
        true => format!("{:#}\n", as_json(told)),
        false => as_table(&told),
    })
}

fn as_json(told: Vec<(Of, Vec<Value>)>) -> Value {
    let backends = told.into_iter().flat_map(|(of, backends)| {
        backends.into_iter().map(move |mut backend| {
            backend["process"] = of.process().into();
            backend["process_draining"] = of.drains().into();
            backend["socket"] = of.path().display().to_string().into();
            backend
        })
    });
    json!({ "backends": backends.collect::<Vec<_>>() })
}

/// With the process of each server, if there are several or one drains.
fn as_table(told: &[(Of, Vec<Value>)]) -> String {
    let heads = [
        ">PROCESS",
        "BACKEND",
        "SERVER",
        "STATE",
        ">FOR",
        ">WEIGHT",
        ">SESSIONS",
        "LAST ERROR",
        "WHY",
    ];
    let left_out = usize::from(told.len() < 2 && !told.iter().any(|(of, _)| of.drains()));
    let mut table = Table::new(&heads[left_out..]);
    let mut is_empty = true;
    for (of, backends) in told {
        for backend in backends {
            for server in backend["servers"].as_array().into_iter().flatten() {
                is_empty = false;
                let cells = [
                    of.cell(),
                    shown(&backend["name"]),
                    shown(&server["server"]),
                    shown(&server["state"]),
                    age(&server["since"]),
                    shown(&server["weight"]),
                    shown(&server["connections"]),
                    last_error(&server["last_error"]),
                    why(server),
                ];
                table.add(cells.into_iter().skip(left_out));
            }
        }
    }
    match is_empty {
        true => "no servers\n".into(),
        false => table.text(),
    }
}

fn why(server: &Value) -> String {
    let why = &server["why"];
    match server["added"] == true && server["removed"] == false {
        true if why.is_null() => "added until the next reload".into(),
        true => format!("added until the next reload; {}", shown(why)),
        false => shown(why),
    }
}

fn last_error(error: &Value) -> String {
    match error["error"].as_str() {
        Some(why) => format!("{} ago: {why}", age(&error["time"])),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::admin::ControlSocket;

    #[test]
    fn servers_are_shown_with_their_processes_if_there_are_several() {
        let backends = || {
            vec![json!({
                "name": "b\u{1b}[2J", "queued": 0, "servers": [
                    {"server": "x:1", "state": "draining", "why": "drained by user 0 (process 9)", "since": null,
                     "weight": 2, "connections": 500, "last_error": null},
                    {"server": "y".repeat(300), "state": "up", "why": null, "since": "2999-01-01T00:00:00Z", "weight": 0,
                     "connections": 0, "last_error": {"time": null, "error": "refused"}},
                ],
            })]
        };
        let socket = Arc::new(ControlSocket::named(Path::new("/run/x.sock")));
        let of = |process| Of::new(process, Arc::clone(&socket));
        let long = format!("{}…{}", "y".repeat(60), "y".repeat(39));
        let space = " ".repeat(97);
        let head = " ".repeat(94);
        let expected = format!(
            "BACKEND     SERVER{head}  STATE     FOR  WEIGHT  SESSIONS  LAST ERROR      WHY\n\
             b\\u{{1b}}[2J  x:1{space}  draining    -       2       500  -               drained by user 0 (process 9)\n\
             b\\u{{1b}}[2J  {long}  up          -       0         0  - ago: refused  -\n"
        );
        assert_eq!(as_table(&[(of(7), backends())]), expected);
        let both = as_table(&[(of(7), backends()), (of(18), backends())]);
        assert!(both.starts_with("PROCESS  BACKEND"), "{both}");
        assert_eq!(
            both.lines()
                .filter(|line| line.starts_with("     18"))
                .count(),
            2
        );
        assert_eq!(as_table(&[]), "no servers\n");
        let told = as_json(vec![(of(7), backends())]);
        assert_eq!(told["backends"][0]["process"], 7);
        assert_eq!(told["backends"][0]["servers"][0]["connections"], 500);
    }
}
