//! The loop's deadlines, in a timerfd that the epoll instance watches.
//!
//! `epoll_wait` could take a timeout instead. But the kernel sets and removes a timer for that with
//! each call that sleeps, and where this one is the next on its CPU, the CPU's own timer is programmed
//! both times (`hrtimer_start_range_ns`, `hrtimer_try_to_cancel`). On a virtual machine that has to
//! leave the guest: a message took 20 instead of 5 µs of the loop's time whenever a deadline was less
//! than a tick of the scheduler away. This way it is programmed once, and a loop that drives this one
//! learns of the deadlines, too.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use splice_base::error::{Result, ResultExt as _};

use super::EventLoop;
use super::token::TIMER_TOKEN;

/// A timer that `epoll` tells of.
pub(super) fn create(epoll: BorrowedFd<'_>) -> Result<OwnedFd> {
    let timer = timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
    )
    .context("cannot create the event loop's timerfd")?;
    // Edge-triggered, it need not be read.
    let flags = EventFlags::IN | EventFlags::ET;
    epoll::add(epoll, &timer, EventData::new_u64(TIMER_TOKEN), flags)
        .context("cannot watch the event loop's timerfd")?;
    Ok(timer)
}

impl EventLoop {
    /// Lets the next deadline make the descriptor readable, and with another loop as the driver
    /// also work that waits for its turn.
    ///
    /// A deadline that was taken back stays set: a turn for nothing, now and then, is less than a
    /// system call for each connection that ends before its deadline.
    pub(super) fn arm_timer(&mut self) -> Result<()> {
        let next = if self.driven && self.has_work() {
            Some(self.now)
        } else {
            self.wheel.next()
        };
        let Some(next) = next else {
            return Ok(());
        };
        if self.armed.is_some_and(|at| self.now < at && at <= next) {
            return Ok(());
        }
        let ahead = next.saturating_duration_since(Instant::now());
        let value = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            // Zero would disarm it.
            it_value: timespec(ahead.max(Duration::from_nanos(1))),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)
            .context("cannot set the event loop's timerfd")?;
        self.armed = Some(next);
        Ok(())
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
