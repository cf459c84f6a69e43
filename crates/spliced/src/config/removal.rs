//! `on_remove` and `drain_timeout`, which listeners and backends have in common.

use std::time::Duration;

use crate::config::value::{Table, Value};
use crate::plan::OnRemove;

/// What is to happen to connections once a reload has removed what they belong to. The time is kept even where
/// it has no meaning: a listener may drain although `[defaults]` resets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Removal {
    resets: bool,
    drain_timeout: Duration,
}

impl Removal {
    /// That of a configuration that says nothing but the `drain_timeout` of the process.
    pub(super) fn new(drain_timeout: Duration) -> Self {
        Self {
            resets: false,
            drain_timeout,
        }
    }

    /// Reads what `table` says. A time without `on_remove` means that connections drain.
    pub(super) fn read(&mut self, table: &Table<'_>) {
        if let Some(value) = table.get("drain_timeout")
            && let Some(timeout) = value.time_or_zero()
        {
            self.drain_timeout = timeout;
            self.resets = false;
        }
        table.set("on_remove", &mut self.resets, |value: &Value<'_>| {
            value.choice(&[("drain", false), ("reset", true)])
        });
    }

    /// Notes a `drain_timeout` that has no meaning. One of `[defaults]` is for those that drain.
    pub(super) fn check(self, table: &Table<'_>) {
        if self.resets && table.get("drain_timeout").is_some() && table.get("on_remove").is_some() {
            table.notes.mistake(
                &table.at("drain_timeout"),
                "drain_timeout has no meaning with on_remove = \"reset\"; remove one of them",
            );
        }
    }

    pub(super) fn plan(self) -> OnRemove {
        match self.resets {
            true => OnRemove::Reset,
            false => OnRemove::Drain(self.drain_timeout),
        }
    }
}
