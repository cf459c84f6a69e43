//! The timerfd of a loop that another one drives, which cannot know this one's deadlines.

use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::EventLoop;
use super::token::TIMER_TOKEN;
use crate::error::{Context as _, Result};

impl EventLoop {
    /// From now on the loop is taken to be driven by another one.
    pub(super) fn create_timer(&mut self) -> Result<()> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .context("cannot create the event loop's timerfd")?;
        epoll::add(
            &self.epoll,
            &timer,
            EventData::new_u64(TIMER_TOKEN),
            EventFlags::IN,
        )
        .context("cannot watch the event loop's timerfd")?;
        self.timer = Some(timer);
        self.watch_ring()
    }

    /// Lets the next deadline, or work that waits for its turn, make the descriptor readable.
    pub(super) fn arm_timer(&mut self) -> Result<()> {
        let Some(timer) = &self.timer else {
            return Ok(());
        };
        let next = if self.again.is_empty() && !self.carriers.has_news() {
            self.wheel.next()
        } else {
            Some(self.now)
        };
        if next == self.armed {
            return Ok(());
        }
        // Zero would disarm it.
        let ahead = next.map(|next| {
            next.saturating_duration_since(Instant::now())
                .max(Duration::from_nanos(1))
        });
        let value = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(ahead.unwrap_or_default()),
        };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &value)
            .context("cannot set the event loop's timerfd")?;
        self.armed = next;
        Ok(())
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
