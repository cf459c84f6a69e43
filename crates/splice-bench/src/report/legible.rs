//! What makes the page and its images legible, held without a browser: colours have contrast in both
//! schemes, no text leaves its image or meets another, and the page needs nothing but itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use roxmltree::{Document, Node};

use super::chart::{Chart, PALETTE, width_of};
use super::{charts, headline, overview, page, specimen};
use crate::results::Results;

const STYLE: &str = include_str!("page.css");

/// Below this many px, browsers offer to enlarge letters.
const LEGIBLE: f64 = 10.9;

/// How far a text may stick out of its image, in px: the page leaves a margin of 14, an image one of 16.
const MARGIN: f64 = 14.0;

/// Where the letters of a text lie, in parts of their height: above and below the line that they stand
/// on. DejaVu Sans, the tallest of the usual faces, has 0.93 and 0.24 (`hhea`).
const ASCENT: f64 = 0.93;
const DESCENT: f64 = 0.24;

type Colour = [f64; 3];

/// The variables of a style sheet, light ones first; dark ones stand in a media query.
fn schemes(sheet: &str) -> [BTreeMap<String, Colour>; 2] {
    let (light, dark) = sheet
        .split_once("@media (prefers-color-scheme: dark)")
        .expect("it has a dark scheme");
    let dark = dark.split_once("\n}\n").map_or(dark, |(inside, _)| inside);
    let light = variables(light);
    let mut both = light.clone();
    both.extend(variables(dark));
    [light, both]
}

fn variables(text: &str) -> BTreeMap<String, Colour> {
    let declarations = text.split(['{', '}', ';']);
    declarations
        .filter_map(|one| {
            let (name, value) = one.trim().strip_prefix("--")?.split_once(": #")?;
            let part = |at: usize| u8::from_str_radix(value.get(at..at + 2)?, 16).ok();
            let colour = [part(0)?, part(2)?, part(4)?].map(f64::from);
            Some((name.to_owned(), colour))
        })
        .collect()
}

/// WCAG 2.2, contrast ratio.
fn contrast(one: Colour, other: Colour) -> f64 {
    let luminance = |colour: Colour| {
        let [red, green, blue] = colour.map(|value| {
            let part = value / 255.0;
            if part <= 0.04045 {
                part / 12.92
            } else {
                ((part + 0.055) / 1.055).powf(2.4)
            }
        });
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    };
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn colours_have_contrast_in_both_schemes() {
    assert!((contrast([0.0; 3], [255.0; 3]) - 21.0).abs() < 1e-9);
    let (charts, pages) = (schemes(PALETTE), schemes(STYLE));
    for (chart, page) in charts.iter().zip(&pages) {
        let colour = |name: &str| {
            let found = chart.get(name).or_else(|| page.get(name));
            *found.unwrap_or_else(|| panic!("no colour {name}"))
        };
        for (letters, ground) in [
            ("ink", "ground"),
            ("muted", "ground"),
            ("link", "ground"),
            ("better", "ground"),
            ("worse", "ground"),
            ("ink", "page"),
            ("muted", "page"),
            ("link", "page"),
            ("worse", "page"),
            ("better", "better-ground"),
            ("worse", "worse-ground"),
        ] {
            let ratio = contrast(colour(letters), colour(ground));
            assert!(ratio >= 4.5, "{letters} on {ground}: {ratio:.2}");
        }
        let marks = chart.keys().filter(|name| {
            name.starts_with("hue-") || ["reference", "ours", "peer"].contains(&name.as_str())
        });
        for mark in marks {
            let ratio = contrast(colour(mark), colour("ground"));
            assert!(ratio >= 3.0, "{mark} on ground: {ratio:.2}");
        }
    }
    // Every colour of the light scheme has one of the dark scheme.
    for [light, dark] in [charts, pages] {
        for (name, colour) in &light {
            assert_ne!(dark[name], *colour, "{name} is the same in both schemes");
        }
    }
}

/// A text of an image, and where it lies.
#[derive(Debug)]
struct Label {
    text: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    letters: f64,
}

/// The height of letters that a class gives, from the palette.
fn letters(node: Node<'_, '_>) -> f64 {
    let class = node.attribute("class").unwrap_or_default();
    let of = |class: &str| {
        let (_, rest) = PALETTE.split_once(&format!(".chart .{class} {{"))?;
        let (rule, _) = rest.split_once('}')?;
        let (_, size) = rule.split_once("font-size: ")?;
        size.split_once("px")?.0.parse().ok()
    };
    let (_, base) = PALETTE
        .split_once(".chart { font: ")
        .expect("a chart has a face");
    let base = base
        .split_once("px")
        .and_then(|(size, _)| size.parse().ok());
    class
        .split_whitespace()
        .find_map(of)
        .or(base)
        .expect("letters have a height")
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name)
        .and_then(|value| value.parse().ok())
        .unwrap_or(0.0)
}

fn labels(image: &Document<'_>) -> Vec<Label> {
    let texts = image.descendants().filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| {
            // Its own letters, without the title that a pointer shows.
            let text: String = node
                .children()
                .filter_map(|child| child.is_text().then(|| child.text()).flatten())
                .collect();
            let (mut x, mut y) = (number(node, "x"), number(node, "y"));
            for moved in node
                .ancestors()
                .filter_map(|one| one.attribute("transform"))
            {
                let inside = moved.trim_start_matches("translate(").trim_end_matches(')');
                let by: Vec<f64> = inside
                    .split(' ')
                    .map(|part| part.parse().expect("a translation in px"))
                    .collect();
                (x, y) = (x + by[0], y + by[1]);
            }
            let letters = letters(node);
            let width = width_of(&text, letters);
            let left = match node.attribute("text-anchor") {
                Some("end") => x - width,
                Some("middle") => x - width / 2.0,
                _ => x,
            };
            Label {
                text,
                left,
                right: left + width,
                top: y - ASCENT * letters,
                bottom: y + DESCENT * letters,
                letters,
            }
        })
        .collect()
}

