//! `spliced doctor`: prints which engines work on this host, as text or JSON.

mod counts;
mod features;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};
use splice::doctor::{Finding, Report, examine, segment_counts};
use splice_sockmap::{Defect, Step, defects, time_line};

use self::counts::Counts;
use self::features::{Feature, features};
use crate::cli::DoctorArgs;
use crate::resource_limit::raise_descriptor_limit;
use crate::standard_output::print;

/// The longest line of the text, in columns.
const WIDTH: usize = 80;
/// Columns of the name and of the verdict.
const NAME_WIDTH: usize = 10;
const VERDICT_WIDTH: usize = 9;

/// Examines this host and prints the report.
///
/// # Errors
/// If the report cannot be printed.
pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    // The same limit as in a relay.
    raise_descriptor_limit(None);
    // Before the trials, which load a program of their own.
    let counts = segment_counts();
    let engines = examine();
    let maps = Maps {
        defects: defects(),
        time_line: time_line(),
    };
    let features = features();
    let text = if args.json {
        format!("{:#}\n", as_json(&engines, &maps, &features, &counts))
    } else {
        as_text(&engines, &maps, &features, &counts)
    };
    print(&text)
}

/// What is told of maps of sockets.
struct Maps {
    defects: Vec<Defect>,
    time_line: Vec<Step>,
}

fn as_json(engines: &Report, maps: &Maps, features: &[Feature], counts: &Counts) -> Value {
    let engine = |finding: &Finding| {
        json!({
            "engine": finding.engine.as_str(),
            "verdict": finding.verdict.as_str(),
            "reason": finding.reason,
            "remedy": finding.remedy,
        })
    };
    let defect = |defect: &Defect| {
        json!({
            "name": defect.name,
            "present": defect.present,
            "reason": defect.reason,
        })
    };
    let step = |step: &Step| {
        json!({
            "since": step.since,
            "what": step.what,
            "works": step.works,
            "reason": step.reason,
        })
    };
    let feature = |feature: &Feature| {
        json!({
            "since": feature.since,
            "what": feature.what,
            "works": feature.works,
            "reason": feature.reason,
        })
    };
    json!({
        "kernel": engines.kernel,
        "engines": engines.engines.iter().map(engine).collect::<Vec<_>>(),
        "defects": maps.defects.iter().map(defect).collect::<Vec<_>>(),
        "time_line": maps.time_line.iter().map(step).collect::<Vec<_>>(),
        "features": features.iter().map(feature).collect::<Vec<_>>(),
        // null where they cannot be read, which is not the same as none.
        "segments": counts.as_ref().ok().map(|counts| counts.iter().copied().collect::<BTreeMap<_, _>>()),
    })
}

fn as_text(engines: &Report, maps: &Maps, features: &[Feature], counts: &Counts) -> String {
    let mut text = format!("Linux {}\n\nEngines\n", engines.kernel);
    for finding in &engines.engines {
        let mut words = finding.reason.clone();
        if let Some(remedy) = &finding.remedy {
            let remedies = engines
                .engines
                .iter()
                .filter(|other| other.remedy.as_ref() == Some(remedy));
            match remedies.map(|other| other.engine).next() {
                Some(first) if first != finding.engine => {
                    words = format!("{words}\nRemedy: that of {first}");
                }
                _ => words = format!("{words}\nRemedy: {remedy}"),
            }
        }
        add_row(
            &mut text,
            finding.engine.as_str(),
            finding.verdict.as_str(),
            &words,
        );
    }
    text.push_str("\nDefects of the kernel\n");
    for defect in &maps.defects {
        let presence = match defect.present {
            Some(true) => "present",
            Some(false) => "absent",
            None => "unknown",
        };
        add_row(
            &mut text,
            defect.name,
            presence,
            &once(engines, &defect.reason),
        );
    }
    text.push_str("\nMaps of sockets, since which Linux and whether here\n");
    for step in &maps.time_line {
        let words = format!("{}: {}", step.what, once(engines, &step.reason));
        add_row(&mut text, step.since, whether(step.works), &words);
    }
    text.push_str("\nOther features of the kernel, since which Linux and whether here\n");
    for feature in features {
        let words = format!("{}: {}", feature.what, feature.reason);
        add_row(&mut text, feature.since, whether(feature.works), &words);
    }
    text.push_str("\nSegments in the relays that run, by what became of them (docs/segment.md)\n");
    add_counts(&mut text, counts);
    text
}

fn whether(works: Option<bool>) -> &'static str {
    match works {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
}

/// `reason` without what is said of an engine already.
fn once(engines: &Report, reason: &str) -> String {
    let refused = engines.engines.iter().filter_map(|finding| {
        let remedy = finding.remedy.as_ref()?;
        Some((format!("{}; {remedy}", finding.reason), finding.engine))
    });
    let mut said = reason.to_owned();
    for (sentence, engine) in refused {
        said = said.replace(&sentence, &format!("as engine {engine}"));
    }
    said
}

fn add_counts(text: &mut String, counts: &Counts) {
    for line in counts::lines(counts) {
        for line in broken(&line, WIDTH - 2) {
            let _ = writeln!(text, "  {line}");
        }
    }
}

/// A row of three columns. The last one is broken into lines.
fn add_row(text: &mut String, name: &str, verdict: &str, words: &str) {
    const INDENT: usize = 2;
    let (mut name, mut verdict) = (name, verdict);
    let most = WIDTH - INDENT - NAME_WIDTH - VERDICT_WIDTH;
    for line in words.lines().flat_map(|line| broken(line, most)) {
        let _ = writeln!(
            text,
            "{:INDENT$}{name:NAME_WIDTH$}{verdict:VERDICT_WIDTH$}{line}",
            ""
        );
        (name, verdict) = ("", "");
    }
}

/// Breaks `words` into lines of at most `most` characters; a longer word gets its own line.
fn broken(words: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}
