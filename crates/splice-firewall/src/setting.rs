//! Settings of devices that decide what becomes of packets (`/proc/sys/net/*/conf`).

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use splice_base::shortage::is_shortage;

/// A setting of each device, and of all devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// `ipv4` or `ipv6`.
    pub(crate) family: &'static str,
    pub(crate) name: &'static str,
}

impl Setting {
    /// Whether it is on for a device of this thread's network namespace, or for all; `false` where the host does not say.
    ///
    /// # Errors
    /// If something is short.
    pub(crate) fn is_on_for(self, device: u32) -> io::Result<bool> {
        match self.is_on(device) {
            Err(error) if !is_of_shortage(&error) => Ok(false),
            is_on => is_on,
        }
    }

    fn is_on(self, device: u32) -> io::Result<bool> {
        match self.of("all") {
            Ok(true) => return Ok(true),
            Err(error) if is_of_shortage(&error) => return Err(error),
            Ok(false) | Err(_) => {}
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

fn is_of_shortage(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(is_shortage)
}
