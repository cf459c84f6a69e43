//! What the model looks like on a terminal of any size.

mod backends;
mod columns;
mod engines;
mod figures;
mod help;
mod sentence;
mod sessions;

use clap::ValueEnum as _;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use self::columns::{Table, draw_text};
use self::figures::bytes;
use self::help::overlay;
use super::super::processes::Of;
use super::super::rated::Rated;
use super::dialog::{Dialog, Prompt};
use super::model::{Model, Page};
use crate::session_args::SessionOrder;
use crate::weight::WEIGHT_MOST;

/// The keys in the last line, as in htop.
const KEYS: [(&str, &str); 8] = [
    ("F1", "Help "),
    ("F3", "Search "),
    ("F4", "Filter "),
    ("F6", "Sort "),
    ("F9", "Kill "),
    ("F10", "Quit "),
    ("Tab", "Page "),
    ("p", "Pause"),
];

const KEYS_OF_SERVERS: [(&str, &str); 8] = [
    ("F1", "Help "),
    ("F3", "Search "),
    ("d", "Drain "),
    ("u", "Undrain "),
    ("w", "Weigh "),
    ("F10", "Quit "),
    ("Tab", "Page "),
    ("p", "Pause"),
];

/// Of the pages whose rows are of processes.
const PROCESS: &str = "PROCESS";

/// The list of a page.
struct List {
    /// Its rows from the first one that is shown.
    table: Table,
    /// More of the selected row, the most important first.
    details: Vec<String>,
    /// What is said if there are no rows.
    nothing: &'static str,
}

/// Draws the model on all of `buffer`.
pub(super) fn draw(model: &Model, buffer: &mut Buffer) {
    let layout = model.layout();
    let sessions = model.sessions();
    draw_title(model, &sessions, buffer, layout.title);
    draw_tabs(model, buffer, layout.tabs);
    let list = match model.page {
        Page::Sessions => sessions::list(model, &sessions),
        Page::Backends => backends::list(model),
        Page::Engines => engines::list(model),
    };
    let (row, first) = model.rows();
    let parts = (layout.head, layout.list);
    columns::draw(buffer, parts, &list.table, row - first);
    if list.table.rows.is_empty() {
        let text = nothing(model, &list);
        draw_text(buffer, line(layout.list, 0), text, Style::new());
    }
    let notices = model.known.notices().join("; ");
    let red = Style::new().fg(Color::Red);
    draw_text(buffer, layout.notice, &notices, red);
    let above = Rect {
        height: buffer.area.height - layout.keys.height,
        ..buffer.area
    };
    match sentence(model) {
        Some((text, style)) => sentence::draw(buffer, above, layout.detail.y, &text, style),
        None => {
            for (detail, line) in list.details.iter().zip(layout.detail.rows()) {
                draw_text(buffer, line, detail, Style::new());
            }
        }
    }
    draw_keys(model, buffer, layout.keys);
    match &model.dialog {
        Some(Dialog::Help) => help::draw(buffer, above),
        Some(Dialog::Sort(at)) => {
            let orders = SessionOrder::value_variants()
                .iter()
                .map(|order| name(*order));
            overlay(
                buffer,
                layout.list,
                "Sort by",
                &orders.collect::<Vec<_>>(),
                Some(*at),
            );
        }
        _ => {}
    }
}

fn draw_title(model: &Model, sessions: &[&Rated], buffer: &mut Buffer, area: Rect) {
    let all = model.known.sessions().count();
    let shown = match sessions.len() == all {
        true => String::new(),
        false => format!("{} of ", sessions.len()),
    };
    let rate = sessions.iter().map(|one| one.bytes_per_second()).sum();
    let paused = if model.is_paused { ", PAUSED" } else { "" };
    let draining = match model.known.draining() {
        0 => String::new(),
        number => format!(" ({number} draining)"),
    };
    let text = format!(
        "spliced top{paused}: {}{draining}, {shown}{}, {}/s",
        count(model.known.count(), "process", "processes"),
        count(all, "session", "sessions"),
        bytes(rate),
    );
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let left = draw_part(buffer, area, &text, bold);
    let right = format!("every {}s", model.delay.as_secs_f64());
    let width = u16::try_from(right.len()).unwrap_or(u16::MAX);
    if width < left.width {
        let corner = Rect {
            x: left.right() - width,
            width,
            ..left
        };
        draw_text(buffer, corner, &right, bold);
    }
}

fn draw_tabs(model: &Model, buffer: &mut Buffer, area: Rect) {
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let mut left = area;
    for (page, number) in Page::ALL.into_iter().zip(1..) {
        let style = if page == model.page {
            reversed
        } else {
            Style::new()
        };
        left = draw_part(buffer, left, &format!(" {number} {} ", page.name()), style);
    }
    let mut parts = Vec::new();
    if model.page == Page::Sessions {
        parts.push(format!("by {}", name(model.order)));
    }
    if model.page == Page::Sessions && model.is_reversed {
        parts.push("reversed".into());
    }
    if model.page != Page::Backends && !model.filters.is_empty() {
        let filters = model.filters.iter().map(ToString::to_string);
        parts.push(format!("only {}", filters.collect::<Vec<_>>().join(" ")));
    }
    let text = format!(" {}", parts.join(", "));
    draw_text(buffer, left, &text, Style::new());
}

