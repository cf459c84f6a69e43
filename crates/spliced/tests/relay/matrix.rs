//! `spliced matrix`: the tables, as text and as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use netlab::{Need, Process, Scratch, available};
use serde_json::Value;

use crate::doctor::{NOBODY, for_anybody};
use crate::relay::{BINARY, command, output};

/// What all tables may take. They take two seconds on an idle machine.
const MOST_TIME: Duration = Duration::from_secs(20);

/// What the tables are for the kinds that every host can make: TCP, UDP, UNIX stream, UNIX dgram.
fn works(redirect: &str, source: &str, target: &str) -> bool {
    match redirect {
        "send to local" => source == "TCP",
        "send to egress" => source == "TCP" && target == "TCP",
        _ => {
            assert!(["ingress to egress", "ingress to local"].contains(&redirect));
            assert_ne!(target, "");
            true
        }
    }
}

#[test]
fn the_json_has_every_cell_of_both_types_of_maps() {
    if !available(Need::Root) {
        return;
    }
    let begun = Instant::now();
    let output = output(&mut command(&["matrix", "--json"]));
    let time = begun.elapsed();
    assert!(time < MOST_TIME, "{time:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let tables = report["tables"].as_array().expect("a list");
    assert_eq!(tables.len(), 8);
    for table in tables {
        let redirect = table["redirect"].as_str().expect("text");
        let cells = table["cells"].as_array().expect("a list");
        assert_eq!(cells.len(), 36);
        let mut untried = 0;
        for cell in cells {
            let [source, target] =
                ["source", "target"].map(|key| cell[key].as_str().expect("text"));
            assert!(!cell["reason"].as_str().expect("text").is_empty(), "{cell}");
            let is_everywhere = [source, target]
                .iter()
                .all(|kind| !kind.starts_with("VSOCK"));
            if cell["works"].is_null() {
                let reason = cell["reason"].as_str().expect("text");
                assert!(!is_everywhere, "{redirect}: {cell}");
                assert!(
                    reason.contains("no loopback of VSOCK"),
                    "{redirect}: {cell}"
                );
                untried += 1;
            }
            if is_everywhere {
                assert_eq!(
                    cell["works"],
                    works(redirect, source, target),
                    "{redirect}: {cell}"
                );
            }
        }
        // A host has a loopback of VSOCK or not: 20 cells have a kind that needs it. Where it has, `make test-kernels`
        // compares them with docs/matrix.
        assert!([0, 20].contains(&untried), "{redirect}: {untried}");
    }
}

#[test]
fn the_text_has_four_tables_and_says_how_each_no_fails() {
    if !available(Need::Root) {
        return;
    }
    let output = output(&mut command(&["matrix"]));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    for part in [
        "send to local (SOCKMAP and SOCKHASH)",
        "send to egress (SOCKMAP and SOCKHASH)",
        "ingress to egress (SOCKMAP and SOCKHASH)",
        "ingress to local (SOCKMAP and SOCKHASH)",
        "no: EACCES: send(2) fails with EACCES",
        "no: usual peer: the program never runs",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let width = text.lines().map(|line| line.trim_end().len()).max();
    assert!(width < Some(130), "{text}");
}

#[test]
fn without_the_rights_one_sentence_names_them() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("matrix").expect("a directory");
    let mut command = Process::command("setpriv");
    command
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"])
        .arg(for_anybody(&scratch))
        .arg("matrix")
        .env_remove("SPLICED_LOG");
    let output = output(&mut command);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("CAP_BPF"), "{said}");
}

/// Whatever step finds none. libbpf takes a kernel for an older one where it has none for a trial.
#[test]
fn with_too_few_descriptors_one_sentence_names_the_limit() {
    if !available(Need::Root) {
        return;
    }
    // With less it cannot write diagnostics.
    for limit in 6..56 {
        let run = format!(
            "ulimit -n {limit}; exec \"$0\" matrix --map sockmap --redirect send-to-egress"
        );
        let mut command = Process::command("sh");
        command.args(["-c", &run, BINARY]).env_remove("SPLICED_LOG");
        let output = output(&mut command);
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(0) {
            assert!(said.is_empty(), "{limit}: {said}");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("no: EACCES"), "{limit}: {text}");
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{limit}: {said}");
        assert_eq!(said.lines().count(), 1, "{limit}: {said}");
        assert!(
            said.contains("no file descriptors left: its limit (RLIMIT_NOFILE) is ")
                && said.contains("; raise RLIMIT_NOFILE"),
            "{limit}: {said}"
        );
    }
}

