//! `spliced bypass status`: what a bypass does, for people and programs.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use splice::bypass::{self, Connection, Status, status};

use super::control_group;
use crate::bypass_args::StatusArgs;

/// Rates of a single report are those of this time.
const RATE_OVER: Duration = Duration::from_millis(250);

const SHOW_EVERY: Duration = Duration::from_secs(1);

/// Clears a terminal and begins at its top (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Debug, Serialize)]
struct Report {
    owner: u32,
    is_alive: bool,
    bulk_bytes: u32,
    members: usize,
    missed: u64,
    conflicts: u64,
    messages: u64,
    redirected_messages: u64,
    redirected_bytes: u64,
    connections: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    client: Option<End>,
    server: Option<End>,
    state: &'static str,
    why: Option<String>,
    messages_per_second: f64,
    bytes_per_second: f64,
}

#[derive(Debug, Serialize)]
struct End {
    local: SocketAddr,
    remote: SocketAddr,
    /// That has read last.
    process: Option<u32>,
    command: Option<String>,
    user: Option<u32>,
    cgroup: Option<String>,
    container: Option<String>,
    messages: u64,
    redirected_messages: u64,
    redirected_bytes: u64,
    passed_messages: u64,
    passed_bytes: u64,
    full_messages: u64,
    unread_bytes: u64,
    received_bytes: u64,
    why_passed: Option<&'static str>,
}

/// Prints the status once, or again and again.
///
/// # Errors
/// If nothing is pinned there, or it cannot be read.
pub(crate) fn show(args: &StatusArgs) -> Result<()> {
    let pins = &args.pins.pins;
    let mut before = (Instant::now(), look(pins)?);
    let mut pause = RATE_OVER;
    loop {
        thread::sleep(pause);
        let now = (Instant::now(), look(pins)?);
        let report = Report::of(&before, &now);
        let text = match args.json {
            true => serde_json::to_string_pretty(&report).context("cannot write JSON")? + "\n",
            false => report.table(),
        };
        let clear = if args.watch { CLEAR } else { "" };
        let mut output = io::stdout().lock();
        let written = output
            .write_all(clear.as_bytes())
            .and_then(|()| output.write_all(text.as_bytes()))
            .and_then(|()| output.flush());
        match written {
            // Whoever has gone away misses nothing.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("cannot write the status")?,
        }
        if !args.watch {
            return Ok(());
        }
        before = now;
        pause = SHOW_EVERY;
    }
}

fn look(pins: &Path) -> Result<Status> {
    match status(pins)? {
        Some(status) => Ok(status),
        None => bail!(
            "no bypass has its pins in {}; start one with 'spliced bypass --cgroup PATH', or name its pins with --pins",
            pins.display()
        ),
    }
}

