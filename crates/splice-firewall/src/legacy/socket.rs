//! Reads a table by getsockopt(2): `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`.

#![allow(
    unsafe_code,
    reason = "rustix has no getsockopt for options that it does not know"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::segment::Family;

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: libc::c_int = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: libc::c_int = 65;
/// `XT_TABLE_MAXNAMELEN`.
const NAME_BYTES: usize = 32;
/// `sizeof(struct ipt_getinfo)`: after the name, all fields are `unsigned int`.
const INFO_BYTES: usize = NAME_BYTES + 13 * size_of::<u32>();
/// Offset of `entrytable` in `struct ipt_get_entries`: the entries hold `__u64`.
const ENTRIES_OFFSET: usize = (NAME_BYTES + size_of::<u32>()).next_multiple_of(align_of::<u64>());
/// How often to retry if the table changes between the two calls.
const MOST_ATTEMPTS: u32 = 16;

/// A table as the kernel keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Blob {
    /// By the number of the hook (`NF_INET_*`): the offsets of its first rule and of its policy.
    pub(super) hooks: [Option<HookOffsets>; HOOKS],
    pub(super) entries: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HookOffsets {
    pub(super) first: u32,
    pub(super) policy: u32,
}

/// `NF_INET_NUMHOOKS`.
pub(super) const HOOKS: usize = 5;

/// A socket by which the tables of this thread's network namespace can be read.
pub(super) fn for_tables(family: Family) -> rustix::io::Result<OwnedFd> {
    // A datagram socket is enough: ip_getsockopt passes unknown options to nf_getsockopt.
    let family = match family {
        Family::Ipv4 => AddressFamily::INET,
        Family::Ipv6 => AddressFamily::INET6,
    };
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// Reads a table of the namespace of a socket. The kernel creates a missing table if it can, so
/// `name` must be a listed one. Needs `CAP_NET_ADMIN`.
pub(super) fn read(socket: impl AsFd, family: Family, name: &str) -> io::Result<Blob> {
    let socket = socket.as_fd();
    for _ in 0..MOST_ATTEMPTS {
        match attempt(socket, family, name) {
            // The table's size has changed since the first call.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN.into())
}

fn attempt(socket: BorrowedFd<'_>, family: Family, name: &str) -> io::Result<Blob> {
    let level = match family {
        Family::Ipv4 => libc::SOL_IP,
        Family::Ipv6 => libc::SOL_IPV6,
    };
    let name = table_name(name)?;
    let mut info = [0; INFO_BYTES];
    info[..NAME_BYTES].copy_from_slice(&name);
    get(socket, level, GET_INFO, &mut info)?;
    let word = |index: usize| {
        let at = NAME_BYTES + index * size_of::<u32>();
        u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]])
    };
    // valid_hooks, hook_entry[5], underflow[5], num_entries, size
    let valid = word(0);
    let hooks = std::array::from_fn(|hook| {
        (valid & (1 << hook) != 0).then(|| HookOffsets {
            first: word(1 + hook),
            policy: word(1 + HOOKS + hook),
        })
    });
    let size = word(2 + 2 * HOOKS);

    let mut entries = vec![0; ENTRIES_OFFSET + size as usize];
    entries[..NAME_BYTES].copy_from_slice(&name);
    entries[NAME_BYTES..NAME_BYTES + size_of::<u32>()].copy_from_slice(&size.to_ne_bytes());
    get(socket, level, GET_ENTRIES, &mut entries)?;
    entries.drain(..ENTRIES_OFFSET);
    Ok(Blob { hooks, entries })
}

fn table_name(name: &str) -> io::Result<[u8; NAME_BYTES]> {
    let mut bytes = [0; NAME_BYTES];
    // The last byte stays 0.
    if name.len() >= NAME_BYTES {
        return Err(Errno::NAMETOOLONG.into());
    }
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

/// Calls getsockopt(2) with a value that is passed in and out; it must fill `value`.
fn get(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::NOMEM)?;
    // SAFETY: `value` can be read and written for `length` bytes, which the kernel does not exceed,
    // and both pointers live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != value.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}
