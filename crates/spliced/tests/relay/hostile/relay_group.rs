//! A relay in a control group of its own.

use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};

use netlab::{ControlGroup, Need, available, present};

use super::stage::{Family, Stage};
use crate::patience::until;

/// The relay's control group, and the one that it is in.
pub(super) struct RelayGroup {
    /// It is removed first.
    own: ControlGroup,
    above: ControlGroup,
}

impl RelayGroup {
    /// Runs a case on a relay with this engine, which is in such a group and has a router on each side.
    pub(super) fn with(engine: &str, family: Family, case: impl FnOnce(&Stage, &Self)) {
        if !available(Need::Root) {
            return;
        }
        let above = match ControlGroup::new("above") {
            Ok(above) => above,
            Err(error) => {
                present("cgroup", Some(format!("{error:#}")));
                return;
            }
        };
        let own = above.below("relay").expect("a control group");
        let group = Self { own, above };
        // A socket belongs to the group that its listener is in, or the thread that makes it.
        let enter = format!(
            "echo 0 > {}/cgroup.threads && exec \"$@\"",
            group.own.path().display()
        );
        let by = ["sh", "-c", &enter, "sh"];
        Stage::routed_by(&by, engine, family, |stage| case(stage, &group));
    }

    pub(super) fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    pub(super) fn above(&self) -> BorrowedFd<'_> {
        self.above.as_fd()
    }

    /// Stops all that is in it, or lets it go on.
    pub(super) fn freeze(&self, is_frozen: bool) {
        let path = self.above.path();
        let number = u8::from(is_frozen);
        fs::write(path.join("cgroup.freeze"), number.to_string()).expect("cgroup.freeze");
        let line = format!("frozen {number}");
        until("it is frozen, or goes on", || {
            let events = fs::read_to_string(path.join("cgroup.events"));
            events
                .expect("cgroup.events")
                .lines()
                .any(|told| told == line)
        });
    }
}
