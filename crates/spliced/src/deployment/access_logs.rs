//! The access logs of the listeners, and those that only connections from before a reload write to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use crate::access_log::AccessLog;
use crate::plan::Plan;

#[derive(Default)]
pub(super) struct AccessLogs {
    current: BTreeMap<PathBuf, AccessLog>,
    former: Vec<(PathBuf, AccessLog)>,
}

impl AccessLogs {
    /// The logs of `plan`. Those that are open stay so, since each has a thread that writes.
    pub(super) fn open(&self, plan: &Plan) -> Result<BTreeMap<PathBuf, AccessLog>> {
        let mut logs = BTreeMap::new();
        for path in plan.listeners.iter().flat_map(|plan| &plan.access_log) {
            if logs.contains_key(path) {
                continue;
            }
            let mut known = self.all();
            let log = match known.find(|(of_log, _)| *of_log == path) {
                Some((_, log)) => log.clone(),
                None => AccessLog::open(path)?,
            };
            logs.insert(path.clone(), log);
        }
        Ok(logs)
    }

    /// Replaces the logs. Connections that were accepted before may still write to those that are gone,
    /// which have to be reopened and finished, too.
    pub(super) fn replace(&mut self, logs: BTreeMap<PathBuf, AccessLog>) {
        let before = std::mem::replace(&mut self.current, logs);
        self.former.extend(before);
        let current = &self.current;
        self.former.retain(|(path, _)| !current.contains_key(path));
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

    fn all(&self) -> impl Iterator<Item = (&PathBuf, &AccessLog)> {
        let former = self.former.iter().map(|(path, log)| (path, log));
        self.current.iter().chain(former)
    }
}
