//! Programs and filters of others on the device of a program. Those behind it do not see what it translates. One before it
//! may keep segments from it: pairs whose segments do not reach it are not spliced, but those that are do not notice.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use splice_bpf::{AttachMode, Beside, is_own_filter, name_of, programs_beside};
use splice_firewall::Links;

/// Looks for them in one network namespace.
pub(super) struct Behind {
    /// The id of the program.
    pub(super) own: u32,
    /// How the program is attached where it is not attached yet.
    pub(super) mode: Arc<Mutex<AttachMode>>,
    pub(super) links: Mutex<Links>,
    pub(super) before: Arc<Before>,
}

/// The programs of others that came before the program on each device when that was attached, by their ids.
#[derive(Debug, Default)]
pub(super) struct Before(Mutex<HashMap<u32, Vec<u32>>>);

impl Before {
    /// Those that are there now, on the device that `own` has just been attached to.
    pub(super) fn note(&self, device: u32, own: u32) {
        if let Ok(Beside::Programs { before, .. }) = programs_beside(device, own) {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(device, before);
        }
    }

    /// One that was not among them.
    fn newcomer(&self, device: u32, now: &[u32]) -> Option<u32> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(&device)?;
        now.iter().find(|id| !known.contains(id)).copied()
    }
}

impl Behind {
    /// Which one there is on a device, in words that follow its name; `None` without one.
    pub(super) fn first(&self, device: u32) -> Option<String> {
        let unread = |why: String| Some(format!("has tc programs that cannot be listed: {why}"));
        let by_filter = match programs_beside(device, self.own) {
            Ok(Beside::Programs { before, behind }) => {
                if let Some(name) = behind.first() {
                    return Some(format!("has the tc program {name} behind the relay's"));
                }
                if let Some(id) = self.before.newcomer(device, &before) {
                    let name = name_of(id);
                    return Some(format!(
                        "has the tc program {name} before the relay's, which came later"
                    ));
                }
                false
            }
            Ok(Beside::NotAttached) => {
                let mode = *self.mode.lock().unwrap_or_else(PoisonError::into_inner);
                mode == AttachMode::Clsact
            }
            Ok(Beside::NoLinks) => true,
            Err(errno) => return unread(errno.to_string()),
        };
        match self.filter(device, by_filter) {
            Ok(kind) => {
                kind.map(|kind| format!("has a tc filter ({kind}) behind the relay's program"))
            }
            Err(error) => unread(error.to_string()),
        }
    }

    /// The kind of a filter that comes after the program, which is a filter as well (`by_filter`) or comes before all of
    /// them.
    fn filter(&self, device: u32, by_filter: bool) -> io::Result<Option<String>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let filters = links.ingress_filters(device)?;
        let is_ours = |priority, handle| is_own_filter(priority, handle);
        let (ours, others): (Vec<_>, Vec<_>) =
            (filters.into_iter()).partition(|filter| is_ours(filter.priority, filter.handle));
        let first = match ours.iter().map(|filter| filter.priority).min() {
            Some(priority) if by_filter => priority,
            // It takes a place behind most.
            None if by_filter => u32::MAX,
            _ => 0,
        };
        let mut behind = others.into_iter().filter(|filter| filter.priority >= first);
        Ok(behind.next().map(|filter| filter.kind))
    }
}
