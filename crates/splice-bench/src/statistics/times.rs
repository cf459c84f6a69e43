//! Many times of one thing, shown as the original experiments show them.

use std::fmt;
use std::time::Duration;

/// Columns that the longest bar of a histogram has.
const BAR_COLUMNS: u64 = 50;

/// Times of one thing, in the order of its happening.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    nanoseconds: Vec<u64>,
}

/// What there is to say about some times in one line, in µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Values {
    pub(crate) min: f64,
    pub(crate) avg: f64,
    pub(crate) med: f64,
    pub(crate) max: f64,
    /// Standard deviation.
    pub(crate) dev: f64,
    pub(crate) count: usize,
}

/// How many times there are in each power of two of microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bands {
    /// Band `n` counts what is below 2 to the `n` µs and not in the band before.
    counts: Vec<u64>,
}

impl Times {
    /// How much of the longest [`Self::trimmed`] leaves out: the original's worst 1 %.
    pub(crate) const TRIMMED_PERCENT: f64 = 1.0;

    pub(crate) fn push(&mut self, time: Duration) {
        self.nanoseconds
            .push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.nanoseconds.extend_from_slice(&other.nanoseconds);
    }

    /// All of them; `None` without any.
    pub(crate) fn whole(&self) -> Option<Values> {
        Values::of_sorted(&self.sorted())
    }

    /// Without the longest [`Self::TRIMMED_PERCENT`].
    pub(crate) fn trimmed(&self) -> Option<Values> {
        let sorted = self.sorted();
        Values::of_sorted(&sorted[..sorted.len() - sorted.len() / 100])
    }

    pub(crate) fn bands(&self) -> Bands {
        let mut counts = vec![0];
        for nanoseconds in &self.nanoseconds {
            // A whole number of µs with `n` binary digits is below 2 to the `n`.
            let band = (u64::BITS - (nanoseconds / 1_000).leading_zeros()) as usize;
            counts.resize(counts.len().max(band + 1), 0);
            counts[band] += 1;
        }
        Bands { counts }
    }

    pub(crate) fn longer_than(&self, limit: Duration) -> usize {
        let limit = limit.as_nanos();
        let is_longer = |nanoseconds: &&u64| u128::from(**nanoseconds) > limit;
        self.nanoseconds.iter().filter(is_longer).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.nanoseconds.len()
    }

    fn sorted(&self) -> Vec<u64> {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        sorted
    }
}

impl Values {
    fn of_sorted(nanoseconds: &[u64]) -> Option<Self> {
        let (&min, &max) = (nanoseconds.first()?, nanoseconds.last()?);
        let count = nanoseconds.len();
        let microseconds = |value: u64| value as f64 / 1e3;
        let mean_of = |part: &dyn Fn(f64) -> f64| {
            nanoseconds
                .iter()
                .map(|&one| part(microseconds(one)))
                .sum::<f64>()
                / count as f64
        };
        let avg = mean_of(&|value| value);
        let (low, high) = (nanoseconds[(count - 1) / 2], nanoseconds[count / 2]);
        Some(Self {
            min: microseconds(min),
            avg,
            med: f64::midpoint(microseconds(low), microseconds(high)),
            max: microseconds(max),
            dev: mean_of(&|value| (value - avg).powi(2)).sqrt(),
            count,
        })
    }
}

impl fmt::Display for Values {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            min,
            avg,
            med,
            max,
            dev,
            count,
        } = self;
        // Letter by letter as the original has it, its one `=` included, so that its tools read it.
        write!(
            out,
            "Values min:{min:.2} avg:{avg:.2} med={med:.2} max:{max:.2} dev:{dev:.2} count:{count}"
        )
    }
}

impl Bands {
    /// The end of each band in µs, which is not in it, and how many times the band has.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..)
            .map(|band: u32| 1 << band)
            .zip(self.counts.iter().copied())
    }
}

impl fmt::Display for Bands {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.counts.iter().copied().max().unwrap_or(0).max(1);
        writeln!(out, "Values:")?;
        writeln!(out, " value |{} count", "-".repeat(BAR_COLUMNS as usize))?;
        for (end, count) in self.iter() {
            let bar = "*".repeat((count * BAR_COLUMNS / most) as usize);
            writeln!(
                out,
                "{end:6} |{bar:>width$} {count}",
                width = BAR_COLUMNS as usize
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Bands, Times};

    /// The histogram of "SOCKMAP - TCP splicing of the future" (Cloudflare, 2019).
    const OF_2019: &str = "\
Values:
 value |-------------------------------------------------- count
     1 |                                                   0
     2 |                                                   0
     4 |                                                   0
     8 |                                                   0
    16 |                                                   0
    32 |                                                   0
    64 |                                                   0
   128 |                                                   0
   256 |                                                   3531
   512 |************************************************** 1756052
  1024 |                                             ***** 208226
  2048 |                                                   18589
  4096 |                                                   2006
  8192 |                                                   9
 16384 |                                                   1
 32768 |                                                   0
 65536 |                                                   11585
131072 |                                                   1
";

    fn microseconds(values: &[u64]) -> Times {
        let mut all = Times::default();
        values
            .iter()
            .for_each(|&value| all.push(Duration::from_micros(value)));
        all
    }

    #[test]
    fn the_histogram_is_the_one_of_2019() {
        let mut counts = vec![0; 8];
        counts.extend([3531, 1_756_052, 208_226, 18_589, 2_006, 9, 1, 0, 11_585, 1]);
        assert_eq!(Bands { counts }.to_string(), OF_2019);
    }

    #[test]
    fn a_band_begins_where_the_one_before_ends() {
        let bands = microseconds(&[0, 1, 2, 3, 4, 1023, 1024]).bands();
        let filled: Vec<_> = bands.iter().filter(|&(_, count)| count > 0).collect();
        assert_eq!(
            filled,
            [(1, 1), (2, 1), (4, 2), (8, 1), (1024, 1), (2048, 1)]
        );
        // A part of a microsecond is in the first band, not beside it.
        let mut short = Times::default();
        short.push(Duration::from_nanos(999));
        assert_eq!(short.bands().iter().collect::<Vec<_>>(), [(1, 1)]);
    }

    #[test]
    fn the_line_is_that_of_2019() {
        let all = microseconds(&[4, 2, 4, 5, 5, 7, 9, 4]);
        assert_eq!(
            all.whole().expect("there are some").to_string(),
            "Values min:2.00 avg:5.00 med=4.50 max:9.00 dev:2.00 count:8"
        );
        assert!(Times::default().whole().is_none());
    }

    #[test]
    fn the_worst_hundredth_goes_and_no_more() {
        let mut values = vec![10; 198];
        values.extend([70_000, 65_000]);
        let all = microseconds(&values);
        let trimmed = all.trimmed().expect("there are some");
        assert_eq!((trimmed.max, trimmed.count), (10.0, 198));
        assert_eq!(all.whole().expect("there are some").max, 70_000.0);
        assert_eq!(all.longer_than(Duration::from_millis(50)), 2);
        assert_eq!(microseconds(&[1; 99]).trimmed().expect("some").count, 99);
    }
}