/// What the keys do, or what is being typed or asked.
fn draw_keys(model: &Model, buffer: &mut Buffer, area: Rect) {
    match &model.dialog {
        Some(Dialog::Search(prompt)) => draw_prompt(buffer, area, "Search", prompt),
        Some(Dialog::Filter(prompt)) => draw_prompt(buffer, area, "Filter", prompt),
        Some(Dialog::Weigh(_, prompt)) => draw_prompt(buffer, area, "Weight", prompt),
        Some(Dialog::Confirm(order, _)) => {
            let text = format!("y {} it; any other key leaves it", order.what.verb());
            let bold = Style::new().add_modifier(Modifier::BOLD);
            draw_text(buffer, area, &text, bold);
        }
        Some(Dialog::Sort(_)) => {
            draw_text(buffer, area, "Enter sorts; Esc leaves it", Style::new());
        }
        Some(Dialog::Help) | None => {
            let reversed = Style::new().add_modifier(Modifier::REVERSED);
            let mut left = area;
            let keys = match model.page {
                Page::Backends => KEYS_OF_SERVERS,
                Page::Sessions | Page::Engines => KEYS,
            };
            for (key, meaning) in keys {
                left = draw_part(buffer, left, key, Style::new());
                left = draw_part(buffer, left, meaning, reversed);
            }
        }
    }
}

/// The end of the text is in sight, where one types.
fn draw_prompt(buffer: &mut Buffer, area: Rect, what: &str, prompt: &Prompt) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let left = draw_part(buffer, area, &format!("{what}: "), bold);
    let room = usize::from(left.width).saturating_sub(1);
    let hidden = prompt.text.chars().count().saturating_sub(room);
    let text: String = prompt.text.chars().skip(hidden).collect();
    let left = draw_part(buffer, left, &text, Style::new());
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    draw_part(buffer, left, " ", reversed);
}

/// Draws a text at the left of `area`, and returns what is left of that.
fn draw_part(buffer: &mut Buffer, area: Rect, text: &str, style: Style) -> Rect {
    if area.is_empty() {
        return area;
    }
    let (x, _) = buffer.set_stringn(area.x, area.y, text, area.width.into(), style);
    Rect {
        x,
        width: area.right() - x,
        ..area
    }
}

/// What is asked of the person, or told, in the place of details.
fn sentence(model: &Model) -> Option<(String, Style)> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let prompt = match &model.dialog {
        Some(Dialog::Search(prompt) | Dialog::Filter(prompt) | Dialog::Weigh(_, prompt)) => {
            Some(prompt)
        }
        _ => None,
    };
    if let Some(wrong) = prompt.and_then(|prompt| prompt.wrong.as_ref()) {
        return Some((wrong.clone(), Style::new().fg(Color::Red)));
    }
    match &model.dialog {
        Some(Dialog::Confirm(_, question)) => Some((question.clone(), bold)),
        Some(Dialog::Weigh(order, _)) => {
            let text = format!("The weight of {}, from 0 to {WEIGHT_MOST}", order.name());
            Some((text, bold))
        }
        _ => model.message.clone().map(|message| (message, bold)),
    }
}

/// The heads of columns that say nothing now.
fn hidden(model: &Model) -> Vec<&'static str> {
    match model.known.count() < 2 && model.known.draining() == 0 {
        true => vec![PROCESS],
        false => Vec::new(),
    }
}

/// The number of the process, with a mark if it drains.
fn process(model: &Model, of: &Of) -> String {
    let mark = if model.known.drains(of) { "D " } else { "" };
    format!("{mark}{}", of.process())
}

/// How a row of a process looks, which `style` is the look of otherwise.
fn style(model: &Model, of: &Of, style: Style) -> Style {
    let style = match style.fg {
        None if model.known.drains(of) => style.fg(Color::Yellow),
        _ => style,
    };
    match model.known.is_silent(of) {
        true => style.add_modifier(Modifier::DIM),
        false => style,
    }
}

/// Why a page has no rows.
fn nothing(model: &Model, list: &List) -> &'static str {
    match (model.has_searched, model.known.is_empty()) {
        _ if model.known.count() > 0 => list.nothing,
        (false, true) => "looking for processes",
        (true, true) => {
            "no process that was asked for and that this user may ask is running; it is shown once it does"
        }
        (_, false) => "no process has answered",
    }
}

/// Those of `rows` that there is room for.
fn visible<T>(model: &Model, rows: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let (_, first) = model.rows();
    rows.skip(first).take(model.layout().list.height.into())
}

fn line(area: Rect, number: u16) -> Rect {
    area.rows().nth(number.into()).unwrap_or_default()
}

fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// As the command line has it.
fn name(order: SessionOrder) -> String {
    let value = order.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().into())
}

#[cfg(test)]
mod tests;
