//! The bytes that a pair has moved.

/// Bytes that a pair has delivered to the receiving sockets, per direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes from `a` to `b`.
    pub a_to_b: u64,
    /// Bytes from `b` to `a`.
    pub b_to_a: u64,
}

impl Counters {
    /// Those of one direction: 0 is from `a` to `b`.
    pub(crate) fn of(&self, direction: usize) -> u64 {
        [self.a_to_b, self.b_to_a][direction]
    }

    /// The sum of both directions, in bytes.
    pub fn total(&self) -> u64 {
        self.a_to_b + self.b_to_a
    }
}
