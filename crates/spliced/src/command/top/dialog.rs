//! What is asked of the person, over or below a page.

use super::key::Key;
use super::order::Order;

/// The longest text that a person types.
pub(super) const TEXT_MOST_CHARACTERS: usize = 1000;

#[derive(Debug)]
pub(super) enum Dialog {
    Help,
    /// With the number of the order that is selected.
    Sort(usize),
    /// The rows that have a text.
    Search(Prompt),
    /// Filters as the command line takes them, with spaces between.
    Filter(Prompt),
    /// The weight to be of a server. The order has the one that it has.
    Weigh(Order, Prompt),
    /// An order that may not be meant, and the question.
    Confirm(Order, String),
}

/// A line that is being typed.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// What is wrong with it.
    pub(super) wrong: Option<String>,
}

impl Prompt {
    pub(super) fn new(text: String) -> Self {
        Self { text, wrong: None }
    }

    /// Whether the text has changed.
    pub(super) fn key(&mut self, key: Key) -> bool {
        match key {
            Key::Char(character) if self.text.chars().count() < TEXT_MOST_CHARACTERS => {
                self.text.push(character);
            }
            Key::Backspace if self.text.pop().is_some() => {}
            // As a shell: to the begin of the line.
            Key::Control('u') => self.text.clear(),
            _ => return false,
        }
        self.wrong = None;
        true
    }
}
