//! A pipe between two sockets that several processes hold: what is in it is lost only with the last one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::io::ioctl_fionread;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// The capacity that is requested, in bytes: the default of `fs.pipe-max-size`, which needs no privilege.
pub(super) const CAPACITY_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) reader: OwnedFd,
    pub(super) writer: OwnedFd,
}

impl Pipe {
    /// # Errors
    /// Of pipe(2).
    pub(super) fn new() -> Result<Self> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (reader, writer) = pipe_with(flags).context("cannot make a pipe")?;
        // Beyond the user's limit it stays smaller, which works, too.
        let _ = fcntl_setpipe_size(&writer, CAPACITY_BYTES);
        Ok(Self { reader, writer })
    }

    /// How many bytes have left the source and are not with the destination.
    pub(super) fn held_bytes(&self) -> u64 {
        // It fails for no pipe.
        ioctl_fionread(&self.reader).unwrap_or(0)
    }

    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.reader.as_fd(), self.writer.as_fd()]
    }

    /// # Errors
    /// Without a free descriptor.
    pub(super) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self {
            reader: self.reader.try_clone()?,
            writer: self.writer.try_clone()?,
        })
    }
}
