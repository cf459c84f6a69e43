//! What there is once in each network namespace.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use splice_base::error::Result;
use splice_bpf::namespace;

/// What the process has of one kind in network namespaces, each as long as somebody holds it, by the namespace's cookie.
pub(in crate::kernel::segment) struct PerNamespace<T>(Mutex<Vec<(u64, Weak<T>)>>);

impl<T> PerNamespace<T> {
    pub(in crate::kernel::segment) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// That of this thread's network namespace, made if there is none.
    ///
    /// # Errors
    /// Those of `make`, and if the namespace cannot be told.
    pub(in crate::kernel::segment) fn here(
        &self,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let namespace = namespace()?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, one)| one.strong_count() > 0);
        let known = all.iter().find(|(cookie, _)| *cookie == namespace);
        if let Some(one) = known.and_then(|(_, one)| one.upgrade()) {
            return Ok(one);
        }
        let one = Arc::new(make()?);
        all.push((namespace, Arc::downgrade(&one)));
        Ok(one)
    }

    /// Those that there are.
    pub(in crate::kernel::segment) fn all(&self) -> Vec<Arc<T>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(|(_, one)| one.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::thread;

    use netlab::{Namespace, Need, available};
    use rustix::thread::UnshareFlags;

    use super::PerNamespace;

    fn inode_here() -> u64 {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net");
        namespace.expect("a namespace").ino()
    }

    /// Runs `work` in a new network namespace, which ends with it. That has no name, for it is to cost little.
    fn in_passing<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let within = || {
            #[expect(
                deprecated,
                reason = "what is unshared is nobody's memory or descriptors"
            )]
            rustix::thread::unshare(UnshareFlags::NEWNET).expect("a namespace");
            work()
        };
        thread::scope(|scope| scope.spawn(within).join().expect("no panic"))
    }

    #[test]
    fn a_namespace_has_one_as_long_as_it_is_held() {
        if !available(Need::Root) {
            return;
        }
        let all = PerNamespace::new();
        let [here, there] = [(); 2].map(|()| Namespace::new("once").expect("a namespace"));
        let made_in = |namespace: &Namespace, number: u32| {
            let made = namespace.enter(|| all.here(|| Ok(number)).expect("made"));
            made.expect("entered")
        };
        let one = made_in(&here, 1);
        assert!(Arc::ptr_eq(&one, &made_in(&here, 2)));
        assert_eq!(*made_in(&there, 3), 3);
        drop(one);
        assert_eq!(*made_in(&here, 4), 4);
    }

    /// The kernel gives the inode of a namespace that is gone to the next one, or to a file of /proc (`proc_inum_ida`),
    /// the lowest that is free. Others may take some and keep them, so every inode that was seen counts: since what is
    /// free lies near the lowest, one of them soon comes again.
    #[test]
    fn a_namespace_with_the_inode_of_one_before_has_its_own() {
        if !available(Need::Root) {
            return;
        }
        let all = PerNamespace::new();
        let mut earlier = HashMap::new();
        netlab::until("a namespace has the inode of one before", || {
            let (inode, its_own, made) = in_passing(|| {
                let mut is_made = false;
                let make = || {
                    is_made = true;
                    Ok(())
                };
                let its_own = all.here(make).expect("made");
                (inode_here(), its_own, is_made)
            });
            assert!(made, "that of another, with the inode {inode}");
            // It stays, as one that is in use does.
            earlier.insert(inode, its_own).is_some()
        });
    }
}
