//! The admin socket: how `spliced reload` and `spliced status` reach the process that runs a
//! configuration.
//!
//! A client connects, writes one request, a word and a newline, and reads one line of JSON:
//! `{"ok": ...}` or `{"error": "..."}`. The socket lies in a directory that only its owner may enter
//! ([`run_directory`]). Since somebody may have opened that, the process also looks at who asks: root and its own user.

mod run_directory;

use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use rustix::process::geteuid;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use self::run_directory::{RunDirectory, Taken};
use crate::listener::SocketFile;

/// How long a client of the socket may take to write its request, or to read its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a reload may take: it may have to load the engines.
const RELOAD_WITHIN: Duration = Duration::from_secs(60);

/// How often a process that is asked nothing looks whether the file of its socket is still there.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The pause after a failure of this host.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest request is a word.
const REQUEST_MOST_BYTES: usize = 64;

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
///
/// ```text
/// opening ──▶ listening
///  │  ▲ ▲         │
///  │  │ └─────────┘ its file is gone
///  ▼  │ another process has the socket, which drains
/// waiting
/// ```
#[derive(Debug)]
pub(crate) struct AdminSocket {
    held: Arc<Mutex<Held>>,
}

#[derive(Debug)]
enum Held {
    NotYet,
    /// The thread that listens never ends, so nobody else takes the file for stale before it is removed.
    File(SocketFile),
    /// The process drains, so the file is not made again.
    Last(SocketFile),
    /// The process is ending.
    NoMore,
}

impl AdminSocket {
    /// Listens for those who ask for the process that runs `configuration`, as soon as no other process does. That one
    /// may be ending.
    ///
    /// # Errors
    /// If the configuration is gone, or there can be no thread. What else stands in the way is logged.
    pub(crate) fn open(
        configuration: &Path,
        ask: impl Fn(Question) + Send + 'static,
    ) -> Result<Self> {
        Self::open_in(run_directory::path_for_user(), configuration, ask)
    }

    fn open_in(
        directory: PathBuf,
        configuration: &Path,
        ask: impl Fn(Question) + Send + 'static,
    ) -> Result<Self> {
        let name = name_for(configuration)?;
        let shown = configuration.display().to_string();
        let held = Arc::new(Mutex::new(Held::NotYet));
        let opening = Opening {
            directory,
            name,
            configuration: shown,
            held: Arc::clone(&held),
        };
        thread::Builder::new()
            .name("admin".into())
            .spawn(move || {
                while let Some(listener) = opening.finish() {
                    accept(&listener, &ask, || opening.is_gone());
                }
            })
            .context("cannot start the thread of the admin socket")?;
        Ok(Self { held })
    }
}

impl AdminSocket {
    /// Leaves the socket to others, unless this process has it.
    pub(crate) fn stop_waiting(&self) {
        let mut held = lock(&self.held);
        *held = match mem::replace(&mut *held, Held::NoMore) {
            Held::File(file) | Held::Last(file) => Held::Last(file),
            Held::NotYet | Held::NoMore => Held::NoMore,
        };
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        *lock(&self.held) = Held::NoMore;
    }
}

/// A socket that is not there yet.
struct Opening {
    directory: PathBuf,
    name: String,
    configuration: String,
    held: Arc<Mutex<Held>>,
}

impl Opening {
    /// `None` if there is to be no socket (any more).
    fn finish(&self) -> Option<UnixListener> {
        let mut waits = false;
        let mut has_failed = false;
        loop {
            match self.attempt(!waits) {
                Ok(Attempt::Opened(listener)) => {
                    if waits {
                        tracing::info!(
                            "'spliced reload' and 'spliced status' reach this process now"
                        );
                    }
                    return Some(listener);
                }
                Ok(Attempt::TooLate) => return None,
                Ok(Attempt::Taken(taken)) => {
                    if !waits {
                        tracing::warn!(
                            "'spliced reload' and 'spliced status' cannot reach this process yet: another process runs \
                             {}; they will once that has ended, and SIGHUP reloads this one",
                            self.configuration
                        );
                    }
                    waits = true;
                    taken.wait();
                }
                Err(error) => {
                    if !has_failed {
                        warn_unreachable(&error);
                    }
                    if !waits {
                        return None;
                    }
                    // What stands in the way may go, since there is a way in principle.
                    has_failed = true;
                    thread::sleep(RETRY_AFTER);
                }
            }
        }
    }

