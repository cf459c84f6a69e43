//! What a signal does to a trace.
//!
//! ```text
//!           the first message was traced        SIGINT, SIGTERM
//! Nothing ──────────────────────────▶ Something ─────────────────▶ Asked
//!    │ any signal                                                    │ the next one, a second later
//!    ▼                                                               ▼
//! the process ends here                                    the process ends here
//! ```
//!
//! When asked, the trace ends and prints the messages that it has.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

use crate::signal::{Signals, StopRequests};

/// Whether somebody has asked for the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Interruption(Arc<Mutex<Phase>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Nothing,
    Something,
    Asked,
}

impl Interruption {
    /// Handles the signals of this process from now on.
    ///
    /// # Errors
    /// If there can be no thread for it.
    pub(super) fn of(signals: Signals) -> Result<Self> {
        let own = Self::default();
        let seen = own.clone();
        let stop = Mutex::new(StopRequests::default());
        signals.hand_over(&[], move |signal| {
            // Every change is a single assignment.
            let is_new = stop
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_new(Instant::now());
            let mut phase = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
            match *phase {
                Phase::Something if [SIGINT, SIGTERM].contains(&signal) => *phase = Phase::Asked,
                // The same request again, as timeout(1) makes it.
                Phase::Asked if !is_new => {}
                // It ends the process; otherwise nothing can be done.
                _ => drop(emulate_default_handler(signal)),
            }
        })?;
        Ok(own)
    }

    /// From now on there is something to print.
    pub(super) fn has_something(&self) {
        let mut phase = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *phase == Phase::Nothing {
            *phase = Phase::Something;
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) == Phase::Asked
    }
}
