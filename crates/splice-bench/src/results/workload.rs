//! One experiment and its figures.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::distribution::Latencies;
use super::run::Missing;
use super::unit::Unit;
use crate::statistics::{Interval, Sample};

/// One experiment, with the figures of all contestants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    /// Unique; lower case and hyphens, since files are named after it: "ping-pong-64".
    pub(crate) id: String,
    /// "Ping-pong, 64 B".
    pub(crate) title: String,
    /// What happens, in a sentence or two.
    pub(crate) description: String,
    pub(crate) parameters: Vec<Parameter>,
    /// Figures with a value per round: throughput, CPU time, rates, latency percentiles.
    pub(crate) quantities: Vec<Quantity>,
    /// Whole distributions of latencies.
    pub(crate) latencies: Option<Latencies>,
    /// Values over time.
    pub(crate) series: Option<Series>,
    /// Least, median, most and deviation, as in the echo experiment of 2019.
    pub(crate) candlesticks: Option<Candlesticks>,
    pub(crate) stalls: Option<Stalls>,
    /// What failed in it, whose figures are therefore absent.
    pub(crate) missing: Vec<Missing>,
    pub(crate) notes: Vec<String>,
}

/// A knob of a workload: message bytes, connections, run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// With its unit.
    pub(crate) value: String,
}

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// One thing that was measured once per round, for each contestant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quantity {
    /// Unique in its workload; lower case and hyphens: "throughput", "cpu".
    pub(crate) id: String,
    /// "Throughput, sum of both directions".
    pub(crate) title: String,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    /// The contestant that the ratios are to.
    pub(crate) reference: Option<String>,
    pub(crate) measured: Vec<Measured>,
}

/// One contestant's values of a [`Quantity`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measured {
    pub(crate) contestant: String,
    /// One per round, in the order of the rounds.
    pub(crate) rounds: Vec<f64>,
    pub(crate) median: f64,
    /// Of the median; `None` when there are too few rounds for one.
    pub(crate) interval: Option<Interval>,
    /// `None` for the reference itself, and when the reference was not measured or is zero.
    pub(crate) ratio: Option<Ratio>,
}

impl Measured {
    /// What `sample` says, held against that of the reference; `None` when it is empty.
    pub(crate) fn of(
        contestant: String,
        sample: &Sample,
        reference: Option<&Sample>,
        better: Better,
    ) -> Option<Self> {
        let ratio = reference.and_then(|reference| {
            let ratios = sample.ratio_to(reference);
            // The reference may be zero in a few rounds only.
            let interval = ratios.interval().filter(Interval::is_finite);
            Some(Ratio {
                median: ratios.median().filter(|ratio| ratio.is_finite())?,
                interval,
                verdict: Verdict::of(interval, better),
            })
        });
        Some(Self {
            contestant,
            rounds: sample.values().to_vec(),
            median: sample.median()?,
            interval: sample.interval(),
            ratio,
        })
    }
}

/// Own value over the reference's, taken within each round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    /// `None` when there are too few rounds for one, or the reference was zero in some.
    pub(crate) interval: Option<Interval>,
    pub(crate) verdict: Verdict,
}

/// What may be said about a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Better,
    Worse,
    /// The interval holds 1 (or there is none): the rounds do not support calling a difference.
    NoDifference,
}

impl Verdict {
    /// The verdict that the `interval` of a ratio supports.
    pub(crate) fn of(interval: Option<Interval>, better: Better) -> Self {
        let above = interval.is_some_and(|interval| interval.low > 1.0);
        let below = interval.is_some_and(|interval| interval.high < 1.0);
        match (better, above, below) {
            (Better::Higher, true, _) | (Better::Lower, _, true) => Self::Better,
            (Better::Higher, _, true) | (Better::Lower, true, _) => Self::Worse,
            _ => Self::NoDifference,
        }
    }
}

/// Values over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Series {
    /// "Memory held while nobody reads".
    pub(crate) title: String,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    pub(crate) lines: Vec<Line>,
}

/// One contestant's values over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) contestant: String,
    /// Pairs of seconds since the beginning and value, ascending.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Bursts in the way of the echo experiment of 2019.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Candlesticks {
    /// "Time until a block of 16 KiB is back".
    pub(crate) title: String,
    pub(crate) unit: Unit,
    /// How much of the worst [`Candlestick::trimmed`] leaves out, in percent.
    pub(crate) trimmed_percent: f64,
    pub(crate) sticks: Vec<Candlestick>,
}

