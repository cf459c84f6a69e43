//! What every chart has: a title, words for who cannot see it, and a drawing that is legible on a
//! narrow screen, light or dark.
//!
//! Charts are drawn here rather than by a plotting library; docs/measuring.md says why. Everything is drawn for [`WIDTH`]; wide pages put charts side by side. Colours are classes, which
//! `palette.css` fills in for light and dark.

use maud::{Markup, PreEscaped, html};

use super::scale::Scale;
use crate::results::{Better, Contestant, Kind, Results};

/// Width of every chart, in px: what a phone has, less the page's margins.
pub(crate) const WIDTH: f64 = 336.0;

/// Height of letters of labels.
pub(crate) const LETTERS: f64 = 12.0;

/// Height of letters of what is less important (`.muted` in `palette.css`).
pub(crate) const MUTED: f64 = 11.0;

/// Mean width of a letter in parts of its height, in the widest of the usual sans-serif faces: a
/// digit of DejaVu Sans and of Verdana has 0.636, of Liberation Sans 0.556 (their `hmtx` tables). The
/// page takes the reader's own face.
const LETTER_WIDTH: f64 = 0.64;

/// How many hues `palette.css` has.
const HUES: usize = 8;

/// Colours and strokes, of charts in the page and of those in files of their own.
pub(crate) const PALETTE: &str = include_str!("palette.css");

/// A chart, not yet part of a page.
#[derive(Debug)]
pub(crate) struct Chart {
    /// Unique; names its file.
    pub(crate) id: String,
    /// With the workload's: "Bulk, both ways: throughput".
    pub(crate) title: String,
    /// Without it, for where it stands above.
    pub(crate) heading: String,
    /// What unit, and which way is better.
    pub(crate) subtitle: String,
    /// The values in a sentence.
    pub(crate) description: String,
    pub(crate) height: f64,
    pub(crate) body: Markup,
}

impl Chart {
    /// As part of a page, which has the title beside it.
    pub(crate) fn inline(&self) -> Markup {
        let (title, description) = (format!("{}-title", self.id), format!("{}-desc", self.id));
        html! {
            figure {
                figcaption {
                    h3 { (self.heading) }
                    @if !self.subtitle.is_empty() { p { (self.subtitle) } }
                }
                svg class="chart" id=(self.id) role="img" viewBox=(view_box(0.0, self.height))
                    aria-labelledby=(title) aria-describedby=(description) {
                    title id=(title) { (self.title) }
                    desc id=(description) { (self.description) }
                    (self.body)
                }
            }
        }
    }

    /// As an image file: with its title, on a ground of its own, since nobody knows what lies
    /// under it.
    pub(crate) fn standalone(&self) -> String {
        const MARGIN: f64 = 16.0;
        const TITLE: (f64, f64) = (15.0, 19.0);
        const SUBTITLE: (f64, f64) = (11.0, 14.0);
        let titles = wrapped(&self.title, WIDTH, TITLE.0);
        let subtitles = wrapped(&self.subtitle, WIDTH, SUBTITLE.0);
        let below_titles = titles.len() as f64 * TITLE.1;
        let head = below_titles + subtitles.len() as f64 * SUBTITLE.1 + 12.0;
        let (width, height) = (WIDTH + 2.0 * MARGIN, head + self.height + 2.0 * MARGIN);
        let markup = html! {
            svg xmlns="http://www.w3.org/2000/svg" role="img" class="standalone chart"
                viewBox={ "0 0 " (round(width)) " " (round(height)) }
                width=(round(width)) height=(round(height)) {
                title { (self.title) }
                desc { (self.description) }
                style { (PreEscaped(PALETTE)) }
                rect class="ground" width="100%" height="100%" rx="8" {}
                g transform={ "translate(" (MARGIN) " " (MARGIN) ")" } {
                    @for (index, line) in titles.iter().enumerate() {
                        text class="heading" y=(round(13.0 + index as f64 * TITLE.1)) { (line) }
                    }
                    @for (index, line) in subtitles.iter().enumerate() {
                        text class="muted" y=(round(below_titles + 10.0 + index as f64 * SUBTITLE.1)) { (line) }
                    }
                    g transform={ "translate(0 " (round(head)) ")" } { (self.body) }
                }
            }
        };
        image_file(markup)
    }
}

/// The text of an image file.
pub(crate) fn image_file(svg: Markup) -> String {
    let svg = svg.into_string();
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{svg}\n")
}

/// The lines and words of an axis below a plot that ends at `bottom`.
pub(crate) fn axis_below(scale: &Scale, bottom: f64, label: impl Fn(f64) -> String) -> Markup {
    html! {
        @for &tick in &scale.ticks {
            @let x = scale.at(tick);
            line class="grid" x1=(round(x)) x2=(round(x)) y1="0" y2=(round(bottom)) {}
            text class="muted" x=(round(x)) y=(round(bottom + 15.0)) text-anchor=(anchor(x)) {
                (label(tick))
            }
        }
    }
}

fn view_box(top: f64, height: f64) -> String {
    format!("0 {} {WIDTH} {}", round(top), round(height))
}

/// Tenths of a pixel are fine enough, and keep the page small.
pub(crate) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// How a label at `x` of the horizontal axis is aligned so that it stays within the chart.
fn anchor(x: f64) -> &'static str {
    const HALF_A_LABEL: f64 = 14.0;
    if x < HALF_A_LABEL {
        "start"
    } else if x > WIDTH - HALF_A_LABEL {
        "end"
    } else {
        "middle"
    }
}

