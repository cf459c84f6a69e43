//! The next deadline of a loop, in a timerfd that the epoll instance watches.
//!
//! `epoll_wait` could take a timeout instead. But the kernel then arms and cancels a timer in each
//! call that sleeps. If that timer is the next on its CPU, both program the CPU's own timer
//! (`hrtimer_start_range_ns`, `hrtimer_try_to_cancel`), which on a virtual machine leaves the
//! guest: a message took 20 instead of 5 µs of the loop's time while a deadline was less than a
//! scheduler tick away. A timerfd is programmed once, and a loop that drives this one learns of the
//! deadlines, too.

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

/// Creates a timer that `epoll` watches.
pub(super) fn create(epoll: BorrowedFd<'_>) -> Result<OwnedFd> {
    let timer = timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
    )
    .context("cannot create the event loop's timerfd")?;
    // It is edge-triggered, so nobody has to read it.
    let flags = EventFlags::IN | EventFlags::ET;
    epoll::add(epoll, &timer, EventData::new_u64(TIMER_TOKEN), flags)
        .context("cannot watch the event loop's timerfd")?;
    Ok(timer)
}

impl EventLoop {
    /// Arms the timer for the next deadline. If another loop drives this one, pending work counts
    /// as a deadline that is due.
    ///
    /// A cancelled deadline stays armed: an occasional empty turn costs less than a system call for
    /// each connection that ends before its deadline.
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
