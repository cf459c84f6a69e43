//! Pinning to a CPU, and keeping it awake.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::Process;

/// Pins the calling thread to `cpu`; threads and processes that it starts from then on inherit it.
pub fn pin_thread(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    sched_setaffinity(None, &set)
        .with_context(|| format!("cannot pin to CPU {cpu}: choose one that this machine has"))
}

/// 19 gives a group the lowest weight: a seventieth of the default.
const SPIN: &str = "[ ! -w /proc/self/autogroup ] || echo 19 >/proc/self/autogroup
while :; do :; done";

/// A busy loop of the lowest scheduling class (`SCHED_IDLE`) on one CPU. It yields to everything else, but
/// keeps the CPU awake: on a virtual machine a wake-up costs more, and varies more, than the round trip
/// that is measured.
///
/// The class applies within a group of tasks only. With autogroups (sched(7)) every session is a group of
/// the same weight as a kernel worker. So the loop has a session of its own with the lowest weight;
/// without it, a kernel worker waited for the loop up to a tick (4 ms at 250 Hz).
#[derive(Debug)]
pub struct Spinner {
    process: Process,
}

impl Spinner {
    /// Starts one on `cpu`.
    pub fn start(cpu: usize) -> Result<Self> {
        let mut command = Process::command("setsid");
        command
            .args(["chrt", "--idle", "0"])
            .args(["taskset", "--cpu-list", &cpu.to_string()])
            .args(["sh", "-c", SPIN])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(Self {
            process: Process::spawn(&mut command)?,
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The CPU time that it has used so far. The rest of the elapsed time was used by others.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.process.cpu_time()
    }
}
