//! A place for pins.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// A BPF file system that nobody else sees, and that is gone with its descriptor.
pub(crate) struct Pins(OwnedFd);

impl Pins {
    pub(crate) fn new() -> Self {
        let context = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC).expect("a BPF file system");
        fsconfig_create(&context).expect("created");
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        Self(fsmount(&context, flags, MountAttrFlags::empty()).expect("mounted"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()).into()
    }
}