impl Report {
    fn of((then, before): &(Instant, Status), (now, status): &(Instant, Status)) -> Self {
        let groups = control_group::by_number();
        let seconds = (*now - *then).as_secs_f64();
        let sum = status.sum();
        let mut connections: Vec<Line> = (status.connections.iter())
            .map(|of| {
                let earlier = before.connections.iter().find(|one| is_same(one, of));
                let [messages, bytes] = moved(of);
                let [messages_then, bytes_then] = earlier.map_or([0, 0], moved);
                let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
                Line {
                    client: of.client.map(|end| End::of(&end, &groups)),
                    server: of.server.map(|end| End::of(&end, &groups)),
                    state: of.state.as_str(),
                    why: of
                        .filter
                        .clone()
                        .or_else(|| of.reason.map(|why| why.to_string())),
                    messages_per_second: rate(messages, messages_then),
                    bytes_per_second: rate(bytes, bytes_then),
                }
            })
            .collect();
        connections.sort_by_key(|line| line.client.as_ref().map(|end| end.local));
        Self {
            owner: status.owner,
            is_alive: status.is_alive,
            bulk_bytes: status.bulk_bytes,
            members: status.members,
            missed: status.missed,
            conflicts: status.conflicts,
            messages: sum.messages,
            redirected_messages: sum.redirected_messages,
            redirected_bytes: sum.redirected_bytes,
            connections,
        }
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let state = match self.is_alive {
            true => "runs",
            false => "is dead: every message goes over TCP, and 'spliced bypass off' clears up",
        };
        let share = 100.0 * self.redirected_messages as f64 / self.messages.max(1) as f64;
        // Writing to a text does not fail.
        let _ = writeln!(
            text,
            "Process {} {state}. {} sockets in the map; messages up to {} bytes are redirected.\n{} of {} messages \
             redirected ({share:.1} %), {} bytes.",
            self.owner,
            self.members,
            self.bulk_bytes,
            self.redirected_messages,
            self.messages,
            self.redirected_bytes
        );
        if self.missed > 0 || self.conflicts > 0 {
            let _ = writeln!(
                text,
                "{} connections had no room in the tables, {} had the sequence numbers of others: they go over TCP.",
                self.missed, self.conflicts
            );
        }
        let _ = writeln!(
            text,
            "\n{:<22} {:<22} {:>10} {:>10} {:>12} {:>10} {:>12}  {:<10} WHY",
            "CLIENT", "SERVER", "MESSAGES", "REDIRECTED", "BYTES", "MESSAGES/S", "BYTES/S", "STATE"
        );
        for line in &self.connections {
            let both = [&line.client, &line.server];
            let sum = |of: fn(&End) -> u64| {
                both.iter()
                    .filter_map(|end| end.as_ref().map(of))
                    .sum::<u64>()
            };
            let [client, server] = both.map(|end| {
                end.as_ref()
                    .map_or_else(|| "-".into(), |end| end.local.to_string())
            });
            let _ = writeln!(
                text,
                "{client:<22} {server:<22} {:>10} {:>10} {:>12} {:>10.0} {:>12.0}  {:<10} {}",
                sum(|end| end.messages),
                sum(|end| end.redirected_messages),
                sum(|end| end.redirected_bytes),
                line.messages_per_second,
                line.bytes_per_second,
                line.state,
                line.why.as_deref().unwrap_or_default()
            );
            for (role, end) in ["client", "server"].iter().zip(both) {
                if let Some(end) = end {
                    let _ = writeln!(text, "  {role}: {}", end.told());
                }
            }
        }
        text
    }
}

fn is_same(one: &Connection, other: &Connection) -> bool {
    let names =
        |of: &Connection| [of.client, of.server].map(|end| end.map(|end| (end.local, end.remote)));
    names(one) == names(other)
}

/// Messages, and bytes that were read.
fn moved(of: &Connection) -> [u64; 2] {
    let ends = [of.client, of.server].into_iter().flatten();
    ends.fold([0, 0], |[messages, bytes], end| {
        [messages + end.messages, bytes + end.received_bytes]
    })
}

impl End {
    fn of(end: &bypass::End, groups: &HashMap<u64, String>) -> Self {
        let cgroup = end.group.and_then(|number| groups.get(&number).cloned());
        let command = end.process.and_then(|process| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
            Some(name.trim_end().into())
        });
        Self {
            local: end.local,
            remote: end.remote,
            process: end.process,
            command,
            user: end.user,
            container: cgroup.as_deref().and_then(control_group::container),
            cgroup,
            messages: end.messages,
            redirected_messages: end.redirected_messages,
            redirected_bytes: end.redirected_bytes,
            passed_messages: end.passed_messages,
            passed_bytes: end.passed_bytes,
            full_messages: end.full_messages,
            unread_bytes: end.unread_bytes,
            received_bytes: end.received_bytes,
            why_passed: end.obstacle.map(bypass::Obstacle::as_str),
        }
    }

    fn told(&self) -> String {
        let mut told = Vec::new();
        if let Some(process) = self.process {
            let command = self.command.as_deref().unwrap_or("?");
            told.push(format!("{command} ({process})"));
        }
        told.extend(
            self.container
                .iter()
                .map(|name| format!("container {name}")),
        );
        told.extend(self.cgroup.iter().map(|path| format!("group {path}")));
        if self.unread_bytes > 0 {
            told.push(format!("{} bytes unread by its peer", self.unread_bytes));
        }
        told.extend(
            self.why_passed
                .map(|why| format!("last message over TCP: {why}")),
        );
        match told.is_empty() {
            true => "-".into(),
            false => told.join(", "),
        }
    }
}
