//! What the processes have told last.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::super::rated::{Of, Rated, rated};
use super::asker::{Backend, News, Server, Status, Target, Told};

/// By the sockets, of which a process may have two.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<PathBuf, Answer>);

#[derive(Debug, Default)]
struct Answer {
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
    pub(super) process: u64,
    pub(super) socket: &'a Path,
    pub(super) backend: &'a Backend,
    pub(super) server: &'a Server,
}

impl Known {
    pub(super) fn learn(&mut self, news: News) {
        match news {
            News::Told(socket, told) => {
                self.0
                    .entry(socket.clone())
                    .or_default()
                    .told(&socket, told);
            }
            News::Silent(socket, why) => self.0.entry(socket).or_default().silent = Some(why),
            News::Gone(socket) => drop(self.0.remove(&socket)),
            News::Searched | News::Ending(..) => {}
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
        self.distinct().flat_map(|(socket, answer)| {
            let process = answer.status.process.pid;
            answer.status.backends.iter().flat_map(move |backend| {
                backend.servers.iter().map(move |server| ServerOf {
                    process,
                    socket,
                    backend,
                    server,
                })
            })
        })
    }

    /// Whether what is shown of the process is old.
    pub(super) fn is_silent(&self, socket: &Path) -> bool {
        self.0
            .get(socket)
            .is_some_and(|answer| answer.silent.is_some())
    }

    /// The session of `rated`, to be ended.
    pub(super) fn target(&self, rated: &Rated) -> Target {
        let answer = self.0.get(Path::new(&rated.of.socket));
        Target {
            of: rated.of.clone(),
            started: answer.map_or_else(String::new, |one| one.status.process.started.clone()),
            id: rated.row.id,
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
    fn distinct(&self) -> impl Iterator<Item = (&Path, &Answer)> {
        let mut seen = HashSet::new();
        // On the socket for reading, nothing can be ended.
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(_, answer)| answer.status.process.reads_only);
        all.into_iter().filter_map(move |(socket, answer)| {
            let process = &answer.status.process;
            let is_new = process.pid != 0 && seen.insert((process.pid, &process.started));
            is_new.then_some((&**socket, answer))
        })
    }
}

impl Answer {
    fn told(&mut self, socket: &Path, told: Told) {
        self.status = told.status;
        self.silent = None;
        let (rows, unlisted) = match told.sessions {
            Ok(rows) => (rows, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        self.unlisted = unlisted;
        let of = Of {
            process: self.status.process.pid,
            socket: socket.display().to_string(),
        };
        let rows = rows.into_iter().map(|row| (of.clone(), row)).collect();
        let before = self.sessions.iter().map(|one| (&one.of, &one.row));
        self.sessions = rated(before, rows);
    }
}
