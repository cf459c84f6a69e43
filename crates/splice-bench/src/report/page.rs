//! `report.html`: everything in one file that needs nothing else, not even a script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::PALETTE;
use super::listing::{Listing, of_conditions, of_missing, of_workload};
use super::scale::tick_words;
use super::{charts, facts, overview};
use crate::results::{Outcome, Results, Verdict, Workload, number};

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub(crate) fn page(results: &Results) -> String {
    let run = &results.run;
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (run.title) ", " (results.machine.kernel_release) ", " (run.started) }
                // Browsers ask for an icon otherwise, and complain that there is none.
                link rel="icon" href="data:,";
                style { (PreEscaped(PALETTE)) (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (run.title) }
                    p class="muted" { (run.started) " on Linux " (results.machine.kernel_release) }
                    @if !run.complete {
                        p { strong class="missed" { (super::INTERRUPTED) } }
                    }
                    pre { code { (run.command) } }
                    (facts_list(results))
                }
                main {
                    (contents(results))
                    (glance(results))
                    (checks(results))
                    @for workload in &results.workloads { (section(results, workload)) }
                    (missing(results))
                    (notes(results))
                    (conditions(results))
                }
                footer {
                    p {
                        "Made by splice-bench from " code { "results.json" } " in the same directory, schema "
                        (results.schema.name) " version " (results.schema.version) "."
                    }
                }
            }
        }
    };
    markup.into_string()
}

fn facts_list(results: &Results) -> Markup {
    html! {
        dl class="facts card" {
            @for (name, value) in facts(results) { div { dt { (name) } dd { (value) } } }
        }
    }
}

fn contents(results: &Results) -> Markup {
    html! {
        nav aria-label="Contents" {
            ol {
                li { a href="#glance" { "At a glance" } }
                @if !results.checks.is_empty() { li { a href="#checks" { "Checks" } } }
                @for workload in &results.workloads {
                    li { a href={ "#" (workload.id) } { (workload.title) } }
                }
                @if !results.missing.is_empty() { li { a href="#missing" { "Missing" } } }
                li { a href="#conditions" { "Contestants, programs, settings" } }
            }
        }
    }
}

