//! Programs and filters of others that come after the program on a device. They do not see what it translates.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use splice_base::shortage::is_shortage;
use splice_bpf::{AttachMode, Beside, ForeignPrograms, programs_beside};
use splice_firewall::Links;

use super::preceding::is_own;
use crate::firewall::Unlisted;

/// Looks for them in one network namespace.
pub(super) struct Following {
    /// The id of the program.
    pub(super) own: u32,
    /// How the program is attached where it is not attached yet.
    pub(super) mode: Arc<Mutex<AttachMode>>,
    pub(super) links: Arc<Mutex<Links>>,
    pub(super) foreign: Arc<ForeignPrograms>,
}

impl Following {
    /// Which one there is on a device, in words that follow its name; `None` without one.
    ///
    /// # Errors
    /// If there is no such device, or something is short.
    pub(super) fn first(&self, device: u32) -> Result<Option<String>, Unlisted> {
        self.listed(device)
            .or_else(|error| match Errno::from_io_error(&error) {
                Some(Errno::NODEV) => Err(Unlisted::Gone),
                Some(errno) if is_shortage(errno) => Err(Unlisted::Short(errno)),
                _ => Ok(Some(format!(
                    "has tc programs that cannot be listed: {error}"
                ))),
            })
    }

    fn listed(&self, device: u32) -> io::Result<Option<String>> {
        let by_filter = match programs_beside(device, self.own)? {
            Beside::Programs { after, .. } => {
                for id in after {
                    if let Some(name) = self.foreign.name(id)? {
                        return Ok(Some(format!(
                            "has the tc program {name} behind the relay's"
                        )));
                    }
                }
                false
            }
            Beside::NotAttached => {
                let mode = *self.mode.lock().unwrap_or_else(PoisonError::into_inner);
                mode == AttachMode::Clsact
            }
            Beside::NoLinks => true,
        };
        let kind = self.filter(device, by_filter)?;
        Ok(kind.map(|kind| format!("has a tc filter ({kind}) behind the relay's program")))
    }

    /// The kind of a filter that comes after the program, which is a filter as well (`by_filter`) or comes before all of
    /// them.
    fn filter(&self, device: u32, by_filter: bool) -> io::Result<Option<String>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let filters = links.ingress_filters(device)?;
        let (ours, others): (Vec<_>, Vec<_>) = filters.into_iter().partition(is_own);
        let first = match ours.iter().map(|filter| filter.priority).min() {
            Some(priority) if by_filter => priority,
            // It takes a place after most.
            None if by_filter => u32::MAX,
            _ => 0,
        };
        let mut following = others.into_iter().filter(|filter| filter.priority >= first);
        Ok(following.next().map(|filter| filter.kind))
    }
}
