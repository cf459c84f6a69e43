//! What sees packets of a device before the program, and may keep them from it.

use splice_bpf::{Beside, DeviceLink, Program, foreign_name, is_own_filter, programs_beside};
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
    pub(super) fn words(&self) -> Option<String> {
        match self {
            Self::Program(id) => foreign_name(*id).map(|name| format!("the tc program {name}")),
            Self::Filter(filter) => Some(format!("a tc filter ({})", filter.kind)),
        }
    }
}

/// What precedes a program that is attached to a device by `link`; `None` if that is not known.
pub(super) fn preceding(
    device: u32,
    program: &Program,
    link: &DeviceLink,
) -> Option<Vec<Preceding>> {
    match link {
        DeviceLink::Tcx(_) => match programs_beside(device, program.id().ok()?).ok()? {
            Beside::Programs { before, .. } => {
                Some(before.into_iter().map(Preceding::Program).collect())
            }
            Beside::NotAttached | Beside::NoLinks => None,
        },
        DeviceLink::Clsact(_) => {
            let filters = Links::new().ok()?.ingress_filters(device).ok()?;
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
