//! One CPU, and keeping it awake.

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

/// 19 is the least that a group can be nice to the others with, a seventieth of the usual weight.
const SPIN: &str = "[ ! -w /proc/self/autogroup ] || echo 19 >/proc/self/autogroup
while :; do :; done";

/// A busy loop of the lowest class there is (`SCHED_IDLE`) on one CPU. It gives way to everything
/// else, but the CPU never gets to sleep: on a virtual machine waking one up costs more, and varies
/// more, than the round trip that is to be measured.
///
/// The class counts within a group of tasks only, and a kernel with autogroups (sched(7)) makes every
/// session a group, with as much weight as one of the kernel's workers. So it has a session of its
/// own, of the least weight: in that of the others a worker of the kernel waited for it up to a tick
/// (4 ms at 250 Hz).
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

    /// CPU time that it has had so far; what is left of the elapsed time, somebody else had.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.process.cpu_time()
    }
}
