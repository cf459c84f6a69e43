//! From values to places on an axis.

use crate::results::number;

/// An axis: which values it shows, where on the drawing, and which of them are written.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    from: f64,
    to: f64,
    logarithmic: bool,
    place: (f64, f64),
    pub(crate) ticks: Vec<f64>,
}

/// A logarithmic axis is drawn when the largest value is so many times the smallest: below that, a
/// linear one shows differences better.
const LOGARITHMIC_FROM: f64 = 8.0;

impl Scale {
    /// From zero to `largest`, in about `steps` steps that are round in units of `unit`.
    pub(crate) fn from_zero(largest: f64, unit: f64, steps: f64, place: (f64, f64)) -> Self {
        let largest = if largest > 0.0 { largest } else { unit };
        let step = round_up(largest / unit / steps) * unit;
        // The largest value gets to the end of the axis, not the last round one.
        let count = (largest / step).floor() as u32;
        Self {
            from: 0.0,
            to: largest,
            logarithmic: false,
            place,
            ticks: (0..=count).map(|tick| f64::from(tick) * step).collect(),
        }
    }

    /// Over `values`: logarithmic when they are far apart and none is zero, otherwise from zero.
    pub(crate) fn over(values: impl Iterator<Item = f64>, unit: f64, place: (f64, f64)) -> Self {
        let (mut smallest, mut largest) = (f64::MAX, 0.0_f64);
        for value in values {
            smallest = smallest.min(value);
            largest = largest.max(value);
        }
        if smallest <= 0.0 || smallest > largest || largest / smallest < LOGARITHMIC_FROM {
            let scale = Self::from_zero(largest, unit, 5.0, place);
            let end = scale.ticks.last().copied().unwrap_or(0.0);
            let step = scale.ticks.get(1).copied().unwrap_or(unit);
            // Up to a round value, so that the topmost line has one beside it.
            return if largest > end {
                let mut ticks = scale.ticks;
                ticks.push(end + step);
                Self {
                    to: end + step,
                    ticks,
                    ..scale
                }
            } else {
                scale
            };
        }
        Self::logarithmic(smallest, largest, unit, place)
    }

    fn logarithmic(smallest: f64, largest: f64, unit: f64, place: (f64, f64)) -> Self {
        // 1, 2 and 5 of each power of ten; only 1 is written when there are many powers.
        let wide = (largest / smallest).log10() > 2.5;
        let first = (smallest / unit).log10().floor() as i32;
        let last = (largest / unit).log10().ceil() as i32;
        let powers = |steps: &'static [f64]| {
            let all = (first..=last).flat_map(move |power| {
                let each = steps.iter();
                each.map(move |step| step * 10f64.powi(power) * unit)
            });
            all.collect::<Vec<f64>>()
        };
        let fine = powers(&[1.0, 2.0, 5.0]);
        let from = fine.iter().rfind(|&&tick| tick <= smallest * 1.000_001);
        let to = fine.iter().find(|&&tick| tick >= largest * 0.999_999);
        let (from, to) = (
            from.copied().unwrap_or(smallest),
            to.copied().unwrap_or(largest),
        );
        let all = if wide { powers(&[1.0]) } else { fine };
        Self {
            from,
            to,
            logarithmic: true,
            place,
            ticks: all
                .into_iter()
                .filter(|tick| (from..=to).contains(tick))
                .collect(),
        }
    }

    /// Leaves out marks until the words of no two meet: of a logarithmic axis first all but `unit`
    /// times the powers of ten, then every other one. `span` tells from where to where the words of a
    /// mark go.
    pub(crate) fn spaced(mut self, unit: f64, span: impl Fn(f64, f64) -> (f64, f64)) -> Self {
        // Between words, as wide as a letter.
        const GAP: f64 = 7.0;
        let meet = |scale: &Self| {
            let words = |tick: f64| span(tick, scale.at(tick));
            let mut pairs = scale.ticks.windows(2);
            pairs.any(|two| words(two[1]).0 - words(two[0]).1 < GAP)
        };
        if self.logarithmic && meet(&self) {
            let is_power = |tick: &f64| {
                let power = (tick / unit).log10();
                (power - power.round()).abs() < 1e-6
            };
            if self.ticks.iter().any(is_power) {
                self.ticks.retain(is_power);
            }
        }
        while meet(&self) {
            self.ticks = self.ticks.into_iter().step_by(2).collect();
        }
        self
    }

    /// Where `value` is; what lies outside of the axis, at its end.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        let (begin, end) = self.place;
        begin + part.clamp(0.0, 1.0) * (end - begin)
    }
}

