//! A file to which log lines are appended, each of them whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::log_sink::LogSink;

/// The log's file, FIFO, terminal or pipe.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    /// `None` for a standard stream, which cannot be reopened.
    path: Option<PathBuf>,
    /// The file ends with an incomplete line.
    torn: bool,
}

impl LogFile {
    /// Opens `path` for appending. Does not block on a FIFO without a reader.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        Ok(Self {
            torn: ends_within_line(&file, path),
            file,
            path: Some(path.into()),
        })
    }

    /// Duplicates the descriptor of a standard stream. `std::io` would lock the stream during a write, and
    /// others would wait.
    pub(crate) fn standard_stream(stream: &impl AsFd) -> io::Result<Self> {
        let descriptor: OwnedFd = stream.as_fd().try_clone_to_owned()?;
        Ok(Self {
            file: descriptor.into(),
            path: None,
            torn: false,
        })
    }

    /// Waits until the file is writable or has an error, at most for `time`.
    fn wait_writable_for(&self, time: Option<Duration>) {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // The next write reports an error.
        let _ = poll(
            &mut [PollFd::new(&self.file, PollFlags::OUT)],
            time.as_ref(),
        );
    }

    fn fail(&mut self, written: usize, error: io::Error) -> io::Result<()> {
        if written > 0 && self.take_back(written as u64).is_err() {
            self.torn = true;
        }
        Err(error)
    }

    /// Truncates the last bytes, if nobody has written after them.
    fn take_back(&mut self, written: u64) -> io::Result<()> {
        let end = self.file.stream_position()?;
        let metadata = self.file.metadata()?;
        if !metadata.is_file() || metadata.len() != end {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.file.set_len(end - written)?;
        // A standard stream may not be in append mode: without the seek it would leave a hole.
        self.file.seek(SeekFrom::Start(end - written)).map(drop)
    }
}

impl LogSink for LogFile {
    /// It is open.
    fn ready(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Writes one line, its newline included, in one write(2): other processes may append to the
    /// same file, and a pipe takes up to `PIPE_BUF` bytes whole or not at all.
    ///
    /// # Errors
    /// The line is not in the file then. [`io::ErrorKind::WouldBlock`] means that the reader does not read.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let on_its_own;
        let bytes = if self.torn {
            on_its_own = [b"\n", line].concat();
            &on_its_own
        } else {
            line
        };
        let mut written = 0;
        while written < bytes.len() {
            match (&self.file).write(&bytes[written..]) {
                Ok(0) => return self.fail(written, io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal, or a line longer than PIPE_BUF, may take a part: the rest has to follow.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && written > 0 => {
                    self.wait_writable_for(None);
                }
                Err(error) => return self.fail(written, error),
            }
        }
        self.torn = false;
        Ok(())
    }

    fn wait_writable(&self, time: Duration) {
        self.wait_writable_for(Some(time));
    }

    /// Opens the path again after logrotate has renamed the file. On failure the old file stays open.
    fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = self.path.take() {
            let opened = Self::open(&path);
            self.path = Some(path);
            *self = opened?;
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .create(true)
        .append(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    match options.open(path) {
        // A FIFO without a reader. Open for reading too, it needs no other reader (fifo(7)).
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            options.read(true).open(path)
        }
        opened => opened,
    }
}

/// Whether the last line is incomplete, because a process was killed or a disk became full.
fn ends_within_line(file: &File, path: &Path) -> bool {
    // `file` is write-only.
    let last_byte = || -> io::Result<u8> {
        let mut file = File::open(path)?;
        let mut byte = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut byte)?;
        Ok(byte[0])
    };
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
        && last_byte().is_ok_and(|byte| byte != b'\n')
}
