//! The running processes that a command asks.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hyper::{Method, StatusCode};
use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::admin::{Answer, ControlSocket, Failure, ask, found, inode};
use crate::backend::those;
use crate::control_args::WhichArgs;
use crate::resource_limit::raise_descriptor_limit;

/// How long a process may take for an answer that says only what is known.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long other users are waited for, once somebody has answered: one of them could delay everybody's commands.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(1);

/// The process that something is of, such as a session or a server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Of {
    process: u64,
    /// Where it was asked, which no other process has.
    #[serde(serialize_with = "as_path")]
    socket: Arc<ControlSocket>,
    #[serde(rename = "process_draining")]
    drains: bool,
}

impl Of {
    /// Of a process that serves, as far as that matters.
    pub(super) fn new(process: u64, socket: Arc<ControlSocket>) -> Self {
        Self {
            process,
            socket,
            drains: false,
        }
    }

    pub(super) fn process(&self) -> u64 {
        self.process
    }

    pub(super) fn drains(&self) -> bool {
        self.drains
    }

    /// Its cell in a table.
    pub(super) fn cell(&self) -> String {
        match self.drains {
            true => format!("draining {}", self.process),
            false => self.process.to_string(),
        }
    }

    /// At the beginning of a line.
    pub(super) fn in_words(&self) -> String {
        match self.drains {
            true => format!("draining process {}", self.process),
            false => format!("process {}", self.process),
        }
    }

    pub(super) fn socket(&self) -> &ControlSocket {
        &self.socket
    }

    pub(super) fn path(&self) -> &Path {
        &self.socket.path
    }
}

impl PartialEq for Of {
    fn eq(&self, other: &Self) -> bool {
        let is_same = Arc::ptr_eq(&self.socket, &other.socket) || self.path() == other.path();
        self.process == other.process && is_same
    }
}

impl Eq for Of {}

impl Hash for Of {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // There are many sessions of each, and paths would tell little more apart.
        self.process.hash(state);
    }
}

fn as_path<S: Serializer>(socket: &Arc<ControlSocket>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&socket.path.display())
}

/// A process that answers.
pub(super) struct Reached {
    /// Of its sockets one that takes orders, if this user may ask there.
    pub(super) socket: Arc<ControlSocket>,
    /// Its number, if this PID namespace has one for it.
    process: Option<i32>,
    /// Its status, or what it says of itself alone.
    pub(super) told: Value,
}

impl Reached {
    pub(super) fn process(&self) -> &Value {
        process_of(&self.told)
    }

    pub(super) fn of(&self) -> Of {
        let process = self.process()["pid"].as_u64().unwrap_or_default();
        Of {
            drains: self.drains(),
            ..Of::new(process, Arc::clone(&self.socket))
        }
    }

    /// What no other process has. Its number alone may be another one's in another PID namespace, and a process of another
    /// user can say what it likes.
    fn identity(&self) -> (bool, Option<i32>, [&Value; 3]) {
        let told = ["pid", "user", "started"].map(|key| &self.process()[key]);
        (self.socket.is_anothers(), self.process, told)
    }

    fn reads_only(&self) -> bool {
        self.process()["reads_only"] == true
    }

    pub(super) fn drains(&self) -> bool {
        self.process()["state"] == "draining"
    }

    /// What is the same for all that run the same file.
    pub(super) fn file(&self) -> &Value {
        let process = self.process();
        match &process["configuration_inode"] {
            Value::Null => &process["configuration"],
            inode => inode,
        }
    }
}

/// What a process says of itself, in its status or alone.
pub(super) fn process_of(told: &Value) -> &Value {
    told.get("process").unwrap_or(told)
}

fn process_of_mut(told: &mut Value) -> &mut Value {
    match told.get("process").is_some_and(Value::is_object) {
        true => &mut told["process"],
        false => told,
    }
}

/// Whether `process` runs the file `wanted`, under this name or another one.
pub(super) fn runs(process: &Value, wanted: &Path) -> bool {
    let told = |key: &str| process[key].as_str().map(Path::new);
    let is_named = || {
        let wanted = std::path::absolute(wanted);
        wanted.is_ok_and(|it| {
            ["configuration", "configuration_file"]
                .map(told)
                .contains(&Some(&it))
        })
    };
    let file = &process["configuration_inode"];
    match inode(wanted) {
        Ok(wanted) => wanted == *file,
        Err(error) if error.kind() == ErrorKind::NotFound => file.is_null() && is_named(),
        // It is hidden from this user, but perhaps not from the process.
        Err(_) => is_named(),
    }
}

pub(super) struct Searched {
    /// At least one, ordered by their numbers, each once.
    pub(super) reached: Vec<Reached>,
    /// Why others of this user or of root have told nothing.
    pub(super) silent: Vec<String>,
}

