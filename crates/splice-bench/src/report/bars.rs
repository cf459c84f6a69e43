//! Values side by side, each with the interval that it lies in.

use maud::html;

use super::chart::{Chart, LETTERS, WIDTH, fitted, kind_class, round, which_way, width_of};
use super::scale::Scale;
use crate::results::{Measured, Quantity, Results, Verdict, Workload, number};

/// From one contestant to the next.
const ROW: f64 = 33.0;
/// A bar's own height.
const THICK: f64 = 9.0;
/// Below the last row: the axis.
const AXIS: f64 = 22.0;

/// The chart of one quantity. `None` when nobody was measured.
pub(crate) fn draw(results: &Results, workload: &Workload, quantity: &Quantity) -> Option<Chart> {
    let measured = &quantity.measured;
    if measured.is_empty() {
        return None;
    }
    let largest = measured
        .iter()
        .map(|one| {
            one.interval
                .map_or(one.median, |interval| interval.high.max(one.median))
        })
        .fold(0.0, f64::max);
    let multiple = quantity.unit.multiple(largest);
    let scale = Scale::from_zero(largest, multiple.size, 4.0, (1.0, WIDTH - 8.0));
    let bottom = measured.len() as f64 * ROW;
    let reference = quantity
        .reference
        .as_ref()
        .and_then(|name| measured.iter().find(|one| one.contestant == *name));
    let body = html! {
        @for &tick in &scale.ticks {
            line class="grid" x1=(round(scale.at(tick))) x2=(round(scale.at(tick)))
                y1="0" y2=(round(bottom)) {}
            @let anchor = if tick == 0.0 { "start" } else { "middle" };
            text class="muted" x=(round(scale.at(tick))) y=(round(bottom + 15.0)) text-anchor=(anchor) {
                (number(tick / multiple.size))
            }
        }
        @for (row, one) in measured.iter().enumerate() {
            @let top = row as f64 * ROW;
            @let value = value_words(quantity, one);
            @let room = WIDTH - width_of(&value, LETTERS) - 16.0;
            text x="0" y=(round(top + 14.0)) {
                (fitted(&one.contestant, room))
                title { (one.contestant) }
            }
            text class="value" x=(WIDTH) y=(round(top + 14.0)) text-anchor="end" { (value) }
            @let y = top + 19.0;
            rect class=(kind_class(results, &one.contestant)) x="1" y=(round(y)) rx="2"
                width=(round(scale.at(one.median) - scale.at(0.0))) height=(THICK) {
                title { (one.contestant) ": " (quantity.unit.tell(one.median)) }
            }
            @if let Some(interval) = one.interval {
                @let (low, high) = (round(scale.at(interval.low)), round(scale.at(interval.high)));
                @let middle = round(y + THICK / 2.0);
                path class="interval" d={
                    "M" (low) " " (round(y)) "v" (THICK) "M" (high) " " (round(y)) "v" (THICK)
                    "M" (low) " " (middle) "H" (high)
                } {}
            }
        }
        @if let Some(reference) = reference {
            @let x = round(scale.at(reference.median));
            line class="at-reference" x1=(x) x2=(x) y1="0" y2=(round(bottom)) {}
        }
        line class="axis" x1="1" x2="1" y1="0" y2=(round(bottom)) {}
    };
    Some(Chart {
        id: format!("{}-{}", workload.id, quantity.id),
        title: format!("{}: {}", workload.title, quantity.title),
        subtitle: subtitle(quantity, multiple.symbol),
        description: description(quantity),
        height: bottom + AXIS,
        body,
    })
}

fn subtitle(quantity: &Quantity, symbol: &str) -> String {
    let unit = if symbol.is_empty() {
        String::new()
    } else {
        format!("{symbol}, ")
    };
    let against = quantity
        .reference
        .as_ref()
        .map_or_else(String::new, |name| format!("; × is to {name}"));
    format!("{unit}{}{against}", which_way(quantity.better))
}

/// "27.2 Gb/s  0.53×": a ratio whose interval holds 1 is not told as a difference.
fn value_words(quantity: &Quantity, one: &Measured) -> String {
    let value = quantity.unit.tell(one.median);
    match (one.ratio, &quantity.reference) {
        (Some(ratio), Some(reference)) if ratio.verdict == Verdict::NoDifference => {
            format!("{value}  ≈ {reference}")
        }
        (Some(ratio), _) => format!("{value}  {}×", number(ratio.median)),
        (None, _) => value,
    }
}

fn description(quantity: &Quantity) -> String {
    let values: Vec<String> = quantity
        .measured
        .iter()
        .map(|one| format!("{} {}", one.contestant, value_words(quantity, one)))
        .collect();
    format!(
        "Bars of medians, {}. {}.",
        which_way(quantity.better),
        values.join("; ")
    )
}
