//! Times as a user writes them.

use std::time::Duration;

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| {
        "it is not a time; write a number and its unit, such as 500ms, 30s or 5m".into()
    })
}

/// A longer time is a mistake, and a very long one overflows the clock.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than zero".into()),
        time if time > LONGEST => Err("it is longer than a year; write at most 366d".into()),
        time => Ok(time),
    }
}