/// Finds the processes that were asked for, and asks each for `path`.
///
/// # Errors
/// If there is none.
pub(super) async fn search(which: &WhichArgs, path: &'static str) -> Result<Searched> {
    let sockets = match &which.control {
        Some(path) => vec![ControlSocket::named(path)],
        None => found(which.config.as_deref()),
    };
    let sockets: Vec<_> = sockets.into_iter().map(Arc::new).collect();
    let answers = ask_all(&sockets, path).await;
    let mut reached = Vec::new();
    let mut failed = Vec::new();
    for (socket, Answer { process, told }) in sockets.into_iter().zip(answers) {
        match told {
            Ok(mut told) if told.is_object() => {
                // It can say what it likes, but whose file answers is known.
                if let Some(owner) = socket.owner() {
                    process_of_mut(&mut told)["user"] = owner.into();
                }
                reached.push(Reached {
                    socket,
                    process,
                    told,
                });
            }
            Ok(_) => {
                let why = format!("{} is no control socket of spliced", socket.path.display());
                failed.push((socket, process, Failure::Told(why)));
            }
            Err(failure) => failed.push((socket, process, failure)),
        }
    }
    let mut reached = each_once(reached);
    // Whoever answers on one socket is not silent on another one.
    failed.retain(|(_, process, _)| {
        process.is_none() || reached.iter().all(|reached| reached.process != *process)
    });
    failed.sort_by(|(one, ..), (other, ..)| one.path.cmp(&other.path));
    let given = which.control.as_deref();
    let (mut silent, mut of_others) = (Vec::new(), Vec::new());
    for (socket, _, why) in failed {
        let of = match socket.is_anothers() {
            true => &mut of_others,
            false => &mut silent,
        };
        of.extend(words(&why, given));
    }
    let running = files(&reached);
    if let Some(wanted) = &which.config {
        reached.retain(|reached| runs(reached.process(), wanted));
    }
    if !reached.is_empty() {
        if which.config.is_some() {
            // They may run another one.
            silent.clear();
            of_others.clear();
        }
        of_others.iter().for_each(|why| leave_out(why));
        return Ok(Searched { reached, silent });
    }
    silent.append(&mut of_others);
    let others = match silent.is_empty() {
        true => String::new(),
        false => format!(" ({})", silent.join("; ")),
    };
    match (&which.config, &which.control) {
        (Some(wanted), _) => bail!(
            "no process that this user may ask runs {}{others}; {running}",
            wanted.display()
        ),
        (None, Some(_)) => bail!("{}", silent.join("; ")),
        (None, None) => bail!(
            "no process that this user may ask is running{others}; ask as its user or as root, or with --control PATH"
        ),
    }
}

/// Which files these processes run, for somebody who has asked for another one.
fn files(reached: &[Reached]) -> String {
    let files = reached
        .iter()
        .filter_map(|it| it.process()["configuration"].as_str());
    let files: BTreeSet<_> = files.map(|it| it.escape_debug().to_string()).collect();
    match (reached, files.is_empty()) {
        ([], _) => "ask as its user or as root, or start one with 'spliced run --config'".into(),
        (_, true) => "those that are running have no configuration".into(),
        (_, false) => those("running configuration", files.iter().map(String::as_str)),
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
            "this user may not connect to {path}; ask as the user of the process or as root, or let a group ask with \
             --control-group GROUP, or control_group of [process]"
        )),
        (Failure::Gone | Failure::Denied, None) => None,
    }
}

/// A process of another user has not told what it was asked for, which keeps nobody from what this user is about.
pub(super) fn leave_out(why: &str) {
    tracing::warn!("left out: {why}");
}

/// What the processes with these sockets answer, all of them asked at once.
pub(super) async fn ask_all(sockets: &[Arc<ControlSocket>], path: &str) -> Vec<Answer> {
    let until = Instant::now() + PATIENCE_WITH_OTHERS;
    let silent = |socket: &Arc<ControlSocket>| Answer {
        process: None,
        told: Err(Failure::silent(socket, PATIENCE_WITH_OTHERS)),
    };
    let mut answers: Vec<_> = sockets.iter().map(silent).collect();
    let mut waited_for = sockets.iter().filter(|it| !it.is_anothers()).count();
    let asked = sockets.iter().cloned().enumerate();
    let mut running: JoinSet<_> = asked
        .map(|(place, socket)| {
            let path = path.to_owned();
            async move { (place, ask(&socket, Method::GET, &path, PATIENCE).await) }
        })
        .collect();
    let mut has_answered = false;
    loop {
        let ended = match has_answered && waited_for == 0 {
            true => timeout_at(until, running.join_next()).await.ok().flatten(),
            false => running.join_next().await,
        };
        let Some(ended) = ended else {
            return answers;
        };
        let Ok((place, answer)) = ended else {
            continue;
        };
        waited_for -= usize::from(!sockets[place].is_anothers());
        has_answered |= matches!(answer.told, Ok(_) | Err(Failure::Refused(..)));
        answers[place] = answer;
    }
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
