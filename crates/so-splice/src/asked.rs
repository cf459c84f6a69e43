//! What a splice's mover asks, and what each system answers.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::sockopt;
use splice::Rules;

use crate::duplicate;
use crate::personality::Personality;
use crate::table::Splice;

impl Rules for Splice {
    fn duplicate(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        duplicate::of(fd)
    }

    fn close(&self, duplicate: OwnedFd) {
        duplicate::close(duplicate);
    }

    fn hand_over(&self, duplicate: OwnedFd) -> OwnedFd {
        duplicate::give_away(duplicate)
    }

    fn turn(&self, step: &mut dyn FnMut()) {
        let _still = self.hold_still();
        step();
    }

    /// In a ring, each read of bytes takes one of the ring's passes.
    fn reads(&self, source: BorrowedFd<'_>) -> u32 {
        let Some(passes) = self.passes() else {
            return u32::MAX;
        };
        if !ioctl_fionread(source).is_ok_and(|bytes| bytes > 0) {
            return 1;
        }
        let took = passes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        u32::from(took.is_ok())
    }

    /// OpenBSD sends no datagram that is larger than the send buffer that the drain's owner has
    /// set. Linux sends it if the buffer is empty.
    fn largest_datagram(&self, drain: BorrowedFd<'_>) -> usize {
        match self.personality {
            // The kernel has doubled what the owner set (socket(7)).
            Personality::OpenBsd => {
                sockopt::socket_send_buffer_size(drain).map_or(usize::MAX, |bytes| bytes / 2)
            }
            Personality::Linux | Personality::FreeBsd => usize::MAX,
        }
    }

    /// `somove` looks at the error before it moves anything.
    fn error_of_source(&self, source: BorrowedFd<'_>) -> Option<i32> {
        if self.personality != Personality::OpenBsd {
            return None;
        }
        let pending = sockopt::socket_error(source).ok()?;
        pending.err().map(Errno::raw_os_error)
    }
}
