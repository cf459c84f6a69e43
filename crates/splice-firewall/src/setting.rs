//! Settings of devices that decide what becomes of packets (`/proc/sys/net/*/conf`).

use std::fs;
use std::io;

use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A setting of each device, and of all devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// `ipv4` or `ipv6`.
    pub(crate) family: &'static str,
    pub(crate) name: &'static str,
}

impl Setting {
    /// Whether it is on for all devices.
    pub(crate) fn is_on_for_all(self) -> bool {
        self.of("all").is_ok_and(|is_on| is_on)
    }

    /// Whether it is on for a device of this thread's network namespace, or for all.
    ///
    /// # Errors
    /// If there is no such device.
    pub(crate) fn is_on_for(self, device: u32) -> io::Result<bool> {
        if self.is_on_for_all() {
            return Ok(true);
        }
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        self.of(&index_to_name(socket, device)?)
    }

    fn of(self, device: &str) -> io::Result<bool> {
        let Self { family, name } = self;
        let value = fs::read_to_string(format!("/proc/sys/net/{family}/conf/{device}/{name}"))?;
        Ok(value.trim() != "0")
    }
}
