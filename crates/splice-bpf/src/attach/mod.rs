//! Attaching a program to a network device, in one of the kernel's two ways.

mod clsact;
mod tcx;

use std::os::fd::OwnedFd;

use libbpf_rs::libbpf_sys;
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};

use self::clsact::Filter;
pub use self::clsact::is_own_filter;
#[cfg(feature = "test")]
pub use self::tcx::detach_link;
use crate::program::Program;

/// How a program is attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// A TCX link: Linux 6.6 on.
    Tcx,
    /// A filter on the device's clsact qdisc, which other programs may share.
    Clsact,
}

/// Which traffic of a device a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Received packets.
    In,
    /// Packets to be sent.
    Out,
}

/// A program that is attached to a device; dropping this detaches it.
#[derive(Debug)]
pub enum DeviceLink {
    /// The link, which keeps the program attached while it is open.
    Tcx(OwnedFd),
    /// The filter, which is removed when it is dropped.
    Clsact(Filter),
}

impl DeviceLink {
    /// Whether the program is still attached. The device may have been deleted and its ifindex
    /// reused. If the kernel cannot tell, assume that the program is attached.
    pub fn is_attached(&self) -> bool {
        match self {
            Self::Tcx(link) => tcx::is_attached(link).unwrap_or(true),
            Self::Clsact(filter) => filter.is_attached().unwrap_or(true),
        }
    }

    /// Detaches the program at once, also while somebody else has the link, or looks at its descriptor. A filter goes when this
    /// is dropped.
    ///
    /// # Errors
    /// Of the system call.
    pub fn detach(&self) -> std::result::Result<(), Errno> {
        match self {
            Self::Tcx(link) => tcx::detach(link),
            Self::Clsact(_) => Ok(()),
        }
    }
}

impl Program {
    /// Attaches a tc program to a device of this thread's network namespace, after the programs
    /// that are already attached.
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
        match self.attach_tcx(device, place, 0) {
            Ok(link) => Ok(DeviceLink::Tcx(link)),
            // Kernels before 6.6 do not know this attach type (`link_create`).
            Err(Errno::INVAL) => Filter::attach(self, device, traffic).map(DeviceLink::Clsact),
            Err(errno) => Err(not_attached(device, errno)),
        }
    }

    /// Attaches it before the programs that are already attached, for received packets. Only by a link.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`].
    pub fn attach_first(&self, device: u32) -> Result<DeviceLink> {
        let (place, flags) = (libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_F_BEFORE);
        let link = self.attach_tcx(device, place, flags);
        link.map(DeviceLink::Tcx)
            .map_err(|errno| not_attached(device, errno))
    }

    /// Whether a program of the same name sees received packets before this one, which is attached
    /// by `link`. A program that cannot be inspected counts as one: without CAP_SYS_ADMIN a process
    /// can inspect none by its id (`bpf_prog_get_fd_by_id`), so then any earlier program counts.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] if the kernel does not say.
    pub fn is_preceded_by_same_name(&self, device: u32, link: &DeviceLink) -> Result<bool> {
        match link {
            DeviceLink::Tcx(_) => self
                .is_preceded_by_same_name_by_tcx(device)
                .map_err(|errno| not_attached(device, errno)),
            DeviceLink::Clsact(filter) => Ok(filter.is_preceded_by_same_name()),
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
