//! Address prefixes in a file: one a line, with comments behind `#`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use splice_route::Prefix;

use crate::config::notes::Note;
use crate::config::text_file;
use crate::config::value::Value;

/// The longest file: more prefixes than the Internet has routes.
const MOST_MIB: u64 = 64;

/// The prefixes of a file, which change with it.
pub(crate) type Shared = Arc<RwLock<Vec<Prefix>>>;

/// The files that a configuration names. Routes with the same file share its prefixes.
#[derive(Debug, Default)]
pub(super) struct PrefixFiles(RefCell<BTreeMap<PathBuf, Shared>>);

impl PrefixFiles {
    /// The file `written`, relative to the directory of the configuration that `value` is in.
    pub(super) fn get(&self, written: &str, value: &Value<'_>) -> Option<(String, Shared)> {
        let directory = value.notes.path().parent().unwrap_or_else(|| Path::new(""));
        let path = directory.join(written);
        let mut known = self.0.borrow_mut();
        if let Some(shared) = known.get(&path) {
            return Some((path.display().to_string(), shared.clone()));
        }
        let prefixes = match read(&path) {
            Ok(prefixes) => prefixes,
            Err(Unreadable::File(error)) => {
                return value.refuse(format!(
                    "names {:?}, which cannot be read ({error}); correct the path or the rights",
                    path.display()
                ));
            }
            Err(Unreadable::Lines(notes)) => {
                for note in notes {
                    value.notes.mistake_elsewhere(note);
                }
                return None;
            }
        };
        let shared = Arc::new(RwLock::new(prefixes));
        known.insert(path.clone(), shared.clone());
        Some((path.display().to_string(), shared))
    }
}

/// Why a file of prefixes cannot be used.
#[derive(Debug)]
pub(super) enum Unreadable {
    File(io::Error),
    Lines(Vec<Note>),
}

/// Reads the prefixes of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Prefix>, Unreadable> {
    let text = text_file::read(path, MOST_MIB).map_err(Unreadable::File)?;
    let (mut prefixes, mut mistakes) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default();
        let word = entry.trim();
        if word.is_empty() {
            continue;
        }
        match word.parse() {
            Ok(prefix) => prefixes.push(prefix),
            Err(error) => mistakes.push(Note {
                path: path.into(),
                line: index + 1,
                column: entry.chars().take_while(|c| c.is_whitespace()).count() + 1,
                sentence: format!("prefix {word:?} cannot be used: {error}"),
            }),
        }
    }
    match mistakes.is_empty() {
        true => Ok(prefixes),
        false => Err(Unreadable::Lines(mistakes)),
    }
}
