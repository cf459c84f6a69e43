//! Event loops in background threads.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};

use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};

use crate::endpoint::Endpoint;
use crate::options::Options;
use crate::outcome::{Outcome, Reason};
use crate::reactor::{EventLoop, Remote};
use crate::session::one_way::{OneWay, OneWayOptions, Plain, Rules};
use crate::session::pair::ends::Ends;
use crate::session::pair::{OnEnd, Pair};
use crate::session::{Handle, Status};

/// Background threads, each with an [`EventLoop`]. Pairs are assigned to them in turn.
///
/// Dropping it ends the loops and waits for the threads. Running pairs end with
/// [`Reason::Shutdown`].
pub struct Splicer {
    loops: Vec<Running>,
    next: AtomicUsize,
}

/// One loop and its thread.
struct Running {
    remote: Remote,
    thread: Option<JoinHandle<()>>,
}

impl Splicer {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if a thread or its loop cannot be created.
    pub fn new(threads: usize) -> Result<Self> {
        // If one fails, dropping this ends the loops so far.
        let mut splicer = Self {
            loops: Vec::new(),
            next: AtomicUsize::new(0),
        };
        for number in 0..threads.max(1) {
            let (sender, receiver) = mpsc::channel();
            let thread = thread::Builder::new()
                .name(format!("splice-{number}"))
                .spawn(move || match EventLoop::new() {
                    Err(error) => {
                        let _ = sender.send(Err(error));
                    }
                    Ok(mut event_loop) => {
                        let _ = sender.send(Ok(event_loop.remote()));
                        // A loop whose epoll instance fails can only end. Dropping it closes its
                        // pairs, and each reports to its handle.
                        let _ = event_loop.run();
                    }
                })
                .context("cannot start a thread for an event loop")?;
            let ended = |_| {
                let why = "an event loop ended as it started; this is a defect, please report it";
                Error::new(ErrorKind::LoopEnded, why)
            };
            let remote = receiver.recv().map_err(ended)??;
            splicer.loops.push(Running {
                remote,
                thread: Some(thread),
            });
        }
        Ok(splicer)
    }

    /// Joins two endpoints on one of the loops.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if an engine was chosen by name and cannot take the pair;
    /// [`ErrorKind::System`] if a socket does not take [`Options::keepalive`] or
    /// [`Options::user_timeout`]; [`ErrorKind::LoopEnded`] if the loop has failed. Then both
    /// sockets are closed.
    pub fn join(&self, a: Endpoint, b: Endpoint, options: &Options) -> Result<Handle> {
        self.run(Ends::Two([a, b]), options)
    }

