//! A loop's hold on the datapath.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use splice_base::obstacle::Obstacle;
use splice_base::shortage::is_shortage;

use super::{Datapath, Found, LOOPBACK, absence};
use crate::kernel::segment::pace::Pace;
use crate::reactor::Local;

/// How soon to load the program again if something was short.
const SHORT_PAUSE: Duration = Duration::from_secs(5);

/// A loop's hold on the datapath, taken when the first pair needs it. As long as the loop has tasks, the
/// program stays attached.
#[derive(Debug, Default)]
pub(crate) struct DatapathHandle {
    found: Option<Result<Arc<Datapath>, Absent>>,
    loading: Option<JoinHandle<Result<Arc<Datapath>, Absent>>>,
    pace: Pace,
}

/// Why there is no datapath.
#[derive(Clone, Debug)]
struct Absent {
    obstacle: Obstacle,
    /// When to try again, where something was short.
    again_at: Option<Instant>,
}

impl Absent {
    fn new(obstacle: Obstacle, errno: Option<Errno>) -> Self {
        let is_short = errno.is_some_and(is_shortage);
        Self {
            obstacle,
            again_at: is_short.then(|| Instant::now() + SHORT_PAUSE),
        }
    }

    fn is_over(&self) -> bool {
        self.again_at.is_some_and(|at| at <= Instant::now())
    }
}

fn load() -> Result<Arc<Datapath>, Absent> {
    if let Some(obstacle) = Obstacle::without_net_admin() {
        let obstacle = Obstacle::foreseen().unwrap_or(obstacle);
        return Err(Absent::new(obstacle, None));
    }
    Datapath::watched().map_err(|error| Absent::new(Obstacle::of_bpf(&error), error.errno()))
}

/// What has come of loading it for pairs that go on without: tells if that is news.
fn noted(found: Result<Arc<Datapath>, Absent>) -> Result<Arc<Datapath>, Absent> {
    absence::note(found.as_ref().err().map(|absent| &absent.obstacle));
    found
}

fn told(found: &Result<Arc<Datapath>, Absent>) -> Found {
    match found {
        Ok(datapath) => Ok(Arc::clone(datapath)),
        Err(absent) => Err(absent.obstacle.clone()),
    }
}

impl DatapathHandle {
    pub(crate) fn datapath(&mut self) -> Found {
        self.forget_shortage();
        told(self.found.get_or_insert_with(load))
    }

    /// The same for pairs that go on without it.
    pub(crate) fn datapath_for_auto(&mut self) -> Found {
        self.forget_shortage();
        told(self.found.get_or_insert_with(|| noted(load())))
    }

    /// The same without waiting, as all pairs of the loop would have to: `None` while another thread loads
    /// the program.
    pub(crate) fn datapath_at_hand(&mut self) -> Option<Found> {
        self.forget_shortage();
        if self.found.is_none() {
            self.found = match self.loading.take() {
                Some(loading) if loading.is_finished() => {
                    let found = loading.join();
                    let defect = || Obstacle::new("loading the program failed", "report it");
                    Some(noted(
                        found.unwrap_or_else(|_| Err(Absent::new(defect(), None))),
                    ))
                }
                Some(loading) => {
                    self.loading = Some(loading);
                    None
                }
                // The new thread inherits this thread's network namespace.
                None => match thread::Builder::new().name("load".into()).spawn(load) {
                    Ok(loading) => {
                        self.loading = Some(loading);
                        None
                    }
                    Err(error) => {
                        let reason = format!("no thread can load the program: {error}");
                        let remedy = "raise RLIMIT_NPROC, or pids.max of the control group";
                        let errno = Errno::from_io_error(&error);
                        Some(noted(Err(Absent::new(
                            Obstacle::new(reason, remedy),
                            errno,
                        ))))
                    }
                },
            };
        }
        self.found.as_ref().map(told)
    }

    /// What was short may be there again. Any other refusal stays: the next attempt would have the same result.
    fn forget_shortage(&mut self) {
        self.found
            .take_if(|found| found.as_ref().is_err_and(Absent::is_over));
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
