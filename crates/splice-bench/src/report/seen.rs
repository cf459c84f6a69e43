//! The page as a reader sees it: opened in a real browser, narrow and wide, light and dark.

use std::fs;
use std::path::Path;

use netlab::{Need, Scratch, available};
use serde_json::Value;

use super::browser::{Browser, Scheme};
use super::{charts, overview, specimen, write};
use crate::results::Results;

/// A laptop's window and a phone's, in px.
const WIDTHS: [u32; 2] = [1280, 400];

const SCHEMES: [Scheme; 2] = [Scheme::Light, Scheme::Dark];

/// Measures what is seen; its head says what comes of it.
const SEEN: &str = include_str!("seen.js");

/// The smallest letters that are legible, in px: below this, browsers offer to enlarge them.
const LEGIBLE: f64 = 10.9;

/// Keeps an image of all that is open where a person can look at it: `SPECIMEN=DIR cargo test`.
fn keep(browser: &mut Browser, name: &str) {
    if let Some(directory) = std::env::var_os("SPECIMEN") {
        let path = Path::new(&directory).join(format!("{name}.png"));
        let image = browser.screenshot(true).expect("an image");
        fs::write(path, image).expect("the directory is writable");
    }
}

/// A digit of DejaVu Sans is so wide, in parts of a hundred of its height (`hmtx`: 1303 of 2048).
const DIGIT: std::ops::Range<f64> = 63.0..64.5;

/// What is seen in the page that is open, with the widest of the usual faces.
fn seen(browser: &mut Browser) -> Value {
    let seen = browser.evaluate(SEEN).expect("it is measured");
    let digit = seen["digit"].as_f64().expect("it is a number");
    assert!(
        DIGIT.contains(&digit),
        "DejaVu Sans is missing (apt-get install fonts-dejavu-core): a digit has {digit}"
    );
    seen
}

fn assert_none(seen: &Value, what: &str, place: &str) {
    let all = seen[what].as_array().expect("it is a list");
    assert!(all.is_empty(), "{place}: {what}: {}", seen[what]);
}

fn assert_readable(browser: &mut Browser, results: &Results, name: &str) {
    let scratch = Scratch::new(name).expect("a directory");
    write(scratch.path(), results).expect("it is writable");
    let file = scratch.path().join("report.html");
    let of_workloads = results.workloads.iter();
    let of_workloads = of_workloads.map(|workload| charts(results, workload).len());
    let expected = overview(results).len() + of_workloads.sum::<usize>();
    for width in WIDTHS {
        let mut images = Vec::new();
        for scheme in SCHEMES {
            let place = format!("{name}-{width}-{scheme:?}").to_lowercase();
            browser.open(&file, width, scheme).expect("it opens");
            images.push(browser.screenshot(false).expect("an image"));
            keep(browser, &place);
            let seen = seen(browser);
            keep(browser, &format!("{place}-unfolded"));

            let requests = browser.requests();
            assert_eq!(
                requests.len(),
                1,
                "{place} asks for more than itself: {requests:?}"
            );
            assert_eq!(browser.complaints(), Vec::<String>::new(), "{place}");
            assert_eq!(seen["overflow"], 0, "{place}: the page scrolls sideways");
            for what in ["pale", "beyond", "overlapping", "wide"] {
                assert_none(&seen, what, &place);
            }
            // The script has looked at something.
            assert!(
                seen["texts"].as_u64() > Some(50),
                "{place}: {}",
                seen["texts"]
            );
            let drawn = seen["charts"].as_array().expect("it is a list");
            assert_eq!(drawn.len(), expected, "{place}");
            for chart in drawn {
                let number = |field: &str| chart[field].as_f64().expect("it is a number");
                let sized = number("width") > 200.0 && number("height") > 40.0;
                assert!(sized && number("marks") >= 1.0, "{place}: {chart}");
                assert_eq!(chart["named"], true, "{place}: {chart}");
                assert!(number("letters") >= LEGIBLE, "{place}: {chart}");
            }
        }
        assert_ne!(
            images[0], images[1],
            "{name} at {width}: light and dark look the same"
        );
    }
}

