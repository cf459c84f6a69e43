//! Programs and filters of others that come after the program on a device. They do not see what it translates.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use splice_bpf::{AttachMode, Beside, foreign_name, programs_beside};
use splice_firewall::Links;

use super::before::is_own;
use crate::firewall::DeviceGone;

/// Looks for them in one network namespace.
pub(super) struct Behind {
    /// The id of the program.
    pub(super) own: u32,
    /// How the program is attached where it is not attached yet.
    pub(super) mode: Arc<Mutex<AttachMode>>,
    pub(super) links: Mutex<Links>,
}

impl Behind {
    /// Which one there is on a device, in words that follow its name; `None` without one.
    ///
    /// # Errors
    /// If there is no such device.
    pub(super) fn first(&self, device: u32) -> Result<Option<String>, DeviceGone> {
        let unread = |why: String| {
            let why = format!("has tc programs that cannot be listed: {why}");
            Ok(Some(why))
        };
        let by_filter = match programs_beside(device, self.own) {
            Ok(Beside::Programs { behind, .. }) => {
                if let Some(name) = behind.into_iter().find_map(foreign_name) {
                    return Ok(Some(format!(
                        "has the tc program {name} behind the relay's"
                    )));
                }
                false
            }
            Ok(Beside::NotAttached) => {
                let mode = *self.mode.lock().unwrap_or_else(PoisonError::into_inner);
                mode == AttachMode::Clsact
            }
            Ok(Beside::NoLinks) => true,
            Err(Errno::NODEV) => return Err(DeviceGone),
            Err(errno) => return unread(errno.to_string()),
        };
        match self.filter(device, by_filter) {
            Ok(kind) => {
                Ok(kind.map(|kind| format!("has a tc filter ({kind}) behind the relay's program")))
            }
            Err(error) => unread(error.to_string()),
        }
    }

    /// The kind of a filter that comes after the program, which is a filter as well (`by_filter`) or comes before all of
    /// them.
    fn filter(&self, device: u32, by_filter: bool) -> io::Result<Option<String>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let filters = links.ingress_filters(device)?;
        let (ours, others): (Vec<_>, Vec<_>) = filters.into_iter().partition(is_own);
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
