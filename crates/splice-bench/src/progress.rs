//! The progress of a long run.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// On a terminal a bar with the current step and the remaining time, elsewhere a line for each part
/// of the run.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    part: String,
}

impl Progress {
    /// For so many steps, shown on standard error.
    pub(crate) fn new(steps: u64) -> Self {
        let bar = if io::stderr().is_terminal() {
            let style = "{elapsed_precise} {wide_bar} {pos}/{len}, left: {eta}\n{msg}";
            ProgressBar::new(steps).with_style(
                ProgressStyle::with_template(style)
                    .expect("the template is a constant that parses"),
            )
        } else {
            ProgressBar::hidden()
        };
        Self {
            bar,
            part: String::new(),
        }
    }

    /// A part of the run begins.
    pub(crate) fn part(&mut self, part: String) {
        self.say(&part);
        self.part = part;
    }

    /// A step begins.
    pub(crate) fn step(&self, step: &str) {
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{}: {step}", self.part));
        }
    }

    /// A step is done.
    pub(crate) fn done(&self) {
        self.bar.inc(1);
    }

    /// A line that stays.
    pub(crate) fn say(&self, line: &str) {
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
