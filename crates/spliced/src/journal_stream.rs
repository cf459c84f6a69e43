//! Standard error that systemd's journal reads, and the lines that it expects there (sd-daemon(3)).

use std::{env, io};

use rustix::fs::{Stat, fstat};
use tracing::Level;

/// Where systemd names the stream that it has connected to the journal (systemd.exec(5)).
const VARIABLE: &str = "JOURNAL_STREAM";

/// Whether the journal reads standard error. The variable alone says nothing: a process inherits it whose standard
/// error was redirected.
pub(crate) fn has_stderr() -> bool {
    let Ok(named) = env::var(VARIABLE) else {
        return false;
    };
    fstat(io::stderr()).is_ok_and(|stat| is_named(&named, &stat))
}

/// `named` is the device and the inode, in decimal.
fn is_named(named: &str, stat: &Stat) -> bool {
    let numbers = named.split_once(':');
    let numbers =
        numbers.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    numbers == Some((stat.st_dev, stat.st_ino))
}

/// What a line of `level` begins with: a priority of syslog(3).
pub(crate) fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}
