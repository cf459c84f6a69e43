//! One direction's entry in the map that the sockmap programs and this process share.

use std::sync::atomic::Ordering;

use crate::types::DirectionEntry;

impl DirectionEntry {
    /// Resets the entry for the next direction.
    pub fn clear(&self) {
        let Self {
            redirected,
            last_ns,
            first_ns,
            credit,
            full,
            over,
            missed,
            limit,
            base_seq,
            target_seq,
            opened,
            closed,
            refused,
            beyond,
            let_in,
            asked,
            error,
            ..
        } = self;
        credit.store(0, Ordering::Relaxed);
        for field in [redirected, last_ns, first_ns, limit, let_in] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [
            full, over, missed, base_seq, target_seq, opened, closed, refused, beyond, asked, error,
        ] {
            field.store(0, Ordering::Relaxed);
        }
    }
}
