//! What many measurements of one thing say together.
//!
//! A *sample* has one value per round. Two samples are compared round by round: what disturbed a
//! whole round disturbed both, and cancels out of the ratio. How far such a ratio can be trusted is
//! found by *bootstrap*: the rounds are drawn again and again with replacement, and the interval is
//! where the median of 95 % of these draws lies. A difference whose interval contains "none" is not
//! called one.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::random::Random;
use serde::{Deserialize, Serialize};

/// Fewer rounds make no interval: of four, even the whole span from the smallest to the largest
/// misses the true median once in eight times (2 · 0.5⁴), of five once in sixteen.
pub(crate) const FEWEST_ROUNDS: usize = 5;

/// Draws per interval. The ends of a 95 % interval are then known to within 0.3 % of probability
/// (binomial, √(0.025 · 0.975 / 4000)).
pub(crate) const DRAWS: u32 = 4_000;

/// How much of all draws an interval holds; what is outside lies half at either end.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// The draws are the same in every run, so that the same values give the same interval.
const SEED: u64 = 0x000b_0075;

/// 60 s, in ns: what takes longer is recorded as that long. Longer than any patience here.
const LONGEST_NANOSECONDS: u64 = 60_000_000_000;

/// Decimal digits that a histogram keeps; 0.1 % is below what differs from run to run.
const DIGITS: u8 = 3;

mod times;

pub(crate) use times::{Times, Values};

/// Where a value lies with the run's confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Interval {
    pub(crate) fn is_finite(&self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }
}

/// Measurements of one thing, one per round, in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    values: Vec<f64>,
}

impl Sample {
    pub(crate) fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    /// The values, in the order of the rounds.
    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    /// The middle one, or the mean of the middle two; `None` without any.
    pub(crate) fn median(&self) -> Option<f64> {
        (!self.values.is_empty()).then(|| median_of(&mut self.values.clone()))
    }

    /// The smallest and the largest value.
    pub(crate) fn range(&self) -> Option<(f64, f64)> {
        let values = || self.values.iter().copied();
        Some((values().reduce(f64::min)?, values().reduce(f64::max)?))
    }

    /// This one over `reference`, round by round. The rounds at the end that only one of them has
    /// are left out.
    pub(crate) fn ratio_to(&self, reference: &Self) -> Self {
        self.paired(reference, |own, other| own / other)
    }

    /// This one less `reference`, round by round.
    pub(crate) fn less(&self, reference: &Self) -> Self {
        self.paired(reference, |own, other| own - other)
    }

    fn paired(&self, reference: &Self, of: impl Fn(f64, f64) -> f64) -> Self {
        let pairs = self.values.iter().zip(&reference.values);
        pairs.map(|(&own, &other)| of(own, other)).collect()
    }

