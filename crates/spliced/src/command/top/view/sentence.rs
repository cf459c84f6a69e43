//! A sentence that is to be read whole, on as many lines as it needs.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::Span;
use ratatui_core::widgets::Widget as _;

use super::super::super::table::printable;
use super::columns::draw_text;

/// Draws it from the line `top` of `area` on, or from a line above if it would not end within `area`. Nothing else is on
/// the lines from there on.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, top: u16, text: &str, style: Style) {
    let mut lines = wrapped(&printable(text), usize::from(area.width));
    let room = usize::from(area.height);
    if lines.len() > room {
        // The last line is cut then, with a mark.
        let rest = lines.split_off(room.saturating_sub(1));
        lines.push(rest.join(" "));
    }
    let height = u16::try_from(lines.len()).unwrap_or(area.height);
    let y = top.min(area.bottom().saturating_sub(height)).max(area.y);
    let part = Rect {
        y,
        height: area.bottom() - y,
        ..area
    };
    for line in part.rows() {
        buffer.set_style(line, Style::reset());
        " ".repeat(line.width.into()).render(line, buffer);
    }
    for (text, line) in lines.iter().zip(part.rows()) {
        draw_text(buffer, line, text, style);
    }
}

/// Lines of at most `width` columns, between words where that can be.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let needed = columns(word);
        if used > 0 && used + 1 + needed > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        for letter in word.chars() {
            let needed = columns(letter.encode_utf8(&mut [0; 4]));
            if used > 0 && used + needed > width {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(letter);
            used += needed;
        }
    }
    lines.push(line);
    lines
}

fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_wrapped_between_words() {
        let text = "there is no field colour";
        assert_eq!(wrapped(text, 24), [text]);
        assert_eq!(wrapped(text, 23), ["there is no field", "colour"]);
        assert_eq!(wrapped(text, 5), ["there", "is no", "field", "colou", "r"]);
        assert_eq!(wrapped("日本語", 4), ["日本", "語"]);
        assert_eq!(wrapped("日本", 1), ["日", "本"]);
        assert_eq!(wrapped("", 5), [""]);
        assert_eq!(wrapped("a b", 0), ["a", "b"]);
    }

    #[test]
    fn it_takes_lines_from_above_only_if_it_has_to() {
        let lines = |text: &str, top| {
            let area = Rect::new(0, 0, 5, 4);
            let mut buffer = Buffer::with_lines(["aaaaa"; 4]);
            draw(&mut buffer, area, top, text, Style::new());
            super::super::tests::lines(&buffer)
        };
        assert_eq!(lines("x", 2), ["aaaaa", "aaaaa", "x", ""]);
        assert_eq!(lines("xxx yyy", 2), ["aaaaa", "aaaaa", "xxx", "yyy"]);
        assert_eq!(lines("xxx yyy zzz", 2), ["aaaaa", "xxx", "yyy", "zzz"]);
        assert_eq!(lines("a_a_a b_b_b c_c_c d_d_d e", 3)[3], "d_d_~");
        assert_eq!(lines("x", 3)[3], "x");
    }
}
