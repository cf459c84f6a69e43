//! A loop's hold on the datapath.

use std::thread::{self, JoinHandle};

use splice_base::obstacle::Obstacle;

use super::{Datapath, Found, LOOPBACK};
use crate::kernel::segment::pace::Pace;
use crate::reactor::Local;

/// A loop's hold on the datapath, taken when the first pair needs it. As long as the loop has tasks, the
/// program stays attached.
#[derive(Debug, Default)]
pub(crate) struct DatapathHandle {
    found: Option<Found>,
    loading: Option<JoinHandle<Found>>,
    pace: Pace,
}

impl DatapathHandle {
    pub(crate) fn datapath(&mut self) -> Found {
        self.found.get_or_insert_with(Datapath::found).clone()
    }

    /// The same without waiting, as all pairs of the loop would have to: `None` while another thread loads
    /// the program.
    pub(crate) fn datapath_at_hand(&mut self) -> Option<Found> {
        if self.found.is_none() {
            self.found = match self.loading.take() {
                Some(loading) if loading.is_finished() => {
                    let found = loading.join();
                    let defect = || Obstacle::new("loading the program failed", "report it");
                    Some(found.unwrap_or_else(|_| Err(defect())))
                }
                Some(loading) => {
                    self.loading = Some(loading);
                    None
                }
                // The new thread inherits this thread's network namespace.
                None => match thread::Builder::new()
                    .name("load".into())
                    .spawn(Datapath::found)
                {
                    Ok(loading) => {
                        self.loading = Some(loading);
                        None
                    }
                    Err(error) => {
                        let reason = format!("no thread can load the program: {error}");
                        let remedy = "raise RLIMIT_NPROC, or pids.max of the control group";
                        Some(Err(Obstacle::new(reason, remedy)))
                    }
                },
            };
        }
        self.found.clone()
    }

    /// When the pairs of this loop may change over.
    pub(crate) fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// The loop has no tasks left. A refusal is kept: the next attempt would have the same result.
    pub(crate) fn leave(&mut self) {
        self.found.take_if(|found| found.is_ok());
        self.loading = None;
        self.pace = Pace::default();
    }

    /// Loads the program, and attaches it to lo: it sees the handshakes of local connections from now on.
    pub(crate) fn prepare(&mut self) -> Result<(), Obstacle> {
        let datapath = self.datapath()?;
        datapath
            .ensure_attached(LOOPBACK)
            .map_err(|error| Obstacle::of_bpf(&error))?;
        Ok(())
    }
}

impl Local for DatapathHandle {
    fn emptied(&mut self) {
        self.leave();
    }
}
