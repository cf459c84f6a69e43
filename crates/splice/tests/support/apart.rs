//! A test that changes or loads the network gets namespaces of its own.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netlab::{Lab, Namespace, Need, available};

use super::alone::{TEST, test_name};

/// The lab around the relay's namespace, which is identified by its inode.
static SURROUNDINGS: Mutex<Option<HashMap<u64, Arc<Surroundings>>>> = Mutex::new(None);

/// Where peers run that are not on the relay's own host.
pub(crate) struct Surroundings {
    pub(crate) lab: Lab,
    peers: AtomicUsize,
}

impl Surroundings {
    /// The peers of this thread's namespace; `None` if everything runs over lo.
    pub(crate) fn here() -> Option<Arc<Self>> {
        let all = SURROUNDINGS.lock().unwrap_or_else(PoisonError::into_inner);
        all.as_ref()?.get(&namespace_here()).cloned()
    }

    /// Whether the next peer is a server: the peers of a pair are on two sides.
    pub(crate) fn is_server_next(&self) -> bool {
        !self.peers.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
    }
}

fn namespace_here() -> u64 {
    let namespace = fs::metadata("/proc/thread-self/ns/net");
    namespace.expect("the thread's namespace").ino()
}

/// Runs `body` in a namespace with only lo and these sysctls.
pub(crate) fn apart(sysctls: &[(&str, &str)], body: impl FnOnce() + Send) {
    if !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("apart").expect("a namespace");
    for (name, value) in sysctls {
        namespace.set_sysctl(name, value).expect("a sysctl");
    }
    enter(&namespace, body);
}

/// Runs `body` in the middle of three namespaces, with its peers in the two others.
pub(crate) fn apart_from_peers(body: impl FnOnce() + Send) {
    if !available(Need::Root) {
        return;
    }
    let surroundings = Arc::new(Surroundings {
        lab: Lab::new().expect("a lab"),
        peers: AtomicUsize::new(0),
    });
    let known = Arc::clone(&surroundings);
    enter(surroundings.lab.relay(), || {
        let all = || SURROUNDINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let here = namespace_here();
        all().get_or_insert_default().insert(here, known);
        body();
        all().get_or_insert_default().remove(&here);
    });
}

fn enter(namespace: &Namespace, body: impl FnOnce() + Send) {
    let test = test_name();
    namespace
        .enter(|| {
            TEST.set(Some(test));
            body();
        })
        .expect("entered");
}
