//! Every command line that README.md and the pages of docs/ print is one that `spliced` takes.
//! `tests/relay/documented` runs them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;

use crate::cli::Cli;

/// Fewer would mean that they are not found any more.
const LEAST: usize = 80;
/// What ends one command of a line.
const OPERATORS: [&str; 7] = ["|", "||", "&&", "&", ";", ">", ">>"];

fn pages() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let docs = fs::read_dir(root.join("docs")).expect("docs");
    let pages = docs.map(|entry| entry.expect("an entry").path());
    let mut pages: Vec<_> = pages
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.push(root.join("README.md"));
    pages
}

/// The lines of the page's code blocks.
fn code(page: &str) -> Vec<String> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in page.replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            lines.push(line.trim().to_owned());
        }
    }
    lines
}

/// The words of the commands of a line that run `spliced`.
fn commands(line: &str) -> Vec<Vec<String>> {
    // A line that is not the shell's.
    let words = shlex::split(line).unwrap_or_default();
    let commands = words.split(|word| OPERATORS.contains(&&**word));
    let commands = commands.filter_map(|command| {
        let begins = |word: &&String| *word != "sudo" && !word.contains('=');
        let skipped = command.iter().take_while(|word| !begins(word)).count();
        let command = &command[skipped..];
        // `spliced status:` begins what a command has said.
        let is_said = command.get(1)?.ends_with(':');
        (command[0] == "spliced" && !is_said).then(|| command.to_vec())
    });
    commands.collect()
}

#[test]
fn each_is_taken() {
    let mut count = 0;
    let mut refused = String::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for line in code(&text) {
            for command in commands(&line) {
                count += 1;
                if let Err(error) = Cli::try_parse_from(&command) {
                    refused += &format!("{}: {line}\n{error}\n", page.display());
                }
            }
        }
    }
    assert!(refused.is_empty(), "{refused}");
    assert!(count >= LEAST, "{count} commands");
}
