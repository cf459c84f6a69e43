//! Warnings of the kernel during a test.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

/// The kernel's log from here on, if it can be read.
pub(crate) struct KernelLog(Option<File>);

impl KernelLog {
    pub(crate) fn from_here() -> Self {
        let log = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open("/dev/kmsg")
            .and_then(|mut log| log.seek(SeekFrom::End(0)).map(|_| log));
        let why = log.as_ref().err().map(|error| error.to_string());
        netlab::present("kmsg", why);
        Self(log.ok())
    }

    /// The lines of a `WARN` or `BUG` of the network; the log covers the whole machine.
    pub(crate) fn warnings(self) -> Vec<String> {
        let Some(mut log) = self.0 else {
            return Vec::new();
        };
        let (mut warnings, mut record) = (Vec::new(), vec![0; 8192]);
        loop {
            // One read returns one record (`devkmsg_read`).
            match log.read(&mut record) {
                Ok(count) => {
                    let text = String::from_utf8_lossy(&record[..count]);
                    let is_bad = ["WARNING:", "BUG:"].iter().any(|word| text.contains(word));
                    if is_bad
                        && ["net/", "tcp", "sk_"]
                            .iter()
                            .any(|word| text.contains(word))
                    {
                        warnings.push(text.into_owned());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return warnings,
                // The record was overwritten before it was read (EPIPE); the next read continues
                // after it.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) => panic!("/dev/kmsg: {error}"),
            }
        }
    }
}
