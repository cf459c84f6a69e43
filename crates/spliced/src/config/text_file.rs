//! A file that somebody has written for this program: read in a bounded time, whatever its path leads to.

use std::fs::File;
use std::io::{self, Error, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

/// Reads a text of up to `most` MiB.
///
/// # Errors
/// If it cannot be read, is not UTF-8, not a regular file, or longer.
pub(super) fn read(path: &Path, most: u64) -> io::Result<String> {
    // A FIFO waits for a writer otherwise.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        // A device may have no end, and a FIFO nothing for the next reload.
        return Err(Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    file.take((most << 20) + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most << 20 {
        return Err(Error::other(format!("it has more than {most} MiB")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use netlab::Scratch;
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn what_has_no_end_or_would_block_is_refused() {
        let scratch = Scratch::new("text").expect("a directory");
        let fifo = scratch.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &fifo, FileType::Fifo, mode, 0).expect("a FIFO");
        for path in [scratch.path(), &fifo, Path::new("/dev/zero")] {
            let error = read(path, 1).expect_err("no text");
            assert_eq!(error.to_string(), "it is not a regular file", "{path:?}");
        }
        let long = scratch.path().join("long");
        let file = File::create(&long).expect("a file");
        file.set_len((1 << 20) + 1).expect("long");
        let error = read(&long, 1).expect_err("too long");
        assert_eq!(error.to_string(), "it has more than 1 MiB");
        file.set_len(1 << 20).expect("shorter");
        assert_eq!(read(&long, 1).map(|text| text.len()).ok(), Some(1 << 20));
        fs::write(&long, [0xff]).expect("written");
        assert!(read(&long, 1).is_err(), "not UTF-8");
    }
}