#[test]
fn the_page_is_readable_on_a_laptop_and_a_phone_light_and_dark() {
    if !available(Need::Chromium) {
        return;
    }
    let mut browser = Browser::start().expect("it starts");
    assert_readable(&mut browser, &specimen::full(), "full");
    assert_readable(&mut browser, &specimen::awkward(), "awkward");
}

/// What has been published stays readable: by this program, and by a reader.
#[test]
fn the_published_results_are_readable() {
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let Ok(entries) = fs::read_dir(published) else {
        return;
    };
    let files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path().join("results.json"))
        .filter(|file| file.exists())
        .collect();
    let all: Vec<Results> = files
        .iter()
        .map(|file| {
            let text = fs::read_to_string(file).expect("it is readable");
            Results::from_json(&text)
                .unwrap_or_else(|error| panic!("{}: {error:#}", file.display()))
        })
        .collect();
    if all.is_empty() || !available(Need::Chromium) {
        return;
    }
    let mut browser = Browser::start().expect("it starts");
    for (index, results) in all.iter().enumerate() {
        assert_readable(&mut browser, results, &format!("published-{index}"));
    }
}

#[test]
fn every_image_is_legible_on_its_own() {
    if !available(Need::Chromium) {
        return;
    }
    let mut browser = Browser::start().expect("it starts");
    for (results, name) in [(specimen::full(), "full"), (specimen::awkward(), "awkward")] {
        let scratch = Scratch::new("images").expect("a directory");
        write(scratch.path(), &results).expect("it is writable");
        let of_workloads = results.workloads.iter();
        let of_workloads = of_workloads.flat_map(|workload| charts(&results, workload));
        for chart in overview(&results).into_iter().chain(of_workloads) {
            let file = scratch.path().join(super::chart_file(&chart));
            let mut images = Vec::new();
            for scheme in SCHEMES {
                let place = format!("{name}-{}-{scheme:?}", chart.id);
                browser.open(&file, 400, scheme).expect("it opens");
                images.push(browser.screenshot(false).expect("an image"));
                let seen = seen(&mut browser);
                assert_eq!(browser.complaints(), Vec::<String>::new(), "{place}");
                assert_eq!(seen["broken"], 0, "{place} is not well-formed");
                for what in ["pale", "beyond", "overlapping"] {
                    assert_none(&seen, what, &place);
                }
                let drawn = seen["charts"].as_array().expect("it is a list");
                assert_eq!(drawn.len(), 1, "{place}");
                assert!(
                    drawn[0]["marks"].as_u64() >= Some(1),
                    "{place}: {}",
                    drawn[0]
                );
            }
            assert_ne!(
                images[0], images[1],
                "{}: light and dark look the same",
                chart.id
            );
        }
    }
}

/// The measuring script finds what it is there to find.
#[test]
fn an_unreadable_page_is_noticed() {
    if !available(Need::Chromium) {
        return;
    }
    let page = r#"<!DOCTYPE html><meta charset="utf-8"><title>x</title>
        <link rel="icon" href="data:,"><body style="margin:0;background:#fff">
        <p style="color:#aaa">pale</p><div style="width:900px">wide</div>
        <svg class="chart" viewBox="0 0 100 100" style="width:100px" id="c">
        <text x="10" y="50">one on</text><text x="12" y="51">the other</text>
        <text x="150" y="20">beyond</text></svg>
        <script>console.error("oops")</script>"#;
    let scratch = Scratch::new("unreadable").expect("a directory");
    let file = scratch.write("report.html", page).expect("it is writable");
    let mut browser = Browser::start().expect("it starts");
    browser.open(&file, 400, Scheme::Light).expect("it opens");
    let seen = seen(&mut browser);
    for what in ["pale", "beyond", "overlapping", "wide"] {
        let found = seen[what].as_array().expect("it is a list");
        assert!(!found.is_empty(), "{what} is not noticed: {seen}");
    }
    assert!(seen["overflow"].as_i64() > Some(0), "{seen}");
    assert_eq!(seen["charts"][0]["marks"], 0);
    assert_eq!(browser.complaints().len(), 1);
}