    /// Joins two endpoints as [`join`](Self::join) does, and calls `on_end` on the pair's loop once
    /// it has ended and both sockets are closed.
    ///
    /// # Errors
    /// As [`join`](Self::join), but an engine that refuses the pair resets neither connection:
    /// whoever has duplicates of the descriptors can go on with them. If the loop has failed,
    /// `on_end` is called, too, with what an unstarted pair ends with.
    pub fn join_then(
        &self,
        a: Endpoint,
        b: Endpoint,
        options: &Options,
        on_end: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<Handle> {
        let ends = Ends::Two([a, b]);
        let plan = super::plan(&ends, options)?;
        let status = Arc::new(Status::new());
        let on_end: OnEnd = Box::new(on_end);
        let shared = Arc::clone(&status);
        let pair = Pair::new(ends, options, plan, None, shared, Some(on_end));
        self.start(pair, status)
    }

    /// Splices an endpoint to itself on one of the loops: see [`echo_task`](crate::echo_task).
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if an engine was chosen by name that needs two sockets;
    /// [`ErrorKind::LoopEnded`] if the loop has failed. Then the socket is closed.
    pub fn echo(&self, endpoint: Endpoint, options: &Options) -> Result<Handle> {
        self.run(Ends::Echo(endpoint), options)
    }

    /// Moves what arrives on `source` to `destination`, on one of the loops. Both descriptors stay
    /// the caller's, blocking or not, and may be closed: the splice has duplicates of its own.
    /// What has arrived already is moved when this returns. `on_end` gets the reason and the bytes
    /// moved; it is called once, in the thread that ends the splice, perhaps in this call.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedSocket`] if the two are not both streams or both datagram sockets;
    /// [`ErrorKind::System`] if the process has no descriptors left; [`ErrorKind::LoopEnded`] if
    /// the loop has failed.
    pub fn one_way(
        &self,
        source: impl AsFd,
        destination: impl AsFd,
        options: &OneWayOptions,
        on_end: impl FnOnce(Reason, u64) + Send + 'static,
    ) -> Result<OneWay> {
        self.one_way_by(Arc::new(Plain), source, destination, options, on_end)
    }

    /// As [`one_way`](Self::one_way), by the caller's rules.
    ///
    /// # Errors
    /// As [`one_way`](Self::one_way), and those of [`Rules::duplicate`].
    pub fn one_way_by(
        &self,
        rules: Arc<dyn Rules>,
        source: impl AsFd,
        destination: impl AsFd,
        options: &OneWayOptions,
        on_end: impl FnOnce(Reason, u64) + Send + 'static,
    ) -> Result<OneWay> {
        let (home, on_end) = (self.remote(), Box::new(on_end));
        OneWay::start(source, destination, options, &rules, home, on_end)
    }

    /// Reaches one of the loops, each in turn, to run tasks of the caller's there.
    pub fn remote(&self) -> Remote {
        self.next_loop().clone()
    }

    fn next_loop(&self) -> &Remote {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.loops.len();
        &self.loops[next].remote
    }

    fn run(&self, ends: Ends, options: &Options) -> Result<Handle> {
        let status = Arc::new(Status::new());
        let pair = super::pair(ends, options, None, &status, None)?;
        self.start(pair, status)
    }

    fn start(&self, pair: Pair, status: Arc<Status>) -> Result<Handle> {
        let home = self.next_loop();
        let shared = Arc::clone(&status);
        home.run(move |event_loop| super::place(event_loop, pair, &shared))?;
        Ok(Handle::new(status, home.clone()))
    }
}

impl Drop for Splicer {
    fn drop(&mut self) {
        for one in &self.loops {
            one.remote.end();
        }
        for one in &mut self.loops {
            if let Some(thread) = one.thread.take() {
                // A panic there was already printed, and must not become one in a drop.
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Splicer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Splicer")
            .field("threads", &self.loops.len())
            .finish()
    }
}

/// Joins two endpoints on the process's background threads, one per CPU, which the first call of
/// this or of [`echo()`] starts.
///
/// # Errors
/// As [`Splicer::new`] and [`Splicer::join`].
pub fn join(a: Endpoint, b: Endpoint, options: &Options) -> Result<Handle> {
    of_process()?.join(a, b, options)
}

/// Splices an endpoint to itself, on the same threads as [`join()`]: its peer gets back what it
/// sends, by any engine that needs no second socket.
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
/// use splice::{Endpoint, Options, Reason, echo};
///
/// let (mut client, socket) = UnixStream::pair()?;
/// let handle = echo(Endpoint::new(socket)?, &Options::default())?;
/// client.write_all(b"hello")?;
/// client.shutdown(std::net::Shutdown::Write)?;
/// let mut text = String::new();
/// client.read_to_string(&mut text)?;
/// assert_eq!(text, "hello");
/// let outcome = handle.wait();
/// assert_eq!((outcome.reason, outcome.moved.a_to_b), (Reason::EndOfStream, 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`Splicer::new`] and [`Splicer::echo`].
pub fn echo(endpoint: Endpoint, options: &Options) -> Result<Handle> {
    of_process()?.echo(endpoint, options)
}

fn of_process() -> Result<&'static Splicer> {
    static SPLICER: OnceLock<Splicer> = OnceLock::new();
    if let Some(splicer) = SPLICER.get() {
        return Ok(splicer);
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    // Two concurrent first calls create two; the second one ends its own.
    let _ = SPLICER.set(Splicer::new(threads)?);
    Ok(SPLICER
        .get()
        .unwrap_or_else(|| unreachable!("it was set above, by us or another")))
}
