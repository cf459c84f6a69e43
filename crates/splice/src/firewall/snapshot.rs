//! The filters as they were read, and what was found out with them.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use splice_firewall::{Family, Filters, HookCounts};

/// Whether tc programs or filters on a device, by its ifindex, come after the engine's program, in words that follow the
/// device's name.
pub(crate) type Behind = Box<dyn Fn(u32) -> Result<Option<String>, Unlisted> + Send + Sync>;

/// Why nobody can say what comes there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unlisted {
    /// There is no device with this index. One that is made later may get it.
    Gone,
    /// Something is short.
    Short(Errno),
}

/// What was read of the filters. A change of the filters replaces it.
pub(super) struct Snapshot {
    /// The filters, or why they cannot be read.
    pub(super) filters: Result<Filters, String>,
    /// Hooks that the filters account for, all of them, by device and family.
    accounted: Mutex<HashMap<HookSite, HookCounts>>,
    /// Hooks that the filters do not account for, although the filters were read later; and why.
    unaccounted: Mutex<HashMap<HookSite, (HookCounts, String)>>,
    /// What comes after the engine's program on devices, by ifindex.
    behind: Mutex<HashMap<u32, Option<String>>>,
    /// The names of devices, by ifindex.
    names: Mutex<HashMap<u32, String>>,
}

/// Where connections meet hooks: a device's ifindex, and the family of the packets.
pub(super) type HookSite = (u32, Family);

impl Snapshot {
    pub(super) fn new(
        filters: Result<Filters, String>,
        behind: HashMap<u32, Option<String>>,
    ) -> Self {
        Self {
            filters,
            accounted: Mutex::new(HashMap::new()),
            unaccounted: Mutex::new(HashMap::new()),
            behind: Mutex::new(behind),
            names: Mutex::new(HashMap::new()),
        }
    }

    fn behinds(&self) -> MutexGuard<'_, HashMap<u32, Option<String>>> {
        // A map whose entries are whole.
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes after the engine's program on a device, as it was first seen.
    ///
    /// # Errors
    /// If there is no such device, or something is short.
    pub(super) fn behind(&self, device: u32, look: &Behind) -> Result<Option<String>, Unlisted> {
        let mut behinds = self.behinds();
        if let Some(known) = behinds.get(&device) {
            return Ok(known.clone());
        }
        let found = look(device)?;
        behinds.insert(device, found.clone());
        Ok(found)
    }

    /// What comes there now on each device that somebody has asked about. Those that are gone are forgotten, since others
    /// may get their indices. During a shortage what came there before still counts, as long as `bears` says so.
    pub(super) fn look_behind(
        &self,
        look: &Behind,
        mut bears: impl FnMut() -> bool,
    ) -> HashMap<u32, Option<String>> {
        let before = self.behinds().clone();
        let mut now = HashMap::new();
        for (device, before) in before {
            let found = match look(device) {
                Ok(found) => found,
                Err(Unlisted::Gone) => {
                    self.behinds().remove(&device);
                    continue;
                }
                Err(Unlisted::Short(_)) if bears() => before,
                Err(Unlisted::Short(error)) => {
                    Some(format!("has tc programs that cannot be listed: {error}"))
                }
            };
            now.insert(device, found);
        }
        now
    }

    /// Whether that is something else than before.
    pub(super) fn has_others_behind(&self, now: &HashMap<u32, Option<String>>) -> bool {
        let before = self.behinds();
        now.iter()
            .any(|(device, now)| before.get(device).is_some_and(|before| before != now))
    }

    pub(super) fn unaccounted(&self) -> MutexGuard<'_, HashMap<HookSite, (HookCounts, String)>> {
        // A map whose entries are whole.
        self.unaccounted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, HashMap<u32, String>> {
        // A map whose entries are whole.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a device in the namespace of a socket.
    pub(super) fn name(&self, index: u32, socket: BorrowedFd<'_>) -> rustix::io::Result<String> {
        let at_hand = self.names().get(&index).cloned();
        if let Some(name) = at_hand {
            return Ok(name);
        }
        let name = index_to_name(socket, index)?;
        self.names().insert(index, name.clone());
        Ok(name)
    }

    pub(super) fn has_renamed_devices(&self, socket: BorrowedFd<'_>) -> bool {
        let names = self.names().clone();
        names
            .iter()
            .any(|(index, name)| index_to_name(socket, *index).as_ref() != Ok(name))
    }

    pub(super) fn accounted(&self) -> MutexGuard<'_, HashMap<HookSite, HookCounts>> {
        // A map whose entries are whole.
        self.accounted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
