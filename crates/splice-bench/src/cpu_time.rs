//! CPU time by task, as the scheduler counts it.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// Totals since each task started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Time on a CPU in ns, by task, of one process.
    process: HashMap<u32, u64>,
    /// Times that a task of the process went to sleep by itself.
    sleeps: HashMap<u32, u64>,
    /// Time on a CPU in ns of the kernel's workers that are bound to one.
    kworkers: HashMap<u32, u64>,
    /// The same of the threads that softirqs are left to when there are many (`ksoftirqd`). What
    /// runs as a softirq elsewhere is booked to the task that it interrupts.
    softirqs: HashMap<u32, u64>,
}

/// The difference of two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// By the process.
    pub(crate) process: Duration,
    /// By the kernel's workers.
    pub(crate) kworkers: Duration,
    /// By the threads of softirqs.
    pub(crate) softirqs: Duration,
    /// Times that the process went to sleep, and so was woken.
    pub(crate) wake_ups: u64,
}

impl Reading {
    /// Reads what `process`, if there is one, and the kernel's threads on `cpus` have had so far.
    pub(crate) fn take(process: Option<u32>, cpus: &[usize]) -> Result<Self> {
        let mut reading = Self::default();
        if let Some(pid) = process {
            for task in numbers_in(&format!("/proc/{pid}/task"))? {
                let directory = format!("/proc/{pid}/task/{task}");
                // A task that ended while this looked has no more to say.
                if let (Some(time), Some(sleeps)) = (on_cpu(&directory), sleeps(&directory)) {
                    reading.process.insert(task, time);
                    reading.sleeps.insert(task, sleeps);
                }
            }
        }
        for task in numbers_in("/proc")? {
            let directory = format!("/proc/{task}");
            let Ok(name) = fs::read_to_string(format!("{directory}/comm")) else {
                continue;
            };
            let threads = match bound_to(&name) {
                Some((KWORKER, cpu)) if cpus.contains(&cpu) => &mut reading.kworkers,
                Some((KSOFTIRQD, cpu)) if cpus.contains(&cpu) => &mut reading.softirqs,
                _ => continue,
            };
            on_cpu(&directory).map(|time| threads.insert(task, time));
        }
        Ok(reading)
    }

    /// The difference to `before`.
    pub(crate) fn since(&self, before: &Self) -> Spent {
        let grown = |now: &HashMap<u32, u64>, then: &HashMap<u32, u64>| -> u64 {
            now.iter()
                .map(|(id, value)| value.saturating_sub(then.get(id).copied().unwrap_or(0)))
                .sum()
        };
        Spent {
            process: Duration::from_nanos(grown(&self.process, &before.process)),
            kworkers: Duration::from_nanos(grown(&self.kworkers, &before.kworkers)),
            softirqs: Duration::from_nanos(grown(&self.softirqs, &before.softirqs)),
            wake_ups: grown(&self.sleeps, &before.sleeps),
        }
    }
}

impl Spent {
    pub(crate) fn add(&mut self, other: Self) {
        self.process += other.process;
        self.kworkers += other.kworkers;
        self.softirqs += other.softirqs;
        self.wake_ups += other.wake_ups;
    }
}

const KWORKER: &str = "kworker";
const KSOFTIRQD: &str = "ksoftirqd";

/// What a kernel thread that is bound to a CPU is for, and the CPU: `kworker/CPU:NUMBER-...` or
/// `ksoftirqd/CPU`. The workers of no CPU are `kworker/uPOOL:...`.
fn bound_to(name: &str) -> Option<(&str, usize)> {
    let (kind, rest) = name.trim_end().split_once('/')?;
    let cpu = rest.split(':').next()?.parse().ok()?;
    Some((kind, cpu))
}

/// The entries of a directory that are numbers: processes, or tasks.
fn numbers_in(directory: &str) -> Result<Vec<u32>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {directory}"))?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

/// CPU time of this process, with that of threads that have ended.
pub(crate) fn own_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of a task in ns. First field of `schedstat`: time on the CPU in ns (Documentation/scheduler/sched-stats.rst).
pub(crate) fn on_cpu(task: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("{task}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn sleeps(task: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("{task}/status")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Reading, Spent, bound_to};

    fn spent_by_this_process(doing: impl FnOnce()) -> Spent {
        let take = || Reading::take(Some(std::process::id()), &[]).expect("/proc is there");
        let before = take();
        doing();
        take().since(&before)
    }

    #[test]
    fn a_busy_process_is_seen() {
        let spent = spent_by_this_process(|| {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(20) {}
        });
        // The scheduler may have given the CPU to others in between, but not all of it.
        assert!(spent.process > Duration::from_millis(1), "{spent:?}");
    }

    #[test]
    fn a_sleeping_process_is_woken() {
        let spent = spent_by_this_process(|| thread::sleep(Duration::from_millis(1)));
        assert!(spent.wake_ups >= 1, "{spent:?}");
    }

    #[test]
    fn a_kernel_thread_says_its_cpu() {
        assert_eq!(bound_to("kworker/0:1-events\n"), Some(("kworker", 0)));
        assert_eq!(bound_to("kworker/12:1H-kblockd\n"), Some(("kworker", 12)));
        assert_eq!(bound_to("ksoftirqd/1\n"), Some(("ksoftirqd", 1)));
        assert_eq!(bound_to("kworker/u9:0-events_unbound\n"), None);
        assert_eq!(bound_to("kworker/R-netns\n"), None);
        assert_eq!(bound_to("spliced\n"), None);
    }
}
