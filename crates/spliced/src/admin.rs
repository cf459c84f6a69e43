//! The admin socket: how `spliced reload` and `spliced status` reach the process that runs a
//! configuration.
//!
//! A client connects, writes one request, a word and a newline, and reads one line of JSON:
//! `{"ok": ...}` or `{"error": "..."}`. The socket lies in a directory that only its owner may enter. Since somebody
//! may have opened that, the process also looks at who asks: root and its own user.

use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::listener::SocketFile;

/// How long a client of the socket may take to write its request, or to read its answer, and another process to start.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a start looks whether it is alone.
const LOOK_EVERY: Duration = Duration::from_millis(10);

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
pub(crate) struct AdminSocket {
    _file: SocketFile,
}

impl AdminSocket {
    /// Listens for those who ask for the process that runs `configuration`.
    ///
    /// # Errors
    /// If another process runs it, or the socket cannot be made.
    pub(crate) fn open(
        configuration: &Path,
        ask: impl Fn(Question) + Send + 'static,
    ) -> Result<Self> {
        let directory = directory();
        let path = directory.join(name_for(configuration)?);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let listener = listen(&directory, &path, configuration)?;
        let file = SocketFile::of(&path)?;
        thread::Builder::new()
            .name("admin".into())
            .spawn(move || {
                for client in listener.incoming().flatten() {
                    // A client that goes away misses only its own answer.
                    let _ = serve(client, &ask);
                }
            })
            .context("cannot start the thread of the admin socket")?;
        Ok(Self { _file: file })
    }
}

/// Takes the place of a process that was killed.
///
/// # Errors
/// If a process listens on `path`, or may do so.
fn listen(directory: &Path, path: &Path, configuration: &Path) -> Result<UnixListener> {
    // Otherwise one start could remove the socket that another one has just made, or has not yet listened on.
    let _alone = alone_in(directory)?;
    remove_stale(path, configuration)?;
    UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))
}

/// Waits until no other start of this user looks for its socket. That ends when the result is dropped.
fn alone_in(directory: &Path) -> Result<OwnedFd> {
    let told = directory.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock =
        open(directory, flags, Mode::empty()).with_context(|| format!("cannot open {told}"))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => bail!(
                "another process that starts has kept {told} locked for {} s; end it",
                PATIENCE.as_secs()
            ),
            Err(errno) => return Err(errno).with_context(|| format!("cannot lock {told}")),
        }
    }
}

/// Removes the socket of a process that was killed.
///
/// # Errors
/// If a process listens on it, or may do so.
fn remove_stale(path: &Path, configuration: &Path) -> Result<()> {
    let configuration = configuration.display();
    match probe(path) {
        Err(Errno::NOENT) => Ok(()),
        // Nobody listens (`unix_find_bsd`).
        Err(Errno::CONNREFUSED) => fs::remove_file(path)
            .with_context(|| format!("cannot remove {}, which nobody uses", path.display())),
        // The second: its backlog is full.
        Ok(()) | Err(Errno::AGAIN) => bail!("another process runs {configuration}"),
        Err(errno) => bail!(
            "whether another process runs {configuration} cannot be found out ({}: {}); remove that file if none \
             does",
            path.display(),
            io::Error::from(errno)
        ),
    }
}

/// Connects without waiting for a process that does not accept.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
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
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&client).take(REQUEST_MOST_BYTES)).read_line(&mut line)?;
    let peer = getsockopt(&client, PeerCredentials).map(|peer| peer.uid());
    let answer = match (
        admit(peer, geteuid().as_raw()),
        Request::of_word(line.trim()),
    ) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(request)) => {
            let (sender, answer) = mpsc::channel();
            ask(Question {
                request,
                answer: sender,
            });
            answer
                .recv()
                .unwrap_or_else(|_| Err(anyhow!("the process is ending")))
        }
        (Ok(()), None) => Err(anyhow!("the request is not 'reload' or 'status'")),
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
    let path = directory().join(name_for(configuration)?);
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

/// Where the sockets of this user are.
fn directory() -> PathBuf {
    let user = geteuid();
    match user.is_root() {
        true => PathBuf::from("/run/spliced"),
        false => PathBuf::from(format!("/run/user/{}/spliced", user.as_raw())),
    }
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
    use std::os::unix::net::UnixDatagram;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use netlab::{Need, Scratch, available};
    use rustix::net::bind;
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
                    writeln!(client, "reload").expect("sent");
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

    #[test]
    fn of_many_starts_at_once_one_gets_the_socket() {
        const STARTS: usize = 4;
        let scratch = Scratch::new("admin").expect("a directory");
        let path = scratch.path().join("sock");
        for round in 0..200 {
            // What a killed process has left.
            drop(UnixListener::bind(&path).expect("bound"));
            let barrier = Barrier::new(STARTS);
            let start = || {
                barrier.wait();
                listen(scratch.path(), &path, Path::new("c.toml"))
            };
            let started: Vec<_> = thread::scope(|scope| {
                let threads = [(); STARTS].map(|()| scope.spawn(start));
                threads
                    .map(|thread| thread.join().expect("no panic"))
                    .into()
            });
            let alive: Vec<_> = started.into_iter().filter_map(Result::ok).collect();
            assert_eq!(alive.len(), 1, "round {round}");
            assert_eq!(probe(&path), Ok(()), "round {round}");
            fs::remove_file(&path).expect("removed");
        }
    }

    #[test]
    fn a_process_that_does_not_accept_is_not_waited_for() {
        let scratch = Scratch::new("admin").expect("a directory");
        let path = scratch.path().join("sock");
        let address = SocketAddrUnix::new(&path).expect("a path");
        let flags = SocketFlags::CLOEXEC;
        let busy = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let busy = busy.expect("a socket");
        bind(&busy, &address).expect("bound");
        rustix::net::listen(&busy, 0).expect("it listens");
        let _waiting = UnixStream::connect(&path).expect("in the backlog");
        let error = remove_stale(&path, Path::new("c.toml")).expect_err("it runs");
        assert_eq!(error.to_string(), "another process runs c.toml");
        assert!(path.exists());
    }

    #[test]
    fn only_a_socket_that_nobody_uses_is_removed() {
        let scratch = Scratch::new("admin").expect("a directory");
        let path = scratch.path().join("sock");
        let remove = || remove_stale(&path, Path::new("c.toml")).map_err(|error| error.to_string());
        assert_eq!(remove(), Ok(()));
        let listener = UnixListener::bind(&path).expect("bound");
        assert_eq!(remove(), Err("another process runs c.toml".into()));
        drop(listener);
        assert_eq!(remove(), Ok(()));
        assert!(!path.exists());
        // connect(2) says EPROTOTYPE, which is no answer.
        let _datagrams = UnixDatagram::bind(&path).expect("bound");
        let error = remove().expect_err("not known");
        assert!(error.contains("cannot be found out"), "{error}");
        assert!(path.exists());
    }
}
