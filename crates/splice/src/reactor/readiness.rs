//! What a descriptor is watched for, and what it is ready for.

use rustix::event::epoll::EventFlags;

/// What a registered descriptor is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness(EventFlags);

impl Readiness {
    /// Nothing.
    pub const NONE: Self = Self(EventFlags::empty());

    /// A connected socket without any event so far: it is writable.
    pub const WRITABLE: Self = Self(EventFlags::OUT);

    /// Bytes or EOF may be there.
    pub(crate) const READABLE: Self = Self(EventFlags::IN);

    pub(crate) fn from_flags(flags: EventFlags) -> Self {
        Self(flags)
    }

    /// The union of both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// A read will not block: there are bytes, EOF, or an error.
    pub fn is_readable(self) -> bool {
        self.0
            .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::ERR | EventFlags::HUP)
    }

    /// A write will not block: there is room, or an error.
    pub fn is_writable(self) -> bool {
        self.0
            .intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP)
    }

    /// The descriptor has an error, or is closed in both directions.
    pub fn is_broken(self) -> bool {
        self.0.intersects(EventFlags::ERR | EventFlags::HUP)
    }

    /// The descriptor has an error, which the next system call on it returns.
    pub fn has_error(self) -> bool {
        self.0.contains(EventFlags::ERR)
    }

    /// EOF follows the bytes that have arrived.
    pub fn is_hung_up(self) -> bool {
        self.0.intersects(EventFlags::RDHUP | EventFlags::HUP)
    }

    pub(crate) fn is_urgent(self) -> bool {
        self.0.contains(EventFlags::PRI)
    }

    /// A short read does not prove that nothing is left: EOF has no edge of its own after it, and a
    /// TCP read stops at an urgent mark (`tcp_recvmsg_locked`).
    pub(crate) fn needs_further_read(self) -> bool {
        self.0
            .intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR | EventFlags::PRI)
    }
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(EventFlags);

impl Interest {
    /// A stream that user space moves: edges of both directions, registered once and never changed.
    /// The task reads and writes until the kernel returns `EAGAIN`, or a short read.
    pub const STREAM: Self = Self(
        EventFlags::IN
            .union(EventFlags::OUT)
            .union(EventFlags::RDHUP)
            .union(EventFlags::PRI)
            .union(EventFlags::ET),
    );

    /// A stream that the kernel moves: EOF and errors only. `IN` and `OUT` would wake the process
    /// for every message.
    pub(crate) const ENDS: Self = Self(EventFlags::RDHUP.union(EventFlags::ET));

    /// EOF, errors, and room to write.
    pub(crate) const ENDS_AND_ROOM: Self = Self(Self::ENDS.0.union(EventFlags::OUT));

    /// A socket that is only read: bytes, EOF, errors and urgent marks.
    pub(crate) const SOURCE: Self = Self(
        EventFlags::IN
            .union(EventFlags::RDHUP)
            .union(EventFlags::PRI)
            .union(EventFlags::ET),
    );

    /// A socket that is only written: room and errors.
    pub(crate) const ROOM: Self = Self(EventFlags::OUT.union(EventFlags::ET));

    /// A listener, or another source of single units. It is level-triggered.
    pub const TAKE: Self = Self(EventFlags::IN);

    /// Like [`TAKE`](Self::TAKE), for a descriptor that several loops share: the kernel wakes one
    /// of them (`EPOLLEXCLUSIVE`). It cannot be changed, only removed.
    pub const TAKE_SHARED: Self = Self(EventFlags::IN.union(EventFlags::EXCLUSIVE));

    pub(crate) fn flags(self) -> EventFlags {
        self.0
    }
}
