//! How and where figures were taken, with which contestants, and the checks.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// How the figures were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// Title of the page: "splice-bench compare".
    pub(crate) title: String,
    /// The exact command line, quoted so that a shell takes it.
    pub(crate) command: String,
    /// When it began, UTC: "2026-11-20T12:38:00Z".
    pub(crate) started: String,
    pub(crate) duration_seconds: f64,
    /// Whether it came to its end; one that was interrupted holds what was measured until then.
    pub(crate) complete: bool,
    pub(crate) placement: Placement,
    /// Whether a SCHED_IDLE spinner kept the CPUs awake.
    pub(crate) spinner: bool,
    /// How often each contestant was measured on each workload.
    pub(crate) rounds: u32,
    /// What goes before a measurement and does not count, in words.
    pub(crate) warm_up: String,
    /// How much the intervals hold: 0.95.
    pub(crate) confidence: f64,
    /// Resamples of the bootstrap behind them.
    pub(crate) resamples: u32,
}

/// The command line of this program, quoted so that a shell takes it.
pub(crate) fn command_line() -> String {
    quoted(std::env::args_os().map(|word| word.to_string_lossy().into_owned()))
}

fn quoted(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words
        // No argument of a program can have the NUL that cannot be quoted.
        .map(|word| shlex::try_quote(&word).map_or_else(|_| word.clone(), Into::into))
        .collect();
    words.join(" ")
}

/// `when` as [`Run::started`] has it.
pub(crate) fn started(when: SystemTime) -> String {
    humantime::format_rfc3339_seconds(when).to_string()
}

/// Which CPUs client, relay and server ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Placement {
    /// All share this one.
    OneCpu { cpu: usize },
    /// All may use any of so many.
    Spread { cpus: usize },
}

/// The computer and its kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) cpu_model: String,
    pub(crate) cpus: usize,
    pub(crate) memory_bytes: u64,
    /// What it is virtualised by; `None` when nothing says so.
    pub(crate) virtualisation: Option<String>,
    /// Defects of the CPU and what the kernel does about them, from
    /// `/sys/devices/system/cpu/vulnerabilities`; those that do not affect it are left out.
    pub(crate) mitigations: Vec<Mitigation>,
    /// `uname -r`.
    pub(crate) kernel_release: String,
    /// `uname -v`.
    pub(crate) kernel_version: String,
    /// The parameters of the kernel that bear on speed (mitigations, isolated CPUs, idle states).
    pub(crate) kernel_parameters: Vec<String>,
    /// How the CPU's frequency is governed; `None` when the machine does not say.
    pub(crate) cpu_governor: Option<String>,
    /// The clock that times are taken from: "tsc".
    pub(crate) clock_source: Option<String>,
    /// The distribution: "Debian GNU/Linux 12 (bookworm)".
    pub(crate) distribution: Option<String>,
}

/// One line of `/sys/devices/system/cpu/vulnerabilities`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mitigation {
    pub(crate) defect: String,
    pub(crate) state: String,
}

/// A setting of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sysctl {
    /// Where: "machine", or the namespaces that it was the same in: "client, relay, server".
    pub(crate) scope: String,
    pub(crate) name: String,
    pub(crate) value: String,
}

/// A program that took part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    pub(crate) name: String,
    /// What it says about itself.
    pub(crate) version: String,
    /// The commit that it was built from; of our own programs only.
    pub(crate) commit: Option<String>,
}

/// A contestant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contestant {
    /// Unique, and the same in every run.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// How it was set up, in a line.
    pub(crate) how: String,
}

/// The kind of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// What the others are held against: the direct path.
    Reference,
    /// An engine of spliced.
    Ours,
    /// A program of others.
    Peer,
}

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Missing {
    /// A contestant, a workload, or one on the other.
    pub(crate) what: String,
    pub(crate) why: String,
}

/// A check and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check {
    /// "spliced pipe: Gb/s over that of HAProxy splice".
    pub(crate) title: String,
    /// "at least 1.4", with unit.
    pub(crate) asked: String,
    /// "1.34 (1.31 to 1.38)", with unit; "-" when there is nothing.
    pub(crate) reached: String,
    pub(crate) outcome: Outcome,
}

/// How a [`Check`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Met,
    Missed,
    /// The interval holds what was asked: neither can be said.
    Undecided,
    NotMeasured,
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::{quoted, started};

    #[test]
    fn a_shell_takes_the_command_line() {
        let words = ["splice-bench", "--only", "spliced copy", "it's"];
        let line = quoted(words.into_iter().map(str::to_owned));
        assert_eq!(line, r#"splice-bench --only 'spliced copy' "it's""#);
    }

    #[test]
    fn time_is_told_in_utc() {
        assert_eq!(started(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00Z");
    }
}
