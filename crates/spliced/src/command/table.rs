//! A table for people: columns as wide as what is in them.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde_json::Value;

pub(super) use crate::printable::printable;

/// Between two columns.
const GAP: &str = "  ";

/// The most characters of a cell, except in the last column: what people name a backend or a server may be longer.
const CELL_MOST: usize = 100;

/// In the place of what a cell has no room for.
const CUT: char = '…';

pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// Numbers, which end at the same column.
    is_right: Vec<bool>,
}

impl Table {
    /// A column whose head begins with `>` has numbers.
    pub(super) fn new(heads: &[&str]) -> Self {
        let names = heads.iter().map(|head| head.trim_start_matches('>').into());
        Self {
            rows: vec![names.collect()],
            is_right: heads.iter().map(|head| head.starts_with('>')).collect(),
        }
    }

    /// Adds a row, which has as many cells as the head.
    pub(super) fn add(&mut self, cells: impl IntoIterator<Item = String>) {
        let last = self.is_right.len() - 1;
        let cells = cells.into_iter().enumerate();
        let cells = cells.map(|(column, cell)| match cell.is_empty() {
            true => "-".into(),
            false if column == last => printable(&cell),
            false => shortened(printable(&cell), CELL_MOST, CUT),
        });
        self.rows.push(cells.collect());
    }

    pub(super) fn text(&self) -> String {
        let mut widths = vec![0; self.is_right.len()];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, &width), is_right) in row.iter().zip(&widths).zip(&self.is_right) {
                // Writing to a string does not fail.
                let _ = match is_right {
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

/// With a mark in the place of the middle, if there are more characters than `most`: names often begin alike, or end alike.
pub(super) fn shortened(cell: String, most: usize, mark: char) -> String {
    let count = cell.chars().count();
    if count <= most || most == 0 {
        return cell;
    }
    let begin = most * 3 / 5;
    let head: String = cell.chars().take(begin).collect();
    let tail = cell.chars().skip(count - (most - begin - 1));
    format!("{head}{mark}{}", tail.collect::<String>())
}

/// A field of an answer.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => printable(text),
        other => other.to_string(),
    }
}

/// How long ago a time of an answer is.
pub(super) fn age(since: &Value) -> String {
    let since = humantime::parse_rfc3339(since.as_str().unwrap_or_default()).ok();
    let age = since.and_then(|since| SystemTime::now().duration_since(since).ok());
    age.map_or_else(
        || "-".into(),
        |age| humantime::format_duration(Duration::from_secs(age.as_secs())).to_string(),
    )
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
        let mut table = Table::new(&["NAME", ">BYTES", "WHY"]);
        for row in [
            ["a", "1000", "none"],
            ["bcdefg", "1", ""],
            ["\x1b[2J", "100000", "x"],
        ] {
            table.add(row.map(Into::into));
        }
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
