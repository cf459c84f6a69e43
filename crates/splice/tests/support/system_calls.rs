//! How often a thread makes a system call, by kernel tracepoints that perf_event_open(2) counts.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};

/// The counted calls: every one that can move bytes between a socket and a process, and those that
/// wait.
pub(crate) const CARRYING: [&str; 8] = [
    "recvfrom", "recvmsg", "read", "readv", "sendto", "sendmsg", "write", "writev",
];
/// The calls that move bytes in other ways.
const ENGINES: [&str; 3] = ["splice", "io_submit", "io_getevents"];
/// Newer architectures have no epoll_wait(2) (`asm-generic/unistd.h`).
pub(crate) const WAITING: &[&str] = if cfg!(target_arch = "x86_64") {
    &[
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "io_uring_enter",
    ]
} else {
    &["epoll_pwait", "epoll_pwait2", "io_uring_enter"]
};

/// The tracepoint of all calls, in the folder of `syscalls`.
const ANY: &str = "../raw_syscalls/sys_enter";

pub(crate) struct SystemCalls {
    counters: BTreeMap<String, Counter>,
}

impl SystemCalls {
    /// Counts on the calling thread. Any thread may read the counts.
    pub(crate) fn of_this_thread() -> Self {
        Self::of_thread(0)
    }

    /// Counts on the thread with this id.
    pub(crate) fn of_thread(thread: i32) -> Self {
        let counters = identifiers()
            .iter()
            .map(|(name, id)| {
                let mut counter = Builder::new(Tracepoint::with_id(*id))
                    .observe_pid(thread)
                    .any_cpu()
                    .include_kernel()
                    .build()
                    .unwrap_or_else(|error| panic!("cannot count {name}: {error}"));
                counter.enable().expect("a counter");
                (name.clone(), counter)
            })
            .collect();
        Self { counters }
    }

    /// How often the call `name` has begun.
    pub(crate) fn begun(&mut self, name: &str) -> u64 {
        self.read("enter", name)
    }

    pub(crate) fn ended(&mut self, name: &str) -> u64 {
        self.read("exit", name)
    }

    /// How many system calls of any kind have begun.
    #[allow(dead_code, reason = "only the engine segment's own tests ask")]
    pub(crate) fn all_begun(&mut self) -> u64 {
        self.count(ANY)
    }

    pub(crate) fn sum_begun(&mut self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.begun(name)).sum()
    }

    pub(crate) fn sum_ended(&mut self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.ended(name)).sum()
    }

    fn read(&mut self, edge: &str, name: &str) -> u64 {
        self.count(&format!("sys_{edge}_{name}"))
    }

    fn count(&mut self, tracepoint: &str) -> u64 {
        self.counters
            .get_mut(tracepoint)
            .unwrap_or_else(|| panic!("{tracepoint} is not counted"))
            .read()
            .expect("a count")
    }
}

/// The kernel's ids of the tracepoints.
fn identifiers() -> &'static BTreeMap<String, u64> {
    static IDENTIFIERS: OnceLock<BTreeMap<String, u64>> = OnceLock::new();
    IDENTIFIERS.get_or_init(|| {
        let enter = CARRYING.iter().chain(&ENGINES).chain(WAITING);
        let names: Vec<_> = enter
            .map(|name| format!("sys_enter_{name}"))
            .chain(WAITING.iter().map(|name| format!("sys_exit_{name}")))
            .chain([ANY.to_owned()])
            .collect();
        // Mounted in a private namespace: most machines mount tracefs nowhere or elsewhere.
        let script = format!(
            "{{ [ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing; }} &&
             cd /sys/kernel/tracing/events/syscalls &&
             for name in {}; do echo $name $(cat $name/id); done",
            names.join(" ")
        );
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .output()
            .expect("unshare of util-linux");
        assert!(output.status.success(), "no tracefs: {output:?}");
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| {
                let (name, id) = line.split_once(' ')?;
                Some((name.into(), id.parse().ok()?))
            })
            .collect()
    })
}
