//! What the processes have told last.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::super::processes::Of;
use super::super::rated::{Rated, rated};
use super::asker::{Backend, News, Process, Server, Status, Told};
use super::order::{Order, What};
use crate::admin::ControlSocket;

/// By the sockets, of which a process may have two.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<PathBuf, Answer>);

#[derive(Debug, Default)]
struct Answer {
    /// `None` if it has never answered.
    of: Option<Of>,
    status: Status,
    sessions: Vec<Rated>,
    /// Why it does not list its sessions.
    unlisted: Option<String>,
    /// Why it has not answered since.
    silent: Option<String>,
}

/// A server of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerOf<'a> {
    pub(super) of: &'a Of,
    pub(super) backend: &'a Backend,
    pub(super) server: &'a Server,
}

impl Known {
    pub(super) fn learn(&mut self, news: News) {
        match news {
            News::Told(socket, told) => {
                let answer = self.0.entry(socket.path.clone()).or_default();
                answer.told(socket, told);
            }
            News::Silent(socket, why) => self.0.entry(socket).or_default().silent = Some(why),
            News::Gone(socket) => drop(self.0.remove(&socket)),
            News::Searched | News::Ordered(..) => {}
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many processes have answered.
    pub(super) fn count(&self) -> usize {
        self.distinct().count()
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = &Rated> {
        self.distinct().flat_map(|(_, answer)| &answer.sessions)
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = ServerOf<'_>> {
        self.distinct().flat_map(|(of, answer)| {
            answer.status.backends.iter().flat_map(move |backend| {
                backend.servers.iter().map(move |server| ServerOf {
                    of,
                    backend,
                    server,
                })
            })
        })
    }

    /// Whether what is shown of the process is old.
    pub(super) fn is_silent(&self, of: &Of) -> bool {
        let answer = self.0.get(of.path());
        answer.is_some_and(|answer| answer.silent.is_some())
    }

    pub(super) fn drains(&self, of: &Of) -> bool {
        self.process(of).is_some_and(Process::drains)
    }

    /// How many processes drain.
    pub(super) fn draining(&self) -> usize {
        let drains = |(_, answer): &(&Of, &Answer)| answer.status.process.drains();
        self.distinct().filter(drains).count()
    }

    /// An order to the process that is known now.
    pub(super) fn order(&self, of: &Of, what: What) -> Order {
        let started = self.process(of).map(|process| process.started.clone());
        Order {
            of: of.clone(),
            started: started.unwrap_or_default(),
            what,
        }
    }

    /// What is missing, and why.
    pub(super) fn notices(&self) -> Vec<String> {
        // The sentences name the process.
        let silent = self.0.values().filter_map(|answer| answer.silent.clone());
        let unlisted = self.distinct().filter_map(|(_, answer)| {
            let why = answer.unlisted.as_ref()?;
            Some(format!("process {}: {why}", answer.status.process.pid))
        });
        silent.chain(unlisted).collect()
    }

    /// Each process that has answered once.
    fn distinct(&self) -> impl Iterator<Item = (&Of, &Answer)> {
        let mut seen = HashSet::new();
        // On the socket for reading, nothing can be ended.
        let mut all: Vec<_> = self.0.values().collect();
        all.sort_by_key(|answer| answer.status.process.reads_only);
        all.into_iter().filter_map(move |answer| {
            let (of, process) = (answer.of.as_ref()?, &answer.status.process);
            let is_new = process.pid != 0 && seen.insert((process.pid, &process.started));
            is_new.then_some((of, answer))
        })
    }

    fn process(&self, of: &Of) -> Option<&Process> {
        let answer = self.0.get(of.path());
        answer.map(|answer| &answer.status.process)
    }
}

impl Answer {
    fn told(&mut self, socket: Arc<ControlSocket>, told: Told) {
        self.status = told.status;
        self.silent = None;
        let (rows, unlisted) = match told.sessions {
            Ok(rows) => (rows, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        self.unlisted = unlisted;
        let of = Of::new(self.status.process.pid, socket);
        let rows = rows.into_iter().map(|row| (of.clone(), row)).collect();
        let before = self.sessions.iter().map(|one| (&one.of, &one.row));
        self.sessions = rated(before, rows);
        self.of = Some(of);
    }
}
