//! What the keys do.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::widgets::Widget as _;

use super::columns::draw_text;

const HELP: [(&str, &str); 21] = [
    ("1 2 3 Tab", "sessions, backends, engines; the next page"),
    (
        "Up Down PgUp PgDn",
        "move the cursor, which then follows its row",
    ),
    ("Home", "to the first row, whatever that will be"),
    ("End", "to the last row"),
    (
        "F3 /",
        "search: the next row that has a text; F3 again goes on",
    ),
    ("n", "the next row that has it"),
    (
        "F4 \\",
        "filter: FIELD=VALUE, several with spaces; empty: all",
    ),
    ("", "fields: listener client server_name backend server"),
    ("", "target phase engine"),
    ("F6 >", "sort"),
    ("I", "the other way round"),
    ("F9 k", "end the session under the cursor with a reset"),
    ("d u", "drain or undrain the server under the cursor"),
    ("w", "weigh it: its share of new clients"),
    ("p Space", "pause: the page stays as it is"),
    ("Ctrl-L", "draw all again"),
    ("Ctrl-Z", "stop; fg goes on"),
    ("F10 q Ctrl-C", "end"),
    ("", ""),
    (
        "D in PROCESS",
        "the process drains: it ends with its last session",
    ),
    (
        "RATE, BYTES",
        "of both directions; K, M, G are powers of 1024",
    ),
];

pub(super) fn draw(buffer: &mut Buffer, area: Rect) {
    let lines = HELP.map(|(keys, meaning)| format!("{keys:>18}  {meaning}"));
    // Nothing of the page is beside them.
    let width = usize::from(area.width);
    let title = format!("{:width$}", "Keys of spliced top; any key closes this");
    overlay(buffer, area, &title, &lines, None);
}

/// Draws lines over a part of a page.
pub(super) fn overlay(
    buffer: &mut Buffer,
    area: Rect,
    title: &str,
    lines: &[String],
    selected: Option<usize>,
) {
    let height = u16::try_from(lines.len() + 1).unwrap_or(u16::MAX);
    let longest = lines.iter().map(String::len).fold(title.len(), usize::max);
    let width = u16::try_from(longest + 2).unwrap_or(u16::MAX);
    let area = Rect {
        width: width.min(area.width),
        height: height.min(area.height),
        ..area
    };
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    // The selected line is always in sight.
    let room = usize::from(area.height).saturating_sub(1);
    let hidden = selected.map_or(0, |selected| (selected + 1).saturating_sub(room));
    let title = [title].into_iter();
    let lines = title.chain(lines.iter().skip(hidden).map(|line| &**line));
    for (number, (text, line)) in lines.zip(area.rows()).enumerate() {
        " ".repeat(line.width.into()).render(line, buffer);
        let is_marked =
            number == 0 || selected.is_some_and(|selected| selected + 1 == number + hidden);
        let style = if is_marked { reversed } else { Style::reset() };
        buffer.set_style(line, style);
        let inner = Rect {
            x: line.x + 1.min(line.width),
            width: line.width.saturating_sub(2),
            ..line
        };
        draw_text(buffer, inner, text, style);
    }
}