/// From where to where a label at `x` of the horizontal axis goes.
pub(crate) fn span(x: f64, label: &str) -> (f64, f64) {
    let width = width_of(label, MUTED);
    let begin = match anchor(x) {
        "start" => x,
        "end" => x - width,
        _ => x - width / 2.0,
    };
    (begin, begin + width)
}

/// How wide `text` gets, about.
pub(crate) fn width_of(text: &str, letters: f64) -> f64 {
    let parts: f64 = text
        .chars()
        .map(|letter| if letter.is_ascii() { LETTER_WIDTH } else { 1.0 })
        .sum();
    parts * letters
}

/// `text`, cut so that it fits into `width` as a label.
pub(crate) fn fitted(text: &str, width: f64) -> String {
    if width_of(text, LETTERS) <= width {
        return text.into();
    }
    let mut out = String::new();
    for letter in text.chars() {
        out.push(letter);
        if width_of(&out, LETTERS) + LETTERS > width {
            break;
        }
    }
    out.pop();
    format!("{}…", out.trim_end())
}

/// `text` in lines that fit into `width`; at most three.
pub(crate) fn wrapped(text: &str, width: f64, letters: f64) -> Vec<String> {
    const LINES: usize = 3;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width_of(line, letters) + width_of(word, letters) + letters < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    if lines.len() > LINES {
        lines.truncate(LINES);
        lines[LINES - 1].push('…');
    }
    lines
        .into_iter()
        .map(|line| fitted(&line, width * LETTERS / letters))
        .collect()
}

/// The class of a contestant's lines: the same in every chart of a run. The reference is grey; the
/// others take the hues in turn, the second time around dashed.
pub(crate) fn line_class(results: &Results, contestant: &str) -> String {
    let place = |wanted: fn(&Contestant) -> bool| {
        let mut all = results.contestants.iter().filter(|one| wanted(one));
        all.position(|one| one.name == contestant)
    };
    if let Some(index) = place(|one| one.kind == Kind::Reference) {
        return format!("reference{}", if index > 0 { " dashed" } else { "" });
    }
    // One that the list does not have is a defect of the file, and no reason to fail.
    let index = place(|one| one.kind != Kind::Reference).unwrap_or(0);
    let dashed = if index / HUES % 2 == 1 { " dashed" } else { "" };
    format!("hue-{}{dashed}", index % HUES)
}

/// The class of a contestant's bars.
pub(crate) fn kind_class(results: &Results, contestant: &str) -> &'static str {
    let known = results
        .contestants
        .iter()
        .find(|one| one.name == contestant);
    match known.map(|one| one.kind) {
        Some(Kind::Reference) => "bar of-reference",
        Some(Kind::Ours) => "bar of-ours",
        Some(Kind::Peer) | None => "bar of-peer",
    }
}

/// Which way is good, in words.
pub(crate) fn which_way(better: Better) -> &'static str {
    match better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    }
}

/// A row of swatches with names, two in a line where they fit; returns its height too.
pub(crate) fn legend(entries: &[(String, String)], top: f64) -> (Markup, f64) {
    const LINE: f64 = 19.0;
    const SWATCH: f64 = 22.0;
    let half = WIDTH / 2.0;
    let fits = |name: &str| width_of(name, LETTERS) + SWATCH + 12.0 <= half;
    let mut places = Vec::new();
    let (mut row, mut column) = (0, 0);
    for (_, name) in entries {
        if column == 1 && !fits(name) {
            (row, column) = (row + 1, 0);
        }
        places.push((column as f64 * half, top + f64::from(row) * LINE + 14.0));
        if column == 0 && fits(name) {
            column = 1;
        } else {
            (row, column) = (row + 1, 0);
        }
    }
    let rows = if column == 1 { row + 1 } else { row };
    let markup = html! {
        @for ((class, name), (x, y)) in entries.iter().zip(&places) {
            line class={ "line " (class) } x1=(round(x + 1.0)) x2=(round(x + 17.0))
                y1=(round(y - 4.0)) y2=(round(y - 4.0)) {}
            text x=(round(x + SWATCH)) y=(round(*y)) {
                (fitted(name, if fits(name) { half - SWATCH } else { WIDTH - SWATCH }))
                title { (name) }
            }
        }
    };
    (markup, f64::from(rows) * LINE + 4.0)
}

#[cfg(test)]
mod tests {
    use super::{LETTERS, WIDTH, fitted, legend, width_of, wrapped};

    #[test]
    fn long_names_are_cut_and_short_ones_are_not() {
        assert_eq!(fitted("spliced copy", 200.0), "spliced copy");
        let cut = fitted(&"long ".repeat(100), 120.0);
        assert!(
            cut.ends_with('…') && width_of(&cut, LETTERS) <= 120.0 + LETTERS,
            "{cut}"
        );
    }

    #[test]
    fn titles_are_wrapped() {
        let lines = wrapped(&"word ".repeat(200), WIDTH, 15.0);
        assert!(lines.len() == 3 && lines[2].ends_with('…'), "{lines:?}");
        assert_eq!(wrapped(&"x".repeat(400), WIDTH, 15.0).len(), 1);
    }

    #[test]
    fn a_legend_grows_with_its_names() {
        let entry = |name: &str| (String::new(), name.to_owned());
        let short = legend(&[entry("a"), entry("b"), entry("c")], 0.0).1;
        let long = legend(&[entry(&"a".repeat(60)), entry("b"), entry("c")], 0.0).1;
        assert!(short == long && short > 2.0 * 19.0, "{short} {long}");
        assert!(legend(&[], 0.0).1 < 19.0);
    }
}
