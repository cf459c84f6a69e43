//! One loaded BPF program: running it once, and what the kernel tells about it.
#![allow(unsafe_code, reason = "bpf(2); see the SAFETY comments")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use rustix::io::Errno;

use crate::libbpf::checked;
use crate::plain::Plain;

/// One BPF program.
#[derive(Debug)]
pub struct Program {
    pub(crate) name: &'static str,
    pub(crate) fd: OwnedFd,
}

impl Program {
    pub(crate) fn new(name: &'static str, fd: OwnedFd) -> Self {
        Self { name, fd }
    }

    /// Runs a tc program once on `packet`, which it may change.
    pub fn run<T: Plain + Copy>(&self, packet: &T) -> Result<T, Errno> {
        // The kernel refuses a packet shorter than an Ethernet header (`bpf_test_init`).
        const { assert!(size_of::<T>() >= 14) };
        let mut output = *packet;
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: std::ptr::from_ref(packet).cast(),
            data_size_in: size_of::<T>() as u32,
            data_out: std::ptr::from_mut(&mut output).cast(),
            data_size_out: size_of::<T>() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: both packets outlive the call and have the sizes that are passed with them.
        // Whatever the program writes there is a valid `T`, which is `Plain`.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut options) };
        checked(result)?;
        Ok(output)
    }

    /// Runs a program of the type "syscall" once.
    pub(crate) fn call(&self) -> Result<(), Errno> {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            ..Default::default()
        };
        // SAFETY: there is neither a packet nor a context, and `options` outlives the call.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut options) };
        checked(result)
    }

    /// Detaches it from a map of sockets, where it is for what members send, or for what they receive. Members keep it.
    ///
    /// # Errors
    /// The error of bpf(2): `ENOENT` if another one is attached, or none.
    pub fn detach_from_map(&self, map: &impl AsFd, is_of_sent: bool) -> Result<(), Errno> {
        let attached_as = if is_of_sent {
            libbpf_sys::BPF_SK_MSG_VERDICT
        } else {
            libbpf_sys::BPF_SK_SKB_VERDICT
        };
        // SAFETY: both descriptors are open during the call, which takes nothing else.
        let result = unsafe {
            libbpf_sys::bpf_prog_detach2(self.fd.as_raw_fd(), map.as_fd().as_raw_fd(), attached_as)
        };
        checked(result)
    }

    /// The kernel's id of the program.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn id(&self) -> Result<u32, Errno> {
        Ok(self.info()?.id)
    }

    pub(crate) fn info(&self) -> Result<libbpf_sys::bpf_prog_info, Errno> {
        info_of(&self.fd)
    }
}

/// What the kernel tells about a program.
pub(crate) fn info_of(program: &OwnedFd) -> Result<libbpf_sys::bpf_prog_info, Errno> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` and `length` outlive the call, and `length` is the size of `info`, whose
    // pointers are null.
    let result = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    };
    checked(result)?;
    Ok(info)
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(feature = "test")]
impl Program {
    /// How many instructions the verifier has processed, and how many bytes the translated program
    /// has.
    pub fn made(&self) -> Result<[u32; 2], Errno> {
        let info = self.info()?;
        Ok([info.verified_insns, info.xlated_prog_len])
    }

    /// Runs a tc program once on a packet of any length, as if a device had received it. Returns
    /// the program's result and the packet. With `summed_up` the device has computed the checksum:
    /// the kernel then checks it, and answers `EBADMSG` if the packet does not match it any more,
    /// or `EINVAL` if it cannot check that.
    pub fn run_on(
        &self,
        packet: &[u8],
        device: u32,
        summed_up: bool,
    ) -> Result<(i32, Vec<u8>), Errno> {
        let mut output = packet.to_vec();
        // The beginning of `struct __sk_buff` up to its `ifindex`, as 32-bit words.
        let mut context = [0u32; 11];
        context[10] = device;
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: packet.as_ptr().cast(),
            data_size_in: packet.len() as u32,
            data_out: output.as_mut_ptr().cast(),
            data_size_out: output.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            flags: if summed_up {
                libbpf_sys::BPF_F_TEST_SKB_CHECKSUM_COMPLETE
            } else {
                0
            },
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: both packets and the context outlive the call, their lengths are given with them, and
        // any bytes may be written to the second packet.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut options) };
        checked(result)?;
        output.truncate(options.data_size_out as usize);
        Ok((options.retval as i32, output))
    }
}
