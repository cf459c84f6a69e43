//! What both kinds of programs share: the connections that are watched, the switch, and the events.

use std::fmt;
use std::sync::atomic::Ordering;

use splice_base::error::{Error, Result};

use crate::load::Object;
use crate::map::Map;
use crate::plain::Plain;
use crate::shared_memory::{RingBuffer, SharedArray};
use crate::types::{TraceFilter, TraceSettings, TraceState, trace_limit};

/// The most connections that are watched at a time.
pub const WATCHED_MOST: usize = trace_limit::FILTERS as usize;

pub(super) struct Recording {
    state: SharedArray<TraceState>,
    settings: Map,
    events: RingBuffer,
}

impl Recording {
    pub(super) fn of(object: &Object) -> Result<Self> {
        Ok(Self {
            state: object.map("state")?.share_values()?,
            settings: object.map("settings")?,
            events: object.map("events")?.consume()?,
        })
    }

    pub(super) fn start(&self, filters: &[TraceFilter], process: Option<u32>) -> Result<()> {
        let mut settings = TraceSettings {
            count: filters.len().min(WATCHED_MOST) as u32,
            process: process.unwrap_or(0),
            ..TraceSettings::default()
        };
        for (to, from) in settings.filters.iter_mut().zip(filters) {
            *to = *from;
        }
        self.settings.update(&0u32, &settings).map_err(|errno| {
            Error::system("cannot say which connections are to be traced", errno)
        })?;
        self.state.at(0).lost.store(0, Ordering::Relaxed);
        self.state.at(0).marked.store(0, Ordering::Relaxed);
        self.state.at(0).on.store(1, Ordering::Release);
        Ok(())
    }

    pub(super) fn stop(&self) {
        self.state.at(0).on.store(0, Ordering::Release);
    }

    pub(super) fn take<T: Plain + Copy>(&mut self, mut each: impl FnMut(&T)) {
        self.events.take_values(|event| each(event));
    }

    pub(super) fn lost(&self) -> u32 {
        self.state.at(0).lost.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").finish_non_exhaustive()
    }
}
