//! Network namespaces by their cookies: those of the processes in the covered control groups, and those with a name.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use splice_base::error::{Error, Result};
use splice_base::socket_option::namespace_cookie;

/// Where ip-netns(8) names namespaces.
const NAMED: &str = "/run/netns";

/// How long a search in vain counts: it reads a part of /proc.
const SEARCH_AGAIN: Duration = Duration::from_secs(1);

/// How long a namespace is held: new connections come in bursts.
const RELEASE_AFTER: Duration = Duration::from_secs(5);

/// The namespaces that were found.
#[derive(Debug)]
pub(super) struct Namespaces {
    own: File,
    own_cookie: u64,
    found: HashMap<u64, File>,
    /// As ip-netns(8) names them.
    names: HashMap<u64, String>,
    groups: Vec<PathBuf>,
    searched: Option<Instant>,
}

impl Namespaces {
    pub(super) fn of(groups: &[PathBuf]) -> Result<Self> {
        let own = File::open("/proc/thread-self/ns/net")
            .map_err(|error| Error::system("cannot open this network namespace", error))?;
        Ok(Self {
            own,
            own_cookie: cookie()?,
            found: HashMap::new(),
            names: HashMap::new(),
            groups: groups.to_vec(),
            searched: None,
        })
    }

    /// Does `work` in a namespace; `None` if it was not found.
    pub(super) fn within<T>(&mut self, cookie: u64, work: impl FnOnce() -> T) -> Option<T> {
        if cookie == self.own_cookie {
            return Some(work());
        }
        if !self.found.contains_key(&cookie) {
            self.search();
        }
        let namespace = self.found.get(&cookie)?;
        enter(namespace).ok()?;
        let done = work();
        // It was entered from there, and nothing can take it away.
        let _ = enter(&self.own);
        Some(done)
    }

    /// Every namespace that can be found, this process's own among them.
    pub(super) fn all(&mut self) -> Vec<(u64, File)> {
        self.searched = None;
        self.search();
        let own = (self.own_cookie, &self.own);
        let found = self.found.iter().map(|(cookie, file)| (*cookie, file));
        let all = found.filter(|(cookie, _)| *cookie != self.own_cookie);
        all.chain([own])
            .filter_map(|(cookie, file)| Some((cookie, file.try_clone().ok()?)))
            .collect()
    }

    /// Opens a namespace.
    pub(super) fn file(&mut self, cookie: u64) -> Option<File> {
        if cookie == self.own_cookie {
            return self.own.try_clone().ok();
        }
        if !self.found.contains_key(&cookie) {
            self.search();
        }
        self.found.get(&cookie)?.try_clone().ok()
    }

    /// Does `work` in a namespace that is held open; `None` if it cannot be entered.
    pub(super) fn at<T>(&self, namespace: &File, work: impl FnOnce() -> T) -> Option<T> {
        enter(namespace).ok()?;
        let done = work();
        let _ = enter(&self.own);
        Some(done)
    }

    /// What to call a namespace.
    pub(super) fn name(&self, cookie: u64) -> String {
        match self.names.get(&cookie) {
            Some(name) => format!("network namespace {name}"),
            None if cookie == self.own_cookie => "this network namespace".into(),
            None => "a container's network namespace".into(),
        }
    }

    /// Lets go of what was found some time ago: a descriptor keeps the namespace of a container that has ended.
    pub(super) fn release(&mut self) {
        if self
            .searched
            .is_some_and(|then| then.elapsed() > RELEASE_AFTER)
        {
            self.found.clear();
        }
    }

    fn search(&mut self) {
        let now = Instant::now();
        if self.searched.is_some_and(|then| now - then < SEARCH_AGAIN) {
            return;
        }
        self.searched = Some(now);
        // Descriptors keep namespaces alive: those of nobody are let go.
        self.found.clear();
        self.names.clear();
        let mut paths: Vec<PathBuf> = listed(Path::new(NAMED));
        for group in self.groups.clone() {
            tasks(&group, &mut paths);
        }
        let mut seen = Vec::new();
        for path in paths {
            let Ok(file) = File::open(&path) else {
                continue;
            };
            let Ok(status) = rustix::fs::fstat(&file) else {
                continue;
            };
            if seen.contains(&status.st_ino) {
                continue;
            }
            seen.push(status.st_ino);
            if enter(&file).is_ok() {
                if let Ok(cookie) = cookie() {
                    if let Some(name) = path.file_name().filter(|_| path.starts_with(NAMED)) {
                        let name = name.to_string_lossy().into_owned();
                        self.names.insert(cookie, name);
                    }
                    self.found.insert(cookie, file);
                }
                let _ = enter(&self.own);
            }
        }
    }
}

fn enter(namespace: &File) -> rustix::io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

/// That of the namespace in which this thread is (`SO_NETNS_COOKIE`, Linux 5.14).
fn cookie() -> Result<u64> {
    let (family, kind) = (AddressFamily::Inet, SockType::Datagram);
    let fresh: OwnedFd = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|error| Error::system("cannot make a socket", error))?;
    namespace_cookie(&fresh)
        .map_err(|errno| Error::system("cannot read a socket's network namespace", errno))
}

fn listed(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The namespaces of all threads in a group and in those below it.
fn tasks(group: &Path, into: &mut Vec<PathBuf>) {
    // A threaded group has no list of processes.
    for list in ["cgroup.procs", "cgroup.threads"] {
        let text = fs::read_to_string(group.join(list)).unwrap_or_default();
        into.extend(
            text.lines()
                .map(|task| PathBuf::from(format!("/proc/{task}/ns/net"))),
        );
    }
    for below in listed(group) {
        if below.is_dir() {
            tasks(&below, into);
        }
    }
}
