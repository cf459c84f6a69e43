//! The server that an order is about, and the process that has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hyper::{Method, StatusCode};
use serde_json::Value;
use tokio::time::sleep;

use super::processes::{Of, PATIENCE, Reached, Searched, ask_all, leave_out, search, words};
use super::table::printable;
use crate::admin::{Failure, ask, path_of_server};
use crate::server_args::ServerArgs;
use crate::standard_output::print;

/// Where a process tells of all of its backends.
const BACKENDS: &str = "/v1/backends";

/// How often to ask what changes.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a process may take to end that answers that it does.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// So many servers are named to somebody who has named another one.
const NAMED_MOST: usize = 20;

/// A server of one backend of one process.
pub(super) struct Place {
    of: Of,
    backend: String,
    pub(super) server: String,
}

impl Place {
    /// Whether its process takes no new clients.
    pub(super) fn drains(&self) -> bool {
        self.of.drains()
    }

    /// What the process tells about the server.
    pub(super) async fn told(&self) -> Result<Value, Failure> {
        let path = path_of_server(&self.backend, &self.server, "");
        let told = ask(self.of.socket(), Method::GET, &path, PATIENCE)
            .await
            .told;
        once_clear(&self.of, &path, told).await
    }

    /// Asks the process to do that with the server.
    async fn ask(&self, method: Method, what: &str) -> Result<Value, Failure> {
        let path = path_of_server(&self.backend, &self.server, what);
        ask(self.of.socket(), method, &path, PATIENCE).await.told
    }

    /// Asks the process to change the server, and says what has come of it. Returns what it has told.
    ///
    /// # Errors
    /// If it does not.
    pub(super) async fn order(&self, method: Method, what: &str) -> Result<Value> {
        let told = match self.ask(method, what).await {
            Ok(told) => told,
            Err(failure) => bail!("{}", self.words(&failure)),
        };
        if self.of.drains() {
            tracing::warn!(
                "process {} drains and takes no new clients; no process is reached that serves in its place",
                self.of.process()
            );
        }
        if let Some(why) = told["backend_why_none"].as_str() {
            tracing::warn!(
                "process {}, backend {}: new clients get no server: {why}",
                self.of.process(),
                self.backend
            );
        }
        self.print(&told)?;
        Ok(told)
    }

    /// Says what the server is in, as `told`.
    ///
    /// # Errors
    /// If it cannot be printed.
    pub(super) fn print(&self, told: &Value) -> Result<()> {
        let Self {
            of,
            backend,
            server,
        } = self;
        print(&format!(
            "{}, backend {backend}, server {server}: {}\n",
            of.in_words(),
            in_words(told)
        ))
    }

    pub(super) fn words(&self, failure: &Failure) -> String {
        words(failure, Some(self.of.path())).unwrap_or_default()
    }
}

/// State, connections and weight of a server.
fn in_words(told: &Value) -> String {
    let state = told["state"].as_str().unwrap_or_default();
    let weight = format!("weight {}", told["weight"]);
    let mut parts = vec![state.to_owned(), connections(&told["connections"])];
    // There is a state of this name.
    if weight != state {
        parts.push(weight);
    }
    parts.join(", ")
}

/// So many, in words.
pub(super) fn connections(count: &Value) -> String {
    match count.as_u64() {
        Some(1) => "1 connection".into(),
        count => format!("{} connections", count.unwrap_or_default()),
    }
}

/// What a process has told when asked for `path`. One that drains may be about to end, and then answers that it is, or nothing: it
/// is asked again until it has ended.
async fn once_clear(of: &Of, path: &str, told: Result<Value, Failure>) -> Result<Value, Failure> {
    let is_unclear = |told: &Result<Value, Failure>| {
        use Failure::{Refused, Told};
        matches!(
            told,
            Err(Told(_) | Refused(StatusCode::SERVICE_UNAVAILABLE, _))
        )
    };
    let until = Instant::now() + ENDS_WITHIN;
    let mut told = told;
    while of.drains() && is_unclear(&told) && Instant::now() < until {
        sleep(LOOK_EVERY).await;
        told = ask(of.socket(), Method::GET, path, PATIENCE).await.told;
    }
    told
}

