//! A TCX link, Linux 6.6 on.
#![allow(unsafe_code, reason = "bpf(2); see the SAFETY comments")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::ProgInfoIter;
use rustix::io::Errno;

use crate::libbpf::checked;
use crate::program::Program;

/// The most programs on one device, which is also the kernel's limit (`BPF_MPROG_MAX`, Linux 6.6).
const MOST_PROGRAMS: usize = 64;

/// A link outlives its device, and then has no ifindex (`tcx_link_fill_info`).
pub(super) fn is_attached(link: &OwnedFd) -> Result<bool, Errno> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` and `length` outlive the call, and `length` is the size of `info`, which holds no
    // pointer for a link of this kind.
    let result = unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut length)
    };
    checked(result)?;
    // SAFETY: the kernel has filled this member, since the link is of its kind; zeroes are valid
    // for it.
    Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex } != 0)
}

/// Detaches a link by its id, as `bpftool link detach` does.
///
/// # Errors
/// If there is none.
#[cfg(feature = "test")]
pub fn detach_link(id: u32) -> Result<(), Errno> {
    // SAFETY: it takes a number only.
    let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) };
    checked(fd)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    detach(&unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn detach(link: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor is a link's, and stays open.
    checked(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) })
}

impl Program {
    pub(super) fn attach_tcx(
        &self,
        device: u32,
        place: libbpf_sys::bpf_attach_type,
        flags: u32,
    ) -> Result<OwnedFd, Errno> {
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            flags,
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
        Ok(unsafe { OwnedFd::from_raw_fd(result) })
    }

    pub(super) fn is_preceded_by_same_name_by_tcx(&self, device: u32) -> Result<bool, Errno> {
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
}
