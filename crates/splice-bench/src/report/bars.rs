//! Values side by side, each with the interval that it lies in.

use maud::html;

use super::chart::{
    Chart, LETTERS, WIDTH, axis_below, fitted, kind_class, round, span, which_way, width_of,
};
use super::scale::{Scale, tick_words};
use crate::results::{Measured, Multiple, Quantity, Results, Verdict, Workload, number};

/// From one contestant to the next.
const ROW: f64 = 33.0;
/// From a row's top to its bar: the line with the name and the value.
const BAR: f64 = 19.0;
/// A bar's own height.
const THICK: f64 = 9.0;
/// The column of ratios.
const RATIO: f64 = 66.0;
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
    let label = |tick: f64| tick_words(tick / multiple.size);
    let scale = Scale::from_zero(largest, multiple.size, 4.0, (1.0, WIDTH - 8.0))
        .spaced(multiple.size, |tick, x| span(x, &label(tick)));
    let bottom = measured.len() as f64 * ROW;
    let reference = quantity
        .reference
        .as_ref()
        .and_then(|name| measured.iter().find(|one| one.contestant == *name));
    // The ratios have a column of their own, if there are any.
    let any = measured.iter().any(|one| one.ratio.is_some());
    let ratios = if any { RATIO } else { 0.0 };
    let body = html! {
        (axis_below(&scale, bottom, label))
        @for (row, one) in measured.iter().enumerate() {
            @let y = row as f64 * ROW + BAR;
            path class="axis" d={ "M0.5 " (round(y - 2.0)) "v" (THICK + 4.0) } {}
            rect class=(kind_class(results, &one.contestant)) x="1" y=(round(y)) rx="2"
                width=(round(scale.at(one.median) - scale.at(0.0))) height=(THICK) {
                title { (one.contestant) ": " (quantity.unit.tell(one.median)) }
            }
        }
        @if let Some(reference) = reference {
            @let x = round(scale.at(reference.median));
            line class="at-reference" x1=(x) x2=(x) y1="0" y2=(round(bottom)) {}
        }
        @for (row, one) in measured.iter().enumerate() {
            @let top = row as f64 * ROW;
            @let (value, ratio) = (value_words(quantity, one, multiple), ratio_words(one));
            @let room = WIDTH - ratios - width_of(&value, LETTERS) - 12.0;
            text x="0" y=(round(top + 14.0)) {
                (fitted(&one.contestant, room))
                title { (one.contestant) }
            }
            text class="value" x=(WIDTH - ratios) y=(round(top + 14.0)) text-anchor="end" { (value) }
            @if let Some(ratio) = &ratio {
                text class="value muted" x=(WIDTH) y=(round(top + 14.0)) text-anchor="end" {
                    (ratio)
                }
            }
            @if let Some(interval) = one.interval {
                @let (low, high) = (round(scale.at(interval.low)), round(scale.at(interval.high)));
                @let y = top + BAR;
                path class="interval" d={
                    "M" (low) " " (round(y)) "v" (THICK) "M" (high) " " (round(y)) "v" (THICK)
                    "M" (low) " " (round(y + THICK / 2.0)) "H" (high)
                } {}
            }
        }
    };
    Some(Chart {
        id: format!("{}-{}", workload.id, quantity.id),
        title: format!("{}: {}", workload.title, quantity.title),
        heading: quantity.title.clone(),
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
    let way = which_way(quantity.better);
    let any = quantity.measured.iter().any(|one| one.ratio.is_some());
    let Some(reference) = quantity.reference.as_ref().filter(|_| any) else {
        return format!("{unit}{way}");
    };
    let open = quantity.measured.iter().any(is_open);
    let brackets = if open {
        ", in brackets where the rounds support no difference"
    } else {
        ""
    };
    format!("{unit}{way}; × is to {reference}{brackets}")
}

/// Whether there is a ratio that the rounds do not support calling a difference.
fn is_open(one: &Measured) -> bool {
    one.ratio
        .is_some_and(|ratio| ratio.verdict == Verdict::NoDifference)
}

/// The value, with its unit only where that differs from the chart's.
fn value_words(quantity: &Quantity, one: &Measured, chart: Multiple) -> String {
    if quantity.unit.multiple(one.median) == chart {
        number(one.median / chart.size)
    } else {
        quantity.unit.tell(one.median)
    }
}

/// "0.53×", or "(0.99×)" where that is not called a difference, which is not to say that it is none.
fn ratio_words(one: &Measured) -> Option<String> {
    let words = format!("{}×", number(one.ratio?.median));
    Some(if is_open(one) {
        format!("({words})")
    } else {
        words
    })
}

fn description(quantity: &Quantity) -> String {
    let values: Vec<String> = quantity
        .measured
        .iter()
        .map(|one| {
            let ratio = ratio_words(one).map_or_else(String::new, |ratio| format!(" ({ratio})"));
            format!(
                "{} {}{ratio}",
                one.contestant,
                quantity.unit.tell(one.median)
            )
        })
        .collect();
    format!(
        "Bars of medians, {}. {}.",
        which_way(quantity.better),
        values.join("; ")
    )
}
