//! The admin socket: how `spliced reload` and `spliced status` reach the process that runs a
//! configuration.
//!
//! A client connects, writes one request, a word and a newline, and reads one line of JSON:
//! `{"ok": ...}` or `{"error": "..."}`. The socket lies in a directory that only its owner may enter.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::geteuid;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

/// How long a client of the socket may take to write its request, or to read its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest request is a word.
const REQUEST_MOST_BYTES: u64 = 64;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Reload,
    Status,
}

impl Request {
    fn word(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Status => "status",
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        [Self::Reload, Self::Status]
            .into_iter()
            .find(|request| request.word() == word)
    }
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) request: Request,
    pub(crate) answer: Sender<Result<Value>>,
}

/// The socket of a running process; its file is removed on drop.
#[derive(Debug)]
pub(crate) struct AdminSocket(PathBuf);

impl AdminSocket {
    /// Listens for those who ask for the process that runs `configuration`.
    ///
    /// # Errors
    /// If another process runs it, or the socket cannot be made.
    pub(crate) fn open(
        configuration: &Path,
        ask: impl Fn(Question) + Send + 'static,
    ) -> Result<Self> {
        let path = path_for(configuration)?;
        if let Some(directory) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        if UnixStream::connect(&path).is_ok() {
            bail!("another process runs {}", configuration.display());
        }
        // Left behind by a process that was killed.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        thread::Builder::new()
            .name("admin".into())
            .spawn(move || {
                for client in listener.incoming().flatten() {
                    // A client that goes away misses only its own answer.
                    let _ = serve(client, &ask);
                }
            })
            .context("cannot start the thread of the admin socket")?;
        Ok(Self(path))
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn serve(mut client: UnixStream, ask: &impl Fn(Question)) -> Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&client).take(REQUEST_MOST_BYTES)).read_line(&mut line)?;
    let answer = match Request::of_word(line.trim()) {
        Some(request) => {
            let (sender, answer) = mpsc::channel();
            ask(Question {
                request,
                answer: sender,
            });
            answer
                .recv()
                .unwrap_or_else(|_| Err(anyhow!("the process is ending")))
        }
        None => Err(anyhow!("the request is not 'reload' or 'status'")),
    };
    let answer = match answer {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": format!("{error:#}") }),
    };
    Ok(writeln!(client, "{answer}")?)
}

/// Asks the process that runs `configuration`.
///
/// # Errors
/// What the process answers, or that there is none.
pub(crate) fn ask(configuration: &Path, request: Request) -> Result<Value> {
    let path = path_for(configuration)?;
    let mut process = UnixStream::connect(&path).map_err(|error| {
        anyhow!(
            "no process of this user runs {}: {error} ({}); start it with 'spliced run --config', or \
             send it SIGHUP",
            configuration.display(),
            path.display()
        )
    })?;
    writeln!(process, "{}", request.word())?;
    let mut line = String::new();
    // To the end of the stream: the process then has nothing left of this request.
    process.read_to_string(&mut line)?;
    let mut answer: Value =
        serde_json::from_str(&line).context("the process has ended without an answer")?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => bail!("{error}"),
        None => Ok(answer["ok"].take()),
    }
}

/// The same for everybody who names the same file, whatever the way to it.
fn path_for(configuration: &Path) -> Result<PathBuf> {
    let canonical = fs::canonicalize(configuration)
        .with_context(|| format!("cannot find {}", configuration.display()))?;
    let user = geteuid();
    let directory = if user.is_root() {
        PathBuf::from("/run/spliced")
    } else {
        PathBuf::from(format!("/run/user/{}/spliced", user.as_raw()))
    };
    let name = xxh3_64(canonical.as_os_str().as_encoded_bytes());
    Ok(directory.join(format!("{name:016x}.sock")))
}