#[test]
fn tables_that_cannot_be_printed_are_an_error_said_once() {
    if !available(Need::Root) {
        return;
    }
    let run = "exec \"$0\" matrix --map sockmap --redirect send-to-egress >/dev/full";
    let mut command = Process::command("sh");
    command.args(["-c", run, BINARY]).env_remove("SPLICED_LOG");
    let output = output(&mut command);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot write to standard output"), "{said}");
    assert_eq!(said.matches("os error").count(), 1, "{said}");
}

#[test]
fn one_table_can_be_asked_for() {
    if !available(Need::Root) {
        return;
    }
    for (redirect, map, told) in [
        ("send-to-local", "sockmap", ("send to local", "SOCKMAP")),
        ("send-to-egress", "sockhash", ("send to egress", "SOCKHASH")),
        (
            "ingress-to-egress",
            "sockmap",
            ("ingress to egress", "SOCKMAP"),
        ),
        (
            "ingress-to-local",
            "sockhash",
            ("ingress to local", "SOCKHASH"),
        ),
    ] {
        let arguments = ["matrix", "--json", "--redirect", redirect, "--map", map];
        let output = output(&mut command(&arguments));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let tables = report["tables"].as_array().expect("a list");
        let names: Vec<_> = tables
            .iter()
            .map(|table| (table["redirect"].as_str(), table["map"].as_str()))
            .collect();
        assert_eq!(names, [(Some(told.0), Some(told.1))]);
    }
    let output = output(&mut command(&["matrix", "--redirect", "send-to-egress"]));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.contains("send to egress (SOCKMAP and SOCKHASH)"),
        "{text}"
    );
    assert!(!text.contains("local"), "{text}");
}

/// The tables in a text, by their headings: a line of cells for each source.
fn tables(text: &str) -> BTreeMap<String, Vec<Vec<String>>> {
    /// Columns of the name of a source, and of a cell.
    const NAME: usize = 18;
    const CELL: usize = 16;
    let mut tables = BTreeMap::new();
    for part in text
        .split("\n\n")
        .filter(|part| part.contains("(SOCKMAP and SOCKHASH)\n"))
    {
        let mut lines = part.lines();
        let heading = lines.next().expect("a heading").to_owned();
        let rows = lines.skip(1).map(|line| {
            let cells = line.as_bytes()[NAME..].chunks(CELL);
            let cells = cells.map(|cell| String::from_utf8_lossy(cell).trim().to_owned());
            cells.collect()
        });
        tables.insert(heading, rows.collect());
    }
    tables
}

/// What one of them could not try is left out.
#[test]
fn the_page_of_linux_6_18_has_the_tables_of_this_kernel() {
    if !available(Need::Root) {
        return;
    }
    let output = output(&mut command(&["matrix"]));
    let here = tables(&String::from_utf8(output.stdout).expect("text"));
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/matrix");
    let page = fs::read_to_string(format!("{directory}/6.18.md")).expect("the page");
    let emulated = fs::read_to_string(format!("{directory}/6.18.txt")).expect("the tables");
    assert!(
        page.contains(emulated.trim_end()),
        "6.18.md has other tables than 6.18.txt"
    );
    let blocks = page.split("```text\n").skip(1);
    let blocks: Vec<_> = blocks.filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let there = tables(block);
        assert_eq!(there.len(), 4);
        let mut compared = 0;
        for (heading, rows) in there {
            assert_eq!(rows.len(), 6, "{heading}");
            for (row, row_here) in rows.iter().zip(&here[&heading]) {
                assert_eq!(row.len(), 6, "{heading}");
                for (cell, cell_here) in row.iter().zip(row_here) {
                    if !cell.starts_with('?') && !cell_here.starts_with('?') {
                        assert_eq!(cell, cell_here, "{heading}");
                        compared += 1;
                    }
                }
            }
        }
        assert!(
            compared >= 4 * 16,
            "all but VSOCK can be tried everywhere: {compared}"
        );
    }
}