/// Every ratio in one table.
fn glance(results: &Results) -> Markup {
    let rows: Vec<_> = results
        .workloads
        .iter()
        .flat_map(|workload| workload.quantities.iter().map(move |one| (workload, one)))
        .filter(|(_, quantity)| quantity.measured.iter().any(|one| one.ratio.is_some()))
        .collect();
    // The reference has no ratio, and needs no column.
    let columns: Vec<&str> = results
        .contestants
        .iter()
        .map(|one| one.name.as_str())
        .filter(|name| {
            let has = |(_, quantity): &(_, &crate::results::Quantity)| {
                let mut all = quantity.measured.iter();
                all.any(|one| one.contestant == *name && one.ratio.is_some())
            };
            rows.iter().any(has)
        })
        .collect();
    html! {
        h2 id="glance" { "At a glance" }
        @if rows.is_empty() {
            p { "Nothing here has a reference." }
        } @else {
            p {
                "Each value over that of the reference, measured in the same rounds. A colour says that the "
                (tick_words(results.run.confidence * 100.0)) "\u{a0}% interval of the ratio lies on one side of 1; without one, "
                "the rounds do not support calling a difference."
            }
            p class="key" {
                span class="better" { "better" } " " span class="worse" { "worse" } " " span { "no difference" }
            }
            div class="scroll" tabindex="0" role="region" aria-label="Ratios to the reference" {
                table class="matrix" {
                    thead { tr {
                        th scope="col" { "Measured" }
                        @for name in &columns { th scope="col" { (name) } }
                    } }
                    tbody {
                        @for (workload, quantity) in &rows {
                            tr {
                                th scope="row" {
                                    a href={ "#" (workload.id) } { (workload.title) }
                                    span class="muted" { " " (quantity.title) }
                                }
                                @for name in &columns {
                                    @let ratio = quantity.measured.iter()
                                        .find(|one| one.contestant == *name).and_then(|one| one.ratio);
                                    @match ratio {
                                        Some(ratio) => td class=(verdict_class(ratio.verdict)) title=(ratio.verdict) { (number(ratio.median)) }
                                        None => td { "–" }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            @let charts = overview(results);
            @if !charts.is_empty() {
                div class="charts" { @for chart in &charts { (chart.inline()) } }
            }
        }
    }
}

fn verdict_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NoDifference => "same",
    }
}

fn checks(results: &Results) -> Markup {
    let class = |outcome| match outcome {
        Outcome::Met => "met",
        Outcome::Missed => "missed",
        Outcome::Undecided | Outcome::NotMeasured => "",
    };
    html! {
        @if !results.checks.is_empty() {
            h2 id="checks" { "Checks" }
            div class="scroll" tabindex="0" role="region" aria-label="Checks" {
                table class="stack" {
                    thead { tr {
                        th scope="col" { "Check" } th scope="col" { "Expected" }
                        th scope="col" { "Found" } th scope="col" class="words" { "Outcome" }
                    } }
                    tbody {
                        @for check in &results.checks {
                            tr {
                                th scope="row" { (check.title) }
                                td data-of="Expected" { (check.asked) }
                                td data-of="Found" { (check.reached) }
                                td data-of="Outcome" class="words" { span class=(class(check.outcome)) { (check.outcome) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn section(results: &Results, workload: &Workload) -> Markup {
    let charts = charts(results, workload);
    html! {
        section aria-labelledby=(workload.id) {
            h2 id=(workload.id) { (workload.title) }
            p { (workload.description) }
            @if !workload.parameters.is_empty() {
                ul class="parameters" {
                    @for one in &workload.parameters { li { span class="muted" { (one.name) ":" } " " (one.value) } }
                }
            }
            @if !charts.is_empty() {
                div class="charts" { @for chart in &charts { (chart.inline()) } }
            }
            @for note in &workload.notes { p { (note) } }
            @for one in &workload.missing { p { strong { (one.what) } ": " (one.why) } }
            @let tables = of_workload(workload);
            @if !tables.is_empty() {
                details {
                    summary { "Every figure: " (workload.title) }
                    @for one in &tables { (table(one)) }
                }
            }
        }
    }
}

fn table(table: &Listing) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(table.caption) {
            table {
                caption { (table.caption) }
                thead { tr { @for heading in &table.headings { th scope="col" { (heading) } } } }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (index, cell) in row.iter().enumerate() {
                                @if index == 0 { th scope="row" { (cell) } }
                                @else if cell == "better" || cell == "worse" { td class=(cell) { (cell) } }
                                @else { td { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn missing(results: &Results) -> Markup {
    html! {
        @if !results.missing.is_empty() {
            h2 id="missing" { "Missing" }
            (words(&of_missing(results)))
        }
    }
}

fn notes(results: &Results) -> Markup {
    html! {
        @if !results.notes.is_empty() {
            h2 { "Remarks" }
            @for note in &results.notes { p { (note) } }
        }
    }
}

fn conditions(results: &Results) -> Markup {
    html! {
        h2 id="conditions" { "Contestants, programs, settings" }
        @for one in of_conditions(results) {
            details { summary { (one.caption) } (words(&one)) }
        }
    }
}

/// A table of words rather than figures.
fn words(table: &Listing) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(table.caption) {
            table class="stack" {
                thead { tr { @for heading in &table.headings { th scope="col" class="words" { (heading) } } } }
                tbody {
                    @for row in &table.rows {
                        tr { @for (heading, cell) in table.headings.iter().zip(row) {
                            @if *heading == table.headings[0] { th scope="row" { (cell) } }
                            @else { td class="long" data-of=(heading) { (cell) } }
                        } }
                    }
                }
            }
        }
    }
}
