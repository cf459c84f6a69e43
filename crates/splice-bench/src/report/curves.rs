//! Lines: latencies over percentiles, values over time, ratios over a parameter.

use maud::{Markup, html};

use super::chart::{Chart, WIDTH, legend, line_class, round, which_way};
use super::scale::{Scale, nines, tick_words};
use crate::results::{Kind, Latencies, Quantity, Results, Series, Workload, number};

/// Room for the values left of the plot, and for half a label right of it.
const LEFT: f64 = 44.0;
const RIGHT: f64 = 20.0;
/// The plot itself.
const TOP: f64 = 10.0;
const BOTTOM: f64 = 220.0;
/// Where the legend begins.
const LEGEND: f64 = BOTTOM + 30.0;

/// From the left end of a plot to the right.
const ACROSS: (f64, f64) = (LEFT, WIDTH - RIGHT);
/// From the bottom of a plot to its top.
const UP: (f64, f64) = (BOTTOM, TOP);

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
    /// Its values in words.
    described: String,
}

/// Where curves are drawn.
struct Axes {
    across: Scale,
    /// What is written at the horizontal axis, and where.
    marks: Vec<(f64, String)>,
    up: Scale,
    /// What one is of the values that are written at the vertical axis.
    unit: f64,
}

/// What is said of curves.
struct Words {
    id: String,
    /// What stands above the chart in the page, and before its heading elsewhere.
    above: String,
    heading: String,
    subtitle: String,
}

/// Latencies over the percentiles.
pub(crate) fn latencies(results: &Results, workload: &Workload, all: &Latencies) -> Vec<Chart> {
    let curves: Vec<Curve<'_>> = all
        .distributions
        .iter()
        .map(|one| {
            let told: Vec<String> = [50.0, 99.0, 99.9]
                .into_iter()
                .filter_map(|percentile| Some((percentile, one.at(percentile)?)))
                .map(|(percentile, value)| format!("{percentile} % {}", all.unit.tell(value)))
                .collect();
            let percentiles = one.percentiles.iter();
            Curve {
                contestant: &one.contestant,
                points: percentiles
                    .map(|&(percentile, value)| (nines(percentile), value))
                    .collect(),
                described: told.join(", "),
            }
        })
        .collect();
    let end = largest(&curves, |point| point.0).max(1.0);
    let multiple = all.unit.multiple(largest(&curves, |point| point.1));
    let values = curves.iter().flat_map(|curve| &curve.points);
    let marks = PERCENTILES
        .into_iter()
        .filter(|&percentile| nines(percentile) <= end + 0.01)
        .map(|percentile| {
            let unit = if percentile == 0.0 { " %" } else { "" };
            (nines(percentile), format!("{percentile}{unit}"))
        });
    let axes = Axes {
        across: Scale::from_zero(end, 1.0, 4.0, ACROSS),
        marks: marks.collect(),
        up: Scale::over(values.map(|point| point.1), multiple.size, UP),
        unit: multiple.size,
    };
    let words = Words {
        id: format!("{}-latency", workload.id),
        above: workload.title.clone(),
        heading: all.title.clone(),
        subtitle: format!("{} over the percentile; lower is better", multiple.symbol),
    };
    draw(results, &curves, &axes, &words)
}

/// Values over time.
pub(crate) fn series(results: &Results, workload: &Workload, all: &Series) -> Vec<Chart> {
    let curves: Vec<Curve<'_>> = all
        .lines
        .iter()
        .map(|line| {
            let most = line.points.iter().map(|point| point.1).fold(0.0, f64::max);
            let last = line.points.last().map_or(0.0, |point| point.1);
            let (most, last) = (all.unit.tell(most), all.unit.tell(last));
            Curve {
                contestant: &line.contestant,
                points: line.points.clone(),
                described: format!("at most {most}, {last} at the end"),
            }
        })
        .collect();
    let multiple = all.unit.multiple(largest(&curves, |point| point.1));
    let across = Scale::from_zero(largest(&curves, |point| point.0), 1.0, 5.0, ACROSS);
    let marks = across.ticks.iter().map(|&tick| {
        let unit = if tick == 0.0 { " s" } else { "" };
        (tick, format!("{}{unit}", tick_words(tick)))
    });
    // From zero, whatever the values: how much is held is the point.
    let values = curves.iter().flat_map(|curve| &curve.points);
    let up = Scale::over(values.map(|point| point.1).chain([0.0]), multiple.size, UP);
    let axes = Axes {
        marks: marks.collect(),
        across,
        up,
        unit: multiple.size,
    };
    let words = Words {
        id: format!("{}-over-time", workload.id),
        above: workload.title.clone(),
        heading: all.title.clone(),
        subtitle: format!("{} over time; {}", multiple.symbol, which_way(all.better)),
    };
    draw(results, &curves, &axes, &words)
}

