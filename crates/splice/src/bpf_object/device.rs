//! Programs on network devices.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::PoisonError;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, libbpf_sys};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::claim::Claim;
use super::{LOADING, Map, Program, Quiet, checked, load, refused};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::socket_option;

/// How many programs on one device are looked at; the kernel allows as many (`BPF_MPROG_MAX`,
/// kernel 6.6).
const MOST_PROGRAMS: usize = 64;

/// How a program gets to stand on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A link: since kernel 6.6.
    Tcx,
    /// A filter on the device's clsact qdisc, which may hold those of others as well.
    Clsact,
}

/// What of a device's traffic a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    In,
    Out,
}

/// A program on a device; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) enum DeviceLink {
    /// Open, it keeps the program there.
    Tcx(OwnedFd),
    Clsact(Filter),
}

impl DeviceLink {
    /// Whether the program still stands on its device, which may be gone, and its index another's. So
    /// it is as well where the kernel does not tell.
    pub(crate) fn stands(&self) -> bool {
        match self {
            Self::Tcx(link) => stands_by_tcx(link).unwrap_or(true),
            Self::Clsact(filter) => filter.stands(),
        }
    }
}

/// A link outlives its device, without one (`tcx_link_fill_info`).
fn stands_by_tcx(link: &OwnedFd) -> std::result::Result<bool, Errno> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` and `length` outlive the call, and `length` is the size of `info`, which holds no
    // pointer for a link of this kind.
    let result = unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut length)
    };
    checked(result)?;
    // SAFETY: the kernel has filled this member, since the link is of its kind; zeroes are a value of it.
    Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex } != 0)
}

impl Program {
    /// Attaches a tc program to a device of this thread's network namespace, behind the programs
    /// that are there.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`].
    pub(crate) fn attach(&self, device: u32, traffic: Traffic, way: Way) -> Result<DeviceLink> {
        if way == Way::Clsact {
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

    fn attach_tcx(
        &self,
        device: u32,
        place: libbpf_sys::bpf_attach_type,
    ) -> std::result::Result<OwnedFd, Errno> {
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
        Ok(unsafe { OwnedFd::from_raw_fd(result) })
    }

    /// Whether a program of the same name sees what comes in on a device before this one, which is
    /// attached there by `link`. One that may not be looked at counts as one: a process without
    /// CAP_SYS_ADMIN may look at none by its id (`bpf_prog_get_fd_by_id`), so there any program that
    /// stands before this one counts.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] when the kernel does not tell.
    pub(crate) fn is_behind_its_like(&self, device: u32, link: &DeviceLink) -> Result<bool> {
        match link {
            DeviceLink::Tcx(_) => self
                .is_behind_its_like_by_tcx(device)
                .map_err(|errno| not_attached(device, errno)),
            DeviceLink::Clsact(filter) => Ok(filter.is_behind_its_like()),
        }
    }

    fn is_behind_its_like_by_tcx(&self, device: u32) -> std::result::Result<bool, Errno> {
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

static CALLER: &[u8] = include_bytes!("../../bpf/prebuilt/caller.bpf.o");

/// The first and the last priority that a filter of ours takes: behind the first that the kernel
/// gives to one without (49152, `tcf_auto_prio`), a number each.
const PRIORITIES: std::ops::Range<u32> = 50_000..50_064;

/// "splc": by this handle a filter in these priorities is ours, or that of a relay that has died. Others
/// choose theirs, or have the kernel count from 1.
const HANDLE: u32 = 0x7370_6c63;

/// A filter on a clsact qdisc that calls a program; bpf/caller.bpf.c says why.
///
/// Its process has a [`Claim`] on its place for as long as it lives. What is left in a place that
/// can be claimed belongs to nobody and is replaced. (To ask the filter's program instead whether its
/// table is empty takes CAP_SYS_ADMIN.) A stranger who claims a place keeps us out of it, and nothing
/// more.
///
/// The qdisc stays, also where we have made it: the kernel takes one away with all filters on it,
/// and nothing tells whether there are any of others.
pub(crate) struct Filter {
    place: Place,
    caller: Program,
    #[expect(dead_code, reason = "open, it has the filter call the program")]
    callees: Map,
    #[expect(dead_code, reason = "held until the filter is gone")]
    claim: Claim,
    namespace: u64,
}

/// Where a filter stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    device: u32,
    traffic: Traffic,
    priority: u32,
}

impl Place {
    fn claim(self) -> std::result::Result<Option<Claim>, Errno> {
        let traffic = match self.traffic {
            Traffic::In => "in",
            Traffic::Out => "out",
        };
        let (device, priority) = (self.device, self.priority);
        Claim::on(&format!("spliced filter {device} {traffic} {priority}"))
    }

    fn hook(self, caller: &Program) -> TcHook {
        let mut hook = TcHook::new(caller.fd.as_fd());
        hook.ifindex(self.device as i32)
            .attach_point(match self.traffic {
                Traffic::In => TC_INGRESS,
                Traffic::Out => TC_EGRESS,
            })
            .handle(HANDLE)
            .priority(self.priority);
        hook
    }
}

impl Filter {
    fn attach(program: &Program, device: u32, traffic: Traffic) -> Result<Self> {
        let object = load("caller", CALLER, |_| Ok(()))?;
        let caller = object.program("caller")?;
        let callees = object.map("callees")?;
        let namespace = namespace()?;
        let callee = program.fd.as_raw_fd().cast_unsigned();
        callees
            .update(&0u32, &callee)
            .map_err(|errno| not_attached(device, errno))?;
        let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let _quiet = Quiet::begin();
        let failed = |error| refused(format!("no filter can be put on device {device}"), &error);
        let mut place = Place {
            device,
            traffic,
            priority: PRIORITIES.start,
        };
        place.hook(&caller).create().map_err(failed)?;
        let mut last = not_attached(device, Errno::NOSPC);
        for priority in PRIORITIES {
            place.priority = priority;
            let claim = place.claim().map_err(|errno| not_attached(device, errno))?;
            let Some(claim) = claim else {
                continue;
            };
            match place.hook(&caller).replace(true).attach() {
                // Only now is there something to take away.
                Ok(_) => {
                    return Ok(Self {
                        place,
                        caller,
                        callees,
                        claim,
                        namespace,
                    });
                }
                // Filters of another kind or protocol have this priority.
                Err(error) if error.kind() == libbpf_rs::ErrorKind::InvalidInput => {
                    last = failed(error);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(last)
    }

    fn is_behind_its_like(&self) -> bool {
        self.place.priority > PRIORITIES.start
    }

    /// A qdisc goes with its device, and its filters with it.
    fn stands(&self) -> bool {
        let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let _quiet = Quiet::begin();
        self.is_at(self.place.hook(&self.caller))
    }

    /// Somebody may have put another in its place.
    fn is_at(&self, mut hook: TcHook) -> bool {
        let is_own = |found| self.caller.id().is_ok_and(|id| id == found);
        hook.query().is_ok_and(is_own)
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // Elsewhere the numbers stand for somebody else's. Where it stays, the table is closed with
        // this, and the filter lets everything go on.
        if namespace().is_ok_and(|here| here == self.namespace) {
            let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
            let _quiet = Quiet::begin();
            let mut hook = self.place.hook(&self.caller);
            if self.is_at(hook) {
                let _ = hook.detach();
            }
        }
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// This thread's network namespace, by a socket of it: its cookie. The inode of
/// /proc/thread-self/ns/net is given to another namespace once this one is gone, whatever programs and
/// maps of it are left (`ns_free_inum`).
///
/// # Errors
/// [`ErrorKind::System`] without a socket.
pub(crate) fn namespace() -> Result<u64> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let cookie = socket.and_then(socket_option::namespace_cookie);
    cookie.context("cannot tell the thread's network namespace")
}

fn not_attached(device: u32, errno: Errno) -> Error {
    Error::new(
        ErrorKind::BpfRefused,
        format!("the program cannot be attached to device {device}: {errno}"),
    )
}
