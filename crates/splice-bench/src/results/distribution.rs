//! Latencies as a whole, not only their middle.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::unit::Unit;

/// Distributions of latencies, one per contestant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Latencies {
    /// "One-way latency, half of the round trip".
    pub(crate) title: String,
    /// Always a time.
    pub(crate) unit: Unit,
    pub(crate) distributions: Vec<Distribution>,
}

/// All latencies of one contestant, all rounds together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Distribution {
    pub(crate) contestant: String,
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Pairs of percentile and value, ascending; those beyond which fewer than
    /// [`VALUES_BEYOND`] values lie are left out, since another run would move them.
    pub(crate) percentiles: Vec<(f64, f64)>,
    /// The histogram itself, a file of the HdrHistogram log format (V2, compressed) that lies in
    /// the directory, in nanoseconds.
    pub(crate) file: Option<String>,
}

/// A percentile needs so many values beyond it: 99.99 therefore 100 000 in all.
pub(crate) const VALUES_BEYOND: f64 = 10.0;

/// What the tables show.
pub(crate) const TABLE_PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// ns in a µs.
const NANOSECONDS: f64 = 1e3;

impl Distribution {
    /// What `histogram`, in ns, says; in µs times `scale`, which is 0.5 for round trips that are told
    /// as one-way latencies. `file` is where the histogram has been saved.
    pub(crate) fn of(
        contestant: &str,
        histogram: &Histogram<u64>,
        scale: f64,
        file: Option<String>,
    ) -> Self {
        let told = |nanoseconds: f64| nanoseconds * scale / NANOSECONDS;
        let count = histogram.len();
        let percentiles = curve_percentiles()
            .filter(|percentile| count as f64 * (1.0 - percentile / 100.0) >= VALUES_BEYOND - 1e-6)
            .map(|percentile| {
                let value = histogram.value_at_quantile(percentile / 100.0);
                (percentile, told(value as f64))
            })
            .collect();
        Self {
            contestant: contestant.into(),
            count,
            mean: told(histogram.mean()),
            min: told(histogram.min() as f64),
            max: told(histogram.max() as f64),
            percentiles,
            file,
        }
    }

    /// The value at one of the percentiles that are kept.
    pub(crate) fn at(&self, percentile: f64) -> Option<f64> {
        self.percentiles
            .iter()
            .find(|(kept, _)| (kept - percentile).abs() < 1e-9)
            .map(|&(_, value)| value)
    }
}

/// Dense enough for a curve: by 5 up to 90, then nine steps for each further nine.
fn curve_percentiles() -> impl Iterator<Item = f64> {
    let whole = (0..=18).map(|step| f64::from(step) * 5.0);
    let nines = [(90.0, 1.0), (99.0, 0.1), (99.9, 0.01)];
    let fine = nines
        .into_iter()
        .flat_map(|(from, step)| (1..=9).map(move |number| from + step * f64::from(number)));
    // 99.9 + 9 × 0.01 is not 99.99 in binary.
    whole.chain(fine).map(|value| (value * 1e4).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::Distribution;

    #[test]
    fn percentiles_that_few_values_decide_are_left_out() {
        let mut histogram = Histogram::new_with_max(1_000_000, 3).expect("it is a sound range");
        for nanoseconds in 1..=1000_u64 {
            histogram
                .record(2000 * nanoseconds / 1000)
                .expect("it is in the range");
        }
        let one_way = Distribution::of("x", &histogram, 0.5, None);
        assert_eq!((one_way.count, one_way.at(50.0)), (1000, Some(0.5)));
        // Ten of 1000 lie beyond 99 %, one beyond 99.9 %.
        assert_eq!((one_way.at(99.0), one_way.at(99.9)), (Some(0.99), None));
        histogram
            .record_n(1500, 99_000)
            .expect("it is in the range");
        assert!(
            Distribution::of("x", &histogram, 1.0, None)
                .at(99.99)
                .is_some()
        );
    }

    #[test]
    fn nothing_has_no_percentiles() {
        let histogram = Histogram::new_with_max(1_000_000, 3).expect("it is a sound range");
        let nothing = Distribution::of("x", &histogram, 1.0, None);
        assert!(nothing.percentiles.is_empty() && nothing.mean == 0.0 && nothing.max == 0.0);
    }
}
