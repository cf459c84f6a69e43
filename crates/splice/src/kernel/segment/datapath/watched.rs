//! What a thread watches for a datapath.

use std::sync::{Arc, Mutex, PoisonError};

use splice_base::error::Result;

use super::failure::Failure;

/// Something that a thread watches, once it could be started. A shortage is no reason never to try again.
pub(super) struct Watched<T>(Mutex<Option<std::result::Result<Arc<T>, Failure>>>);

impl<T> Watched<T> {
    /// What is watched; the first caller has it `started`.
    ///
    /// # Errors
    /// Why it cannot be watched.
    pub(super) fn get(
        &self,
        start: impl FnOnce() -> Result<Arc<T>>,
    ) -> std::result::Result<Arc<T>, Failure> {
        // It is set whole.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            return known.clone();
        }
        let started = start().map_err(|error| Failure::from(&error));
        if !started.as_ref().is_err_and(|failure| failure.is_short()) {
            *known = Some(started.clone());
        }
        started
    }
}

impl<T> Default for Watched<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use splice_base::error::Error;

    use super::*;

    #[test]
    fn only_a_shortage_is_forgotten() {
        for (errno, is_short) in [(Errno::MFILE, true), (Errno::PERM, false)] {
            let watched = Watched::default();
            let refused = watched.get(|| Err(Error::system("cannot watch", errno)));
            assert_eq!(refused.is_err_and(|failure| failure.is_short()), is_short);
            let again = watched.get(|| Ok(Arc::new(1)));
            assert_eq!(again.is_ok(), is_short);
            let known = watched.get(|| Ok(Arc::new(2)));
            assert_eq!(known.ok(), is_short.then(|| Arc::new(1)));
        }
    }
}
