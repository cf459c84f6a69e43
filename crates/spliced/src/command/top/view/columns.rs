//! A table as wide as the terminal: what has no room is shortened, then left out.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Span;

use super::super::super::table::{printable, shortened};

/// In place of what has been cut off, on terminals of any character set.
const CUT: char = '~';

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) head: &'static str,
    pub(super) side: Side,
    /// It is left out if it cannot have as much, or what is in it.
    pub(super) least: usize,
    /// Columns with a higher rank are left out first.
    pub(super) rank: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    /// What is too long loses its middle: names often begin alike, or end alike.
    LeftWithEnds,
    /// Figures, which are never shortened.
    Right,
}

pub(super) const fn name(head: &'static str, least: usize, rank: u8) -> Column {
    Column {
        head,
        side: Side::LeftWithEnds,
        least,
        rank,
    }
}

pub(super) const fn text(head: &'static str, least: usize, rank: u8) -> Column {
    Column {
        head,
        side: Side::Left,
        least,
        rank,
    }
}

pub(super) const fn figures(head: &'static str, least: usize, rank: u8) -> Column {
    Column {
        head,
        side: Side::Right,
        least,
        rank,
    }
}

/// The cells of a row, and how they look.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    pub(super) style: Style,
}

/// Columns with the cells of rows.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) columns: &'static [Column],
    /// The heads of those that say nothing now.
    pub(super) hidden: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
}

/// Draws the head and the rows, of which the one with the number `selected` is marked.
pub(super) fn draw(
    buffer: &mut Buffer,
    (head, list): (Rect, Rect),
    table: &Table,
    selected: usize,
) {
    let Table { columns, rows, .. } = table;
    let widths = widths(table, usize::from(list.width));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let heads = columns.iter().map(|column| column.head);
    if !head.is_empty() {
        draw_row(buffer, head, columns, &widths, heads, bold);
    }
    for (number, (row, line)) in rows.iter().zip(list.rows()).enumerate() {
        let mut style = row.style;
        if number == selected {
            style = style.add_modifier(Modifier::REVERSED);
            buffer.set_style(line, style);
        }
        let cells = row.cells.iter().map(|cell| &**cell);
        draw_row(buffer, line, columns, &widths, cells, style);
    }
}

/// Draws a text into a line, with a mark if it does not fit.
pub(super) fn draw_text(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    let Rect { x, y, width, .. } = area;
    if area.is_empty() {
        return;
    }
    let text = printable(text);
    let is_cut = Span::raw(&*text).width() > usize::from(width);
    let room = width - u16::from(is_cut);
    buffer.set_stringn(x, y, &text, room.into(), style);
    if is_cut {
        buffer.set_stringn(x + room, y, CUT.to_string(), 1, style);
    }
}

fn draw_row<'a>(
    buffer: &mut Buffer,
    line: Rect,
    columns: &[Column],
    widths: &[Option<usize>],
    cells: impl Iterator<Item = &'a str>,
    style: Style,
) {
    let mut x = line.x;
    for ((cell, column), width) in cells.zip(columns).zip(widths) {
        let Some(width) = *width else { continue };
        let left = line.right().saturating_sub(x);
        let width = u16::try_from(width).unwrap_or(u16::MAX).min(left);
        let cell = match (cell, column.side) {
            ("", _) => "-".into(),
            (_, Side::LeftWithEnds) => shortened(printable(cell), width.into(), CUT),
            _ => printable(cell),
        };
        let used = u16::try_from(Span::raw(&*cell).width()).unwrap_or(u16::MAX);
        let indent = match column.side {
            Side::Left | Side::LeftWithEnds => 0,
            Side::Right => width.saturating_sub(used),
        };
        draw_text(
            buffer,
            Rect::new(x + indent, line.y, width - indent, 1),
            &cell,
            style,
        );
        x = x.saturating_add(width + 1);
    }
}

