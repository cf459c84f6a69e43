//! The control socket of a running process: how it gets it, and keeps it.

use std::io::{self, ErrorKind};
use std::mem;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::Question;
use super::candidates::{Candidates, Place};
use super::facts::Facts;
use super::metrics_socket;
use super::name::Name;
use super::run_directory::RunDirectory;
use super::server::{Access, Server};
use super::taken::Taken;
use crate::control_args::ControlArgs;
use crate::listener::SocketFile;
use crate::metrics::Metrics;

/// How often a process that is asked nothing looks whether the file of its socket is still there.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The pause after a failure of this host.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The sockets of a running process; their files are removed on drop. Each goes its own way:
///
/// ```text
/// opening ──▶ listening
///  │  ▲ ▲         │
///  │  │ └─────────┘ its file is gone
///  ▼  │ another process has the socket, which drains, or something fails
/// waiting
/// ```
pub(crate) struct AdminSocket {
    server: Arc<Server>,
    held: Vec<Arc<Mutex<Held>>>,
    /// The process is ending, so it takes no address for metrics any more.
    is_ending: Arc<AtomicBool>,
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
    /// Listens for those who ask, as soon as no other process has the socket. That one may be ending.
    ///
    /// # Errors
    /// If there can be no thread. What else stands in the way is logged.
    pub(crate) fn open(
        control: &ControlArgs,
        facts: Arc<Facts>,
        metrics: Metrics,
        ask: impl Fn(Question) + Send + Sync + 'static,
    ) -> Result<Self> {
        let mut socket = Self {
            server: Arc::new(Server::start(facts, metrics, ask)?),
            held: Vec::new(),
            is_ending: Arc::default(),
        };
        if let Some(address) = &control.metrics {
            let (server, is_ending) = (Arc::clone(&socket.server), Arc::clone(&socket.is_ending));
            metrics_socket::open(address.clone(), server, is_ending)?;
        }
        let candidates = match &control.control {
            Some(path) => Candidates::given(path)?,
            None => Candidates::of_this_user(),
        };
        let access = Access {
            group: control.control_group,
            reads_only: false,
        };
        socket.add(candidates, access)?;
        if let Some(path) = &control.control_read {
            let access = Access {
                group: control.control_read_group,
                reads_only: true,
            };
            socket.add(Candidates::given(path)?, access)?;
        }
        Ok(socket)
    }

    fn add(&mut self, candidates: Candidates, access: Access) -> Result<()> {
        let held = Arc::new(Mutex::new(Held::NotYet));
        let opening = Opening {
            candidates,
            access,
            held: Arc::clone(&held),
        };
        let server = Arc::clone(&self.server);
        thread::Builder::new()
            .name("admin".into())
            .spawn(move || {
                while let Some(listener) = opening.finish() {
                    accept(&listener, &server, access, || opening.is_gone());
                }
            })
            .context("cannot start the thread of the control socket")?;
        self.held.push(held);
        Ok(())
    }

    /// Leaves the socket to others, unless this process has it.
    pub(crate) fn stop_waiting(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        for held in &self.held {
            let mut held = lock(held);
            *held = match mem::replace(&mut *held, Held::NoMore) {
                Held::File(file) | Held::Last(file) => Held::Last(file),
                Held::NotYet | Held::NoMore => Held::NoMore,
            };
        }
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        for held in &self.held {
            *lock(held) = Held::NoMore;
        }
        self.server.finish();
    }
}

/// A socket that is not there yet.
struct Opening {
    candidates: Candidates,
    access: Access,
    held: Arc<Mutex<Held>>,
}

impl Opening {
    /// `None` if there is to be no socket (any more).
    fn finish(&self) -> Option<UnixListener> {
        let mut waits = false;
        let mut has_failed = false;
        loop {
            match self.attempt(!waits && !has_failed) {
                Ok(Attempt::Opened(listener, path)) => {
                    let what = match self.access.reads_only {
                        true => "control socket for reading",
                        false => "control socket",
                    };
                    let now = match waits || has_failed {
                        true => ": 'spliced status' and 'spliced reload' reach this process now",
                        false => "",
                    };
                    tracing::info!("{what} at {}{now}", path.display());
                    return Some(listener);
                }
                Ok(Attempt::TooLate) => return None,
                Ok(Attempt::Taken(taken)) => {
                    if !waits {
                        tracing::warn!(
                            "'spliced status' and 'spliced reload' cannot reach this process yet: another process has \
                             the control socket {}; they will once that has ended, and SIGHUP reloads this one",
                            taken.path().display()
                        );
                    }
                    waits = true;
                    taken.wait();
                }
                Err(error) => {
                    if !has_failed {
                        warn_unreachable(&error);
                    }
                    // What stands in the way may go.
                    has_failed = true;
                    thread::sleep(RETRY_AFTER);
                    if matches!(*lock(&self.held), Held::NoMore) {
                        return None;
                    }
                }
            }
        }
    }

