//! Lines: latencies over percentiles, values over time.

use maud::{Markup, html};

use super::chart::{Chart, WIDTH, legend, line_class, round, which_way};
use super::scale::{Scale, nines, tick_words};
use crate::results::{Kind, Latencies, Results, Series, Workload};

/// Room for the values left of the plot, and for half a label right of it.
const LEFT: f64 = 44.0;
const RIGHT: f64 = 14.0;
/// The plot itself.
const TOP: f64 = 10.0;
const BOTTOM: f64 = 220.0;
/// Where the legend begins.
const LEGEND: f64 = BOTTOM + 30.0;

/// More lines than this in one plot cannot be told apart: ours and the peers then get one each, both
/// with the reference in it.
const LINES: usize = 8;

/// Percentiles that are written at the axis.
const PERCENTILES: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99];

/// A line, whatever it is over.
struct Curve<'a> {
    contestant: &'a str,
    /// Places on the horizontal axis with their values.
    points: Vec<(f64, f64)>,
}

/// Latencies over the percentiles.
pub(crate) fn latencies(results: &Results, workload: &Workload, all: &Latencies) -> Vec<Chart> {
    let curves: Vec<Curve<'_>> = all
        .distributions
        .iter()
        .map(|one| Curve {
            contestant: &one.contestant,
            points: one
                .percentiles
                .iter()
                .map(|&(percentile, value)| (nines(percentile), value))
                .collect(),
        })
        .filter(|curve| !curve.points.is_empty())
        .collect();
    let values = || curves.iter().flat_map(|curve| &curve.points);
    let largest = values().map(|point| point.1).fold(0.0, f64::max);
    let end = values().map(|point| point.0).fold(1.0, f64::max);
    let multiple = all.unit.multiple(largest);
    let across = Scale::from_zero(end, 1.0, 4.0, (LEFT, WIDTH - RIGHT));
    let up = Scale::over(values().map(|point| point.1), multiple.size, (BOTTOM, TOP));
    let axis = html! {
        @for percentile in PERCENTILES.into_iter().filter(|&one| nines(one) <= end + 0.01) {
            @let x = across.at(nines(percentile));
            line class="grid" x1=(round(x)) x2=(round(x)) y1=(TOP) y2=(BOTTOM) {}
            text class="muted" x=(round(x)) y=(BOTTOM + 16.0) text-anchor="middle" {
                (percentile) @if percentile == 0.0 { " %" }
            }
        }
    };
    let described = |curve: &Curve<'_>| {
        let distribution = all
            .distributions
            .iter()
            .find(|one| one.contestant == curve.contestant);
        let told: Vec<String> = [50.0, 99.0, 99.9]
            .into_iter()
            .filter_map(|percentile| Some((percentile, distribution?.at(percentile)?)))
            .map(|(percentile, value)| format!("{percentile} % {}", all.unit.tell(value)))
            .collect();
        format!("{}: {}", curve.contestant, told.join(", "))
    };
    panels(results, &curves)
        .into_iter()
        .map(|panel| {
            let (lines, height) = plot(results, &panel.curves, &across, &up, multiple.size);
            let words: Vec<String> = panel.curves.iter().map(|one| described(one)).collect();
            Chart {
                id: format!("{}-latency{}", workload.id, panel.suffix),
                title: format!("{}: {}{}", workload.title, all.title, panel.title),
                heading: format!("{}{}", all.title, panel.title),
                subtitle: format!("{} over the percentile; lower is better", multiple.symbol),
                description: format!("Lines over percentiles. {}.", words.join("; ")),
                height,
                body: html! { (axis) (lines) },
            }
        })
        .collect()
}

