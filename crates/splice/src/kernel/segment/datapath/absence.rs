//! Why pairs that no engine was chosen for go without the program.
//!
//! ```text
//!             it cannot be loaded: a warning             for another reason: a warning
//! available ─────────────────────────────────▶ absent ─────────────────────────────────▶ absent
//!     ▲                                           │
//!     └────────it is loaded: an information───────┘
//! ```
//!
//! Each loop loads it for itself, and asks again while something is short; the process tells it once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use splice_base::obstacle::Obstacle;

static ABSENCE: Absence = Absence(Mutex::new(None));

/// What keeps the program from being loaded.
struct Absence(Mutex<Option<Obstacle>>);

/// What is news.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Begins(Obstacle),
    Ends,
}

/// What has kept the program from being loaded the last time; `None` while it is loaded, or nobody has asked for it.
pub(crate) fn now() -> Option<Obstacle> {
    ABSENCE.lock().clone()
}

/// The program was loaded, or something keeps it from that.
pub(super) fn note(obstacle: Option<&Obstacle>) {
    // What the process lacks is said by whoever starts it.
    if obstacle.is_some_and(is_foreseen) {
        return;
    }
    match ABSENCE.change(obstacle) {
        Some(News::Begins(Obstacle { reason, remedy })) => tracing::warn!(
            "connections are copied and not spliced: engine segment cannot be used: {reason}; {remedy}"
        ),
        Some(News::Ends) => {
            tracing::info!("connections can be spliced again: engine segment can be used");
        }
        None => {}
    }
}

fn is_foreseen(obstacle: &Obstacle) -> bool {
    let foreseen = [Obstacle::foreseen(), Obstacle::without_net_admin()];
    foreseen
        .iter()
        .flatten()
        .any(|foreseen| foreseen == obstacle)
}

impl Absence {
    fn lock(&self) -> MutexGuard<'_, Option<Obstacle>> {
        // The value is replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, obstacle: Option<&Obstacle>) -> Option<News> {
        let mut before = self.lock();
        if before.as_ref() == obstacle {
            return None;
        }
        *before = obstacle.cloned();
        Some(obstacle.cloned().map_or(News::Ends, News::Begins))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_once() {
        let absence = Absence(Mutex::new(None));
        let [one, other] = ["one", "other"].map(|reason| Obstacle::new(reason, "mend it"));
        assert_eq!(absence.change(None), None);
        for obstacle in [&one, &other] {
            let begins = Some(News::Begins(obstacle.clone()));
            assert_eq!(absence.change(Some(obstacle)), begins);
            assert_eq!(absence.change(Some(obstacle)), None);
        }
        assert_eq!(absence.change(None), Some(News::Ends));
        assert_eq!(absence.change(None), None);
    }
}
