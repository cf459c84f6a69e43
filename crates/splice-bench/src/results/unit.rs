//! What values are counted in, and how a person reads them.

use serde::{Deserialize, Serialize};

/// What a value is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// 10⁹ bits in a second.
    GigabitsPerSecond,
    Microseconds,
    Seconds,
    Bytes,
    /// CPU seconds of the whole machine for 10⁹ bytes.
    CpuSecondsPerGigabyte,
    ConnectionsPerSecond,
    RequestsPerSecond,
    /// A plain number of something that the title names.
    Count,
    /// Parts of a hundred.
    Percent,
}

/// A multiple of a unit, chosen so that values have few digits before the point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Multiple {
    /// How much of the unit it is.
    pub(crate) size: f64,
    pub(crate) symbol: &'static str,
}

impl Unit {
    /// The multiple that fits `value`.
    pub(crate) fn multiple(self, value: f64) -> Multiple {
        const KIBIBYTE: f64 = 1024.0;
        let plain = |symbol| Multiple { size: 1.0, symbol };
        match self {
            Self::Bytes if value.abs() >= KIBIBYTE.powi(3) => Multiple {
                size: KIBIBYTE.powi(3),
                symbol: "GiB",
            },
            Self::Bytes if value.abs() >= KIBIBYTE.powi(2) => Multiple {
                size: KIBIBYTE.powi(2),
                symbol: "MiB",
            },
            Self::Bytes if value.abs() >= 10.0 * KIBIBYTE => Multiple {
                size: KIBIBYTE,
                symbol: "KiB",
            },
            Self::Microseconds if value.abs() >= 1e6 => Multiple {
                size: 1e6,
                symbol: "s",
            },
            Self::Microseconds if value.abs() >= 1e4 => Multiple {
                size: 1e3,
                symbol: "ms",
            },
            Self::GigabitsPerSecond => plain("Gb/s"),
            Self::Microseconds => plain("µs"),
            Self::Seconds => plain("s"),
            Self::Bytes => plain("B"),
            Self::CpuSecondsPerGigabyte => plain("CPU s/GB"),
            Self::ConnectionsPerSecond => plain("conn/s"),
            Self::RequestsPerSecond => plain("req/s"),
            Self::Count => plain(""),
            Self::Percent => plain("%"),
        }
    }

    /// What stands behind a value that is not brought to a multiple.
    pub(crate) fn symbol(self) -> &'static str {
        self.multiple(0.0).symbol
    }

    /// `value` with its unit: "27.2 Gb/s", "3.98 MiB".
    pub(crate) fn tell(self, value: f64) -> String {
        let multiple = self.multiple(value);
        let number = number(value / multiple.size);
        format!("{number} {}", multiple.symbol)
            .trim_end()
            .to_owned()
    }
}

/// Three digits that say something, all of those before the point, and groups of three.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => return "0".into(),
        far if !(0.001..1e15).contains(&far) => return format!("{value:.1e}"),
        below if below < 0.9995 => 3,
        below if below < 9.995 => 2,
        below if below < 99.95 => 1,
        _ => 0,
    };
    grouped(&format!("{value:.digits$}"))
}

/// What was counted, in groups of three digits.
pub(crate) fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// `12345.6` as `12 345.6`, with spaces that do not break a line.
fn grouped(text: &str) -> String {
    let (sign, rest) = text
        .strip_prefix('-')
        .map_or(("", text), |rest| ("-", rest));
    let (whole, part) = rest
        .find('.')
        .map_or((rest, ""), |point| rest.split_at(point));
    if whole.len() < 5 {
        return text.into();
    }
    let mut out = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out + part
}

#[cfg(test)]
mod tests {
    use super::{Unit, count, number};

    #[test]
    fn values_have_three_digits_and_a_unit() {
        for (unit, value, told) in [
            (Unit::GigabitsPerSecond, 27.234, "27.2 Gb/s"),
            (Unit::Microseconds, 3.728, "3.73 µs"),
            (Unit::Microseconds, 65_432.0, "65.4 ms"),
            (Unit::Bytes, 995.2, "995 B"),
            (Unit::Bytes, 4_173_332.0, "3.98 MiB"),
            (Unit::CpuSecondsPerGigabyte, 0.154, "0.154 CPU s/GB"),
            (Unit::ConnectionsPerSecond, 29_697.4, "29\u{202f}697 conn/s"),
            (Unit::Count, 0.0, "0"),
        ] {
            assert_eq!(unit.tell(value), told);
        }
        assert_eq!(
            (count(10), count(100_000)),
            ("10".into(), "100\u{202f}000".into())
        );
        assert_eq!(number(-12_345.0), "-12\u{202f}345");
        assert_eq!(number(0.000_02), "2.0e-5");
        assert_eq!(number(9.999), "10.0");
    }
}
