//! Every reason for which a connection is not spliced, and every line of the log of a relay, has a row in
//! docs/operations.md.

use std::fs;
use std::path::{Path, PathBuf};

/// What has the reasons, from the crate `splice` on.
const REASONS: [&str; 14] = [
    "firewall/pass.rs",
    "kernel/segment/admission.rs",
    "kernel/segment/change_over.rs",
    "kernel/segment/courses.rs",
    "kernel/segment/datapath/absence.rs",
    "kernel/segment/datapath/following.rs",
    "kernel/segment/datapath/watch.rs",
    "kernel/segment/eligibility.rs",
    "kernel/segment/flow.rs",
    "kernel/segment/give_back.rs",
    "kernel/segment/standing.rs",
    "kernel/segment/turn.rs",
    "routing/mod.rs",
    "session/pair/choice.rs",
];

/// What these files say to others than operators, or in parts that are in other words of them.
const NO_REASONS: [&str; 8] = [
    "copy and pipe",
    "cannot create an eventfd",
    "cannot ask for routes",
    "cannot read the IPsec policies",
    "cannot list the devices",
    "device {device}",
    "lose segments",
    "the relay's program goes back behind other tc programs",
];

/// What is no relay of streams, or another command.
const NOT_OF_RELAYS: [&str; 8] = [
    "adopt", "bypass", "check", "command", "datagram", "doctor", "mesh", "trace",
];

/// Below this a run of words is shared by chance.
const SHORTEST: usize = 9;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The page in one line.
fn page() -> String {
    let page = fs::read_to_string(root().join("docs/operations.md")).expect("the page");
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The code without comments and unit tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source");
    let code = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .expect("a part");
    let lines = code.lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The next string literal, and what follows it.
fn literal(code: &str) -> Option<(String, &str)> {
    let (_, mut rest) = code.split_once('"')?;
    let mut words = String::new();
    loop {
        let mut chars = rest.chars();
        match chars.next()? {
            '"' => return Some((words, chars.as_str())),
            '\\' => {
                match chars.next()? {
                    '\n' => rest = chars.as_str().trim_start(),
                    escaped => {
                        words.push(escaped);
                        rest = chars.as_str();
                    }
                }
                continue;
            }
            other => words.push(other),
        }
        rest = chars.as_str();
    }
}

fn literals(mut code: &str) -> Vec<String> {
    let mut all = Vec::new();
    while let Some((words, rest)) = literal(code) {
        all.push(words);
        code = rest;
    }
    all
}

/// The longest run of words without a placeholder.
fn longest_run(words: &str) -> &str {
    let runs = words.split('{');
    let runs = runs.map(|run| run.split_once('}').map_or(run, |(_, after)| after));
    let longest = runs.max_by_key(|run| run.len());
    longest.unwrap_or_default().trim()
}

/// Fails for all that the page does not have.
fn expect_documented(all: impl Iterator<Item = (PathBuf, String)>, least: usize) {
    let page = page();
    let (mut count, mut missing) = (0, String::new());
    for (path, words) in all {
        let run = longest_run(&words);
        if run.len() < SHORTEST {
            continue;
        }
        count += 1;
        if !page.contains(run) {
            missing += &format!("{}: {words}\n", path.display());
        }
    }
    assert!(missing.is_empty(), "docs/operations.md lacks\n{missing}");
    assert!(count >= least, "{count}");
}

#[test]
fn each_reason_has_a_row() {
    let files = REASONS.map(|file| root().join("crates/splice/src").join(file));
    let all = files.into_iter().flat_map(|path| {
        let literals = literals(&code(&path));
        literals.into_iter().map(move |words| (path.clone(), words))
    });
    let reasons =
        all.filter(|(_, words)| words.contains(' ') && !NO_REASONS.contains(&words.as_str()));
    expect_documented(reasons, 60);
}

/// The sources of relays and proxies.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        if NOT_OF_RELAYS.iter().any(|other| name.starts_with(other)) {
            continue;
        }
        match path.is_dir() {
            true => all.extend(sources(&path)),
            false if path.extension().is_some_and(|it| it == "rs") => all.push(path),
            false => {}
        }
    }
    all
}

#[test]
fn each_line_of_the_log_has_a_row() {
    let crates = ["crates/spliced/src", "crates/splice/src"].map(|it| root().join(it));
    let files = crates.iter().flat_map(|directory| sources(directory));
    let lines = files.flat_map(|path| {
        let code = code(&path);
        let mut lines = Vec::new();
        for level in ["warn", "info", "error"] {
            let macro_call = format!("tracing::{level}!(");
            let told = code.split(&macro_call).skip(1);
            let first = told.filter_map(|told| {
                // Without words of its own, it has those of an error.
                let statement = told.split(");\n").next()?;
                Some(literal(statement)?.0)
            });
            lines.extend(first.map(|words| (path.clone(), words)));
        }
        lines
    });
    expect_documented(lines, 80);
}

#[test]
fn words_are_taken_from_code() {
    let code = "a(\"one \\\n        {two} three\", 'x', \"fo\\\"ur\")";
    assert_eq!(literals(code), ["one {two} three", "fo\"ur"]);
    assert_eq!(longest_run("one {two} three"), "three");
    assert_eq!(longest_run("{}: a b c {}d"), ": a b c");
}
