//! What a command prints for whoever has called it.

use std::io::{self, ErrorKind, Write as _};

use anyhow::{Context as _, Result};

/// Prints `text`. If the reader has gone away, as in `spliced status | head`, nobody misses the rest.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    let written = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