    /// Tries one place after the other.
    fn attempt(&self, is_first: bool) -> Result<Attempt> {
        let mut failed = Vec::new();
        for place in self.candidates.places() {
            match self.attempt_at(place, is_first) {
                Ok(attempt) => return Ok(attempt),
                Err(error) => failed.push(format!("{error:#}")),
            }
        }
        Err(self.candidates.none_of(&failed))
    }

    fn attempt_at(&self, place: &Place, is_first: bool) -> Result<Attempt> {
        // The process that has ended may have taken the directory along.
        let directory = RunDirectory::open(
            place.directory.clone(),
            &place.lock,
            self.access.group.is_some(),
        )?;
        let attempted = self.attempt_in(&directory, &place.name, is_first);
        if is_first {
            directory.clean(&place.name);
        }
        attempted
    }

    fn attempt_in(&self, directory: &RunDirectory, name: &Name, is_first: bool) -> Result<Attempt> {
        let lock = directory.lock();
        if let (Err(error), true) = (&lock, is_first) {
            tracing::warn!("{error:#}; this process goes on without the lock");
        }
        let mut held = self::lock(&self.held);
        if matches!(*held, Held::NoMore) {
            return Ok(Attempt::TooLate);
        }
        let mut taken = None;
        for name in name.to_try() {
            match directory.listen(&name, self.access.group)? {
                Ok((listener, file)) => {
                    *held = Held::File(file);
                    return Ok(Attempt::Opened(listener, directory.path.join(name)));
                }
                Err(found) => taken = Some(found),
            }
        }
        taken
            .map(Attempt::Taken)
            .context("the control socket has no name")
    }

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
    /// With its path.
    Opened(UnixListener, PathBuf),
    Taken(Taken),
    TooLate,
}

/// Says that the process has no socket. It still reloads on SIGHUP.
pub(crate) fn warn_unreachable(error: &Error) {
    tracing::warn!("'spliced status' and 'spliced reload' cannot reach this process: {error:#}");
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands each client to the server, until nobody finds the way here any more.
fn accept(listener: &UnixListener, server: &Server, access: Access, is_gone: impl Fn() -> bool) {
    // A call that waits has reserved the descriptor of its client (`__sys_accept4_file`, Linux 6.18). So nobody else takes
    // what the reserve has given up for it, as would be after poll(2). If the timeout cannot be set, a file that is gone
    // stays so.
    let _ = sockopt::set_socket_timeout(listener, sockopt::Timeout::Recv, Some(LOOK_EVERY));
    loop {
        match listener.accept() {
            // Nobody else is harmed if there is no room for it.
            Ok((client, _)) => drop(server.serve(client, access)),
            // Whoever has connected before the file was gone has been served.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if is_gone() {
                    return;
                }
                server.reserve.fill();
            }
            // Without a descriptor, accept(2) fails at once. What is kept is for those who give orders.
            Err(error) if lacks_descriptor(&error) && !access.reads_only => {
                server.make_room();
            }
            Err(_) => thread::sleep(RETRY_AFTER),
        }
    }
}

fn lacks_descriptor(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use netlab::{Scratch, until};
    use serde_json::json;

    use super::*;

    /// The socket of a process in `scratch`, and how often it was asked.
    fn opened(scratch: &Scratch) -> (AdminSocket, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let ask = move |question: Question| {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = question.answer.send(Ok(json!({ "done": true })));
        };
        let control = ControlArgs {
            control: Some(socket_of(scratch)),
            ..ControlArgs::default()
        };
        let facts = Arc::new(Facts::new("run", None));
        let socket = AdminSocket::open(
            &control,
            facts,
            Metrics::of_process(&crate::service::Process::new()),
            ask,
        )
        .expect("a thread");
        (socket, asked)
    }

    fn socket_of(scratch: &Scratch) -> PathBuf {
        scratch.path().join("run").join("control.sock")
    }

    fn is_answered(scratch: &Scratch) -> bool {
        let ask = || -> io::Result<String> {
            let mut process = UnixStream::connect(socket_of(scratch))?;
            process.write_all(b"GET /v1/status HTTP/1.0\r\n\r\n")?;
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
        let path = socket_of(&scratch);
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

    #[test]
    fn a_socket_that_could_not_be_made_is_made_later() {
        let scratch = Scratch::new("admin").expect("a directory");
        let directory = scratch.path().join("run");
        // In the way of the directory.
        fs::write(&directory, "").expect("written");
        let (socket, _) = opened(&scratch);
        let (ended, asked) = opened(&scratch);
        drop(ended);
        fs::remove_file(&directory).expect("removed");
        until("it answers", || is_answered(&scratch));
        // Once it was made it can be lost again.
        fs::remove_dir_all(&directory).expect("removed");
        fs::write(&directory, "").expect("written");
        until("it is known", || {
            matches!(*lock(&socket.held[0]), Held::NotYet)
        });
        fs::remove_file(&directory).expect("removed");
        until("it answers again", || is_answered(&scratch));
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_lock_that_somebody_keeps_delays_neither_start_nor_end() {
        let scratch = Scratch::new("admin").expect("a directory");
        let directory = RunDirectory::open(scratch.path().join("run"), ".control.sock.lock", false);
        let directory = directory.expect("usable");
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