/// Workloads that differ in the number at the end of their id only: ping-pong with messages of 1 B,
/// 64 B and so on.
struct Family<'a> {
    name: &'a str,
    /// Ascending by that number.
    members: Vec<(u64, &'a Workload)>,
}

/// A quantity's ratios over the parameter of each family of workloads.
pub(crate) fn families(results: &Results) -> Vec<Chart> {
    /// Two values are no line that says more than they do.
    const FEWEST: usize = 3;
    let mut families: Vec<Family<'_>> = Vec::new();
    for workload in &results.workloads {
        let Some((name, number)) = workload.id.rsplit_once('-') else {
            continue;
        };
        let Ok(number) = number.parse() else {
            continue;
        };
        match families.iter_mut().find(|family| family.name == name) {
            Some(family) => family.members.push((number, workload)),
            None => families.push(Family {
                name,
                members: vec![(number, workload)],
            }),
        }
    }
    let mut charts = Vec::new();
    for family in &mut families {
        family.members.sort_by_key(|member| member.0);
        let Some((_, first)) = family
            .members
            .first()
            .filter(|_| family.members.len() >= FEWEST)
        else {
            continue;
        };
        for quantity in &first.quantities {
            charts.extend(family_of(results, family, quantity));
        }
    }
    charts
}

/// The ratios of one quantity in all members of a family.
fn family_of(results: &Results, family: &Family<'_>, quantity: &Quantity) -> Vec<Chart> {
    let Some(reference) = &quantity.reference else {
        return Vec::new();
    };
    let told: Vec<String> = family
        .members
        .iter()
        .map(|(number, workload)| {
            let parameter = workload.parameters.first();
            parameter.map_or_else(|| number.to_string(), |one| one.value.clone())
        })
        .collect();
    let ratio = |workload: &Workload, contestant: &str| {
        let mut quantities = workload.quantities.iter();
        let same = quantities.find(|one| one.id == quantity.id)?;
        let mut measured = same.measured.iter();
        let one = measured.find(|one| one.contestant == contestant)?;
        let is_reference = same.reference.as_deref() == Some(contestant);
        if is_reference {
            Some(1.0)
        } else {
            Some(one.ratio?.median)
        }
    };
    let curves: Vec<Curve<'_>> = results
        .contestants
        .iter()
        .map(|contestant| {
            let all = family.members.iter().enumerate();
            let points: Vec<(f64, f64)> = all
                .filter_map(|(place, (_, workload))| {
                    Some((place as f64, ratio(workload, &contestant.name)?))
                })
                .collect();
            let words = points
                .iter()
                .map(|&(place, ratio)| format!("{} {}×", told[place as usize], number(ratio)));
            Curve {
                contestant: &contestant.name,
                described: words.collect::<Vec<_>>().join(", "),
                points,
            }
        })
        .collect();
    let places = 0..told.len();
    let values = curves.iter().flat_map(|curve| &curve.points);
    let axes = Axes {
        across: Scale::from_zero((told.len() - 1) as f64, 1.0, 5.0, ACROSS),
        marks: places.map(|place| place as f64).zip(told).collect(),
        up: Scale::over(values.map(|point| point.1), 1.0, UP),
        unit: 1.0,
    };
    let parameter = family.members[0].1.parameters.first();
    let parameter = parameter.map_or("parameter", |one| one.name.as_str());
    // "Ping-pong, 1 B" is a member's; the family's is what comes before.
    let title = family.members[0]
        .1
        .title
        .split(',')
        .next()
        .unwrap_or(family.name);
    let words = Words {
        id: format!("{}-all-{}", family.name, quantity.id),
        above: title.into(),
        heading: format!("{title}: {}", quantity.title),
        subtitle: format!(
            "times that of {reference}, over the {parameter}; {}",
            which_way(quantity.better)
        ),
    };
    draw(results, &curves, &axes, &words)
}

