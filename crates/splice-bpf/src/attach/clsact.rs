//! A filter on a device's clsact qdisc, for kernels before 6.6.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::PoisonError;

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};
use rustix::io::Errno;
use splice_base::error::Result;
use splice_base::shortage::is_shortage;

use super::{Traffic, not_attached};
use crate::claim::Claim;
use crate::libbpf::{LOADING, Quiet, errno_of, refused};
use crate::load::load;
use crate::map::Map;
use crate::namespace::namespace;
use crate::objects;
use crate::program::Program;

/// The range of priorities for our filters. It begins after the first priority that the kernel
/// assigns by itself (49152, `tcf_auto_prio`).
const PRIORITIES: std::ops::Range<u32> = 50_000..50_064;

/// "splc". A filter with this handle and a priority of this range is ours, or that of a relay that
/// has died. Other programs choose their own handles, or let the kernel count from 1.
const HANDLE: u32 = 0x7370_6c63;

/// Whether a filter with this priority, handle and name of its program is ours, or that of another relay.
pub fn is_own_filter(priority: u32, handle: u32, program: Option<&str>) -> bool {
    // libbpf adds the program's number (`tc_add_fd_and_name`).
    let is_caller = program.is_some_and(|name| name.starts_with("caller:["));
    PRIORITIES.contains(&priority) && handle == HANDLE && is_caller
}

/// A filter on a clsact qdisc that calls a program; bpf/caller.bpf.c has the reason.
///
/// The process holds a [`Claim`] on the position while the filter lives. A filter at a position
/// that can be claimed is left over, and is replaced. (Asking the filter's program whether its
/// table is empty would require CAP_SYS_ADMIN.) A stranger who claims a position only keeps us away
/// from it.
///
/// The qdisc stays even if we have created it. The kernel removes a qdisc with all its filters, and
/// does not tell whether other programs have filters there.
pub struct Filter {
    position: FilterPosition,
    caller: Program,
    #[expect(dead_code, reason = "open, it has the filter call the program")]
    callees: Map,
    #[expect(dead_code, reason = "held until the filter is gone")]
    claim: Claim,
    namespace: u64,
}

/// Where a filter is attached.
#[derive(Clone, Copy, Debug)]
struct FilterPosition {
    device: u32,
    traffic: Traffic,
    priority: u32,
}

impl FilterPosition {
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
    pub(super) fn attach(program: &Program, device: u32, traffic: Traffic) -> Result<Self> {
        let object = load("caller", objects::CALLER, |_| Ok(()))?;
        let caller = object.program("caller")?;
        let callees = object.map("callees")?;
        let namespace = namespace()?;
        let callee = program.fd.as_raw_fd().cast_unsigned();
        callees
            .update(&0u32, &callee)
            .map_err(|errno| not_attached(device, errno))?;
        let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let _quiet = Quiet::begin();
        let failed = |error| refused(format!("cannot attach a filter to device {device}"), &error);
        let mut position = FilterPosition {
            device,
            traffic,
            priority: PRIORITIES.start,
        };
        position.hook(&caller).create().map_err(failed)?;
        let mut last = not_attached(device, Errno::NOSPC);
        for priority in PRIORITIES {
            position.priority = priority;
            let claim = position
                .claim()
                .map_err(|errno| not_attached(device, errno))?;
            let Some(claim) = claim else {
                continue;
            };
            match position.hook(&caller).replace(true).attach() {
                // From here on there is a filter to remove.
                Ok(_) => {
                    return Ok(Self {
                        position,
                        caller,
                        callees,
                        claim,
                        namespace,
                    });
                }
                // The priority is in use by filters of another kind or protocol.
                Err(error) if error.kind() == libbpf_rs::ErrorKind::InvalidInput => {
                    last = failed(error);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(last)
    }

    pub(super) fn is_preceded_by_same_name(&self) -> bool {
        self.position.priority > PRIORITIES.start
    }

    /// A device takes its qdisc and its filters with it.
    ///
    /// # Errors
    /// If something is short, so that the kernel cannot be asked.
    pub(super) fn is_attached(&self) -> std::result::Result<bool, Errno> {
        let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let _quiet = Quiet::begin();
        self.is_at(self.position.hook(&self.caller))
    }

    /// Another program may have replaced the filter.
    fn is_at(&self, mut hook: TcHook) -> std::result::Result<bool, Errno> {
        match hook.query() {
            Ok(found) => Ok(self.caller.id().is_ok_and(|id| id == found)),
            Err(error) => {
                let errno = errno_of(&error).map(Errno::from_raw_os_error);
                errno
                    .filter(|errno| is_shortage(*errno))
                    .map_or(Ok(false), Err)
            }
        }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // In another namespace these numbers name another filter. If the filter stays, dropping
        // this closes its table, and the filter passes every packet.
        if namespace().is_ok_and(|here| here == self.namespace) {
            let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
            let _quiet = Quiet::begin();
            let mut hook = self.position.hook(&self.caller);
            if self.is_at(hook) == Ok(true) {
                let _ = hook.detach();
            }
        }
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
