//! Which programs of others see the packets of a device or of a control group, or the messages of a map's sockets.
#![allow(
    unsafe_code,
    reason = "bpf(2) and open_by_handle_at(2); see the SAFETY comments"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::libbpf_sys;
use rustix::io::Errno;
use splice_base::reserve::Reserve;
use splice_base::shortage::is_shortage;

use crate::claim::{Claim, Claims};
use crate::libbpf::checked;
use crate::program::info_of;

/// The most programs in one place (`BPF_MPROG_MAX`, `BPF_CGROUP_MAX_PROGS`).
const MOST_PROGRAMS: usize = 64;

/// The programs of the engine `segment`, which leave other connections alone.
const OWN: [&str; 2] = ["segment_ingress", "segment_egress"];

/// `FILEID_KERNFS` of linux/exportfs.h, and the bytes of its handle.
const KERNFS_HANDLE: i32 = 0xfe;

/// The name of a program that is attached to a device of this thread's network namespace by a link (TCX), and is not
/// one of this library; `None` without one, and before Linux 6.6.
///
/// # Errors
/// Without CAP_NET_ADMIN.
pub fn program_on_device(device: u32) -> Result<Option<String>, Errno> {
    for place in [libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_TCX_EGRESS] {
        let ids = match query(device as i32, place, 0) {
            // An older kernel.
            Err(Errno::INVAL) => return Ok(None),
            ids => ids?,
        };
        for id in ids {
            let name = name_of(id, None)?;
            if !OWN.contains(&name.as_str()) {
                return Ok(Some(name));
            }
        }
    }
    Ok(None)
}

/// Tells the other processes of a network namespace that a program is this library's, and leaves other connections alone.
/// Who may not ask for the names of programs (CAP_SYS_ADMIN) learns it by this.
#[derive(Debug)]
pub struct Claimed(#[expect(dead_code, reason = "it lasts as long as this")] Claim);

impl Claimed {
    /// Of a program with this id, in this thread's network namespace. `None` if somebody else says it.
    ///
    /// # Errors
    /// If no socket can be made.
    pub fn program(id: u32) -> Result<Option<Self>, Errno> {
        Ok(Claim::on(&claim_of(id))?.map(Self))
    }
}

fn claim_of(id: u32) -> String {
    format!("spliced program {id}")
}

/// Which programs see received packets of a device beside another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beside {
    /// These, by their ids.
    Programs {
        /// Those that see packets first.
        before: Vec<u32>,
        /// Those that see them later.
        after: Vec<u32>,
    },
    /// The program is not attached to the device.
    NotAttached,
    /// Before Linux 6.6 programs are attached as filters.
    NoLinks,
}

/// The programs that see received packets of a device of this thread's network namespace beside the one with the id `own`,
/// by links (TCX).
///
/// # Errors
/// Without CAP_NET_ADMIN, or if the device is gone.
pub fn programs_beside(device: u32, own: u32) -> Result<Beside, Errno> {
    let ids = match query(device as i32, libbpf_sys::BPF_TCX_INGRESS, 0) {
        Err(Errno::INVAL) => return Ok(Beside::NoLinks),
        ids => ids?,
    };
    let Some(at) = ids.iter().position(|id| *id == own) else {
        return Ok(Beside::NotAttached);
    };
    Ok(Beside::Programs {
        before: ids[..at].to_vec(),
        after: ids[at + 1..].to_vec(),
    })
}

/// Tells programs of others from those of this library, which leave other connections alone. In one network namespace.
#[derive(Debug)]
pub struct ForeignPrograms {
    claims: Claims,
    reserve: Arc<Reserve>,
}

impl ForeignPrograms {
    /// In this thread's network namespace.
    ///
    /// # Errors
    /// If no socket can be made.
    pub fn here(reserve: Arc<Reserve>) -> Result<Self, Errno> {
        let claims = Claims::here()?;
        Ok(Self { claims, reserve })
    }

    /// The name of a program, or its number where it cannot be asked for; `None` for one of this library.
    ///
    /// # Errors
    /// If something is short.
    pub fn name(&self, id: u32) -> Result<Option<String>, Errno> {
        match self.claims.have(&claim_of(id)) {
            Ok(true) => return Ok(None),
            Err(errno) if is_shortage(errno) => return Err(errno),
            Ok(false) | Err(_) => {}
        }
        // A process that is being killed may have lost its claim already, and the kernel is still detaching its programs.
        let name = name_of(id, Some(&self.reserve))?;
        Ok(Some(name).filter(|name| !OWN.contains(&name.as_str())))
    }
}