/// The backends of processes, ordered by the numbers of these.
pub(super) async fn backends_of(reached: Vec<Reached>) -> Vec<(Of, Result<Vec<Value>, Failure>)> {
    let sockets: Vec<_> = reached.iter().map(|it| Arc::clone(&it.socket)).collect();
    let answers = ask_all(&sockets, BACKENDS).await;
    let mut each = Vec::new();
    for (reached, answer) in reached.into_iter().zip(answers) {
        let of = reached.of();
        let told = once_clear(&of, BACKENDS, answer.told).await;
        let list = told.and_then(|mut told| match told.get_mut("backends").map(Value::take) {
            Some(Value::Array(list)) => Ok(list),
            _ => Err(Failure::Told(
                "it answers in another way than this version of spliced expects; use the version that runs".into(),
            )),
        });
        each.push((of, list));
    }
    each
}

/// Where the server is that somebody has named.
pub(super) struct Found {
    /// In one process, or in those that run one configuration.
    pub(super) places: Vec<Place>,
    /// In processes that had the same file before these, and drain.
    pub(super) draining: Vec<Place>,
}

/// Where the server is that `args` name.
///
/// # Errors
/// If no process has it, it is not clear which one is meant, or that is not known.
pub(super) async fn find(args: &ServerArgs) -> Result<Found> {
    let (server, which) = (&args.server, &args.which);
    let Searched {
        reached,
        silent: mut not_known,
    } = search(which, "/v1/process").await?;
    let files: HashMap<Of, Value> = reached
        .iter()
        .map(|reached| (reached.of(), reached.file().clone()))
        .collect();
    // One that is ending leaves the orders to those that serve.
    let some_serve = reached.iter().any(|reached| !reached.drains());
    let (mut places, mut draining, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (of, answer) in backends_of(reached).await {
        let backends = match answer {
            Ok(backends) => backends,
            // A process that has ended has no servers.
            Err(failure) => {
                match (words(&failure, None), of.socket().is_anothers()) {
                    (Some(why), true) => leave_out(&why),
                    (why, _) => not_known.extend(why),
                }
                continue;
            }
        };
        let is_left_alone = some_serve && of.drains();
        let mut having = Vec::new();
        for backend in &backends {
            let name = backend["name"].as_str().unwrap_or_default();
            if args.backend.as_ref().is_some_and(|wanted| wanted != name) {
                continue;
            }
            let servers = backend["servers"].as_array().into_iter().flatten();
            let names = servers.filter_map(|server| server["server"].as_str());
            let (same, different): (Vec<_>, Vec<_>) = names.partition(|name| name == server);
            if !is_left_alone {
                others.extend(different.into_iter().map(str::to_owned));
            }
            if !same.is_empty() {
                having.push(name);
            }
        }
        let place = |backend: &str| Place {
            of: of.clone(),
            backend: backend.into(),
            server: server.clone(),
        };
        if is_left_alone {
            draining.extend(having.into_iter().map(place));
            continue;
        }
        if having.len() > 1 {
            bail!(
                "the backends {} have a server {server} each; choose with --backend",
                having.join(", ")
            );
        }
        places.extend(having.into_iter().map(place));
    }
    let is_before = |one: &Place, other: &Place| {
        one.backend == other.backend && files.get(&one.of) == files.get(&other.of)
    };
    draining.retain(|one| places.iter().any(|place| is_before(one, place)));
    if !not_known.is_empty() {
        bail!(
            "{}; it may have a server {server}, so choose with --config or --control",
            not_known.join("; ")
        );
    }
    match &places[..] {
        [] => bail!("{}", no_server(args, others)),
        [_, _, ..] if which.config.is_none() => {
            let named = places.iter().map(|place| {
                let of = &place.of;
                format!("process {} ({})", of.process(), of.path().display())
            });
            bail!(
                "{} have a server {server} each; choose with --config or --control",
                named.collect::<Vec<_>>().join(", ")
            )
        }
        _ => Ok(Found { places, draining }),
    }
}

fn no_server(args: &ServerArgs, mut others: Vec<String>) -> String {
    let of_backend = match &args.backend {
        Some(backend) => format!(" of a backend {}", printable(backend)),
        None => String::new(),
    };
    others.sort();
    others.dedup();
    let with_kind = format!("udp:{}", args.server);
    if others.contains(&with_kind) {
        return format!(
            "there is no server {}{of_backend}; write {}",
            printable(&args.server),
            printable(&with_kind)
        );
    }
    let more = match others.len().saturating_sub(NAMED_MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    others.truncate(NAMED_MOST);
    match others.is_empty() {
        true => format!(
            "there is no server {}{of_backend}, nor another one there; see 'spliced backends'",
            printable(&args.server)
        ),
        false => format!(
            "there is no server {}{of_backend}; there are {}{more}",
            printable(&args.server),
            others.join(", ")
        ),
    }
}
