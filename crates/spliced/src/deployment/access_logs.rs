//! The access logs of the listeners, and those that only connections from before a reload write to.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::access_log::AccessLog;
use crate::access_log_args::LogPlace;
use crate::plan::Plan;

#[derive(Default)]
pub(super) struct AccessLogs {
    current: BTreeMap<LogPlace, AccessLog>,
    former: Vec<(LogPlace, AccessLog)>,
}

impl AccessLogs {
    /// The logs of `plan`. Those that are open stay so, since each has a thread that writes.
    pub(super) fn open(&self, plan: &Plan) -> Result<BTreeMap<LogPlace, AccessLog>> {
        let mut logs = BTreeMap::new();
        let of_streams = plan.listeners.iter().map(|plan| &plan.access_log);
        let of_datagrams = plan.datagram_listeners.iter().map(|plan| &plan.access_log);
        for place in of_streams.chain(of_datagrams).flat_map(|log| &log.place) {
            if logs.contains_key(place) {
                continue;
            }
            let mut known = self.all();
            let log = match known.find(|(of_log, _)| *of_log == place) {
                Some((_, log)) => log.clone(),
                None => AccessLog::open(place)?,
            };
            logs.insert(place.clone(), log);
        }
        Ok(logs)
    }

    /// Replaces the logs. Connections that were accepted before may still write to those that are gone,
    /// which have to be reopened and finished, too.
    pub(super) fn replace(&mut self, logs: BTreeMap<LogPlace, AccessLog>) {
        let before = std::mem::replace(&mut self.current, logs);
        self.former.extend(before);
        let current = &self.current;
        self.former
            .retain(|(place, _)| !current.contains_key(place));
    }

    /// Closes former logs that nobody writes to any more.
    pub(super) fn forget_former(&mut self) {
        self.former.retain(|(_, log)| !log.is_over());
    }

    pub(super) fn reopen(&self) {
        if self.all().next().is_none() {
            tracing::info!("there is no access log to reopen");
        }
        self.all().for_each(|(_, log)| log.reopen());
    }

    pub(super) fn into_all(self) -> Vec<AccessLog> {
        let former = self.former.into_iter().map(|(_, log)| log);
        self.current.into_values().chain(former).collect()
    }

    fn all(&self) -> impl Iterator<Item = (&LogPlace, &AccessLog)> {
        let former = self.former.iter().map(|(place, log)| (place, log));
        self.current.iter().chain(former)
    }
}
