//! Columns of text for a terminal.

use std::fmt;

/// Two spaces keep columns apart without drawing lines.
const GAP: &str = "  ";

/// A table; the first column is aligned left, all others right, as numbers want to be.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    left: usize,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|&text| text.to_owned()).collect()],
            left: 1,
        }
    }

    /// Aligns the first `columns` columns left.
    pub(crate) fn align_left(mut self, columns: usize) -> Self {
        self.left = columns;
        self
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        debug_assert_eq!(
            row.len(),
            self.rows[0].len(),
            "a row has a cell for every heading"
        );
        self.rows.push(row);
    }

    fn width(&self, column: usize) -> usize {
        self.rows
            .iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|column| self.width(column))
            .collect();
        for (number, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| {
                    if column < self.left {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                })
                .collect();
            writeln!(out, "{}", cells.join(GAP).trim_end())?;
            if number == 0 {
                let rules: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
                writeln!(out, "{}", rules.join(GAP))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn numbers_line_up_on_the_right() {
        let mut table = Table::new(&["path", "µs"]);
        table.push(vec!["direct".into(), "9.5".into()]);
        table.push(vec!["copy".into(), "10.5".into()]);
        let expected = "path      µs\n------  ----\ndirect   9.5\ncopy    10.5\n";
        assert_eq!(table.to_string(), expected);
    }
}