    fn attempt(&self, is_first: bool) -> Result<Attempt> {
        // The process that has ended may have taken the directory along.
        let directory = RunDirectory::open(self.directory.clone())?;
        let attempted = self.attempt_in(&directory, is_first);
        if is_first {
            directory.clean();
        }
        attempted
    }

    fn attempt_in(&self, directory: &RunDirectory, is_first: bool) -> Result<Attempt> {
        let lock = directory.lock();
        if let (Err(error), true) = (&lock, is_first) {
            tracing::warn!("{error:#}; this process goes on without the lock");
        }
        let mut held = self::lock(&self.held);
        if matches!(*held, Held::NoMore) {
            return Ok(Attempt::TooLate);
        }
        Ok(match directory.listen(&self.name)? {
            Ok((listener, file)) => {
                *held = Held::File(file);
                Attempt::Opened(listener)
            }
            Err(taken) => Attempt::Taken(taken),
        })
    }
}

impl Opening {
    /// Whether the file of the socket is gone, or leads to another one, and the process is not ending.
    fn is_gone(&self) -> bool {
        let mut held = lock(&self.held);
        let is_gone = matches!(&*held, Held::File(file) if !file.is_in_place());
        if is_gone {
            *held = Held::NotYet;
        }
        is_gone
    }
}

enum Attempt {
    Opened(UnixListener),
    Taken(Taken),
    TooLate,
}

/// Says that the process has no socket. It still reloads on SIGHUP.
pub(crate) fn warn_unreachable(error: &Error) {
    tracing::warn!(
        "'spliced reload' and 'spliced status' cannot reach this process: {error:#}; SIGHUP reloads it"
    );
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one client after the other, until nobody finds the way here any more.
fn accept(listener: &UnixListener, ask: &impl Fn(Question), is_gone: impl Fn() -> bool) {
    // A call that waits has reserved the descriptor of its client (`__sys_accept4_file`, Linux 6.18), so that a process is
    // reached when it has none left. After poll(2) it would not be. Without the timeout nobody looks.
    let _ = sockopt::set_socket_timeout(listener, sockopt::Timeout::Recv, Some(LOOK_EVERY));
    loop {
        match listener.accept() {
            // A client that goes away misses only its own answer.
            Ok((client, _)) => drop(serve(client, ask)),
            // Whoever has connected before the file was gone has been served.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if is_gone() {
                    return;
                }
            }
            // Without a descriptor, accept(2) fails at once.
            Err(_) => thread::sleep(RETRY_AFTER),
        }
    }
}

/// Whether a process may ask this one, which runs as `user`.
///
/// # Errors
/// If it is neither root's nor the same user's, or that is not known.
fn admit(peer: Result<u32, impl Display>, user: u32) -> Result<()> {
    let remedy = "ask as that user or as root";
    match peer {
        Ok(peer) if peer == 0 || peer == user => Ok(()),
        Ok(peer) => bail!("user {peer} may not ask the process of user {user}; {remedy}"),
        Err(error) => bail!(
            "which user asks the process of user {user} cannot be found out ({error}), so it does not answer; {remedy}"
        ),
    }
}

fn serve(mut client: UnixStream, ask: &impl Fn(Question)) -> Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    // A stranger is not waited for.
    let peer = getsockopt(&client, PeerCredentials).map(|peer| peer.uid());
    let answer = match admit(peer, geteuid().as_raw()) {
        Err(error) => Err(error),
        Ok(()) => match Request::of_word(read_line(&client)?.trim()) {
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
        },
    };
    let answer = match answer {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": format!("{error:#}") }),
    };
    Ok(writeln!(client, "{answer}")?)
}

