//! Every figure in rows, for the tables of the page and of the summary alike.

use super::candlesticks::Part;
use super::chart::which_way;
use super::scale::tick_words;
use crate::results::{
    Candlestick, Interval, Measured, Quantity, Results, TABLE_PERCENTILES, VALUES_BEYOND, Workload,
    count, number,
};

/// Stands where there is no value.
const NOTHING: &str = "–";

/// Figures or words in rows; the first column names the row.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) caption: String,
    pub(crate) headings: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Listing {
    pub(crate) fn new(caption: impl Into<String>, headings: &[&str]) -> Self {
        Self {
            caption: caption.into(),
            headings: headings.iter().map(|&one| one.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    fn of<'a, T: 'a, const COLUMNS: usize>(
        caption: impl Into<String>,
        headings: [&str; COLUMNS],
        all: impl IntoIterator<Item = &'a T>,
        row: impl Fn(&T) -> [String; COLUMNS],
    ) -> Self {
        let rows = all.into_iter().map(|one| row(one).into());
        Self {
            rows: rows.collect(),
            ..Self::new(caption, &headings)
        }
    }
}

/// The words for a value that may be missing.
fn or_nothing<T>(value: Option<T>, tell: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NOTHING.into(), tell)
}

/// Every figure of a workload.
pub(crate) fn of_workload(workload: &Workload) -> Vec<Listing> {
    let quantities = workload
        .quantities
        .iter()
        .filter(|quantity| !quantity.measured.is_empty())
        .map(of_quantity);
    quantities
        .chain(of_latencies(workload))
        .chain(of_series(workload))
        .chain(of_candlesticks(workload))
        .chain(of_buckets(workload))
        .chain(of_stalls(workload))
        .collect()
}

fn of_quantity(quantity: &Quantity) -> Listing {
    let multiple = quantity.unit.multiple(
        quantity
            .measured
            .iter()
            .map(|one| one.median)
            .fold(0.0, f64::max),
    );
    let tell = |value: f64| number(value / multiple.size);
    let between = |interval: Option<Interval>, tell: &dyn Fn(f64) -> String| {
        let words = |Interval { low, high }| format!("{} to {}", tell(low), tell(high));
        or_nothing(interval, words)
    };
    let caption = format!("{}, {}", quantity.title, which_way(quantity.better));
    let over = quantity
        .reference
        .as_ref()
        .map_or_else(|| "Ratio".into(), |name| format!("Over {name}"));
    let mut listing = Listing::new(
        caption,
        &[
            "Contestant",
            "",
            "Interval",
            "",
            "Interval",
            "Verdict",
            "Rounds",
        ],
    );
    listing.headings[1] = format!("Median {}", multiple.symbol).trim_end().into();
    listing.headings[3] = over;
    listing.rows = quantity
        .measured
        .iter()
        .map(|one: &Measured| {
            let rounds: Vec<String> = one.rounds.iter().map(|&value| tell(value)).collect();
            let ratio = one.ratio;
            vec![
                one.contestant.clone(),
                tell(one.median),
                between(one.interval, &tell),
                or_nothing(ratio, |ratio| number(ratio.median)),
                between(ratio.and_then(|ratio| ratio.interval), &number),
                or_nothing(ratio, |ratio| ratio.verdict.to_string()),
                rounds.join(", "),
            ]
        })
        .collect();
    listing
}

fn of_latencies(workload: &Workload) -> Option<Listing> {
    let all = workload.latencies.as_ref()?;
    let mut listing = Listing::new(
        format!(
            "{}, {}; {NOTHING} where fewer than {VALUES_BEYOND} values lie beyond",
            all.title,
            all.unit.symbol()
        ),
        &["Contestant", "Count", "Min", "Mean"],
    );
    listing
        .headings
        .extend(TABLE_PERCENTILES.map(|percentile| format!("{percentile} %")));
    listing
        .headings
        .extend(["Max", "Histogram"].map(str::to_owned));
    listing.rows = all
        .distributions
        .iter()
        .map(|one| {
            let mut row = vec![
                one.contestant.clone(),
                count(one.count),
                number(one.min),
                number(one.mean),
            ];
            row.extend(TABLE_PERCENTILES.map(|percentile| or_nothing(one.at(percentile), number)));
            row.extend([number(one.max), or_nothing(one.file.clone(), |file| file)]);
            row
        })
        .collect();
    Some(listing)
}

fn of_series(workload: &Workload) -> Option<Listing> {
    /// Columns of the listing: more than these say little more.
    const MOMENTS: usize = 8;
    let all = workload.series.as_ref()?;
    let end = all
        .lines
        .iter()
        .filter_map(|line| line.points.last())
        .map(|point| point.0)
        .fold(0.0, f64::max);
    let moments: Vec<f64> = (0..=MOMENTS)
        .map(|index| end * index as f64 / MOMENTS as f64)
        .collect();
    let mut listing = Listing::new(format!("{}, over time", all.title), &["Contestant", "Most"]);
    listing.headings.extend(
        moments
            .iter()
            .map(|&moment| format!("{} s", tick_words(moment))),
    );
    listing.rows = all
        .lines
        .iter()
        .map(|line| {
            let most = line.points.iter().map(|point| point.1).reduce(f64::max);
            let tell = |value| or_nothing(value, |value| all.unit.tell(value));
            let at = |moment: f64| {
                let last = line.points.iter().rfind(|point| point.0 <= moment + 1e-9);
                tell(last.map(|point| point.1))
            };
            let mut row = vec![line.contestant.clone(), tell(most)];
            row.extend(moments.iter().map(|&moment| at(moment)));
            row
        })
        .collect();
    Some(listing)
}

fn of_candlesticks(workload: &Workload) -> Option<Listing> {
    let all = workload.candlesticks.as_ref()?;
    let mut listing = Listing::new(
        format!("{}, {}", all.title, all.unit.symbol()),
        &[
            "Contestant",
            "Series",
            "Of",
            "Min",
            "Mean",
            "Median",
            "Max",
            "Deviation",
            "Count",
        ],
    );
    let trimmed = format!("all but the worst {} %", tick_words(all.trimmed_percent));
    let parts: [(&str, Part); 2] = [
        ("all", |stick| stick.whole),
        (&trimmed, |stick| stick.trimmed),
    ];
    for stick in &all.sticks {
        for (words, part) in parts {
            let Some(spread) = part(stick) else {
                continue;
            };
            listing.rows.push(vec![
                stick.contestant.clone(),
                stick.series.clone(),
                words.into(),
                number(spread.min),
                or_nothing(spread.mean, number),
                number(spread.median),
                number(spread.max),
                number(spread.deviation),
                or_nothing(spread.count, count),
            ]);
        }
    }
    Some(listing)
}

/// The histograms of the echo experiment, side by side.
fn of_buckets(workload: &Workload) -> Option<Listing> {
    let all = workload.candlesticks.as_ref()?;
    let sticks: Vec<&Candlestick> = all
        .sticks
        .iter()
        .filter(|stick| !stick.buckets.is_empty())
        .collect();
    let buckets = || sticks.iter().flat_map(|stick| &stick.buckets);
    // The empty buckets at either end say nothing.
    let filled = || buckets().filter(|bucket| bucket.1 > 0);
    let first = filled().map(|bucket| bucket.0).reduce(f64::min)?;
    let last = filled().map(|bucket| bucket.0).reduce(f64::max)?;
    let mut ends: Vec<f64> = buckets()
        .map(|bucket| bucket.0)
        .filter(|end| (first..=last).contains(end))
        .collect();
    ends.sort_by(f64::total_cmp);
    ends.dedup();
    let mut listing = Listing::new(
        format!("How many took how long, {}", all.unit.symbol()),
        &["Contestant", "Series"],
    );
    listing
        .headings
        .extend(ends.iter().map(|&end| format!("to {}", tick_words(end))));
    listing.rows = sticks
        .iter()
        .map(|stick| {
            let within = |end: f64| {
                let bucket = stick.buckets.iter().find(|bucket| bucket.0 == end);
                or_nothing(bucket, |bucket| count(bucket.1))
            };
            let mut row = vec![stick.contestant.clone(), stick.series.clone()];
            row.extend(ends.iter().map(|&end| within(end)));
            row
        })
        .collect();
    Some(listing)
}

fn of_stalls(workload: &Workload) -> Option<Listing> {
    let all = workload.stalls.as_ref()?;
    Some(Listing::of(
        format!("Stalls over {} ms", tick_words(all.over_milliseconds)),
        ["Contestant", "Series", "Stalls", "Out of", "Longest, ms"],
        &all.counted,
        |one| {
            [
                one.contestant.clone(),
                or_nothing(one.series.clone(), |name| name),
                count(one.stalls),
                count(one.of),
                number(one.longest_milliseconds),
            ]
        },
    ))
}

/// What is not among the figures.
pub(crate) fn of_missing(results: &Results) -> Listing {
    Listing::of("Missing", ["What", "Why"], &results.missing, |one| {
        [one.what.clone(), one.why.clone()]
    })
}

/// Who took part, with what programs, under which settings.
pub(crate) fn of_conditions(results: &Results) -> Vec<Listing> {
    let machine = &results.machine;
    let headings = ["Contestant", "How it was set up"];
    let contestants = Listing::of("Contestants", headings, &results.contestants, |one| {
        [one.name.clone(), one.how.clone()]
    });
    let headings = ["Program", "Version", "Commit"];
    let programs = Listing::of("Programs", headings, &results.programs, |one| {
        let commit = or_nothing(one.commit.clone(), |commit| commit);
        [one.name.clone(), one.version.clone(), commit]
    });
    let (caption, headings) = ("Settings of the kernel", ["Setting", "Value", "Where"]);
    let sysctls = Listing::of(caption, headings, &results.sysctls, |one| {
        [one.name.clone(), one.value.clone(), one.scope.clone()]
    });
    let (caption, headings) = ("Defects of the CPU, and mitigations", ["Defect", "State"]);
    let defects = Listing::of(caption, headings, &machine.mitigations, |one| {
        [one.defect.clone(), one.state.clone()]
    });
    let facts = [
        ("parameters", Some(machine.kernel_parameters.join(" "))),
        ("clock source", machine.clock_source.clone()),
        ("frequency governor", machine.cpu_governor.clone()),
    ];
    let kernel = Listing::of("Kernel", ["What", "Value"], &facts, |(what, value)| {
        let value = value.clone().unwrap_or_else(|| "not said".into());
        [(*what).into(), value]
    });
    [contestants, programs, sysctls, kernel, defects]
        .into_iter()
        .filter(|listing| !listing.rows.is_empty())
        .collect()
}
