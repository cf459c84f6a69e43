//! Least, median, most and deviation, as the echo experiment of 2019 drew them, but lying: names then
//! have room.

use maud::html;

use super::chart::{Chart, WIDTH, axis_below, fitted, legend, round, span};
use super::scale::{Scale, tick_words};
use crate::results::{Candlestick, Candlesticks, Results, Spread, Workload};

/// A contestant's name above its sticks.
const NAME: f64 = 19.0;
/// From one stick to the next.
const STICK: f64 = 15.0;
/// After a contestant's last stick.
const GAP: f64 = 7.0;
/// Right of the plot: the median in words.
const VALUES: f64 = 66.0;

/// Which bursts of a stick: all, or all but the worst.
pub(crate) type Part = fn(&Candlestick) -> Option<Spread>;

/// Sticks of one contestant.
struct Group<'a> {
    contestant: &'a str,
    sticks: Vec<(&'a str, Spread)>,
}

/// One chart without the worst and one with them, as far as known.
pub(crate) fn draw(results: &Results, workload: &Workload, all: &Candlesticks) -> Vec<Chart> {
    let trimmed = format!(", without the worst {} %", tick_words(all.trimmed_percent));
    let parts: [(&str, &str, Part); 2] = [
        ("trimmed", &trimmed, |stick| stick.trimmed),
        ("whole", ", all", |stick| stick.whole),
    ];
    parts
        .into_iter()
        .filter_map(|(suffix, words, part)| {
            let groups = grouped(results, &all.sticks, part);
            one(workload, all, &groups, suffix, words)
        })
        .collect()
}

fn grouped<'a>(results: &Results, sticks: &'a [Candlestick], part: Part) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for stick in sticks {
        let Some(spread) = part(stick) else {
            continue;
        };
        let entry = (stick.series.as_str(), spread);
        match groups
            .iter_mut()
            .find(|group| group.contestant == stick.contestant)
        {
            Some(group) => group.sticks.push(entry),
            None => groups.push(Group {
                contestant: &stick.contestant,
                sticks: vec![entry],
            }),
        }
    }
    let place = |group: &Group<'_>| {
        let mut all = results.contestants.iter();
        all.position(|one| one.name == group.contestant)
            .unwrap_or(usize::MAX)
    };
    groups.sort_by_key(place);
    groups
}

fn one(
    workload: &Workload,
    all: &Candlesticks,
    groups: &[Group<'_>],
    suffix: &str,
    words: &str,
) -> Option<Chart> {
    let sticks = || groups.iter().flat_map(|group| &group.sticks);
    let mut series: Vec<&str> = Vec::new();
    for (name, _) in sticks() {
        if !series.contains(name) {
            series.push(name);
        }
    }
    let largest = sticks()
        .map(|(_, spread)| spread.max.max(spread.median + spread.deviation / 2.0))
        .reduce(f64::max)?;
    let multiple = all.unit.multiple(
        sticks()
            .map(|(_, spread)| spread.median)
            .fold(0.0, f64::max),
    );
    let values = sticks().map(|(_, spread)| spread.min).chain([largest]);
    let label = |tick: f64| tick_words(tick / multiple.size);
    let scale = Scale::over(values, multiple.size, (1.0, WIDTH - VALUES))
        .spaced(multiple.size, |tick, x| span(x, &label(tick)));

    let mut tops = Vec::new();
    let mut bottom = 0.0;
    for group in groups {
        tops.push(bottom);
        bottom += NAME + group.sticks.len() as f64 * STICK + GAP;
    }
    let class = |name: &str| {
        let index = series.iter().position(|one| *one == name).unwrap_or(0);
        format!("series-{}", index % 3)
    };
    let entries: Vec<(String, String)> = series
        .iter()
        .map(|name| (class(name), (*name).to_owned()))
        .collect();
    let (names, height) = legend(&entries, bottom + 26.0);
    let body = html! {
        (axis_below(&scale, bottom, label))
        @for (group, top) in groups.iter().zip(&tops) {
            text x="0" y=(round(top + 14.0)) {
                (fitted(group.contestant, WIDTH)) title { (group.contestant) }
            }
            @for (index, (name, spread)) in group.sticks.iter().enumerate() {
                @let y = top + NAME + index as f64 * STICK + STICK / 2.0;
                @let (median, end) = (scale.at(spread.median), scale.at(spread.median + spread.deviation / 2.0));
                g class={ "stick " (class(name)) } {
                    title { (group.contestant) ", " (name) ": " (spread_words(all, spread)) }
                    line class="wick" x1=(round(scale.at(spread.min))) x2=(round(scale.at(spread.max)))
                        y1=(round(y)) y2=(round(y)) {}
                    rect class="body" x=(round(median)) y=(round(y - 4.5)) height="9" width=(round(end - median).max(1.0)) {}
                    line class="median" x1=(round(median)) x2=(round(median)) y1=(round(y - 6.0)) y2=(round(y + 6.0)) {}
                }
                text class="muted" x=(WIDTH) y=(round(y + 4.0)) text-anchor="end" { (all.unit.tell(spread.median)) }
            }
        }
        (names)
    };
    let described: Vec<String> = groups
        .iter()
        .flat_map(|group| {
            group.sticks.iter().map(move |(name, spread)| {
                format!(
                    "{}, {name}: {}",
                    group.contestant,
                    spread_words(all, spread)
                )
            })
        })
        .collect();
    Some(Chart {
        id: format!("{}-candlesticks-{suffix}", workload.id),
        title: format!("{}: {}{words}", workload.title, all.title),
        heading: format!("{}{words}", all.title),
        subtitle: format!(
            "{}, lower is better; line: least to most, box: median to median + ½ deviation",
            multiple.symbol
        ),
        description: format!("Candlesticks. {}.", described.join("; ")),
        height: bottom + 26.0 + height,
        body,
    })
}

fn spread_words(all: &Candlesticks, spread: &Spread) -> String {
    let tell = |value| all.unit.tell(value);
    format!(
        "{} to {}, median {}, deviation {}",
        tell(spread.min),
        tell(spread.max),
        tell(spread.median),
        tell(spread.deviation)
    )
}