/// The line of a client, which has one time for all of it.
fn read_line(client: &UnixStream) -> Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    while line.len() < REQUEST_MOST_BYTES && !line.ends_with(b"\n") {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the request did not come in time");
        client.set_read_timeout(Some(left))?;
        let mut byte = [0];
        match (&*client).read(&mut byte) {
            Ok(0) => break,
            Ok(_) => line.extend(byte),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Asks the process that runs `configuration`.
///
/// # Errors
/// What the process answers, or that there is none.
pub(crate) fn ask(configuration: &Path, request: Request) -> Result<Value> {
    let path = run_directory::path_for_user().join(name_for(configuration)?);
    let patience = match request {
        Request::Status => PATIENCE,
        Request::Reload => RELOAD_WITHIN,
    };
    let silent = || {
        anyhow!(
            "the process that runs {} has not answered within {} s; see whether it is stopped, and what it logs",
            configuration.display(),
            patience.as_secs()
        )
    };
    let mut process = match connect_within(&path, patience) {
        Ok(process) => process,
        Err(Errno::AGAIN) => return Err(silent()),
        Err(errno) => bail!(
            "no process of this user runs {}: {} ({}); start it with 'spliced run --config', or send it SIGHUP",
            configuration.display(),
            io::Error::from(errno),
            path.display()
        ),
    };
    process.set_read_timeout(Some(patience))?;
    // A process that refuses this user answers without reading.
    let written = writeln!(process, "{}", request.word());
    let mut line = String::new();
    // To the end of the stream: the process then has nothing left of this request.
    match process.read_to_string(&mut line) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(silent()),
        Err(error) if !line.ends_with('\n') => return Err(error.into()),
        _ => {}
    }
    if line.is_empty() {
        written?;
    }
    let mut answer: Value =
        serde_json::from_str(&line).context("the process has ended without an answer")?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => bail!("{error}"),
        None => Ok(answer["ok"].take()),
    }
}

