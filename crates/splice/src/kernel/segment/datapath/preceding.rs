//! What sees packets of a device before the program, and may keep them from it.

use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use splice_bpf::{Beside, DeviceLink, ForeignPrograms, Program, is_own_filter, programs_beside};
use splice_firewall::{Links, TrafficFilter};

/// What sees packets of a device before the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Preceding {
    /// A program that is attached by a link, by its id.
    Program(u32),
    Filter(TrafficFilter),
}

impl Preceding {
    /// What it is; `None` for one of another relay.
    ///
    /// # Errors
    /// If something is short.
    pub(super) fn words(&self, foreign: &ForeignPrograms) -> Result<Option<String>, Errno> {
        Ok(match self {
            Self::Program(id) => {
                let name = foreign.name(*id)?;
                name.map(|name| format!("the tc program {name}"))
            }
            Self::Filter(filter) => Some(format!("a tc filter ({})", filter.kind)),
        })
    }

    /// The same, where it cannot be asked for.
    pub(super) fn words_unasked(&self) -> String {
        match self {
            Self::Program(id) => format!("the tc program number {id}"),
            Self::Filter(filter) => format!("a tc filter ({})", filter.kind),
        }
    }
}

/// What precedes a program that is attached to a device by `link`; `None` if that is not known.
pub(super) fn preceding(
    device: u32,
    program: &Program,
    link: &DeviceLink,
    links: &Mutex<Links>,
) -> Option<Vec<Preceding>> {
    match link {
        DeviceLink::Tcx(_) => match programs_beside(device, program.id().ok()?).ok()? {
            Beside::Programs { before, .. } => {
                Some(before.into_iter().map(Preceding::Program).collect())
            }
            Beside::NotAttached | Beside::NoLinks => None,
        },
        DeviceLink::Clsact(_) => {
            let mut links = links.lock().unwrap_or_else(PoisonError::into_inner);
            let filters = links.ingress_filters(device).ok()?;
            let (own, others): (Vec<_>, Vec<_>) = filters.into_iter().partition(is_own);
            let first = own.iter().map(|filter| filter.priority).min()?;
            let before = others.into_iter().filter(|other| other.priority < first);
            Some(before.map(Preceding::Filter).collect())
        }
    }
}

/// Whether it is one of this relay, or of another one.
pub(super) fn is_own(filter: &TrafficFilter) -> bool {
    is_own_filter(filter.priority, filter.handle, filter.program.as_deref())
}
