//! What an epoll event carries: a task and one of its descriptors, or one of the loop's own
//! descriptors.

/// Which task on its loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(super) generation: u32,
}

/// A token has the source in the low 8 bits, then 24 bits of generation, then the slot's index.
pub(super) const GENERATION_BITS: u32 = 24;

pub(super) const MAILBOX_TOKEN: u64 = u64::MAX;
pub(super) const TIMER_TOKEN: u64 = u64::MAX - 1;
/// The second poller, while another loop drives this one.
pub(super) const POLLER_TOKEN: u64 = u64::MAX - 2;
/// The first notifier. Each further one is one lower.
pub(super) const NOTIFIER_TOKEN: u64 = u64::MAX - 3;
/// More than there are engines in the kernel.
pub(super) const NOTIFIERS: u64 = 16;

impl Key {
    pub(crate) fn token(self, source: u8) -> u64 {
        u64::from(self.index) << 32 | u64::from(self.generation) << 8 | u64::from(source)
    }

    pub(super) fn from_token(token: u64) -> (Self, u8) {
        let generation = (token >> 8) as u32 & ((1 << GENERATION_BITS) - 1);
        (
            Self {
                index: (token >> 32) as u32,
                generation,
            },
            token as u8,
        )
    }
}
