//! A file that somebody has written for this program: read in a bounded time, whatever its path leads to.

use std::fs::{self, File, Metadata};
use std::io::{self, Error, ErrorKind, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

/// Reads a text of up to `most` MiB.
///
/// # Errors
/// If it cannot be read, is not UTF-8, not a regular file, or longer.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(read_bytes(path, most)?);
    text.map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Reads up to `most` MiB, in any encoding.
///
/// # Errors
/// If it cannot be read, is not a regular file, or longer.
pub(crate) fn read_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_if(path, most, |_| Ok(()))
}

/// The same for a secret.
///
/// # Errors
/// Also if other users may read or change it.
pub(crate) fn read_private(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_if(path, most, |file| match file.mode() & 0o077 {
        0 => Ok(()),
        _ => Err(Error::other(format!(
            "other users may use it, its mode is {:o}; run chmod 600",
            file.mode() & 0o7777
        ))),
    })
}

fn read_if(
    path: &Path,
    most: u64,
    may: impl Fn(&Metadata) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    // To open a device may already do something, as with a tape or a watchdog.
    suits(&fs::metadata(path)?, most)?;
    // In case another file is there by now: a FIFO waits for a writer otherwise.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    suits(&metadata, most)?;
    may(&metadata)?;
    let mut bytes = Vec::new();
    file.take((most << 20) + 1).read_to_end(&mut bytes)?;
    bounded(bytes.len() as u64, most)?;
    Ok(bytes)
}

/// Whether an error of [`read`] says what the file is; others may pass.
pub(crate) fn is_about_file(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Other | ErrorKind::InvalidData)
}

/// What helps if a file cannot be read.
pub(crate) fn remedy(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::InvalidData => "save it as UTF-8",
        ErrorKind::NotFound => "correct the path, or write the file",
        ErrorKind::PermissionDenied => {
            "let this user read it, and search the directories that lead to it"
        }
        // What it says names the file's fault.
        _ => "choose another file",
    }
}

fn suits(file: &Metadata, most: u64) -> io::Result<()> {
    if !file.is_file() {
        // A device may have no end, and a FIFO nothing for the next reload.
        return Err(Error::other("it is not a regular file"));
    }
    bounded(file.len(), most)
}

fn bounded(bytes: u64, most: u64) -> io::Result<()> {
    match bytes <= most << 20 {
        true => Ok(()),
        false => Err(Error::other(format!("it has more than {most} MiB"))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use netlab::Scratch;
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn what_has_no_end_or_would_block_is_refused() {
        let scratch = Scratch::new("text").expect("a directory");
        let fifo = scratch.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &fifo, FileType::Fifo, mode, 0).expect("a FIFO");
        // A socket stands for what is not to be opened at all: that would fail.
        let socket = scratch.path().join("socket");
        let _listener = UnixListener::bind(&socket).expect("bound");
        for path in [scratch.path(), &fifo, &socket, Path::new("/dev/zero")] {
            let error = read(path, 1).expect_err("no text");
            assert_eq!(error.to_string(), "it is not a regular file", "{path:?}");
            assert!(is_about_file(&error));
        }
        let long = scratch.path().join("long");
        let file = File::create(&long).expect("a file");
        file.set_len((1 << 20) + 1).expect("long");
        let error = read(&long, 1).expect_err("too long");
        assert_eq!(error.to_string(), "it has more than 1 MiB");
        file.set_len(1 << 20).expect("shorter");
        assert_eq!(read(&long, 1).map(|text| text.len()).ok(), Some(1 << 20));
        fs::write(&long, [0xff]).expect("written");
        assert!(is_about_file(&read(&long, 1).expect_err("not UTF-8")));
        fs::remove_file(&long).expect("removed");
        assert!(!is_about_file(&read(&long, 1).expect_err("not there")));
    }
}
