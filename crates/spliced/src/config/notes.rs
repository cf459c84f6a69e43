//! What is wrong with a configuration, or doubtful, and where.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One sentence about a place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Note {
    pub(crate) path: PathBuf,
    /// Both from 1; the column counts characters.
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) sentence: String,
}

impl Note {
    /// The file, line and column, by which notes are sorted.
    pub(crate) fn place(&self) -> (PathBuf, usize, usize) {
        (self.path.clone(), self.line, self.column)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}",
            self.path.display(),
            self.line,
            self.column,
            self.sentence
        )
    }
}

/// Every mistake of a configuration in the order of its lines. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistakes(pub(crate) Vec<Note>);

impl fmt::Display for Mistakes {
    /// One line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, note) in self.0.iter().enumerate() {
            let end_of_last = if index == 0 { "" } else { "\n" };
            write!(f, "{end_of_last}{note}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// Collects notes while a file is read.
#[derive(Debug)]
pub(super) struct Notes<'t> {
    path: &'t Path,
    text: &'t str,
    /// Those of syntax, in front of which others may be their consequence.
    syntax: Vec<Note>,
    mistakes: RefCell<Vec<Note>>,
    warnings: RefCell<Vec<Note>>,
}

impl<'t> Notes<'t> {
    /// Notes about `text`, which has these mistakes of syntax.
    pub(super) fn new(path: &'t Path, text: &'t str, syntax: Vec<(Range<usize>, String)>) -> Self {
        let mut notes = Self {
            path,
            text,
            syntax: Vec::new(),
            mistakes: RefCell::default(),
            warnings: RefCell::default(),
        };
        let syntax = syntax.into_iter();
        notes.syntax = syntax
            .map(|(at, sentence)| notes.note(&at, sentence))
            .collect();
        notes
    }

    /// How many mistakes there are so far.
    pub(super) fn count(&self) -> usize {
        self.syntax.len() + self.mistakes.borrow().len()
    }

    /// The file that is read.
    pub(super) fn path(&self) -> &'t Path {
        self.path
    }

    pub(super) fn mistake(&self, at: &Range<usize>, sentence: impl Into<String>) {
        self.mistakes.borrow_mut().push(self.note(at, sentence));
    }

    /// A mistake that is one only if the file has no mistakes of syntax.
    pub(super) fn missing(&self, at: &Range<usize>, sentence: impl Into<String>) {
        if self.syntax.is_empty() {
            self.mistake(at, sentence);
        }
    }

    pub(super) fn warn(&self, at: &Range<usize>, sentence: impl Into<String>) {
        self.warnings.borrow_mut().push(self.note(at, sentence));
    }

    /// A mistake in another file.
    pub(super) fn mistake_elsewhere(&self, note: Note) {
        self.mistakes.borrow_mut().push(note);
    }

    pub(super) fn line(&self, at: &Range<usize>) -> usize {
        self.position(at.start).0
    }

    fn note(&self, at: &Range<usize>, sentence: impl Into<String>) -> Note {
        let (line, column) = self.position(at.start);
        Note {
            path: self.path.into(),
            line,
            column,
            sentence: sentence.into(),
        }
    }

    fn position(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let start_of_line = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        (line, before[start_of_line..].chars().count() + 1)
    }

    /// The mistakes and the warnings.
    pub(super) fn finish(self) -> (Vec<Note>, Vec<Note>) {
        let mut mistakes = self.mistakes.into_inner();
        // What has been made of a broken line is no mistake of its own.
        mistakes.retain(|note| !self.syntax.iter().any(|broken| broken.line == note.line));
        mistakes.extend(self.syntax);
        let in_order = |mut notes: Vec<Note>| {
            notes.sort();
            notes.dedup();
            notes
        };
        (in_order(mistakes), in_order(self.warnings.into_inner()))
    }
}
