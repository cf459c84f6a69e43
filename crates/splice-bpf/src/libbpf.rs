//! libbpf's log and its error numbers.

use std::io;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{PrintCallback, PrintLevel, get_print, set_print};
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind};

/// What libbpf has printed since a load began. It has one print function per process.
static PRINTED: Mutex<String> = Mutex::new(String::new());

/// Serialises loads, since they share `PRINTED`.
pub(crate) static LOADING: Mutex<()> = Mutex::new(());

/// How much of libbpf's output an error carries, in bytes. The last lines name the cause; the
/// verifier's log before them can have megabytes.
const REASON_BYTES: usize = 600;

fn keep_print(_level: PrintLevel, text: String) {
    PRINTED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push_str(&text);
}

/// Silences libbpf, and restores the program's own print function when it is dropped.
pub(crate) struct Quiet {
    before: Option<(PrintLevel, PrintCallback)>,
}

impl Quiet {
    pub(crate) fn begin() -> Self {
        PRINTED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let before = get_print();
        set_print(Some((PrintLevel::Warn, keep_print)));
        Self { before }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_print(self.before);
    }
}

/// Converts the return value of libbpf's calls, a negative error number.
pub(crate) fn checked(result: i32) -> Result<(), Errno> {
    match result {
        0.. => Ok(()),
        number => Err(Errno::from_raw_os_error(-number)),
    }
}

pub(crate) fn refused(context: String, error: &libbpf_rs::Error) -> Error {
    let printed = std::mem::take(&mut *PRINTED.lock().unwrap_or_else(PoisonError::into_inner));
    let mut log = printed.trim();
    if log.len() > REASON_BYTES {
        let mut start = log.len() - REASON_BYTES;
        while !log.is_char_boundary(start) {
            start += 1;
        }
        log = &log[start..];
    }
    let refused = match errno_of(error) {
        Some(number) => Error::new(ErrorKind::BpfRefused, context)
            .with_source(io::Error::from_raw_os_error(number)),
        None => Error::new(ErrorKind::BpfRefused, format!("{context}: {error:#}")),
    };
    match log {
        "" => refused,
        log => refused.with_log(log.replace('\n', "; ")),
    }
}

/// The error number of a libbpf-rs error, which does not expose the [`io::Error`] (0.27) and only
/// prints it.
pub(crate) fn errno_of(error: &libbpf_rs::Error) -> Option<i32> {
    let text = format!("{error:#}");
    let (_, after) = text.rsplit_once("(os error ")?;
    let (number, _) = after.split_once(')')?;
    number.parse().ok()
}

pub(crate) fn absent(name: &str) -> Error {
    Error::new(
        ErrorKind::BpfRefused,
        format!("the embedded BPF object has no {name}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_number_of_a_refusal_survives() {
        let denied = libbpf_rs::Error::from(io::Error::from_raw_os_error(1));
        let refused = refused("no program".into(), &denied);
        assert_eq!(refused.errno(), Some(Errno::PERM));
        let text = refused.to_string();
        assert!(
            text.starts_with("no program: Operation not permitted"),
            "{text}"
        );
    }
}
