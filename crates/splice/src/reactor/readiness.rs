//! What a descriptor is watched for, and what it is ready for.

use rustix::event::epoll::EventFlags;

/// What a registered descriptor is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness(EventFlags);

impl Readiness {
    /// Nothing.
    pub const NONE: Self = Self(EventFlags::empty());

    /// What is possible on a connected socket of which nothing has been heard yet: writing.
    pub const WRITABLE: Self = Self(EventFlags::OUT);

    /// Bytes or an end of stream may be there.
    pub(crate) const READABLE: Self = Self(EventFlags::IN);

    pub(crate) fn from_flags(flags: EventFlags) -> Self {
        Self(flags)
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// A read will not block: there are bytes, an end of stream, or an error.
    pub fn is_readable(self) -> bool {
        self.0
            .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::ERR | EventFlags::HUP)
    }

    /// A write will not block: there is room, or an error.
    pub fn is_writable(self) -> bool {
        self.0
            .intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP)
    }

    /// The descriptor has an error or is closed both ways.
    pub fn is_broken(self) -> bool {
        self.0.intersects(EventFlags::ERR | EventFlags::HUP)
    }

    /// The descriptor has an error, which the next system call on it brings.
    pub fn has_error(self) -> bool {
        self.0.contains(EventFlags::ERR)
    }

    /// No more bytes follow those that have come.
    pub(crate) fn is_hung_up(self) -> bool {
        self.0.intersects(EventFlags::RDHUP | EventFlags::HUP)
    }

    pub(crate) fn is_urgent(self) -> bool {
        self.0.contains(EventFlags::PRI)
    }

    /// A read that brings less than it asked for does not prove that nothing is left: an end of
    /// stream has its edge behind it, and a TCP read stops short at an urgent mark
    /// (`tcp_recvmsg_locked`).
    pub(crate) fn outlasts_short_read(self) -> bool {
        self.0
            .intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR | EventFlags::PRI)
    }
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(EventFlags);

impl Interest {
    /// A stream that user space moves: every edge of both directions, registered once and never
    /// changed. The task reads and writes until the kernel says `EAGAIN`, or reads less than it
    /// asked for.
    pub const STREAM: Self = Self(
        EventFlags::IN
            .union(EventFlags::OUT)
            .union(EventFlags::RDHUP)
            .union(EventFlags::PRI)
            .union(EventFlags::ET),
    );

    /// A stream that the kernel moves: an end of stream or an error, and no byte. `IN` and `OUT`
    /// would wake the process for every message that passes.
    pub(crate) const ENDS: Self = Self(EventFlags::RDHUP.union(EventFlags::ET));

    /// The same, and room to write.
    pub(crate) const ENDS_AND_ROOM: Self = Self(Self::ENDS.0.union(EventFlags::OUT));

    /// A listener, or another source of which one unit at a time is taken: told as long as there
    /// is something to take.
    pub const TAKE: Self = Self(EventFlags::IN);

    /// Like [`TAKE`](Self::TAKE) where several loops share one descriptor: one of them is woken,
    /// not all (`EPOLLEXCLUSIVE`). It cannot be changed, only removed.
    pub const TAKE_SHARED: Self = Self(EventFlags::IN.union(EventFlags::EXCLUSIVE));

    pub(crate) fn flags(self) -> EventFlags {
        self.0
    }
}
