//! Asks the processes, from a thread of its own: one that is silent delays neither the keys nor the others.
//!
//! Each process is followed apart. Now and then new ones are looked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hyper::Method;
use serde::Deserialize;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::super::processes::{PATIENCE, process_of, runs, wait_for, words};
use super::super::rated::rows;
use super::order::{Order, What};
use crate::admin::{ControlSocket, Failure, ask, found};
use crate::sessions::Row;

/// It reads lists of the whole host.
const LOOK_FOR_NEW_EVERY: Duration = Duration::from_secs(2);

/// What a process says of itself, as far as it is shown. Other versions may leave out or add fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) process: Process,
    pub(super) backends: Vec<Backend>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Process {
    pub(super) pid: u64,
    pub(super) started: String,
    pub(super) state: String,
    pub(super) reads_only: bool,
}

impl Process {
    /// Whether it ends with its last session.
    pub(super) fn drains(&self) -> bool {
        self.state == "draining"
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Backend {
    pub(super) name: String,
    pub(super) queued: u64,
    pub(super) servers: Vec<Server>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Server {
    pub(super) server: String,
    pub(super) addresses: Vec<String>,
    pub(super) state: String,
    pub(super) why: Option<String>,
    pub(super) since: Option<String>,
    pub(super) last_error: Option<LastError>,
    pub(super) weight: Option<u64>,
    pub(super) connections: u64,
    pub(super) total: u64,
    pub(super) failures: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LastError {
    pub(super) time: String,
    pub(super) error: String,
}

/// An answer of a process.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) status: Status,
    /// Or why it does not list them.
    pub(super) sessions: Result<Vec<Row>, String>,
}

#[derive(Debug)]
pub(super) enum News {
    Told(Arc<ControlSocket>, Told),
    /// The process of the socket has not answered, and why.
    Silent(PathBuf, String),
    /// There is no process, or none that is to be shown.
    Gone(PathBuf),
    /// Those that there are have been looked for.
    Searched,
    /// It is done, and why new clients of the backend get no server then; or why it is not done.
    Ordered(What, Result<Option<String>, String>),
}

/// Which processes are asked, and how often.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) control: Option<PathBuf>,
    pub(super) config: Option<PathBuf>,
    pub(super) delay: Duration,
}

/// The thread that asks.
#[derive(Debug)]
pub(super) struct Asker(UnboundedSender<Order>);

impl Asker {
    /// Starts it. `tell` is called there with all that it learns.
    pub(super) fn start(
        asked: Asked,
        tell: impl Fn(News) + Clone + Send + 'static,
    ) -> Result<Self> {
        let (sender, mut orders) = unbounded_channel::<Order>();
        let work = async move {
            let answer = tell.clone();
            tokio::spawn(async move {
                while let Some(order) = orders.recv().await {
                    let answer = answer.clone();
                    tokio::spawn(async move {
                        let result = give(&order).await;
                        answer(News::Ordered(order.what, result));
                    });
                }
            });
            watch(&asked, tell).await
        };
        thread::Builder::new()
            .name("asker".into())
            .spawn(move || wait_for(work).expect("an event loop"))
            .context("cannot start the thread that asks; raise the limits")?;
        Ok(Self(sender))
    }

    /// Gives an order. The answer is [`News::Ordered`].
    pub(super) fn order(&self, order: Order) {
        // It fails only if the thread is gone, and then a panic has ended the process.
        let _ = self.0.send(order);
    }
}

/// Finds processes and follows each.
async fn watch(asked: &Asked, tell: impl Fn(News) + Clone + Send + 'static) -> Result<()> {
    let mut followed: HashMap<PathBuf, JoinHandle<()>> = HashMap::new();
    loop {
        let sockets = match &asked.control {
            Some(path) => vec![ControlSocket::named(path)],
            None => {
                let config = asked.config.clone();
                spawn_blocking(move || found(config.as_deref())).await?
            }
        };
        followed.retain(|_, task| !task.is_finished());
        for socket in sockets {
            let path = socket.path.clone();
            let follow = || tokio::spawn(follow(socket, asked.clone(), tell.clone()));
            followed.entry(path).or_insert_with(follow);
        }
        tell(News::Searched);
        sleep(LOOK_FOR_NEW_EVERY).await;
    }
}

/// Asks one process until it is gone.
async fn follow(socket: ControlSocket, asked: Asked, tell: impl Fn(News)) {
    let path = socket.path.clone();
    let socket = Arc::new(socket);
    let mut turns = interval(asked.delay);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        match ask_one(&socket, &asked).await {
            Ok(Some(told)) => tell(News::Told(Arc::clone(&socket), told)),
            Ok(None) => tell(News::Gone(path.clone())),
            Err(failure) => match words(&failure, asked.control.as_deref()) {
                Some(why) => tell(News::Silent(path.clone(), why)),
                None => return tell(News::Gone(path)),
            },
        }
    }
}

/// `None` if it does not run the configuration.
async fn ask_one(socket: &ControlSocket, asked: &Asked) -> Result<Option<Told>, Failure> {
    let told = ask(socket, Method::GET, "/v1/status", PATIENCE)
        .await
        .told?;
    let runs = |file: &Path| runs(process_of(&told), file);
    if asked.config.as_deref().is_some_and(|file| !runs(file)) {
        return Ok(None);
    }
    let status = serde_json::from_value(told).map_err(|_| {
        Failure::Told(format!(
            "{} is no control socket of spliced",
            socket.path.display()
        ))
    })?;
    let told = ask(socket, Method::GET, "/v1/sessions", PATIENCE)
        .await
        .told;
    let sessions = match told.and_then(rows) {
        Err(Failure::Refused(_, why)) => Err(why),
        answer => Ok(answer?),
    };
    Ok(Some(Told { status, sessions }))
}

/// Returns why new clients of the backend get no server then.
///
/// # Errors
/// Why it is not done.
async fn give(order: &Order) -> Result<Option<String>, String> {
    let (of, what) = (&order.of, &order.what);
    let ended = || {
        let (process, subject) = (of.process(), what.subject());
        format!("process {process} has ended, and its {subject} with it")
    };
    let words = |failure| match failure {
        Failure::Gone => ended(),
        failure => words(&failure, Some(of.path())).unwrap_or_default(),
    };
    let process = ask(of.socket(), Method::GET, "/v1/process", PATIENCE).await;
    let process = process.told.map_err(words)?;
    if process["pid"] != of.process() || process["started"] != *order.started {
        return Err(ended());
    }
    let (method, path) = what.request();
    let answer = ask(of.socket(), method, &path, PATIENCE).await;
    let told = answer.told.map_err(words)?;
    Ok(told["backend_why_none"].as_str().map(Into::into))
}