/// The next of 1, 2, 2.5, 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|&step| step >= value * 0.999_999)
        .unwrap_or(10.0 * power)
}

/// A round value, without the zeros that a measured one would have.
pub(crate) fn tick_words(value: f64) -> String {
    let text = number(value);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

/// How many nines a percentile has: 90 has one, 99.9 three. Latencies are drawn over it, since what
/// matters of them is at the end.
pub(crate) fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).log10()
}

#[cfg(test)]
mod tests {
    use super::{Scale, nines, tick_words};

    fn is(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn zero_is_an_axis_too() {
        let scale = Scale::from_zero(0.0, 1.0, 4.0, (0.0, 100.0));
        assert!(is(scale.at(0.0), 0.0) && !scale.ticks.is_empty());
        let scale = Scale::over(std::iter::empty(), 1.0, (0.0, 100.0));
        assert!(scale.at(3.0).is_finite());
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = Scale::from_zero(51.2, 1.0, 4.0, (0.0, 100.0));
        assert_eq!(scale.ticks, [0.0, 20.0, 40.0]);
        assert!(is(scale.at(51.2), 100.0));
        let mebibyte = f64::from(1 << 20);
        let scale = Scale::over(
            [3.0 * mebibyte, 15.7 * mebibyte].into_iter(),
            mebibyte,
            (0.0, 1.0),
        );
        assert_eq!(scale.ticks.last(), Some(&(20.0 * mebibyte)));
    }

    #[test]
    fn values_far_apart_get_a_logarithmic_axis() {
        let scale = Scale::over([3.0, 900.0].into_iter(), 1.0, (0.0, 100.0));
        assert_eq!(scale.ticks.first(), Some(&2.0));
        assert_eq!(scale.ticks.last(), Some(&1000.0));
        assert!(is(scale.at(1000.0), 100.0) && is(scale.at(0.1), 0.0));
    }

    #[test]
    fn marks_whose_words_would_meet_are_left_out() {
        let wide = |half: f64| move |_: f64, place: f64| (place - half, place + half);
        let scale = |half| {
            let scale = Scale::over([3.0, 900.0].into_iter(), 1.0, (0.0, 100.0));
            scale.spaced(1.0, wide(half))
        };
        assert_eq!(scale(1.0).ticks.len(), 9);
        assert_eq!(scale(6.0).ticks, [10.0, 100.0, 1000.0]);
        assert_eq!(scale(20.0).ticks, [10.0, 1000.0]);
        // Nothing is left to meet.
        assert_eq!(scale(1000.0).ticks, [10.0]);

        let linear = Scale::from_zero(50.0, 1.0, 5.0, (0.0, 100.0));
        assert_eq!(linear.spaced(1.0, wide(12.0)).ticks, [0.0, 20.0, 40.0]);
    }

    #[test]
    fn ticks_have_no_idle_zeros() {
        for (value, words) in [
            (20.0, "20"),
            (2.5, "2.5"),
            (0.05, "0.05"),
            (100.0, "100"),
            (0.0, "0"),
        ] {
            assert_eq!(tick_words(value), words);
        }
    }

    #[test]
    fn nines_are_counted() {
        assert!(is(nines(0.0), 0.0) && is(nines(90.0), 1.0));
        assert!((nines(99.99) - 4.0).abs() < 1e-6);
    }
}
