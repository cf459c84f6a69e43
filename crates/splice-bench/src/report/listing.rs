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
        interval.map_or_else(
            || NOTHING.into(),
            |interval| format!("{} to {}", tell(interval.low), tell(interval.high)),
        )
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
                ratio.map_or_else(|| NOTHING.into(), |ratio| number(ratio.median)),
                between(ratio.and_then(|ratio| ratio.interval), &number),
                ratio.map_or_else(|| NOTHING.into(), |ratio| ratio.verdict.to_string()),
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
            row.extend(
                TABLE_PERCENTILES
                    .map(|percentile| one.at(percentile).map_or_else(|| NOTHING.into(), number)),
            );
            row.push(number(one.max));
            row.push(one.file.clone().unwrap_or_else(|| NOTHING.into()));
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
            let tell = |value: Option<f64>| {
                value.map_or_else(|| NOTHING.into(), |value| all.unit.tell(value))
            };
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
                spread.mean.map_or_else(|| NOTHING.into(), number),
                number(spread.median),
                number(spread.max),
                number(spread.deviation),
                spread.count.map_or_else(|| NOTHING.into(), count),
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
                bucket.map_or_else(|| NOTHING.into(), |bucket| count(bucket.1))
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
    let mut listing = Listing::new(
        format!("Stalls over {} ms", tick_words(all.over_milliseconds)),
        &["Contestant", "Series", "Stalls", "Out of", "Longest, ms"],
    );
    listing.rows = all
        .counted
        .iter()
        .map(|one| {
            vec![
                one.contestant.clone(),
                one.series.clone().unwrap_or_else(|| NOTHING.into()),
                count(one.stalls),
                count(one.of),
                number(one.longest_milliseconds),
            ]
        })
        .collect();
    Some(listing)
}

/// What is not among the figures.
pub(crate) fn of_missing(results: &Results) -> Listing {
    let mut listing = Listing::new("Missing", &["What", "Why"]);
    listing.rows = results
        .missing
        .iter()
        .map(|one| vec![one.what.clone(), one.why.clone()])
        .collect();
    listing
}

/// Who took part, with what programs, under which settings.
pub(crate) fn of_conditions(results: &Results) -> Vec<Listing> {
    let mut contestants = Listing::new("Contestants", &["Contestant", "How it was set up"]);
    contestants.rows = results
        .contestants
        .iter()
        .map(|one| vec![one.name.clone(), one.how.clone()])
        .collect();
    let mut programs = Listing::new("Programs", &["Program", "Version", "Commit"]);
    programs.rows = results
        .programs
        .iter()
        .map(|one| {
            let commit = one.commit.clone().unwrap_or_else(|| NOTHING.into());
            vec![one.name.clone(), one.version.clone(), commit]
        })
        .collect();
    let mut sysctls = Listing::new("Settings of the kernel", &["Setting", "Value", "Where"]);
    sysctls.rows = results
        .sysctls
        .iter()
        .map(|one| vec![one.name.clone(), one.value.clone(), one.scope.clone()])
        .collect();
    let machine = &results.machine;
    let mut defects = Listing::new("Defects of the CPU, and mitigations", &["Defect", "State"]);
    defects.rows = machine
        .mitigations
        .iter()
        .map(|one| vec![one.defect.clone(), one.state.clone()])
        .collect();
    let mut kernel = Listing::new("Kernel", &["What", "Value"]);
    let mut row = |what: &str, value: Option<String>| {
        let value = value.unwrap_or_else(|| "not said".into());
        kernel.rows.push(vec![what.into(), value]);
    };
    row("parameters", Some(machine.kernel_parameters.join(" ")));
    row("clock source", machine.clock_source.clone());
    row("frequency governor", machine.cpu_governor.clone());
    [contestants, programs, sysctls, kernel, defects]
        .into_iter()
        .filter(|listing| !listing.rows.is_empty())
        .collect()
}
