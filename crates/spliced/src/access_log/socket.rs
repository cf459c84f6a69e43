//! The connection with a receiver of log messages: a UNIX datagram socket.
//!
//! ```text
//!       connected                         an error
//! apart ─────────▶ connected ──sends──▶ ───────────▶ apart, and connected again at once
//!     ▲                                                 │ that fails, too: the error is reported
//!     └─────────────────────────────────────────────────┘
//! ```

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A receiver may end and come back: the next message finds it.
#[derive(Debug)]
pub(super) struct Receiver {
    path: PathBuf,
    /// `None`: apart.
    socket: Option<UnixDatagram>,
}

impl Receiver {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            socket: None,
        }
    }

    /// Connects anew. If that fails, the old socket stays.
    pub(super) fn connect(&mut self) -> io::Result<&UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(&self.path)?;
        Ok(self.socket.insert(socket))
    }

    /// Has `send` send a message, and once more by a new connection if the receiver was started again.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] means that the receiver is full.
    pub(super) fn send(
        &mut self,
        send: impl Fn(&UnixDatagram) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(socket) = &self.socket {
            match send(socket) {
                Ok(()) => return Ok(()),
                Err(error) if !is_of_connection(&error) => return Err(error),
                Err(_) => self.socket = None,
            }
        }
        send(self.connect()?)
    }

    /// Waits until the receiver has room or is gone, at most for `time`.
    pub(super) fn wait_writable(&self, time: Duration) {
        if let (Some(socket), Ok(time)) = (&self.socket, Timespec::try_from(time)) {
            // The next message reports an error.
            let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&time));
        }
    }
}

/// Whether a new connection may help.
fn is_of_connection(error: &io::Error) -> bool {
    let is_too_long = error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error());
    !is_too_long && error.kind() != io::ErrorKind::WouldBlock
}
