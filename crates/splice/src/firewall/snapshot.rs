//! The filters as they were read, and what was found out with them.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use splice_firewall::{Family, Filters, HookCounts};

use super::{Behind, DeviceGone};

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
    /// If there is no such device.
    pub(super) fn behind(&self, device: u32, look: &Behind) -> Result<Option<String>, DeviceGone> {
        let mut behinds = self.behinds();
        if let Some(known) = behinds.get(&device) {
            return Ok(known.clone());
        }
        let found = look(device)?;
        behinds.insert(device, found.clone());
        Ok(found)
    }

    /// What comes there now on each device that somebody has asked about. Those that are gone are forgotten, since others
    /// may get their indices.
    pub(super) fn look_behind(&self, look: &Behind) -> HashMap<u32, Option<String>> {
        let devices: Vec<_> = self.behinds().keys().copied().collect();
        let mut now = HashMap::new();
        for device in devices {
            match look(device) {
                Ok(found) => _ = now.insert(device, found),
                Err(DeviceGone) => _ = self.behinds().remove(&device),
            }
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
    pub(super) fn name<S: AsFd>(
        &self,
        index: u32,
        socket: impl FnOnce() -> rustix::io::Result<S>,
    ) -> rustix::io::Result<String> {
        let at_hand = self.names().get(&index).cloned();
        if let Some(name) = at_hand {
            return Ok(name);
        }
        let name = index_to_name(socket()?, index)?;
        self.names().insert(index, name.clone());
        Ok(name)
    }

    pub(super) fn has_renamed_devices(&self) -> bool {
        let names = self.names().clone();
        !names.is_empty()
            && namespace_socket().is_ok_and(|socket| {
                names
                    .iter()
                    .any(|(index, name)| index_to_name(&socket, *index).as_ref() != Ok(name))
            })
    }

    pub(super) fn accounted(&self) -> MutexGuard<'_, HashMap<HookSite, HookCounts>> {
        // A map whose entries are whole.
        self.accounted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket of this thread's network namespace, for questions about its devices.
pub(super) fn namespace_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}
