//! Figures in few columns.

use super::super::super::table;

/// In at most five columns: three digits and a unit of 1024.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if count < 1000 {
        return count.to_string();
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // 999.5 and more would be four digits.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        // They would be printed as 10.00 and 100.0.
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

/// In at most six columns, for a hundred years: its two largest units.
pub(super) fn time(milliseconds: f64) -> String {
    table::time(milliseconds).replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_have_few_columns() {
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "0.98K"),
            (10_234, "9.99K"),
            (10_235, "10.0K"),
            (102_399, "100K"),
            (1_023_487, "999K"),
            (1_023_488, "0.98M"),
            (5 << 30, "5.00G"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(bytes(count), text, "{count}");
        }
        assert_eq!(time(59_900.0), "59.9s");
        assert_eq!(time(86_399_000.0), "23h59m");
        assert_eq!(time(999.0 * 86_400_000.0 + 82_800_000.0), "999d23h");
    }
}
