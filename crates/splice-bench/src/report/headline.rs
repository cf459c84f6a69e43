//! The one chart of the README: what a stranger sees first, in one image.

use anyhow::{Context, Result};
use maud::{Markup, PreEscaped, html};

use super::chart::{MUTED, PALETTE, image_file, kind_class, round, wrapped};
use crate::results::{Better, Quantity, Results, number};

/// Rows: what the results call a contestant, and what the image calls it.
const ROWS: [(&str, &str); 4] = [
    ("direct", "no relay"),
    ("spliced auto", "spliced"),
    ("HAProxy splice tuned", "HAProxy"),
    ("nginx stream", "nginx"),
];

/// Panels: the workload, its quantity, and what the image says of it.
const PANELS: [(&str, &str, &str); 3] = [
    ("bulk-both", "throughput", "Throughput, Gb/s"),
    ("ping-pong-64", "latency-p50", "Median latency, µs"),
    ("bulk-both", "cpu", "CPU seconds per GB"),
];

/// Sizes in px. A README is some 800 px wide on a large screen.
const WIDTH: f64 = 760.0;
const MARGIN: f64 = 16.0;
const NAMES: f64 = 72.0;
const PANEL: f64 = (WIDTH - 2.0 * MARGIN - NAMES) / 3.0;
/// Right of the longest bar: a value of four digits.
const VALUE: f64 = 44.0;
/// Between panels.
const GAP: f64 = 20.0;
const HEAD: f64 = 46.0;
const ROW: f64 = 27.0;
const BAR: f64 = 15.0;
const NOTE: f64 = 15.0;

/// The image, from the results of a comparison.
pub(crate) fn headline(results: &Results) -> Result<String> {
    let panels = PANELS
        .iter()
        .map(|&(workload, quantity, title)| {
            let found = find(results, workload, quantity);
            let quantity = found.with_context(|| {
                format!("the results have no {quantity} of {workload}, which the chart shows")
            })?;
            Ok((title, quantity, values(quantity)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let notes = wrapped(&footnote(results), WIDTH - 2.0 * MARGIN, MUTED);
    let bottom = MARGIN + HEAD + ROW * ROWS.len() as f64;
    let height = bottom + NOTE * notes.len() as f64 + MARGIN;
    let described: Vec<String> = panels
        .iter()
        .map(|(title, _, values)| {
            let each = ROWS.iter().zip(values);
            let each: Vec<String> = each
                .map(|((_, name), value)| format!("{name} {}", number(*value)))
                .collect();
            format!("{title}: {}", each.join(", "))
        })
        .collect();
    let markup = html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" class="chart"
            viewBox={ "0 0 " (WIDTH) " " (round(height)) } width=(WIDTH) height=(round(height)) {
            title { "spliced beside the direct path, HAProxy and nginx" }
            desc { (described.join(". ")) "." }
            style { (PreEscaped(PALETTE)) }
            rect class="ground" width="100%" height="100%" rx="8" {}
            @for (row, (_, name)) in ROWS.iter().enumerate() {
                text x=(MARGIN) y=(round(row_top(row) + BAR - 3.0)) { (name) }
            }
            @for (index, (title, quantity, values)) in panels.iter().enumerate() {
                (panel(results, index, title, quantity, values))
            }
            @for (index, note) in notes.iter().enumerate() {
                @let y = bottom + NOTE * (index as f64 + 1.0);
                text class="muted" x=(MARGIN) y=(round(y)) { (note) }
            }
        }
    };
    Ok(image_file(markup))
}

fn find<'a>(results: &'a Results, workload: &str, quantity: &str) -> Option<&'a Quantity> {
    let workload = results.workloads.iter().find(|one| one.id == workload)?;
    workload.quantities.iter().find(|one| one.id == quantity)
}

/// The medians of all rows.
fn values(quantity: &Quantity) -> Result<Vec<f64>> {
    let median = |(contestant, _): &(&str, &str)| {
        let mut measured = quantity.measured.iter();
        let found = measured.find(|one| one.contestant == *contestant);
        let found = found.with_context(|| {
            format!("the results have no figures of {contestant}, which the chart shows")
        })?;
        Ok(found.median)
    };
    ROWS.iter().map(median).collect()
}

fn row_top(row: usize) -> f64 {
    MARGIN + HEAD + ROW * row as f64
}

fn panel(
    results: &Results,
    index: usize,
    title: &str,
    quantity: &Quantity,
    values: &[f64],
) -> Markup {
    let left = MARGIN + NAMES + PANEL * index as f64;
    let longest = PANEL - GAP - VALUE;
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let better = match quantity.better {
        Better::Higher => "more is better",
        Better::Lower => "less is better",
    };
    html! {
        text class="title" x=(round(left)) y=(MARGIN + 12.0) { (title) }
        text class="muted" x=(round(left)) y=(MARGIN + 28.0) { (better) }
        @for (row, (value, (contestant, _))) in values.iter().zip(ROWS).enumerate() {
            @let width = longest * value / most;
            rect class=(kind_class(results, contestant)) x=(round(left)) y=(round(row_top(row))) rx="2"
                width=(round(width)) height=(BAR) {}
            text class="value" x=(round(left + width + 6.0)) y=(round(row_top(row) + BAR - 3.0)) {
                (number(*value))
            }
        }
    }
}

/// Where the figures come from.
fn footnote(results: &Results) -> String {
    let day = results.run.started.split('T').next().unwrap_or_default();
    let kernel = results.machine.kernel_release.split('-').next();
    format!(
        "Client, relay and server share one CPU ({}), Linux {}, {day}; medians of {} rounds. HAProxy splices, with pipes of 1 MiB.",
        results.machine.cpu_model,
        kernel.unwrap_or_default(),
        results.run.rounds
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::headline;
    use crate::report::specimen;
    use crate::results::Results;

    /// The newest comparison in docs/results that has all that the chart shows.
    fn newest(root: &Path) -> (String, Results) {
        let entries = fs::read_dir(root.join("docs/results")).expect("it is in the repository");
        let comparisons = entries.flatten().filter_map(|entry| {
            let text = fs::read_to_string(entry.path().join("results.json")).ok()?;
            let results = Results::from_json(&text).expect("published results are readable");
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_whole = headline(&results).is_ok();
            (is_whole && results.run.title == "splice-bench compare").then_some((name, results))
        });
        comparisons
            .max_by(|one, other| one.1.run.started.cmp(&other.1.run.started))
            .expect("a comparison has been published")
    }

    #[test]
    fn the_chart_of_the_readme_is_that_of_the_newest_comparison() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (name, results) = newest(&root);
        let drawn = headline(&results).expect("it has all that the chart shows");
        let published = fs::read_to_string(root.join("docs/chart.svg")).unwrap_or_default();
        assert!(
            drawn == published,
            "docs/chart.svg is old: run `splice-bench chart docs/results/{name} docs/chart.svg`"
        );
    }

    #[test]
    fn results_without_what_the_chart_shows_are_refused() {
        let error = headline(&specimen::empty()).expect_err("nothing was measured");
        assert!(error.to_string().contains("bulk-both"), "{error}");
    }
}
