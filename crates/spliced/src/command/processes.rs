//! The running processes that a command asks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hyper::{Method, StatusCode};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::admin::{Answer, Failure, ask, found};
use crate::control_args::WhichArgs;
use crate::resource_limit::raise_descriptor_limit;

/// How long a process may take for an answer that says only what is known.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A process that answers.
pub(super) struct Reached {
    /// Of its sockets one that takes orders, if this user may ask there.
    pub(super) socket: PathBuf,
    /// Its number, if this PID namespace has one for it.
    process: Option<i32>,
    /// Its status, or what it says of itself alone.
    pub(super) told: Value,
}

impl Reached {
    pub(super) fn process(&self) -> &Value {
        match self.told.get("process") {
            Some(process) => process,
            None => &self.told,
        }
    }

    /// What no other process has. Its number alone may be another one's in another PID namespace.
    fn identity(&self) -> [&Value; 3] {
        ["pid", "user", "started"].map(|key| &self.process()[key])
    }

    fn reads_only(&self) -> bool {
        self.process()["reads_only"] == true
    }

    pub(super) fn drains(&self) -> bool {
        self.process()["state"] == "draining"
    }

    /// Whether it runs the file `wanted`, under this name or another one.
    fn runs(&self, wanted: &Path) -> bool {
        let path = |key: &str| self.process()[key].as_str().map(Path::new);
        let Some(named) = path("configuration") else {
            return false;
        };
        if std::path::absolute(wanted).is_ok_and(|wanted| wanted == named) {
            return true;
        }
        // A name may lead to another file since the start, as in a ConfigMap of Kubernetes.
        let Ok(file) = fs::canonicalize(wanted) else {
            return false;
        };
        path("configuration_file") == Some(&file)
            || fs::canonicalize(named).is_ok_and(|named| named == file)
    }
}

pub(super) struct Searched {
    /// At least one, ordered by their numbers, each once.
    pub(super) reached: Vec<Reached>,
    /// Why others have told nothing.
    pub(super) silent: Vec<String>,
}

/// Finds the processes that were asked for, and asks each for `path`.
///
/// # Errors
/// If there is none.
pub(super) async fn search(which: &WhichArgs, path: &'static str) -> Result<Searched> {
    let sockets = match &which.control {
        Some(path) => vec![path.clone()],
        None => found(which.config.as_deref()),
    };
    let asked = sockets.into_iter().map(|socket| async move {
        let answer = ask(&socket, Method::GET, path, PATIENCE).await;
        (socket, answer)
    });
    let mut reached = Vec::new();
    let mut failed = Vec::new();
    for (socket, Answer { process, told }) in all(asked).await {
        match told {
            Ok(told) if told.is_object() => reached.push(Reached {
                socket,
                process,
                told,
            }),
            Ok(_) => {
                let why = format!("{} is no control socket of spliced", socket.display());
                failed.push((process, Failure::Told(why)));
            }
            Err(failure) => failed.push((process, failure)),
        }
    }
    let mut reached = each_once(reached);
    // Whoever answers on one socket is not silent on another one.
    failed.retain(|(process, _)| {
        process.is_none() || reached.iter().all(|reached| reached.process != *process)
    });
    let given = which.control.as_deref();
    let silent = failed.iter().filter_map(|(_, why)| words(why, given));
    let mut silent: Vec<_> = silent.collect();
    if let Some(wanted) = &which.config {
        reached.retain(|reached| reached.runs(wanted));
    }
    if !reached.is_empty() {
        if which.config.is_some() {
            // They may run another one.
            silent.clear();
        }
        return Ok(Searched { reached, silent });
    }
    silent.sort();
    let others = match silent.is_empty() {
        true => String::new(),
        false => format!(" ({})", silent.join("; ")),
    };
    match (&which.config, &which.control) {
        (Some(wanted), _) => bail!(
            "no process that this user may ask runs {}{others}; start it with 'spliced run --config', or send it SIGHUP",
            wanted.display()
        ),
        (None, Some(_)) => bail!("{}", silent.join("; ")),
        (None, None) => bail!(
            "no process that this user may ask is running{others}; ask as its user or as root, or with --control PATH"
        ),
    }
}

/// A process may have another socket, for those who only read.
fn each_once(mut reached: Vec<Reached>) -> Vec<Reached> {
    reached.sort_by_key(|reached| (reached.process()["pid"].as_u64(), reached.reads_only()));
    let mut each: Vec<Reached> = Vec::new();
    for one in reached {
        if each.iter().all(|other| other.identity() != one.identity()) {
            each.push(one);
        }
    }
    each
}

/// `None` if nobody asked for the socket and it does not concern this user.
pub(super) fn words(failure: &Failure, given: Option<&Path>) -> Option<String> {
    let given = given.map(Path::display);
    match (failure, given) {
        (Failure::Refused(StatusCode::FORBIDDEN, _), None) => None,
        (Failure::Told(sentence) | Failure::Refused(_, sentence), _) => Some(sentence.clone()),
        (Failure::Gone, Some(path)) => Some(format!(
            "no process has the control socket {path}; correct the path, or see whether it runs"
        )),
        (Failure::Denied, Some(path)) => Some(format!(
            "this user may not connect to {path}; ask as the user of the process or as root"
        )),
        (Failure::Gone | Failure::Denied, None) => None,
    }
}

/// What becomes of tasks that run at the same time.
pub(super) async fn all<T: Send + 'static>(
    tasks: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let mut running: JoinSet<T> = tasks.collect();
    let mut results = Vec::new();
    while let Some(ended) = running.join_next().await {
        results.extend(ended);
    }
    results
}

/// Asks until `task` has its result.
///
/// # Errors
/// Those of the task, or that this host cannot run it.
pub(super) fn wait_for<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    // There may be many processes.
    raise_descriptor_limit(None);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot create an event loop; raise the limit on descriptors")?;
    runtime.block_on(task)
}
