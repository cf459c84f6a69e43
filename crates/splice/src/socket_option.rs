//! Socket options that rustix does not have.
#![allow(unsafe_code, reason = "raw getsockopt; see the SAFETY comments")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Number of values that `SO_MEMINFO` fills (`SK_MEMINFO_VARS` in `linux/sock_diag.h`).
const MEMINFO_VALUES: usize = 9;

/// What the kernel holds for one socket, in bytes of memory (a packet counts with its
/// bookkeeping): `SO_MEMINFO`, `sk_get_meminfo` (Linux 4.12 on).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketMemory {
    /// Received and not yet read (`SK_MEMINFO_RMEM_ALLOC`).
    pub receive_bytes: usize,
    /// The most that may wait to be read (`SK_MEMINFO_RCVBUF`).
    pub receive_limit_bytes: usize,
    /// Written and not yet acknowledged (`SK_MEMINFO_WMEM_QUEUED`); for UNIX sockets, which do
    /// not count it there, what the other end has not read (`SK_MEMINFO_WMEM_ALLOC`).
    pub send_bytes: usize,
    /// The most that may wait to be sent (`SK_MEMINFO_SNDBUF`).
    pub send_limit_bytes: usize,
    /// Received while the socket was in use, not yet sorted in (`SK_MEMINFO_BACKLOG`).
    pub backlog_bytes: usize,
}

impl SocketMemory {
    /// All that lies in the socket's buffers, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.receive_bytes + self.send_bytes + self.backlog_bytes
    }
}

pub(crate) fn memory(fd: impl AsFd) -> Result<SocketMemory, Errno> {
    let mut values = [0u32; MEMINFO_VALUES];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: `values` and `length` outlive the call, and `length` is the size of `values`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let [
        rmem_alloc,
        rcvbuf,
        wmem_alloc,
        sndbuf,
        _fwd_alloc,
        wmem_queued,
        _optmem,
        backlog,
        _drops,
    ] = values.map(|value| value as usize);
    Ok(SocketMemory {
        receive_bytes: rmem_alloc,
        receive_limit_bytes: rcvbuf,
        send_bytes: wmem_queued.max(wmem_alloc),
        send_limit_bytes: sndbuf,
        backlog_bytes: backlog,
    })
}
