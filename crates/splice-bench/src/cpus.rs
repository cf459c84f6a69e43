//! The machine's CPUs: which of them the measurements use, keeping these awake, and what all of them
//! did.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use netlab::Spinner;

/// The unit of `/proc/stat` (`USER_HZ`, 100 on every architecture but Alpha).
const TICK: Duration = Duration::from_millis(10);

/// Where client, relay and server run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// All three share this CPU.
    Pinned(usize),
    /// Each may run on any.
    Spread,
}

/// The CPUs in use, each kept awake by a spinner, and an eye on the others.
#[derive(Debug)]
pub(crate) struct Cpus {
    spinners: Vec<Spinner>,
    /// The CPUs without one.
    others: Vec<usize>,
}

/// What an interval cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) elapsed: Duration,
    /// CPU time of the whole machine in that interval, other than spinning.
    pub(crate) busy: Duration,
}

impl Cpus {
    /// Pins this thread, and so everything that it starts, where `placement` says so.
    pub(crate) fn take(placement: Placement) -> Result<Self> {
        let all: Vec<usize> = jiffies()?.into_iter().map(|(cpu, _)| cpu).collect();
        let (used, others) = match placement {
            Placement::Pinned(cpu) => {
                netlab::pin_thread(cpu)?;
                (
                    vec![cpu],
                    all.into_iter().filter(|&one| one != cpu).collect(),
                )
            }
            Placement::Spread => (all, Vec::new()),
        };
        let spinners = used.into_iter().map(Spinner::start);
        Ok(Self {
            spinners: spinners.collect::<Result<_>>()?,
            others,
        })
    }

    /// Does `work` and says what that cost.
    ///
    /// Where a spinner runs, it takes exactly the time that nothing else wants, so the rest of the elapsed
    /// time is what the others had: client, relay, server, kworkers and softirqs. A kernel without
    /// `CONFIG_IRQ_TIME_ACCOUNTING` books an interrupt to whom it interrupts, so softirqs that hit
    /// the spinner are missed; under load, when the spinner hardly runs, there are next to none. Of
    /// the other CPUs `/proc/stat` tells, in steps of 10 ms: on a quiet machine that is what kernel
    /// workers did there. (They get no spinner: it may be the other half of the measured core.)
    pub(crate) fn time<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
        let (begin, before) = (Instant::now(), self.counters()?);
        let result = work()?;
        let (elapsed, after) = (begin.elapsed(), self.counters()?);
        let spun = after.spun.saturating_sub(before.spun);
        let available = elapsed * self.spinners.len() as u32;
        let elsewhere = after.elsewhere.saturating_sub(before.elsewhere);
        Ok((
            result,
            Cost {
                elapsed,
                busy: available.saturating_sub(spun) + elsewhere,
            },
        ))
    }

    fn counters(&self) -> Result<Counters> {
        let times = self.spinners.iter().map(Spinner::cpu_time);
        let spun = times.sum::<Result<Duration>>()?;
        let elsewhere = if self.others.is_empty() {
            Duration::ZERO
        } else {
            let busy = jiffies()?;
            let ticks = busy.iter().filter(|(cpu, _)| self.others.contains(cpu));
            TICK * ticks.map(|&(_, ticks)| ticks as u32).sum::<u32>()
        };
        Ok(Counters { spun, elsewhere })
    }
}

/// Totals since boot.
struct Counters {
    spun: Duration,
    elsewhere: Duration,
}

/// Every CPU that is online, and for how many ticks it has been busy.
fn jiffies() -> Result<Vec<(usize, u64)>> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let busy: Vec<_> = text.lines().filter_map(busy_ticks).collect();
    anyhow::ensure!(!busy.is_empty(), "/proc/stat names no CPU");
    Ok(busy)
}

/// Reads `cpuN user nice system idle iowait irq softirq steal guest guest_nice`. Guests are in `user`
/// already (proc_stat(5)); what the hypervisor stole, this machine did not do.
fn busy_ticks(line: &str) -> Option<(usize, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let cpu = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else {
        return None;
    };
    Some((cpu, user + nice + system + irq + softirq))
}

#[cfg(test)]
mod tests {
    use super::busy_ticks;

    #[test]
    fn idle_and_stolen_ticks_are_not_busy() {
        let line = "cpu1 1 20 300 999999 888888 4000 50000 777777 1 20";
        assert_eq!(busy_ticks(line), Some((1, 54_321)));
        // The sum of all CPUs would count each twice.
        assert_eq!(busy_ticks("cpu  1 20 300 9 8 4000 50000 7 0 0"), None);
        assert_eq!(busy_ticks("intr 1 2 3 4 5 6 7 8"), None);
    }
}