/// What is wrong with an image.
fn defects(image: &str) -> Vec<String> {
    let document = match Document::parse(image) {
        Ok(document) => document,
        Err(error) => return vec![format!("it is not well-formed: {error}")],
    };
    let root = document.root_element();
    let view: Vec<f64> = root
        .attribute("viewBox")
        .unwrap_or_default()
        .split(' ')
        .filter_map(|part| part.parse().ok())
        .collect();
    let [_, _, width, height] = view[..] else {
        return vec!["it has no view box".into()];
    };
    let mut found = Vec::new();
    for tag in ["title", "desc"] {
        let words = root.children().find(|child| child.has_tag_name(tag));
        if words
            .and_then(|words| words.text())
            .is_none_or(str::is_empty)
        {
            found.push(format!("it has no {tag}"));
        }
    }
    let marks = ["bar", "line", "body", "wick", "median", "interval"];
    let is_mark = |node: &Node<'_, '_>| {
        let class = node.attribute("class").unwrap_or_default();
        class.split_whitespace().any(|one| marks.contains(&one))
    };
    if !document.descendants().any(|node| is_mark(&node)) {
        found.push("it draws nothing".into());
    }
    let labels = labels(&document);
    for (index, label) in labels.iter().enumerate() {
        if label.letters < LEGIBLE {
            found.push(format!("too small: {}", label.text));
        }
        if label.left < -MARGIN
            || label.right > width + MARGIN
            || label.top < -2.0
            || label.bottom > height + 2.0
        {
            found.push(format!("beyond the image: {label:?}"));
        }
        for other in &labels[index + 1..] {
            let across = label.right.min(other.right) - label.left.max(other.left);
            let down = label.bottom.min(other.bottom) - label.top.max(other.top);
            // Lines of text touch although their letters do not.
            if across > 1.0 && down > (label.bottom - label.top) / 3.0 {
                found.push(format!("{:?} meets {:?}", label.text, other.text));
            }
        }
    }
    found
}

/// Made-up results of every kind, and those that have been published.
fn all_results() -> Vec<(String, Results)> {
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let entries = fs::read_dir(published).into_iter().flatten().flatten();
    let published = entries.filter_map(|entry| {
        let file = entry.path().join("results.json");
        let text = fs::read_to_string(&file).ok()?;
        let results = Results::from_json(&text)
            .unwrap_or_else(|error| panic!("{}: {error:#}", file.display()));
        Some((file.display().to_string(), results))
    });
    let made_up = [
        ("full".to_owned(), specimen::full()),
        ("awkward".to_owned(), specimen::awkward()),
    ];
    made_up.into_iter().chain(published).collect()
}

fn all_charts(results: &Results) -> Vec<Chart> {
    let of_workloads = results.workloads.iter();
    let of_workloads = of_workloads.flat_map(|workload| charts(results, workload));
    overview(results).into_iter().chain(of_workloads).collect()
}

#[test]
fn every_image_is_legible() {
    for (name, results) in all_results() {
        for chart in all_charts(&results) {
            let found = defects(&chart.standalone());
            assert!(found.is_empty(), "{name}, {}: {found:#?}", chart.id);
        }
        if let Ok(image) = headline(&results) {
            assert_eq!(defects(&image), Vec::<String>::new(), "{name}");
        }
    }
}

#[test]
fn an_illegible_image_is_noticed() {
    let image = r#"<svg viewBox="0 0 100 100"><title>x</title>
        <text x="10" y="50">one on</text><text x="12" y="51">the other</text>
        <text x="150" y="20">beyond</text></svg>"#;
    let found = defects(image).join("\n");
    for part in ["no desc", "draws nothing", "meets", "beyond"] {
        assert!(found.contains(part), "{part} is not noticed: {found}");
    }
    assert!(defects("<svg><text></svg>")[0].contains("not well-formed"));
}

/// The values of an attribute, wherever it stands.
fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
    let parts = page
        .split(&format!(" {attribute}=\""))
        .skip(1)
        .collect::<Vec<_>>();
    let value = |part: &'a str| part.split('"').next();
    parts.into_iter().filter_map(value).collect()
}

#[test]
fn the_page_needs_nothing_but_itself_and_its_links_lead_somewhere() {
    for (name, results) in all_results() {
        let page = page::page(&results);
        for outside in ["<script", "<img", "<iframe", " src=", "url(", "@import"] {
            assert!(!page.contains(outside), "{name}: the page has {outside}");
        }
        assert!(page.contains(PALETTE) && page.contains(STYLE), "{name}");
        let ids = values(&page, "id");
        let unique: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(ids.len(), unique.len(), "{name}: an id stands twice");
        for link in values(&page, "href") {
            let known =
                link == "data:," || link.strip_prefix('#').is_some_and(|id| unique.contains(id));
            assert!(known, "{name}: {link} leads nowhere");
        }
        for reference in ["aria-labelledby", "aria-describedby"] {
            for id in values(&page, reference) {
                assert!(unique.contains(id), "{name}: nothing is called {id}");
            }
        }
        for chart in all_charts(&results) {
            assert!(unique.contains(chart.id.as_str()), "{name}: {}", chart.id);
        }
        // A table that is wider than the screen scrolls, and not the page.
        let before_tables: Vec<&str> = page.split("<table").collect();
        for before in &before_tables[..before_tables.len() - 1] {
            let (_, container) = before.rsplit_once("<div").expect("something contains it");
            assert!(
                container.starts_with(" class=\"scroll\""),
                "{name}: {container}"
            );
        }
    }
}
