//! The command lines that the pages print.

use std::fs;
use std::path::Path;

/// What a command line of a block without a language begins with.
const PROGRAMS: [&str; 12] = [
    "spliced",
    "splice-bench",
    "curl",
    "jq",
    "journalctl",
    "sudo",
    "cargo",
    "make",
    "ip",
    "promtool",
    "kill",
    "git",
];

/// A line, and the page that has it.
pub(super) struct Printed {
    pub(super) page: String,
    pub(super) line: String,
}

pub(super) fn printed() -> Vec<Printed> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let docs = fs::read_dir(root.join("docs")).expect("docs");
    let mut pages: Vec<_> = docs.map(|entry| entry.expect("an entry").path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.push(root.join("README.md"));
    pages.sort();
    let lines = pages.iter().flat_map(|path| {
        let text = fs::read_to_string(path).expect("a page");
        let page = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        of_page(&text).into_iter().map(move |line| Printed {
            page: page.clone(),
            line,
        })
    });
    lines.collect()
}

/// The command lines of a page, without comments.
fn of_page(text: &str) -> Vec<String> {
    let mut block: Option<String> = None;
    let mut lines = Vec::new();
    for line in text.replace("\\\n", " ").lines().map(str::trim) {
        if let Some(language) = line.strip_prefix("```") {
            block = match block {
                Some(_) => None,
                None => Some(language.to_owned()),
            };
            continue;
        }
        let line = line.split(" # ").next().unwrap_or(line).trim();
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next());
        // `spliced top:` begins what a command says.
        let is_said = second.is_some_and(|word| word.ends_with(':'));
        match block.as_deref() {
            Some("sh") if !first.is_empty() && first != "#" => lines.push(line.to_owned()),
            Some("console") => lines.extend(line.strip_prefix("$ ").map(Into::into)),
            Some("") if PROGRAMS.contains(&first) && !is_said => lines.push(line.to_owned()),
            _ => {}
        }
    }
    lines
}

#[test]
fn lines_are_taken_from_blocks() {
    let page = "spliced no\n```\nspliced a   # why\nother\nspliced a: 1\n```\n```sh\nx | y\n```\n```console\n$ spliced b \\\n  c\nsaid\n```\n```toml\nip = 1\n```\n";
    assert_eq!(of_page(page), ["spliced a", "x | y", "spliced b    c"]);
}
