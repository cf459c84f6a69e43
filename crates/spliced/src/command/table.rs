//! A table for people: columns as wide as what is in them.

use std::fmt::Write as _;

/// Between two columns.
const GAP: &str = "  ";

pub(super) struct Table<const COLUMNS: usize> {
    rows: Vec<[String; COLUMNS]>,
    /// Numbers, which end at the same column.
    is_right: [bool; COLUMNS],
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// A column whose head begins with `>` has numbers.
    pub(super) fn new(heads: [&str; COLUMNS]) -> Self {
        Self {
            rows: vec![heads.map(|head| head.trim_start_matches('>').into())],
            is_right: heads.map(|head| head.starts_with('>')),
        }
    }

    /// Adds a row. What a terminal would act on is escaped: some of it was written by others.
    pub(super) fn add(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells.map(|cell| {
            if cell.is_empty() {
                return "-".into();
            }
            match cell.contains(char::is_control) {
                true => cell.escape_debug().to_string(),
                false => cell,
            }
        }));
    }

    pub(super) fn text(&self) -> String {
        let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        });
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                // Writing to a string does not fail.
                let _ = match self.is_right[column] {
                    true => write!(line, "{cell:>width$}{GAP}"),
                    false => write!(line, "{cell:<width$}{GAP}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A number of bytes in at most seven characters.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 and more would be printed as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A time in its two largest units.
pub(super) fn time(milliseconds: f64) -> String {
    let seconds = (milliseconds / 1000.0) as u64;
    match seconds {
        0 => format!("{}ms", milliseconds as u64),
        1..60 => format!("{:.1}s", milliseconds / 1000.0),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(["NAME", ">BYTES", "WHY"]);
        table.add(["a".into(), "1000".into(), "none".into()]);
        table.add(["bcdefg".into(), "1".into(), String::new()]);
        table.add(["\x1b[2J".into(), "100000".into(), "x".into()]);
        assert_eq!(
            table.text(),
            "NAME        BYTES  WHY\n\
             a            1000  none\n\
             bcdefg          1  -\n\
             \\u{1b}[2J  100000  x\n"
        );
    }

    #[test]
    fn bytes_and_times_are_short() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_524, "1023.9 KiB"),
            (1_048_575, "1.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        for (milliseconds, text) in [
            (0.0, "0ms"),
            (999.9, "999ms"),
            (1500.0, "1.5s"),
            (61_000.0, "1m 1s"),
            (3_661_000.0, "1h 1m"),
            (90_000_000.0, "1d 1h"),
        ] {
            assert_eq!(time(milliseconds), text);
        }
    }
}