fn largest(curves: &[Curve<'_>], of: fn(&(f64, f64)) -> f64) -> f64 {
    let points = curves.iter().flat_map(|curve| &curve.points);
    points.map(of).fold(0.0, f64::max)
}

fn draw(results: &Results, curves: &[Curve<'_>], axes: &Axes, words: &Words) -> Vec<Chart> {
    panels(results, curves)
        .into_iter()
        .map(|panel| {
            let (body, height) = plot(results, &panel.curves, axes);
            let described: Vec<String> = panel
                .curves
                .iter()
                .map(|curve| format!("{}: {}", curve.contestant, curve.described))
                .collect();
            let heading = format!("{}{}", words.heading, panel.title);
            let title = if words.heading.starts_with(&words.above) {
                heading.clone()
            } else {
                format!("{}: {heading}", words.above)
            };
            Chart {
                id: format!("{}{}", words.id, panel.suffix),
                title,
                heading,
                subtitle: words.subtitle.clone(),
                description: format!("Lines. {}.", described.join("; ")),
                height,
                body,
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
    let curves: Vec<&Curve<'_>> = curves
        .iter()
        .filter(|curve| !curve.points.is_empty())
        .collect();
    let kind = |curve: &Curve<'_>| {
        let mut all = results.contestants.iter();
        let known = all.find(|one| one.name == curve.contestant);
        known.map_or(Kind::Peer, |one| one.kind)
    };
    let has = |wanted| curves.iter().any(|curve| kind(curve) == wanted);
    if curves.is_empty() {
        Vec::new()
    } else if curves.len() <= LINES || !has(Kind::Ours) || !has(Kind::Peer) {
        vec![Panel {
            suffix: "",
            title: "",
            curves,
        }]
    } else {
        let of = |wanted: Kind, suffix, title| Panel {
            suffix,
            title,
            curves: curves
                .iter()
                .copied()
                .filter(|curve| [Kind::Reference, wanted].contains(&kind(curve)))
                .collect(),
        };
        vec![
            of(Kind::Ours, "-ours", ", spliced"),
            of(Kind::Peer, "-peers", ", peers"),
        ]
    }
}

/// The axes, the lines and the legend; returns the height of all.
fn plot(results: &Results, curves: &[&Curve<'_>], axes: &Axes) -> (Markup, f64) {
    let Axes { across, up, .. } = axes;
    let entries: Vec<(String, String)> = curves
        .iter()
        .map(|curve| {
            let class = line_class(results, curve.contestant);
            (class, curve.contestant.to_owned())
        })
        .collect();
    let (names, height) = legend(&entries, LEGEND);
    let right = round(WIDTH - RIGHT);
    let markup = html! {
        @for (place, words) in &axes.marks {
            @let x = round(across.at(*place));
            line class="grid" x1=(x) x2=(x) y1=(TOP) y2=(BOTTOM) {}
            text class="muted" x=(x) y=(BOTTOM + 16.0) text-anchor="middle" { (words) }
        }
        @for &tick in &up.ticks {
            @let y = round(up.at(tick));
            line class="grid" x1=(LEFT) x2=(right) y1=(y) y2=(y) {}
            text class="muted" x=(LEFT - 6.0) y=(round(y + 4.0)) text-anchor="end" {
                (tick_words(tick / axes.unit))
            }
        }
        line class="axis" x1=(LEFT) x2=(right) y1=(BOTTOM) y2=(BOTTOM) {}
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
