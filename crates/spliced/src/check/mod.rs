//! `spliced check`: every mistake of a configuration, and what it comes to on this host.

mod backends;
mod engine;
mod host;
mod names;
mod servers;
mod source;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::{Error, Result};

use crate::check::backends::Backends;
use crate::check::host::Host;
use crate::check::names::Resolved;
use crate::check::servers::Idle;
use crate::cli::CheckArgs;
use crate::config::{self, Examined};
use crate::plan::{BackendPlan, Plan};
use crate::refusal::WrongUsage;
use crate::standard_output::print;

/// Writes every mistake and warning to stderr, one a line, and what the plan does to stdout.
///
/// # Errors
/// If the configuration has mistakes, or the report cannot be printed.
pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    let path = args.config.display();
    let Examined { plan, warnings } = config::examine(&args.config);
    let mut said: Vec<_> = warnings
        .iter()
        .map(|note| (note.place(), format!("warning: {}", note.sentence)))
        .collect();
    let mistakes = plan.as_ref().err().map_or(&[][..], |mistakes| &mistakes.0);
    said.extend(
        mistakes
            .iter()
            .map(|note| (note.place(), note.sentence.clone())),
    );
    said.sort();
    let mut text = String::new();
    for ((path, line, column), sentence) in &said {
        let path = path.display();
        let _ = writeln!(text, "{path}:{line}:{column}: {sentence}");
    }
    let refused = match &plan {
        Err(mistakes) => Some(counted(mistakes.0.len(), "mistake")),
        Ok(plan) => {
            let resolved = names::resolve(plan);
            let found = Found::of(plan, &resolved);
            print(&found.report)?;
            for warning in &found.warnings {
                let _ = writeln!(text, "{path}: warning: {warning}");
            }
            for obstacle in &found.obstacles {
                let _ = writeln!(text, "{path}: {obstacle}");
            }
            (!found.obstacles.is_empty()).then(|| {
                format!(
                    "{} on this host",
                    counted(found.obstacles.len(), "obstacle")
                )
            })
        }
    };
    // If the reader has gone away, nobody misses the rest.
    let _ = io::stderr().write_all(text.as_bytes());
    match refused {
        Some(what) => Err(Error::new(WrongUsage::new(format!("{path} has {what}")))),
        None => print(&format!("{path} can be used\n")),
    }
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// What this host makes of a plan.
#[derive(Debug, Default)]
struct Found {
    /// What each listener and backend does.
    report: String,
    /// What does not work now, but may later.
    warnings: Vec<String>,
    /// What keeps the plan from running.
    obstacles: Vec<String>,
}

impl Found {
    fn of(plan: &Plan, resolved: &Resolved) -> Self {
        let mut found = Self::default();
        let host = Host::default();
        let backends = Backends::new(plan, resolved);
        for listener in &plan.listeners {
            engine::report(listener, &backends, &host, &mut found);
        }
        for backend in &plan.backends {
            found.backend(backend, resolved);
        }
        found
    }

    fn backend(&mut self, backend: &BackendPlan, resolved: &Resolved) {
        let idle = Idle::of(backend);
        let _ = match idle.told() {
            Some(told) => writeln!(self.report, "backend {}: {told}", backend.name),
            None => writeln!(self.report, "backend {}", backend.name),
        };
        if idle.are_all() {
            self.warnings.push(format!(
                "backend {:?} has no server that takes clients: each is disabled or has weight 0; enable one, or give it \
                 a weight from 1 on",
                backend.name
            ));
        }
        for server in &backend.servers {
            let name = server.address.to_string();
            let line = match resolved.of(&server.address) {
                Ok(addresses) => {
                    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                    let addresses = addresses.join(", ");
                    match addresses == name {
                        true => name,
                        false => format!("{name} is {addresses}"),
                    }
                }
                Err(why) => {
                    let backend = &backend.name;
                    self.warnings
                        .push(format!("server {name} of backend {backend:?}: {why}"));
                    format!("{name} is not known: {why}")
                }
            };
            let _ = writeln!(self.report, "  {line}");
        }
        source::report(backend, resolved, self);
        self.report.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use netlab::Scratch;
    use splice::EngineName;

    use super::*;

    #[test]
    fn only_engines_that_a_listener_may_use_are_tried() {
        let scratch = Scratch::new("check").expect("a directory");
        let text = "[[listener]]\naddress = \"127.0.0.1:80\"\nengine = \"copy\"\n\
                    [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = \"127.0.0.1:81\"\n";
        let path = scratch.write("c.toml", text).expect("written");
        let plan = config::examine(&path).plan.expect("a plan");
        let resolved = names::resolve(&plan);
        let (host, mut found) = (Host::default(), Found::default());
        let backends = Backends::new(&plan, &resolved);
        engine::report(&plan.listeners[0], &backends, &host, &mut found);
        assert_eq!(host.probed(), [EngineName::Copy]);
    }
}
