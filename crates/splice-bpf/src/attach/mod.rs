//! Where a program is attached to a network device, and by which of the kernel's two ways.

mod claim;
mod clsact;
mod tcx;

use std::os::fd::OwnedFd;

use libbpf_rs::libbpf_sys;
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};

use self::clsact::Filter;
use crate::program::Program;

/// How a program gets to stand on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// A link: since kernel 6.6.
    Tcx,
    /// A filter on the device's clsact qdisc, which may hold those of others as well.
    Clsact,
}

/// What of a device's traffic a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// What it has received.
    In,
    /// What it is about to send.
    Out,
}

/// A program on a device; it leaves when this is dropped.
#[derive(Debug)]
pub enum DeviceLink {
    /// Open, it keeps the program there.
    Tcx(OwnedFd),
    /// Put down, it takes the filter away.
    Clsact(Filter),
}

impl DeviceLink {
    /// Whether the program still stands on its device, which may be gone, and its index another's. So
    /// it is as well where the kernel does not tell.
    pub fn is_attached(&self) -> bool {
        match self {
            Self::Tcx(link) => tcx::is_attached(link).unwrap_or(true),
            Self::Clsact(filter) => filter.is_attached(),
        }
    }
}

impl Program {
    /// Attaches a tc program to a device of this thread's network namespace, behind the programs
    /// that are there.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`].
    pub fn attach(&self, device: u32, traffic: Traffic, mode: AttachMode) -> Result<DeviceLink> {
        if mode == AttachMode::Clsact {
            return Filter::attach(self, device, traffic).map(DeviceLink::Clsact);
        }
        let place = match traffic {
            Traffic::In => libbpf_sys::BPF_TCX_INGRESS,
            Traffic::Out => libbpf_sys::BPF_TCX_EGRESS,
        };
        match self.attach_tcx(device, place) {
            Ok(link) => Ok(DeviceLink::Tcx(link)),
            // A kernel before 6.6 knows no such place (`link_create`).
            Err(Errno::INVAL) => Filter::attach(self, device, traffic).map(DeviceLink::Clsact),
            Err(errno) => Err(not_attached(device, errno)),
        }
    }

    /// Whether a program of the same name sees what comes in on a device before this one, which is
    /// attached there by `link`. One that may not be looked at counts as one: a process without
    /// CAP_SYS_ADMIN may look at none by its id (`bpf_prog_get_fd_by_id`), so there any program that
    /// stands before this one counts.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] when the kernel does not tell.
    pub fn is_behind_its_like(&self, device: u32, link: &DeviceLink) -> Result<bool> {
        match link {
            DeviceLink::Tcx(_) => self
                .is_behind_its_like_by_tcx(device)
                .map_err(|errno| not_attached(device, errno)),
            DeviceLink::Clsact(filter) => Ok(filter.is_behind_its_like()),
        }
    }
}

fn not_attached(device: u32, errno: Errno) -> Error {
    Error::new(
        ErrorKind::BpfRefused,
        format!("the program cannot be attached to device {device}"),
    )
    .with_source(errno)
}
