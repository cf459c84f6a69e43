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

/// How many mistakes, and how many warnings, are told: more than a person corrects at once. A file of some other
/// kind has one in each line.
const MOST: usize = 100;

/// How many are noted: the last one stands where the first of those is that are not told.
pub(super) const MOST_NOTED: usize = MOST + 1;

/// Collects notes while a file is read.
#[derive(Debug)]
pub(super) struct Notes<'t> {
    path: &'t Path,
    text: &'t str,
    /// Where its lines begin.
    lines: Vec<usize>,
    /// Those of syntax, in front of which others may be their consequence.
    syntax: Vec<Note>,
    mistakes: RefCell<Vec<Note>>,
    warnings: RefCell<Vec<Note>>,
}

impl<'t> Notes<'t> {
    /// Notes about `text`, which has these mistakes of syntax.
    pub(super) fn new(
        path: &'t Path,
        text: &'t str,
        syntax: impl Iterator<Item = (Range<usize>, String)>,
    ) -> Self {
        let ends = text.match_indices('\n');
        let mut notes = Self {
            path,
            text,
            lines: std::iter::once(0)
                .chain(ends.map(|(at, _)| at + 1))
                .collect(),
            syntax: Vec::new(),
            mistakes: RefCell::default(),
            warnings: RefCell::default(),
        };
        let mut noted = Vec::new();
        for (at, sentence) in syntax.take(MOST_NOTED) {
            push(&mut noted, notes.note(&at, sentence));
        }
        notes.syntax = noted;
        notes
    }

    /// How many mistakes there are so far.
    pub(super) fn count(&self) -> usize {
        self.syntax.len() + self.mistakes.borrow().len()
    }

    /// Whether a further mistake would not be told.
    pub(super) fn has_enough(&self) -> bool {
        self.mistakes.borrow().len() >= MOST_NOTED
    }

    /// The file that is read.
    pub(super) fn path(&self) -> &'t Path {
        self.path
    }

    pub(super) fn mistake(&self, at: &Range<usize>, sentence: impl Into<String>) {
        push(&mut self.mistakes.borrow_mut(), self.note(at, sentence));
    }

    /// A mistake that is one only if the file has no mistakes of syntax.
    pub(super) fn missing(&self, at: &Range<usize>, sentence: impl Into<String>) {
        if self.syntax.is_empty() {
            self.mistake(at, sentence);
        }
    }

    pub(super) fn warn(&self, at: &Range<usize>, sentence: impl Into<String>) {
        push(&mut self.warnings.borrow_mut(), self.note(at, sentence));
    }

    /// A mistake in another file.
    pub(super) fn mistake_elsewhere(&self, note: Note) {
        push(&mut self.mistakes.borrow_mut(), note);
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
        let line = self.lines.partition_point(|start| *start <= offset);
        let before = self.lines[line - 1]..offset.min(self.text.len());
        // A place in the middle of a character counts as its line.
        let before = self.text.get(before).unwrap_or_default();
        (line, before.chars().count() + 1)
    }

    /// The mistakes and the warnings.
    pub(super) fn finish(self) -> (Vec<Note>, Vec<Note>) {
        let mut mistakes = self.mistakes.into_inner();
        // What has been made of a broken line is no mistake of its own.
        let is_of_broken =
            |note: &Note, broken: &Note| (&broken.path, broken.line) == (&note.path, note.line);
        mistakes.retain(|note| !self.syntax.iter().any(|broken| is_of_broken(note, broken)));
        mistakes.extend(self.syntax);
        let in_order = |mut notes: Vec<Note>| {
            notes.sort();
            notes.dedup();
            notes
        };
        (in_order(mistakes), in_order(self.warnings.into_inner()))
    }
}

fn push(notes: &mut Vec<Note>, mut note: Note) {
    if notes.len() == MOST {
        note.sentence = format!("there may be more like the {MOST} before; correct those first");
    }
    if notes.len() < MOST_NOTED {
        notes.push(note);
    }
}