fn connect_within(path: &Path, patience: Duration) -> Result<UnixStream, Errno> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The backlog of a process that is stopped may be full.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// The same for everybody who names the same file, whatever the way to it.
fn name_for(configuration: &Path) -> Result<String> {
    let canonical = fs::canonicalize(configuration)
        .with_context(|| format!("cannot find {}", configuration.display()))?;
    let name = xxh3_64(canonical.as_os_str().as_encoded_bytes());
    Ok(format!("{name:016x}.sock"))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use netlab::{Need, Scratch, available, until};
    use rustix::process::Uid;
    use rustix::thread::set_thread_res_uid;

    use super::*;

    /// Owns nothing, by convention.
    const NOBODY: u32 = 65534;

    #[test]
    fn who_is_neither_root_nor_the_same_user_gets_no_answer() {
        assert!(admit(Ok::<_, &str>(0), 1000).is_ok());
        assert!(admit(Ok::<_, &str>(1000), 1000).is_ok());
        for (peer, why) in [
            (
                Ok(1001),
                "user 1001 may not ask the process of user 1000; ask as",
            ),
            (
                Err("broken"),
                "cannot be found out (broken), so it does not answer; ask as",
            ),
        ] {
            let error = admit(peer, 1000).expect_err("refused");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    /// Where everybody can reach the socket.
    #[test]
    fn another_user_gets_no_answer_from_an_open_socket() {
        if !available(Need::Root) {
            return;
        }
        let scratch = Scratch::new("admin").expect("a directory");
        let path = scratch.path().join("sock");
        let listener = UnixListener::bind(&path).expect("bound");
        for path in [scratch.path(), &path] {
            fs::set_permissions(path, Permissions::from_mode(0o777)).expect("set");
        }
        let asked = AtomicUsize::new(0);
        let answer = |user: Option<u32>| {
            thread::scope(|scope| {
                let client = scope.spawn(|| {
                    if let Some(user) = user {
                        let user = Uid::from_raw(user);
                        // Of this thread alone.
                        set_thread_res_uid(user, user, user).expect("another user");
                    }
                    let mut client = UnixStream::connect(&path).expect("connected");
                    // Nothing is waited for from another user.
                    if user.is_none() {
                        writeln!(client, "reload").expect("sent");
                    }
                    let mut answer = String::new();
                    client.read_to_string(&mut answer).expect("an answer");
                    answer
                });
                let (process, _) = listener.accept().expect("a client");
                let ask = |question: Question| {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let _ = question.answer.send(Ok(json!("done")));
                };
                serve(process, &ask).expect("served");
                client.join().expect("no panic")
            })
        };
        assert!(answer(Some(NOBODY)).contains("user 65534 may not ask the process of user 0"));
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        assert_eq!(answer(None), "{\"ok\":\"done\"}\n");
    }

    /// The socket of a process for a configuration in `scratch`, and how often it was asked.
    fn opened(scratch: &Scratch) -> (AdminSocket, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let ask = move |question: Question| {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = question.answer.send(Ok(json!("done")));
        };
        let directory = scratch.path().join("run");
        let configuration = scratch.write("c.toml", "").expect("written");
        let socket = AdminSocket::open_in(directory, &configuration, ask).expect("a thread");
        (socket, asked)
    }

    fn is_answered(scratch: &Scratch) -> bool {
        let name = name_for(&scratch.path().join("c.toml")).expect("a name");
        let path = scratch.path().join("run").join(name);
        let ask = || -> io::Result<String> {
            let mut process = UnixStream::connect(&path)?;
            writeln!(process, "status")?;
            let mut answer = String::new();
            process.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.contains("done"))
    }

    #[test]
    fn a_process_gets_the_socket_once_another_one_has_ended() {
        let scratch = Scratch::new("admin").expect("a directory");
        let (first, asked_first) = opened(&scratch);
        until("the first one answers", || is_answered(&scratch));
        let (second, asked_second) = opened(&scratch);
        let (third, asked_third) = opened(&scratch);
        // It is over before it gets the socket.
        drop(third);
        // It drains before it gets the socket.
        let (fourth, asked_fourth) = opened(&scratch);
        fourth.stop_waiting();
        first.stop_waiting();
        assert!(is_answered(&scratch));
        drop(first);
        until("the second one answers", || {
            is_answered(&scratch) && asked_second.load(Ordering::Relaxed) > 0
        });
        assert!(asked_first.load(Ordering::Relaxed) > 0);
        assert_eq!(asked_third.load(Ordering::Relaxed), 0);
        assert_eq!(asked_fourth.load(Ordering::Relaxed), 0);
        drop(second);
        assert!(!is_answered(&scratch));
        drop(fourth);
    }

    #[test]
    fn a_socket_whose_file_is_gone_is_made_again() {
        let scratch = Scratch::new("admin").expect("a directory");
        let directory = scratch.path().join("run");
        let path = directory
            .join(name_for(&scratch.write("c.toml", "").expect("written")).expect("a name"));
        let (first, _) = opened(&scratch);
        until("it answers", || is_answered(&scratch));
        fs::remove_file(&path).expect("removed");
        until("it answers again", || is_answered(&scratch));
        fs::remove_dir_all(&directory).expect("removed");
        until("it answers again", || is_answered(&scratch));
        // It is another process that has the path now.
        let (second, asked_second) = opened(&scratch);
        let _ = fs::remove_file(&path);
        until("one of them answers", || is_answered(&scratch));
        drop(first);
        until("the second one answers", || {
            is_answered(&scratch) && asked_second.load(Ordering::Relaxed) > 0
        });
        // A process that drains leaves it to others.
        second.stop_waiting();
        fs::remove_file(&path).expect("removed");
        drop(second);
        assert!(!path.exists());
    }

    /// The time is for the whole line.
    #[test]
    fn a_client_that_writes_slowly_is_not_waited_for_long() {
        let (client, process) = UnixStream::pair().expect("connected");
        let begin = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                while (&client).write_all(b"x").is_ok() && begin.elapsed() < 3 * PATIENCE {
                    thread::sleep(PATIENCE / 4);
                }
            });
            read_line(&process).expect_err("too slow");
            drop(process);
        });
        assert!(begin.elapsed() < 2 * PATIENCE);
    }

    #[test]
    fn a_lock_that_somebody_keeps_delays_neither_start_nor_end() {
        let scratch = Scratch::new("admin").expect("a directory");
        let directory = RunDirectory::open(scratch.path().join("run")).expect("usable");
        let held = directory.lock().expect("locked");
        let begin = Instant::now();
        drop(opened(&scratch));
        let elapsed = begin.elapsed();
        assert!(elapsed < Duration::from_millis(900), "{elapsed:?}");
        let (_socket, _) = opened(&scratch);
        until("it goes on without the lock", || is_answered(&scratch));
        drop(held);
    }
}
