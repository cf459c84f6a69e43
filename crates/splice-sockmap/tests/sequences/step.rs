//! What happens in a sequence, and what came of it.

use std::ops::AddAssign;

use proptest::sample::Index;

/// One thing that happens. A socket of a map has an even number here, its peer the next one.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// `by` counts the redirects, each with both types of maps.
    Link {
        source: usize,
        target: usize,
        by: usize,
    },
    Leave(Index),
    Drop(Index),
    /// In or out of a map without a program.
    Hold {
        socket: usize,
        put: bool,
    },
    Close {
        socket: usize,
    },
    Send {
        socket: usize,
        records: usize,
    },
    /// More datagrams than a queue holds.
    Fill {
        socket: usize,
    },
    /// The same as `Send` on the socket from which a link redirects.
    SendThrough(Index, usize),
    Read,
}

/// Records of a sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: usize,
    pub(crate) come: usize,
    pub(crate) redirected: usize,
    /// Lost with a socket that was closed.
    pub(crate) closed: usize,
    /// Lost where the queue of a datagram socket was full.
    pub(crate) full: usize,
    /// Messages that were passed for a bound.
    pub(crate) beyond: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.come += other.come;
        self.redirected += other.redirected;
        self.closed += other.closed;
        self.full += other.full;
        self.beyond += other.beyond;
    }
}
