//! The admin socket: how `spliced reload`, `status`, `sessions` and `kill` reach the process that runs a
//! configuration.
//!
//! A client connects, writes one request, a line, and reads one line of JSON:
//! `{"ok": ...}` or `{"error": "..."}`. The socket lies in a directory that only its owner may enter
//! ([`run_directory`]). Since somebody may have opened that, the process also looks at who asks: root and its own user.

mod place;
mod run_directory;
mod socket;
mod taken;

use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use rustix::process::geteuid;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

pub(crate) use self::socket::{AdminSocket, warn_unreachable};

/// How long a client of the socket may take to write its request, or to read its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a reload may take: it may have to load the engines.
const RELOAD_WITHIN: Duration = Duration::from_secs(60);

/// The longest request is a word and a number.
const REQUEST_MOST_BYTES: usize = 64;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Reload,
    Status,
    Sessions,
    /// The session with this id is to end.
    Kill(u64),
}

impl Request {
    fn line(self) -> String {
        match self {
            Self::Reload => "reload".into(),
            Self::Status => "status".into(),
            Self::Sessions => "sessions".into(),
            Self::Kill(id) => format!("kill {id}"),
        }
    }

    fn of_line(line: &str) -> Option<Self> {
        Some(match line.split_once(' ') {
            Some(("kill", id)) => Self::Kill(id.parse().ok()?),
            None if line == "reload" => Self::Reload,
            None if line == "status" => Self::Status,
            None if line == "sessions" => Self::Sessions,
            _ => return None,
        })
    }
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) request: Request,
    pub(crate) answer: Sender<Result<Value>>,
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

fn serve(client: UnixStream, ask: &impl Fn(Question)) -> Result<()> {
    // A stranger is not waited for.
    let peer = getsockopt(&client, PeerCredentials).map(|peer| peer.uid());
    let answer = match admit(peer, geteuid().as_raw()) {
        Err(error) => Err(error),
        Ok(()) => match Request::of_line(read_line(&client)?.trim()) {
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
            None => Err(anyhow!(
                "the request is not 'reload', 'status', 'sessions' or 'kill ID'"
            )),
        },
    };
    let answer = match answer {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": format!("{error:#}") }),
    };
    write_line(&client, &format!("{answer}\n"))
}

/// Writes an answer to a client, which has one time for all of it.
fn write_line(client: &UnixStream, line: &str) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    // A write that waits would wait as long for each buffer that it fills (`unix_stream_sendmsg`).
    client.set_nonblocking(true)?;
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match (&*client).write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                ensure!(!left.is_zero(), "the answer was not read in time");
                let mut room = [PollFd::new(client, PollFlags::OUT)];
                match poll(&mut room, Some(&Timespec::try_from(left)?)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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
    ask_at(&path, configuration, request)
}

fn ask_at(path: &Path, configuration: &Path, request: Request) -> Result<Value> {
    let patience = match request {
        Request::Reload => RELOAD_WITHIN,
        Request::Status | Request::Sessions | Request::Kill(_) => PATIENCE,
    };
    let silent = || {
        anyhow!(
            "the process that runs {} has not answered within {} s; see whether it is stopped, and what it logs",
            configuration.display(),
            patience.as_secs()
        )
    };
    let mut process = match connect_within(path, patience) {
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
    // A process that refuses this user answers without reading, and one that is ending does not answer.
    let _ = writeln!(process, "{}", request.line());
    let mut line = String::new();
    // To the end of the stream: the process then has nothing left of this request.
    match process.read_to_string(&mut line) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(silent()),
        Err(error) if error.kind() != ErrorKind::ConnectionReset && !line.ends_with('\n') => {
            return Err(error.into());
        }
        _ => {}
    }
    let Ok(mut answer) = serde_json::from_str::<Value>(&line) else {
        bail!(
            "the process that runs {} has ended before it answered; see what it logs, and ask again once it runs",
            configuration.display()
        );
    };
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
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

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

    #[test]
    fn a_process_that_ends_before_it_has_answered_is_named_in_words() {
        let scratch = Scratch::new("admin").expect("a directory");
        let path = scratch.path().join("sock");
        let listener = UnixListener::bind(&path).expect("bound");
        let told = |answer: &str, reads: bool| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut client, _) = listener.accept().expect("a client");
                    if reads {
                        read_line(&client).expect("a request");
                    } else {
                        // Closing resets the connection.
                        until("there is something to read", || {
                            rustix::io::ioctl_fionread(&client).is_ok_and(|bytes| bytes > 0)
                        });
                    }
                    client.write_all(answer.as_bytes()).expect("sent");
                });
                let told = ask_at(&path, Path::new("c.toml"), Request::Status);
                told.expect_err("no answer").to_string()
            })
        };
        for (answer, reads) in [("", true), ("{\"ok\": {\"a", true), ("", false)] {
            assert_eq!(
                told(answer, reads),
                "the process that runs c.toml has ended before it answered; see what it logs, and ask again once it runs"
            );
        }
    }

    /// The time is for the whole answer.
    #[test]
    fn a_client_that_reads_slowly_is_not_waited_for_long() {
        const PART_BYTES: usize = 64 << 10;
        let (client, process) = UnixStream::pair().expect("connected");
        let line = "x".repeat(64 * PART_BYTES);
        let begin = Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut part = vec![0; PART_BYTES];
                while begin.elapsed() < 3 * PATIENCE
                    && (&client).read(&mut part).is_ok_and(|length| length > 0)
                {
                    thread::sleep(PATIENCE / 4);
                }
            });
            write_line(&process, &line).expect_err("too slow");
            assert!(begin.elapsed() < 2 * PATIENCE);
            drop(process);
        });
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
}