/// Values over time.
pub(crate) fn series(results: &Results, workload: &Workload, all: &Series) -> Vec<Chart> {
    let curves: Vec<Curve<'_>> = all
        .lines
        .iter()
        .filter(|line| !line.points.is_empty())
        .map(|line| Curve {
            contestant: &line.contestant,
            points: line.points.clone(),
        })
        .collect();
    let values = || curves.iter().flat_map(|curve| &curve.points);
    let largest = values().map(|point| point.1).fold(0.0, f64::max);
    let end = values().map(|point| point.0).fold(0.0, f64::max);
    let multiple = all.unit.multiple(largest);
    let across = Scale::from_zero(end, 1.0, 5.0, (LEFT, WIDTH - RIGHT));
    // From zero, whatever the values: how much is held is the point.
    let zero = values().map(|point| point.1).chain([0.0]);
    let up = Scale::over(zero, multiple.size, (BOTTOM, TOP));
    let axis = html! {
        @for (index, &tick) in across.ticks.iter().enumerate() {
            line class="grid" x1=(round(across.at(tick))) x2=(round(across.at(tick))) y1=(TOP) y2=(BOTTOM) {}
            text class="muted" x=(round(across.at(tick))) y=(BOTTOM + 16.0) text-anchor="middle" {
                (tick_words(tick)) @if index == 0 { " s" }
            }
        }
    };
    let described = |curve: &Curve<'_>| {
        let most = curve.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let last = curve.points.last().map_or(0.0, |point| point.1);
        format!(
            "{}: at most {}, {} at the end",
            curve.contestant,
            all.unit.tell(most),
            all.unit.tell(last)
        )
    };
    panels(results, &curves)
        .into_iter()
        .map(|panel| {
            let (lines, height) = plot(results, &panel.curves, &across, &up, multiple.size);
            let words: Vec<String> = panel.curves.iter().map(|one| described(one)).collect();
            Chart {
                id: format!("{}-over-time{}", workload.id, panel.suffix),
                title: format!("{}: {}{}", workload.title, all.title, panel.title),
                heading: format!("{}{}", all.title, panel.title),
                subtitle: format!("{} over time; {}", multiple.symbol, which_way(all.better)),
                description: format!("Lines over time. {}.", words.join("; ")),
                height,
                body: html! { (axis) (lines) },
            }
        })
        .collect()
}

/// Curves that are drawn together.
struct Panel<'a, 'b> {
    suffix: &'static str,
    title: &'static str,
    curves: Vec<&'a Curve<'b>>,
}

fn panels<'a, 'b>(results: &Results, curves: &'a [Curve<'b>]) -> Vec<Panel<'a, 'b>> {
    let kind = |curve: &&Curve<'_>| {
        let known = results
            .contestants
            .iter()
            .find(|one| one.name == curve.contestant);
        known.map_or(Kind::Peer, |one| one.kind)
    };
    let of = |wanted: Kind, suffix, title| Panel {
        suffix,
        title,
        curves: curves
            .iter()
            .filter(|curve| kind(curve) == Kind::Reference || kind(curve) == wanted)
            .collect(),
    };
    let both = [Kind::Ours, Kind::Peer]
        .iter()
        .all(|wanted| curves.iter().any(|curve| kind(&curve) == *wanted));
    if curves.is_empty() {
        Vec::new()
    } else if curves.len() <= LINES || !both {
        vec![Panel {
            suffix: "",
            title: "",
            curves: curves.iter().collect(),
        }]
    } else {
        vec![
            of(Kind::Ours, "-ours", ", spliced"),
            of(Kind::Peer, "-peers", ", peers"),
        ]
    }
}

/// The values' axis, the lines and the legend; returns the height of all.
fn plot(
    results: &Results,
    curves: &[&Curve<'_>],
    across: &Scale,
    up: &Scale,
    unit: f64,
) -> (Markup, f64) {
    let entries: Vec<(String, String)> = curves
        .iter()
        .map(|curve| {
            (
                line_class(results, curve.contestant),
                curve.contestant.to_owned(),
            )
        })
        .collect();
    let (names, height) = legend(&entries, LEGEND);
    let markup = html! {
        @for &tick in &up.ticks {
            line class="grid" x1=(LEFT) x2=(round(WIDTH - RIGHT)) y1=(round(up.at(tick))) y2=(round(up.at(tick))) {}
            text class="muted" x=(LEFT - 6.0) y=(round(up.at(tick) + 4.0)) text-anchor="end" { (tick_words(tick / unit)) }
        }
        line class="axis" x1=(LEFT) x2=(round(WIDTH - RIGHT)) y1=(BOTTOM) y2=(BOTTOM) {}
        @for (curve, (class, name)) in curves.iter().zip(&entries) {
            path class={ "line " (class) } d=(path(&curve.points, across, up)) { title { (name) } }
        }
        (names)
    };
    (markup, LEGEND + height)
}

fn path(points: &[(f64, f64)], across: &Scale, up: &Scale) -> String {
    let places: Vec<String> = points
        .iter()
        .map(|&(x, y)| format!("{} {}", round(across.at(x)), round(up.at(y))))
        .collect();
    // A single point shows as the dot that round line ends make of it.
    match places.as_slice() {
        [only] => format!("M{only}h.1"),
        all => format!("M{}", all.join("L")),
    }
}