/// How wide each column is; `None` if it has no room.
fn widths(table: &Table, total: usize) -> Vec<Option<usize>> {
    let Table { columns, rows, .. } = table;
    let wanted: Vec<_> = (columns.iter().enumerate())
        .map(|(number, column)| {
            let cells = rows
                .iter()
                .map(|row| Span::raw(printable(&row.cells[number])).width());
            let head = column.head.len();
            match column.side {
                Side::Left | Side::LeftWithEnds => cells.fold(head, usize::max),
                Side::Right => cells.fold(head.max(column.least), usize::max),
            }
        })
        .collect();
    let least = |number: usize| match columns[number].side {
        Side::Left | Side::LeftWithEnds => wanted[number].min(columns[number].least),
        Side::Right => wanted[number],
    };
    let is_shown = |number: &usize| !table.hidden.contains(&columns[*number].head);
    let mut by_rank: Vec<_> = (0..columns.len()).filter(is_shown).collect();
    by_rank.sort_by_key(|number| columns[*number].rank);
    let mut widths = vec![None; columns.len()];
    // With the gap before each but the first.
    let mut left = total + 1;
    for (place, &number) in by_rank.iter().enumerate() {
        let width = match place {
            0 => least(number).min(total),
            _ => least(number),
        };
        if width + 1 > left {
            break;
        }
        left -= width + 1;
        widths[number] = Some(width);
    }
    // What is left goes round, so that no text takes all of it.
    while left > 0 {
        let before = left;
        for &number in &by_rank {
            if let Some(width) = &mut widths[number]
                && left > 0
                && *width < wanted[number]
            {
                *width += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(width: u16, rows: &[[&str; 4]]) -> Vec<String> {
        const COLUMNS: [Column; 4] = [
            text("NAME", 4, 0),
            figures("BYTES", 5, 1),
            name("TARGET", 6, 2),
            text("WHY", 10, 3),
        ];
        let rows = rows.iter().map(|cells| Row {
            cells: cells.map(Into::into).into(),
            style: Style::new(),
        });
        let table = Table {
            columns: &COLUMNS,
            hidden: Vec::new(),
            rows: rows.collect(),
        };
        let area = Rect::new(0, 0, width, 3);
        let mut buffer = Buffer::empty(area);
        let head = Rect::new(0, 0, width, 1);
        let list = Rect::new(0, 1, width, 2);
        draw(&mut buffer, (head, list), &table, 0);
        super::super::tests::lines(&buffer)
    }

    #[test]
    fn columns_are_shortened_and_then_left_out() {
        let rows = [
            ["a", "1", "192.0.2.1", "because of that"],
            ["b", "22", "\u{1b}[2J", ""],
        ];
        assert_eq!(
            lines(45, &rows),
            [
                "NAME BYTES TARGET    WHY",
                "a        1 192.0.2.1 because of that",
                "b       22 \\u{1b}[2J -",
            ]
        );
        assert_eq!(
            lines(28, &rows),
            [
                "NAME BYTES TARGET WHY",
                "a        1 192~.1 because o~",
                "b       22 \\u{~2J -"
            ]
        );
        assert_eq!(
            lines(27, &rows),
            [
                "NAME BYTES TARGET",
                "a        1 192.0.2.1",
                "b       22 \\u{1b}[2J"
            ]
        );
        assert_eq!(lines(10, &rows), ["NAME BYTES", "a        1", "b       22"]);
        assert_eq!(lines(9, &rows), ["NAME", "a", "b"]);
        assert_eq!(lines(2, &rows), ["N~", "a", "b"]);
        assert_eq!(lines(1, &rows), ["~", "a", "b"]);
        assert_eq!(lines(0, &rows), ["", "", ""]);
    }

    #[test]
    fn wide_characters_stay_within_their_column() {
        let rows = [["日本語日本語", "1", "x", "y"]];
        // Each has two cells, of which the second is blank here.
        assert_eq!(lines(12, &rows)[1], "日 本  ~     1");
    }
}