/// The name of a program that filters the packets of the sockets of a control group, attached to it or to one above it.
///
/// # Errors
/// Without CAP_NET_ADMIN.
pub fn packet_filter_of(group: BorrowedFd<'_>) -> Result<Option<String>, Errno> {
    for place in [
        libbpf_sys::BPF_CGROUP_INET_INGRESS,
        libbpf_sys::BPF_CGROUP_INET_EGRESS,
    ] {
        let ids = query(group.as_raw_fd(), place, libbpf_sys::BPF_F_QUERY_EFFECTIVE)?;
        if let Some(id) = ids.into_iter().next() {
            return Ok(Some(name_of(id, None).unwrap_or_else(|_| number(id))));
        }
    }
    Ok(None)
}

/// The ids of the programs that are attached to a map of sockets. Its members may have others: each keeps those that were
/// attached when it came (`sock_map_link`). None before Linux 5.18, where the kernel does not tell
/// (`sock_map_bpf_prog_query`).
///
/// # Errors
/// Without CAP_NET_ADMIN.
pub fn programs_on_map(map: impl AsFd) -> Result<Vec<u32>, Errno> {
    let mut all = Vec::new();
    for place in [
        libbpf_sys::BPF_SK_SKB_VERDICT,
        libbpf_sys::BPF_SK_MSG_VERDICT,
        libbpf_sys::BPF_SK_SKB_STREAM_VERDICT,
        libbpf_sys::BPF_SK_SKB_STREAM_PARSER,
    ] {
        match query(map.as_fd().as_raw_fd(), place, 0) {
            Ok(ids) => all.extend(ids),
            // An older kernel, or one without parsers (CONFIG_BPF_STREAM_PARSER).
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            // The other place for verdicts has one (`sock_map_prog_lookup`), and is asked as well.
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(all)
}

/// Opens a control group by the number of its directory.
///
/// # Errors
/// Without CAP_DAC_READ_SEARCH, or if it is gone.
pub fn open_control_group(mount: BorrowedFd<'_>, id: u64) -> io::Result<File> {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        id: [u8; 8],
    }
    let mut handle = Handle {
        bytes: size_of::<u64>() as u32,
        kind: KERNFS_HANDLE,
        id: id.to_ne_bytes(),
    };
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY;
    // SAFETY: `handle` is a `struct file_handle` with as many bytes after its head as it says.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut handle,
            flags,
        )
    };
    match i32::try_from(opened) {
        // SAFETY: the kernel has just made this descriptor, and nobody else has it.
        Ok(fd @ 0..) => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn query(target: i32, place: libbpf_sys::bpf_attach_type, flags: u32) -> Result<Vec<u32>, Errno> {
    let mut ids = [0; MOST_PROGRAMS];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        query_flags: flags,
        prog_ids: ids.as_mut_ptr(),
        __bindgen_anon_1: libbpf_sys::bpf_prog_query_opts__bindgen_ty_1 {
            count: MOST_PROGRAMS as u32,
        },
        ..Default::default()
    };
    // SAFETY: `options` and `ids` outlive the call; `count` is the length of `ids`.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(target, place, &raw mut options) };
    checked(result)?;
    Ok(ids.into_iter().take_while(|id| *id != 0).collect())
}

/// The name of a program, or its number where it cannot be asked for.
///
/// # Errors
/// If something is short.
fn name_of(id: u32, reserve: Option<&Reserve>) -> Result<String, Errno> {
    let open = || {
        // SAFETY: it takes a number only.
        let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
        checked(fd)?;
        // SAFETY: the kernel has just made this descriptor, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let opened = match reserve {
        Some(reserve) => reserve.lend(open),
        None => open(),
    };
    let program = match opened {
        Ok(program) => program,
        Err(errno) if is_shortage(errno) => return Err(errno),
        Err(_) => return Ok(number(id)),
    };
    let info = info_of(&program);
    if let Some(reserve) = reserve {
        reserve.take(program);
    }
    let name = info?.name.map(|byte| byte as u8);
    let length = name.iter().position(|byte| *byte == 0);
    let name = &name[..length.unwrap_or(name.len())];
    Ok(String::from_utf8_lossy(name).into_owned())
}

fn number(id: u32) -> String {
    format!("number {id}")
}
