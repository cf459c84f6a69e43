//! Proof that a loop reads and writes nothing for pairs whose segments the kernel translates. Then
//! every byte that arrives, and every byte of the outcome, has bypassed the relay.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{fs, thread};

use rustix::system::uname;
use splice::Splicer;

use crate::support::system_calls::SystemCalls;

/// The calls that can move bytes of a socket. A loop also calls read(2) for its own descriptors.
const CARRYING: [&str; 8] = [
    "recvfrom",
    "recvmsg",
    "readv",
    "sendto",
    "sendmsg",
    "writev",
    "splice",
    "io_submit",
];

pub(crate) struct Witness(Mutex<Watched>);

struct Watched {
    calls: SystemCalls,
    /// The counts when the kernel had all of the loop's pairs; `None` before.
    begun: Option<Vec<u64>>,
}

impl Watched {
    fn carried(&mut self) -> Vec<u64> {
        let calls = &mut self.calls;
        // Netlink needs these. What is not read cannot be carried.
        let netlink: &[_] = if attaches_by_netlink() {
            &["recvmsg", "sendto"]
        } else {
            &[]
        };
        let carrying = CARRYING.iter().filter(|name| !netlink.contains(name));
        carrying.map(|name| calls.begun(name)).collect()
    }
}

impl Witness {
    /// The witness of a new splicer with one loop, in a network namespace of this test alone.
    pub(crate) fn of_new_splicer() -> (Splicer, Self) {
        let others = loops_here();
        let splicer = Splicer::new(1).expect("an event loop");
        let mut new = &loops_here() - &others;
        let watched = Watched {
            calls: SystemCalls::of_thread(new.pop_first().expect("its thread")),
            begun: None,
        };
        assert!(new.is_empty(), "{new:?}");
        (splicer, Self(Mutex::new(watched)))
    }

    /// From here on, the kernel has all pairs.
    pub(crate) fn begin(&self) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.begun = Some(watched.carried());
    }

    /// Another pair comes, for which the loop may call anything.
    pub(crate) fn end(&self) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(begun) = watched.begun.take() {
            assert_eq!(watched.carried(), begun, "{CARRYING:?}");
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.end();
        }
    }
}

/// Whether the loop attaches and detaches its programs by netlink, while it ends a pair, for example: tcx came with Linux
/// 6.6.
fn attaches_by_netlink() -> bool {
    let system = uname();
    let release = system.release().to_str().expect("a release");
    let mut numbers = release
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) < (Some(6), Some(6))
}

/// The threads of this process that turn the first loop of a splicer in this thread's network
/// namespace.
fn loops_here() -> BTreeSet<i32> {
    let namespace = |task: &Path| Some(fs::metadata(task.join("ns/net")).ok()?.ino());
    let here = namespace(Path::new("/proc/thread-self"));
    let tasks = fs::read_dir("/proc/self/task").expect("threads");
    let tasks = tasks.map(|task| task.expect("a thread").path());
    tasks
        .filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "splice-0\n"))
        .filter(|task| namespace(task) == here)
        .filter_map(|task| task.file_name()?.to_str()?.parse().ok())
        .collect()
}
