//! A pair's permission to bypass the filters, and what becomes of it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use splice_firewall::Connection;

use super::Firewall;
use crate::plural::connections;

/// A pair that an engine moves past the filters.
pub(super) struct AdmittedPair {
    pub(super) connections: [Connection; 2],
    pub(super) by_groups: GroupFilter,
    pub(super) waker: Waker,
    pub(super) state: Mutex<PassState>,
}

/// Why BPF programs of control groups may stop a pair's segments now, if some see them.
pub(super) type GroupFilter = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The state of a pass: see the top of `mod.rs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PassState {
    Admitted,
    /// The filters were changing while they were read: the next look decides.
    Unsettled,
    /// What may stop the pair.
    Revoked(String),
    /// A device of the pair is gone, in words.
    Gone(String),
}

/// A pair's permission to bypass the filters. Dropping it returns it.
pub(crate) struct Pass {
    pub(super) firewall: Arc<Firewall>,
    pub(super) key: usize,
    pub(super) pair: Arc<AdmittedPair>,
}

/// The effect of a change of the rules on the pairs.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) revoked: usize,
    pub(super) why_revoked: Option<String>,
    /// How many pairs have lost a device.
    pub(super) gone: usize,
    pub(super) why_gone: Option<String>,
    /// Pairs wait for the next look.
    pub(super) is_unsettled: bool,
    /// Something is short, so that the filters could not be asked about some pairs.
    pub(super) is_short: bool,
}

impl Change {
    /// Takes a pair's pass, and tells it.
    pub(super) fn revoke(&mut self, pair: &AdmittedPair, why: String) {
        if pair.end(PassState::Revoked(why.clone())) {
            self.revoked += 1;
            self.why_revoked.get_or_insert(why);
        }
    }

    /// The same where a device of the pair is gone.
    pub(super) fn lose(&mut self, pair: &AdmittedPair, why: String) {
        if pair.end(PassState::Gone(why.clone())) {
            self.gone += 1;
            self.why_gone.get_or_insert(why);
        }
    }

    /// Warns of pairs that go back.
    pub(super) fn tell(self) {
        if let Some(why) = self.why_revoked {
            tracing::warn!(
                "the packet filters have changed: {} to the network stack, where the filters apply: {why}",
                connections(self.revoked, "goes back", "go back")
            );
        }
        if let Some(why) = self.why_gone {
            tracing::warn!(
                "{} to the network stack: {why}",
                connections(self.gone, "goes back", "go back")
            );
        }
    }
}

impl AdmittedPair {
    pub(super) fn state(&self) -> MutexGuard<'_, PassState> {
        // The state is replaced as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the pass for good, and tells the pair. Returns whether it had one.
    fn end(&self, end: PassState) -> bool {
        let mut state = self.state();
        if matches!(*state, PassState::Revoked(_) | PassState::Gone(_)) {
            return false;
        }
        *state = end;
        drop(state);
        self.waker.wake_by_ref();
        true
    }
}

impl Pass {
    /// Whether the pass is for connections on these devices.
    pub(crate) fn is_for(&self, devices: [u32; 2]) -> bool {
        let of_connection =
            |connection: &Connection| connection.device.as_ref().map(|device| device.index);
        self.pair.connections.each_ref().map(of_connection) == devices.map(Some)
    }

    pub(crate) fn state(&self) -> PassState {
        self.pair.state().clone()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.firewall.lock().pairs.try_remove(self.key);
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