/// One contestant in one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Candlestick {
    pub(crate) contestant: String,
    /// "normal", "busy poll", or where else the figures are from: "2019, kernel 4.14".
    pub(crate) series: String,
    /// Of all bursts; `None` when only the others are known.
    pub(crate) whole: Option<Spread>,
    /// Without the worst.
    pub(crate) trimmed: Option<Spread>,
    /// Bursts by their time: the upper end of each power-of-two bucket and the number in it, as the
    /// experiment prints it; empty when not known.
    pub(crate) buckets: Vec<(f64, u64)>,
}

/// The spread of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) mean: Option<f64>,
    pub(crate) median: f64,
    pub(crate) max: f64,
    /// Standard deviation.
    pub(crate) deviation: f64,
    pub(crate) count: Option<u64>,
}

/// How often the flow stood still.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stalls {
    /// From when on it counts: 50 ms.
    pub(crate) over_milliseconds: f64,
    pub(crate) counted: Vec<Stalled>,
}

/// One contestant's stalls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stalled {
    pub(crate) contestant: String,
    /// As in [`Candlestick::series`]; `None` when there is only one.
    pub(crate) series: Option<String>,
    pub(crate) stalls: u64,
    /// Out of so many bursts or messages.
    pub(crate) of: u64,
    pub(crate) longest_milliseconds: f64,
}

impl Workload {
    /// One without figures yet.
    pub(crate) fn new(id: &str, title: &str, description: &str) -> Self {
        Self {
            id: id.into(),
            title: title.into(),
            description: description.into(),
            parameters: Vec::new(),
            quantities: Vec::new(),
            latencies: None,
            series: None,
            candlesticks: None,
            stalls: None,
            missing: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifference => "no difference",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Better, Interval, Measured, Verdict};
    use crate::statistics::Sample;

    #[test]
    fn a_reference_that_is_zero_in_some_rounds_makes_no_interval() {
        let reference = Sample::from_iter([0.0, 2.0, 0.0, 2.0, 2.0]);
        let own = Sample::from_iter([1.0; 5]);
        let measured = Measured::of("own".into(), &own, Some(&reference), Better::Higher);
        let ratio = measured.and_then(|measured| measured.ratio).unwrap();
        assert_eq!((ratio.median, ratio.interval), (0.5, None));
        assert_eq!(ratio.verdict, Verdict::NoDifference);
    }

    #[test]
    fn no_difference_is_called_that_the_interval_does_not_support() {
        let interval = |low, high| Some(Interval { low, high });
        for (interval, higher, lower) in [
            (interval(1.01, 1.2), Verdict::Better, Verdict::Worse),
            (interval(0.8, 0.99), Verdict::Worse, Verdict::Better),
            (
                interval(0.99, 1.2),
                Verdict::NoDifference,
                Verdict::NoDifference,
            ),
            (
                interval(1.0, 1.2),
                Verdict::NoDifference,
                Verdict::NoDifference,
            ),
            (None, Verdict::NoDifference, Verdict::NoDifference),
        ] {
            assert_eq!(
                Verdict::of(interval, Better::Higher),
                higher,
                "{interval:?}"
            );
            assert_eq!(Verdict::of(interval, Better::Lower), lower, "{interval:?}");
        }
    }

    #[test]
    fn a_sample_is_called_different_only_where_its_interval_supports_it() {
        let verdict = |values: &[f64], better| {
            Verdict::of(Sample::from_iter(values.iter().copied()).interval(), better)
        };
        let noisy = [0.90, 1.02, 0.97, 1.10, 0.95, 1.01, 0.93];
        let slower = [1.04, 1.06, 1.05, 1.07, 1.03, 1.05, 1.06];
        assert_eq!(verdict(&noisy, Better::Lower), Verdict::NoDifference);
        assert_eq!(verdict(&slower, Better::Lower), Verdict::Worse);
        assert_eq!(verdict(&slower, Better::Higher), Verdict::Better);
        // However far apart: too few rounds.
        assert_eq!(verdict(&slower[..4], Better::Lower), Verdict::NoDifference);
        assert_eq!(verdict(&[1.0; 5], Better::Lower), Verdict::NoDifference);
    }
}
