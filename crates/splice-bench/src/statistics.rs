//! What many measurements of one thing say together.

mod times;

pub(crate) use times::{Times, Values};

/// Measurements of one thing, one per round, in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    values: Vec<f64>,
}

impl Sample {
    pub(crate) fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    /// The middle one, or the mean of the middle two; `None` without any.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            length if length % 2 == 1 => Some(sorted[middle]),
            _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        }
    }

    /// From the smallest to the largest, as a part of the median.
    pub(crate) fn spread(&self) -> Option<f64> {
        let median = self.median().filter(|median| *median != 0.0)?;
        let largest = self.values.iter().copied().fold(f64::MIN, f64::max);
        let smallest = self.values.iter().copied().fold(f64::MAX, f64::min);
        Some((largest - smallest) / median)
    }

    /// This one over `reference`, round by round: what disturbed a whole round disturbed both, and
    /// cancels out. The rounds at the end that only one of them has are left out.
    pub(crate) fn ratio_to(&self, reference: &Self) -> Self {
        let ratios = self
            .values
            .iter()
            .zip(&reference.values)
            .map(|(own, other)| own / other);
        Self {
            values: ratios.collect(),
        }
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self {
            values: values.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Sample;

    fn sample(values: &[f64]) -> Sample {
        values.iter().copied().collect()
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(sample(&[]).median(), None);
        assert_eq!(sample(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(sample(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
    }

    #[test]
    fn the_spread_is_relative() {
        assert_eq!(sample(&[9.0, 10.0, 12.0]).spread(), Some(0.3));
        assert_eq!(sample(&[0.0]).spread(), None);
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let ratio = sample(&[2.0, 20.0]).ratio_to(&sample(&[1.0, 10.0]));
        assert_eq!((ratio.median(), ratio.spread()), (Some(2.0), Some(0.0)));
    }
}
