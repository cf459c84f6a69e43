//! Programs on network devices.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::ProgInfoIter;
use rustix::io::Errno;

use super::{Program, checked};

/// How many programs on one device are looked at; the kernel allows as many (`BPF_MPROG_MAX`,
/// kernel 6.6).
const MOST_PROGRAMS: usize = 64;

/// A program on a device; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct DeviceLink {
    _link: OwnedFd,
}

impl Program {
    /// Attaches a tc program to what comes in on a device, behind the programs that are there.
    pub(crate) fn attach_ingress(&self, device: u32) -> Result<DeviceLink, Errno> {
        self.attach_device(device, libbpf_sys::BPF_TCX_INGRESS)
    }

    /// The same for what goes out.
    pub(crate) fn attach_egress(&self, device: u32) -> Result<DeviceLink, Errno> {
        self.attach_device(device, libbpf_sys::BPF_TCX_EGRESS)
    }

    fn attach_device(
        &self,
        device: u32,
        place: libbpf_sys::bpf_attach_type,
    ) -> Result<DeviceLink, Errno> {
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        // SAFETY: `options` outlives the call and tells its own size; the descriptor is a
        // program's.
        let result = unsafe {
            libbpf_sys::bpf_link_create(
                self.fd.as_raw_fd(),
                device as i32,
                place,
                &raw const options,
            )
        };
        checked(result)?;
        // SAFETY: the kernel has just made this descriptor, and nobody else has it.
        let link = unsafe { OwnedFd::from_raw_fd(result) };
        Ok(DeviceLink { _link: link })
    }

    /// Whether a program of the same name sees what comes in on a device before this one, which is
    /// attached there. One that may not be looked at counts as one.
    pub(crate) fn is_behind_its_like(&self, device: u32) -> Result<bool, Errno> {
        let own = self.id()?;
        let mut ids = [0; MOST_PROGRAMS];
        let mut options = libbpf_sys::bpf_prog_query_opts {
            sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
            prog_ids: ids.as_mut_ptr(),
            __bindgen_anon_1: libbpf_sys::bpf_prog_query_opts__bindgen_ty_1 {
                count: MOST_PROGRAMS as u32,
            },
            ..Default::default()
        };
        // SAFETY: `options` and `ids` outlive the call; `count` is the length of `ids`.
        let result = unsafe {
            libbpf_sys::bpf_prog_query_opts(
                device as i32,
                libbpf_sys::BPF_TCX_INGRESS,
                &raw mut options,
            )
        };
        checked(result)?;
        let before = ids.into_iter().take_while(|id| *id != own && *id != 0);
        let is_like = |id| {
            let other = ProgInfoIter::default().find(|program| program.id == id);
            other.is_none_or(|other| other.name == self.name)
        };
        Ok(before.into_iter().any(is_like))
    }

    /// What the kernel calls it.
    fn id(&self) -> Result<u32, Errno> {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut length = size_of_val(&info) as u32;
        // SAFETY: `info` and `length` outlive the call, and `length` is the size of `info`, whose
        // pointers are null.
        let result = unsafe {
            libbpf_sys::bpf_prog_get_info_by_fd(self.fd.as_raw_fd(), &raw mut info, &raw mut length)
        };
        checked(result)?;
        Ok(info.id)
    }
}
