//! `spliced check`: every mistake of a configuration, and what it comes to on this host.

mod backends;
mod datagrams;
mod engine;
mod found;
mod health;
mod host;
mod listening;
mod names;
mod rights;
mod routes;
mod servers;
mod source;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::{Error, Result};
use serde_json::json;

use self::found::Found;
use crate::cli::CheckArgs;
use crate::config::{self, Examined, Note};
use crate::plural::counted;
use crate::printable::printable;
use crate::refusal::WrongUsage;
use crate::standard_output::print;

/// Writes every mistake and warning to stderr, one a line, and what the plan does to stdout.
///
/// # Errors
/// If the configuration has mistakes, or the report cannot be printed.
pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    let path = printable(&args.config.display().to_string());
    let Examined { plan, warnings } = config::examine(&args.config);
    let (found, mistakes) = match &plan {
        Ok(plan) => (Some(Found::of(plan, &names::resolve(plan))), &[][..]),
        Err(mistakes) => (None, &mistakes.0[..]),
    };
    let obstacles = found.as_ref().map_or(&[][..], |found| &found.obstacles[..]);
    let refused = match (mistakes.len(), obstacles.len()) {
        (0, 0) => None,
        (0, obstacles) => Some(format!("{} on this host", counted(obstacles, "obstacle"))),
        (mistakes, _) => Some(counted(mistakes, "mistake")),
    };
    if args.json {
        print(&as_json(args, &warnings, mistakes, found.as_ref()))?;
    } else if let Some(found) = &found {
        print(&found.to_string())?;
    }
    let mut text = String::new();
    let mut said: Vec<_> = warnings
        .iter()
        .map(|note| (note.place(), format!("warning: {}", note.sentence)))
        .collect();
    said.extend(
        mistakes
            .iter()
            .map(|note| (note.place(), note.sentence.clone())),
    );
    said.sort();
    for ((path, line, column), sentence) in &said {
        let path = printable(&path.display().to_string());
        let _ = writeln!(text, "{path}:{line}:{column}: {sentence}");
    }
    for warning in found.iter().flat_map(|found| &found.warnings) {
        let _ = writeln!(text, "{path}: warning: {warning}");
    }
    for obstacle in obstacles {
        let _ = writeln!(text, "{path}: {obstacle}");
    }
    // If the reader has gone away, nobody misses the rest.
    let _ = io::stderr().write_all(text.as_bytes());
    match refused {
        Some(what) => Err(Error::new(WrongUsage::new(format!("{path} has {what}")))),
        None if args.json => Ok(()),
        None => print(&format!("{path} can be used\n")),
    }
}

/// Everything, for programs.
fn as_json(
    args: &CheckArgs,
    warnings: &[Note],
    mistakes: &[Note],
    found: Option<&Found>,
) -> String {
    let path = args.config.display().to_string();
    let of_note = |note: &Note| {
        json!({
            "path": note.path.display().to_string(),
            "line": note.line,
            "column": note.column,
            "sentence": note.sentence,
        })
    };
    let of_host = |sentence: &String| json!({ "path": &path, "sentence": sentence });
    let warnings_of_host = found.into_iter().flat_map(|found| &found.warnings);
    let warnings = warnings
        .iter()
        .map(of_note)
        .chain(warnings_of_host.map(of_host));
    let told = json!({
        "configuration": &path,
        "mistakes": mistakes.iter().map(of_note).collect::<Vec<_>>(),
        "warnings": warnings.collect::<Vec<_>>(),
        "found": found,
    });
    format!("{told:#}\n")
}

#[cfg(test)]
mod tests {
    use netlab::Scratch;
    use splice::EngineName;

    use super::backends::Backends;
    use super::host::Host;
    use super::*;
    use crate::socket_address::SocketAddress;

    #[test]
    fn only_engines_that_a_listener_may_use_are_tried() {
        let scratch = Scratch::new("check").expect("a directory");
        let text = "[[listener]]\naddress = \"127.0.0.1:80\"\nengine = \"copy\"\n\
                    [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = \"127.0.0.1:81\"\n";
        let path = scratch.write("c.toml", text).expect("written");
        let plan = config::examine(&path).plan.expect("a plan");
        let resolved = names::resolve(&plan);
        let host = Host::default();
        let backends = Backends::new(&plan, &resolved);
        let listener = &plan.listeners[0];
        let listening = SocketAddress::to_listen(&listener.address).expect("an address");
        engine::report(listener, &listening, &backends, &host);
        assert_eq!(host.probed(), [EngineName::Copy]);
    }
}
