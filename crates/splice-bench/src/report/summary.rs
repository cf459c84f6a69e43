//! `summary.md`: the figures for who reads text, or a page of a forge.

use std::fmt::{self, Write};

use super::chart::Chart;
use super::listing::{Listing, of_conditions, of_missing, of_workload};
use super::{chart_file, charts, facts, overview};
use crate::results::{Results, Workload};

/// The whole text.
pub(crate) fn summary(results: &Results) -> String {
    let mut out = String::new();
    write(&mut out, results).expect("a string takes all that is written to it");
    out
}

fn write(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(out, "# {}\n", results.run.title)?;
    writeln!(
        out,
        "{} on Linux {}. The same with charts to look at: `report.html`; the raw values: `results.json`.\n",
        results.run.started, results.machine.kernel_release
    )?;
    writeln!(out, "```\n{}\n```\n", results.run.command)?;
    for (name, value) in facts(results) {
        writeln!(out, "- {name}: {}", escaped(&value))?;
    }
    let together = overview(results);
    if !together.is_empty() {
        writeln!(out, "\n## At a glance")?;
        write_charts(out, &together)?;
    }
    if !results.checks.is_empty() {
        let mut table = Listing::new("", &["Figure", "Asked", "Reached", "Outcome"]);
        table.rows = results
            .checks
            .iter()
            .map(|one| {
                vec![
                    one.title.clone(),
                    one.asked.clone(),
                    one.reached.clone(),
                    one.outcome.to_string(),
                ]
            })
            .collect();
        writeln!(out, "\n## Checks\n")?;
        write_table(out, &table)?;
    }
    for workload in &results.workloads {
        write_workload(out, results, workload)?;
    }
    if !results.missing.is_empty() {
        writeln!(out, "\n## Missing\n")?;
        write_table(out, &of_missing(results))?;
    }
    if !results.notes.is_empty() {
        writeln!(out, "\n## Remarks")?;
        for note in &results.notes {
            writeln!(out, "\n{note}")?;
        }
    }
    for table in of_conditions(results) {
        writeln!(out, "\n## {}\n", table.caption)?;
        write_table(out, &table)?;
    }
    Ok(())
}

fn write_workload(out: &mut String, results: &Results, workload: &Workload) -> fmt::Result {
    writeln!(out, "\n## {}\n\n{}", workload.title, workload.description)?;
    if !workload.parameters.is_empty() {
        let all: Vec<String> = workload
            .parameters
            .iter()
            .map(|one| format!("{}: {}", one.name, one.value))
            .collect();
        writeln!(out, "\n{}", escaped(&all.join("; ")))?;
    }
    write_charts(out, &charts(results, workload))?;
    for note in &workload.notes {
        writeln!(out, "\n{note}")?;
    }
    for one in &workload.missing {
        writeln!(out, "\n{}: {}", escaped(&one.what), escaped(&one.why))?;
    }
    for table in of_workload(workload) {
        writeln!(out, "\n{}:\n", table.caption)?;
        write_table(out, &table)?;
    }
    Ok(())
}

fn write_charts(out: &mut String, charts: &[Chart]) -> fmt::Result {
    if !charts.is_empty() {
        writeln!(out)?;
    }
    for chart in charts {
        writeln!(out, "![{}]({})", escaped(&chart.title), chart_file(chart))?;
    }
    Ok(())
}

fn write_table(out: &mut String, table: &Listing) -> fmt::Result {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |", cells.join(" | "))
    };
    writeln!(out, "{}", line(&table.headings))?;
    writeln!(out, "|{}", "---|".repeat(table.headings.len()))?;
    for row in &table.rows {
        writeln!(out, "{}", line(row))?;
    }
    Ok(())
}

/// `text` so that it stays in its cell and stands for itself.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '\n' => out.push(' '),
            '|' | '[' | ']' | '<' | '*' | '_' | '`' | '\\' => {
                out.push('\\');
                out.push(letter);
            }
            other => out.push(other),
        }
    }
    out
}
