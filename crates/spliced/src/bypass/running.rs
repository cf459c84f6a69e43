//! Bypasses that are turned by threads of their own: one enters other network namespaces for a moment.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result};
use splice::bypass::{Bypass, Options};

use super::LEAVE_WITHIN;
use crate::exit_status::Ended;

/// How often members that leave are looked at between two looks at what was asked.
const LEAVE_EVERY: Duration = Duration::from_millis(100);

// What a thread is asked for; it only grows.
const GO_ON: u8 = 0;
const STOP: u8 = 1;
const GIVE_UP: u8 = 2;

/// One bypass.
pub(crate) struct Running {
    asked: Arc<AtomicU8>,
    thread: JoinHandle<Result<Ended>>,
}

impl Running {
    /// Starts one. `over` is called when it has ended.
    ///
    /// # Errors
    /// If it cannot start.
    pub(crate) fn start(options: &Options, over: impl FnOnce() + Send + 'static) -> Result<Self> {
        let bypass = Bypass::start(options)?;
        let all: Vec<_> = options
            .groups
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        tracing::info!(
            "bypass of connections between the processes of {}, pinned in {}; messages up to {} bytes are redirected",
            all.join(", "),
            options.pins.display(),
            bypass.status().bulk_bytes
        );
        let asked = Arc::new(AtomicU8::new(GO_ON));
        let thread = thread::Builder::new()
            .name("bypass".into())
            .spawn({
                let asked = Arc::clone(&asked);
                move || {
                    let ended = turn(bypass, &asked);
                    over();
                    ended
                }
            })
            .context("cannot start a thread for the bypass")?;
        Ok(Self { asked, thread })
    }

    /// Has its members leave.
    pub(crate) fn ask_to_stop(&self) {
        self.asked.fetch_max(STOP, Ordering::Relaxed);
    }

    /// Has it end at once, with its pins for what is unread.
    pub(crate) fn give_up(&self) {
        self.asked.fetch_max(GIVE_UP, Ordering::Relaxed);
    }

    /// Waits for its end.
    pub(crate) fn join(self) -> Result<Ended> {
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn turn(mut bypass: Bypass, asked: &AtomicU8) -> Result<Ended> {
    // `spliced bypass off` ends it, too.
    while bypass.turn() && asked.load(Ordering::Relaxed) == GO_ON {
        bypass.wait();
    }
    let sum = bypass.status().sum();
    let deadline = Instant::now() + LEAVE_WITHIN;
    loop {
        match bypass.stop(LEAVE_EVERY) {
            Ok(()) => {
                tracing::info!(
                    "the bypass is off: {} of {} messages were redirected, {} bytes",
                    sum.redirected_messages,
                    sum.messages,
                    sum.redirected_bytes
                );
                return Ok(Ended::Well);
            }
            Err(error) => {
                let is_over = Instant::now() >= deadline;
                if is_over || asked.load(Ordering::Relaxed) == GIVE_UP {
                    tracing::warn!("the bypass is off for all but some: {error}");
                    return Ok(Ended::CutShort);
                }
            }
        }
    }
}

/// The bypasses of a configuration.
#[derive(Default)]
pub(crate) struct Group(Vec<(Options, Running)>);

/// Why a bypass that should go on was ended for a while, or for good: one that was to take its place did not start.
#[derive(Debug)]
pub(crate) struct Interrupted(String);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Group {
    /// Ends those that are not wanted any more, and starts those that are new. Two cannot have the same pins at a time, so
    /// one that takes the place of another starts last, when that has ended.
    ///
    /// # Errors
    /// If one cannot start: those that were there go on. The context is [`Interrupted`] if one of them had been ended.
    pub(crate) fn apply(&mut self, wanted: &[Options]) -> Result<()> {
        let has_pins_of = |group: &Self, options: &Options| {
            let mut all = group.0.iter();
            all.any(|(running, _)| running.pins == options.pins)
        };
        let new = wanted
            .iter()
            .filter(|options| !self.0.iter().any(|(running, _)| running == *options));
        let (in_place, beside): (Vec<_>, Vec<_>) =
            new.partition(|options| has_pins_of(self, options));
        // They end when this returns early.
        let mut started = Self::default();
        for options in beside {
            started.start(options)?;
        }
        let is_replaced =
            |(running, _): &(Options, Running)| in_place.iter().any(|new| new.pins == running.pins);
        let mut replaced = Self(self.0.extract_if(.., |one| is_replaced(one)).collect());
        let former: Vec<_> = replaced
            .0
            .iter()
            .map(|(options, _)| options.clone())
            .collect();
        replaced.stop();
        for options in in_place {
            if let Err(error) = started.start(options) {
                started.stop();
                return Err(self.go_back_to(&former, error));
            }
        }
        let is_unwanted = |(running, _): &(Options, Running)| !wanted.contains(running);
        Self(self.0.extract_if(.., |one| is_unwanted(one)).collect()).stop();
        self.0.append(&mut started.0);
        Ok(())
    }

    fn start(&mut self, options: &Options) -> Result<()> {
        let running = Running::start(options, || ())?;
        self.0.push((options.clone(), running));
        Ok(())
    }

    /// Starts those again that had to end, and adds to `error` what has become of them.
    fn go_back_to(&mut self, former: &[Options], error: Error) -> Error {
        let told: Vec<_> = former
            .iter()
            .map(|options| {
                let pins = options.pins.display();
                match self.start(options) {
                    Ok(()) => format!(
                        "the bypass with its pins in {pins} was started again as it was, for new connections only"
                    ),
                    Err(why) => format!(
                        "the bypass with its pins in {pins} is off, since it could not be started again ({why:#})"
                    ),
                }
            })
            .collect();
        error.context(Interrupted(told.join("; ")))
    }

    /// Ends all. Whether none had to be cut short.
    pub(crate) fn stop(&mut self) -> bool {
        self.0.iter().for_each(|(_, running)| running.ask_to_stop());
        let ended = self.0.drain(..).map(|(_, running)| running.join());
        ended.fold(true, |well, ended| well & matches!(ended, Ok(Ended::Well)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop();
    }
}
