//! A BPF file system for the pins of a test.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, mount};

use crate::Scratch;

/// A BPF file system in a directory of its own, so that a test needs none at /sys/fs/bpf and shares no pin with others.
/// It is removed like every [`Scratch`] directory, and with it all its pins.
#[derive(Debug)]
pub struct BpfFileSystem {
    directory: Scratch,
}

impl BpfFileSystem {
    /// Mounts one; `role` becomes the last part of its directory's name.
    pub fn new(role: &str) -> Result<Self> {
        let directory = Scratch::new(role)?;
        let path = directory.path();
        mount("bpf", path, "bpf", MountFlags::empty(), None)
            .with_context(|| format!("cannot mount a BPF file system at {}", path.display()))?;
        Ok(Self { directory })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}
