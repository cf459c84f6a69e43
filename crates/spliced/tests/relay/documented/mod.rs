//! Every command line that README.md and the pages of docs/ print is run, and does what the page says; or it is in a table with the
//! reason why it is not.

mod pages;
mod stand;

use std::collections::BTreeSet;

use netlab::{Need, available};

use self::pages::{Printed, printed};
use self::stand::Stand;

/// Command lines that are not run, by what they begin with, and why. Tests run most of these commands in other words.
const NOT_RUN: [(&str, &str); 14] = [
    ("cargo build ", "takes minutes: CI builds"),
    (
        "cargo run -p splice-sockmap ",
        "compiles: `tour` of splice-sockmap runs the examples",
    ),
    ("splice-bench ", "takes minutes: make bench-check"),
    (
        "make ",
        "builds, installs or measures: tests/install.rs, CI",
    ),
    ("journalctl ", "needs the journal of systemd"),
    ("sudo ", "changes the installed program"),
    (
        "spliced adopt ",
        "takes the sockets of a process that runs: `adopt`",
    ),
    (
        "spliced bypass ",
        "needs the control groups of the page: `bypass`",
    ),
    ("spliced top", "needs a terminal: `top`"),
    (
        "spliced mesh :7000 --frame u32be@0 --register ",
        "needs a file of tokens: `mesh::registration`",
    ),
    (
        "spliced trace --connection ",
        "waits for other hosts: `trace`",
    ),
    ("spliced trace --session ", "waits for a message: `trace`"),
    ("spliced trace --listener ", "waits for a message: `trace`"),
    ("spliced trace --filter ", "waits for a message: `trace`"),
];

/// What serves until a signal ends it.
const SERVES: [&str; 5] = [
    "spliced relay ",
    "spliced echo ",
    "spliced mesh ",
    "spliced run ",
    "kill \"$OLD\" && spliced run ",
];

/// What ends by itself, by what it begins with, and a part of what it says. The first one that fits counts.
const SAYS: [(&str, &str); 29] = [
    ("spliced status --json | jq", "10.0.0.7:80"),
    ("spliced status", "connections: 1"),
    ("spliced sessions --config proxy.toml --json | jq", "copy "),
    ("spliced sessions --json", "\"why_engine\""),
    (
        "spliced sessions --filter engine=copy --filter backend=db",
        "no sessions",
    ),
    ("spliced sessions", "192.0.2.1:"),
    ("spliced backends", "10.0.0.7:80"),
    ("spliced drain 10.0.0.7", "10.0.0.7"),
    ("spliced undrain 10.0.0.7", "10.0.0.7"),
    ("spliced weigh 10.0.0.7:80 20", "20"),
    ("spliced kill --filter ", "1"),
    // Its client is reset.
    ("spliced kill ", ""),
    ("spliced reload ", "reload"),
    ("spliced check ", "web"),
    ("spliced doctor", "Segments in the relays"),
    ("spliced matrix --json", "\"redirect\""),
    ("spliced matrix", "ingress"),
    ("spliced trace", "copy"),
    ("curl --unix-socket SOCKET http://spliced/metrics", "# EOF"),
    (
        "curl --unix-socket SOCKET http://spliced/v1/backends",
        "10.0.0.7:80",
    ),
    ("curl --unix-socket SOCKET", "{"),
    (
        "jq -r 'select(.server == \"10.0.0.7:443\")",
        "end of stream",
    ),
    ("curl http://127.0.0.1:9500/metrics", "process_open_fds"),
    ("jq -r .client", "127.0.0.1"),
    ("jq -r .engine", "copy"),
    ("promtool check rules", "SUCCESS"),
    ("promtool test rules", "SUCCESS"),
    ("ip rule add ", ""),
    ("ip route add ", ""),
];

/// Fewer would mean that they are not found any more.
const LEAST: usize = 60;

fn reason(line: &str) -> Option<&'static str> {
    let found = NOT_RUN.iter().find(|(begin, _)| line.starts_with(begin));
    found.map(|(_, reason)| *reason)
}

#[test]
fn every_command_line_is_run_or_has_a_reason() {
    if !available(Need::Bpf) || !available(Need::Root) {
        return;
    }
    let stand = Stand::new();
    let mut seen = BTreeSet::new();
    let (mut run, mut wrong) = (0, String::new());
    for Printed { page, line } in printed() {
        // Pages repeat some.
        if reason(&line).is_some() || !seen.insert(line.clone()) {
            continue;
        }
        let done = if SERVES.iter().any(|begin| line.starts_with(begin)) {
            stand.serves(&line)
        } else {
            let general = stand::general(&line);
            match SAYS.iter().find(|(begin, _)| general.starts_with(begin)) {
                Some((_, says)) => stand.says(&line, says),
                None => Err("it is in no table".into()),
            }
        };
        run += 1;
        if let Err(why) = done {
            wrong += &format!("{page}: {line}\n    {why}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(run >= LEAST, "{run} command lines");
}

/// A row that nothing needs any more would hide the next command that it fits.
#[test]
fn each_row_is_needed() {
    let lines: Vec<_> = printed().into_iter().map(|printed| printed.line).collect();
    let begins = NOT_RUN.map(|(begin, _)| begin);
    for begin in begins.iter().chain(&SERVES) {
        assert!(lines.iter().any(|line| line.starts_with(begin)), "{begin}");
    }
    for (begin, _) in SAYS {
        assert!(
            lines
                .iter()
                .any(|line| stand::general(line).starts_with(begin)),
            "{begin}"
        );
    }
}