    /// Where the median can be trusted to lie; `None` with fewer than [`FEWEST_ROUNDS`].
    pub(crate) fn interval(&self) -> Option<Interval> {
        let count = self.values.len();
        if count < FEWEST_ROUNDS {
            return None;
        }
        let mut random = Random::new(SEED);
        let mut drawn = vec![0.0; count];
        let mut medians: Vec<f64> = (0..DRAWS)
            .map(|_| {
                drawn.fill_with(|| self.values[random.below(count)]);
                median_of(&mut drawn)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        let outside = (f64::from(DRAWS) * (1.0 - CONFIDENCE) / 2.0) as usize;
        Some(Interval {
            low: medians[outside],
            high: medians[DRAWS as usize - 1 - outside],
        })
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self {
            values: values.into_iter().collect(),
        }
    }
}

/// The median; reorders `values`, of which there is at least one.
fn median_of(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

/// Durations of many single things, as an HDR histogram of nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_max(LONGEST_NANOSECONDS, DIGITS)
            .expect("the bounds are constants that fit each other");
        Self { histogram }
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        // u64 holds 584 years of nanoseconds.
        self.histogram.saturating_record(duration.as_nanos() as u64);
    }

    /// Adds what another round has found.
    pub(crate) fn add(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("all have the same bounds");
    }

    /// What `quantile` (0 to 1) of all were at most, in µs.
    pub(crate) fn microseconds(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1e3
    }

    /// The histogram itself, in ns.
    pub(crate) fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{FEWEST_ROUNDS, Interval, Latencies, Sample};
    use crate::random::Random;

    fn sample(values: &[f64]) -> Sample {
        values.iter().copied().collect()
    }

    /// Each draws thousands of times, without optimisation.
    const TRIALS: u32 = 300;

    fn contains(interval: Interval, value: f64) -> bool {
        (interval.low..=interval.high).contains(&value)
    }

    /// Between 0 and 1.
    fn uniform(random: &mut Random) -> f64 {
        random.below(1 << 53) as f64 / (1_u64 << 53) as f64
    }

    /// Mean 0, deviation 1: the sum of twelve (Irwin and Hall) is as normal as is needed here.
    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(sample(&[]).median(), None);
        assert_eq!(sample(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(sample(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
    }

    #[test]
    fn the_range_goes_from_the_smallest_to_the_largest() {
        assert_eq!(sample(&[10.0, 9.0, 12.0]).range(), Some((9.0, 12.0)));
        assert_eq!(sample(&[]).range(), None);
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let ratio = sample(&[2.0, 20.0]).ratio_to(&sample(&[1.0, 10.0]));
        assert_eq!(ratio.values(), [2.0, 2.0]);
    }

    /// How often the interval of `rounds` values holds the true median, 0.
    fn covered(rounds: usize, mut draw: impl FnMut(&mut Random) -> f64) -> usize {
        let mut random = Random::new(7);
        (0..TRIALS)
            .filter(|_| {
                let sample: Sample = (0..rounds).map(|_| draw(&mut random)).collect();
                contains(sample.interval().expect("enough rounds"), 0.0)
            })
            .count()
    }

    #[test]
    fn an_interval_holds_the_truth_as_often_as_it_says() {
        // What order statistics promise: 93.75 % with five rounds, 96.1 % with nine; three standard
        // errors of so many trials are 4.2 and 3.4 %.
        let skewed = |random: &mut Random| normal(random).exp() - 1.0;
        for (rounds, promised, slack) in [(5, 0.9375, 0.042), (9, 0.961, 0.034)] {
            for covered in [covered(rounds, normal), covered(rounds, skewed)] {
                let part = covered as f64 / f64::from(TRIALS);
                let off: f64 = part - promised;
                assert!(
                    off.abs() <= slack,
                    "{covered} of {TRIALS} with {rounds} rounds"
                );
            }
        }
    }

    #[test]
    fn an_interval_narrows_with_the_rounds() {
        let mut random = Random::new(3);
        let many: Sample = (0..400).map(|_| normal(&mut random)).collect();
        let interval = many.interval().expect("enough rounds");
        // The median of n normal values deviates by sqrt(pi / 2n); the interval is four of these.
        let expected = 4.0 * (std::f64::consts::PI / 800.0).sqrt();
        let width = interval.high - interval.low;
        assert!((0.7..1.3).contains(&(width / expected)), "{width}");
    }

    #[test]
    fn too_few_rounds_have_no_interval() {
        let values = [1.0; FEWEST_ROUNDS];
        assert!(sample(&values[1..]).interval().is_none());
        assert!(sample(&values).interval().is_some());
    }

    #[test]
    fn latencies_of_rounds_add_up() {
        let (mut all, mut one) = (Latencies::new(), Latencies::new());
        (1..=10_000).for_each(|microseconds| one.record(Duration::from_micros(microseconds)));
        all.add(&one);
        all.add(&one);
        assert_eq!(all.histogram().len(), 20_000);
        for (quantile, expected) in [(0.5, 5_000.0), (0.99, 9_900.0), (0.9999, 9_999.0)] {
            let found = all.microseconds(quantile);
            assert!((found / expected - 1.0).abs() < 1e-3, "{found}");
        }
    }
}
