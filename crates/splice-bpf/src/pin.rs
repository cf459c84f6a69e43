//! What outlives the process that has loaded it: files of a BPF file system.

use std::path::Path;

use libbpf_rs::{MapCore as _, MapHandle};
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};

use crate::libbpf::errno_of;
use crate::load::{Link, Object};
use crate::map::Map;
use crate::program::Program;
use crate::socket_map::SocketMap;

/// Where BPF programs, maps and links are pinned (`BPF_FS_MAGIC` of linux/magic.h).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Whether files of a directory can be pins.
///
/// # Errors
/// The error of statfs(2).
pub fn is_bpf_file_system(directory: &Path) -> rustix::io::Result<bool> {
    Ok(rustix::fs::statfs(directory)?.f_type as i64 == BPF_FS_MAGIC)
}

impl Object {
    /// Pins one of its maps.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the path exists already, or does not lie in a BPF file system.
    pub fn pin_map(&mut self, name: &'static str, path: &Path) -> Result<()> {
        let mut maps = self.0.maps_mut();
        let found = maps.find(|map| map.name() == name);
        let mut found = found.ok_or_else(|| crate::libbpf::absent(name))?;
        found.pin(path).map_err(|error| cannot_pin(path, &error))
    }

    /// Pins one of its programs.
    ///
    /// # Errors
    /// As [`pin_map`](Self::pin_map).
    pub fn pin_program(&mut self, name: &'static str, path: &Path) -> Result<()> {
        let mut programs = self.0.progs_mut();
        let found = programs.find(|program| program.name() == name);
        let mut found = found.ok_or_else(|| crate::libbpf::absent(name))?;
        found.pin(path).map_err(|error| cannot_pin(path, &error))
    }
}

impl Link {
    /// Pins the link: the program stays attached for as long as the file exists.
    ///
    /// # Errors
    /// As [`Object::pin_map`].
    pub fn pin(&mut self, path: &Path) -> Result<()> {
        self.0.pin(path).map_err(|error| cannot_pin(path, &error))
    }
}

impl Map {
    /// Opens a map that is pinned.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is none.
    pub fn open(name: &'static str, path: &Path) -> Result<Self> {
        let fd = MapHandle::from_pinned_path(path).map_err(|error| cannot_open(path, &error))?;
        Ok(Self {
            name,
            key_bytes: fd.key_size() as usize,
            value_bytes: fd.value_size() as usize,
            entries: fd.max_entries(),
            fd,
        })
    }

    /// Pins it.
    ///
    /// # Errors
    /// As [`Object::pin_map`].
    pub fn pin(&mut self, path: &Path) -> Result<()> {
        self.fd.pin(path).map_err(|error| cannot_pin(path, &error))
    }

    /// The map as one of sockets.
    pub fn into_socket_map(self) -> SocketMap {
        SocketMap::new(self.fd)
    }
}

impl Program {
    /// Opens a program that is pinned.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is none.
    pub fn open(name: &'static str, path: &Path) -> Result<Self> {
        let fd = libbpf_rs::Program::fd_from_pinned_path(path)
            .map_err(|error| cannot_open(path, &error))?;
        Ok(Self::new(name, fd))
    }
}

fn cannot_pin(path: &Path, error: &libbpf_rs::Error) -> Error {
    failed(format!("cannot pin {}", path.display()), error)
}

fn cannot_open(path: &Path, error: &libbpf_rs::Error) -> Error {
    failed(format!("cannot open the pin {}", path.display()), error)
}

fn failed(what: String, error: &libbpf_rs::Error) -> Error {
    match errno_of(error) {
        Some(number) => Error::system(what, Errno::from_raw_os_error(number)),
        None => Error::new(ErrorKind::System, format!("{what}: {error:#}")),
    }
}
