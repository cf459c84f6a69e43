//! Where the lines of a log go.

use std::io;
use std::time::Duration;

/// Takes lines, each of them whole or not at all.
pub(crate) trait LogSink: Send + 'static {
    /// Whether the first line could be taken.
    ///
    /// # Errors
    /// Why it could not.
    fn ready(&mut self) -> io::Result<()>;

    /// Takes a line, its newline included.
    ///
    /// # Errors
    /// The line is not in the log then. [`io::ErrorKind::WouldBlock`] means that there is no room now.
    fn append(&mut self, line: &[u8]) -> io::Result<()>;

    /// Waits until there may be room, or an error, at most for `time`.
    fn wait_writable(&self, time: Duration);

    /// Opens it again, as an operator asks for.
    ///
    /// # Errors
    /// What was open before is still used, where that can be.
    fn reopen(&mut self) -> io::Result<()>;
}
