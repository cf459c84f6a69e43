//! Address prefixes in a file: one a line, with comments behind `#`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use splice_route::Prefix;

use crate::config::notes::{MOST_NOTED, Note};
use crate::config::value::Value;
use crate::text_file;

/// The longest file: more prefixes than the Internet has routes.
const MOST_MIB: u64 = 64;

/// How much is shown of a word that is no prefix: the longest prefix has 43 characters, and a file of another kind may
/// have one word.
const SHOWN_CHARACTERS: usize = 64;

/// The prefixes of a file, which change with it.
pub(crate) type Shared = Arc<RwLock<Vec<Prefix>>>;

/// The files that a configuration names, each read once. Routes with the same file share its prefixes.
#[derive(Debug, Default)]
pub(super) struct PrefixFiles(RefCell<BTreeMap<PathBuf, Found>>);

#[derive(Clone, Debug)]
enum Found {
    Prefixes(Shared),
    /// Why there are none, as a sentence about the value that names the file.
    Unreadable(String),
    /// Its mistakes have been noted where they stand.
    Mistakes,
}

impl PrefixFiles {
    /// The file `written`, relative to the directory of the configuration that `value` is in.
    pub(super) fn get(&self, written: &str, value: &Value<'_>) -> Option<(String, Shared)> {
        let directory = value.notes.path().parent().unwrap_or_else(|| Path::new(""));
        let path = directory.join(written);
        let mut known = self.0.borrow_mut();
        let name = path.display().to_string();
        let found = known
            .entry(path)
            .or_insert_with_key(|path| match read(path) {
                Ok(prefixes) => Found::Prefixes(Arc::new(RwLock::new(prefixes))),
                Err(Unreadable::File(error)) => Found::Unreadable(format!(
                    "names {name:?}, which cannot be read ({error}); {}",
                    text_file::remedy(&error)
                )),
                Err(Unreadable::Lines { first, .. }) => {
                    for note in first {
                        value.notes.mistake_elsewhere(note);
                    }
                    Found::Mistakes
                }
            });
        match found {
            Found::Prefixes(shared) => Some((name, shared.clone())),
            Found::Unreadable(why) => value.refuse(why),
            Found::Mistakes => None,
        }
    }
}

/// Why a file of prefixes cannot be used.
#[derive(Debug)]
pub(super) enum Unreadable {
    File(io::Error),
    /// As many notes as are told, and how many lines are wrong.
    Lines {
        first: Vec<Note>,
        count: usize,
    },
}

impl Unreadable {
    /// Whether the same file may be read another time, since this says nothing about it.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::File(error) => !text_file::is_about_file(error),
            Self::Lines { .. } => false,
        }
    }
}

/// Reads the prefixes of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Prefix>, Unreadable> {
    let text = text_file::read(path, MOST_MIB).map_err(Unreadable::File)?;
    let (mut prefixes, mut first, mut count) = (Vec::new(), Vec::new(), 0);
    for (index, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default();
        let word = entry.trim();
        if word.is_empty() {
            continue;
        }
        match word.parse() {
            Ok(prefix) => prefixes.push(prefix),
            Err(error) => {
                count += 1;
                if first.len() < MOST_NOTED {
                    let word = shown(word);
                    first.push(Note {
                        path: path.into(),
                        line: index + 1,
                        column: entry.chars().take_while(|c| c.is_whitespace()).count() + 1,
                        sentence: format!("prefix {word} cannot be used: {error}"),
                    });
                }
            }
        }
    }
    match count {
        0 => Ok(prefixes),
        count => Err(Unreadable::Lines { first, count }),
    }
}

/// In quotes, and the rest as dots.
fn shown(word: &str) -> String {
    match word.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{:?}...", &word[..end]),
        None => format!("{word:?}"),
    }
}

#[cfg(test)]
mod tests {
    use netlab::Scratch;

    use super::{MOST_NOTED, Unreadable, read};

    #[test]
    fn of_wrong_lines_the_first_are_noted_and_all_counted() {
        let scratch = Scratch::new("prefixes").expect("a directory");
        for (text, noted, lines) in [
            ("x\n10.0.0.0/8\n y\n", 2, 2),
            (&"x\n".repeat(9999), MOST_NOTED, 9999),
        ] {
            let path = scratch.write("list", text).expect("written");
            match read(&path) {
                Err(Unreadable::Lines { first, count }) => {
                    assert_eq!((first.len(), count), (noted, lines));
                }
                other => panic!("{other:?}"),
            }
        }
        let long = scratch
            .write("list", &"\u{1}".repeat(1 << 20))
            .expect("written");
        match read(&long) {
            Err(Unreadable::Lines { first, .. }) => {
                let sentence = &first[0].sentence;
                assert!(
                    sentence.contains("\\u{1}\"... cannot be used"),
                    "{sentence}"
                );
                assert!(sentence.len() < 1000);
            }
            other => panic!("{other:?}"),
        }
    }
}
