//! A relay: what the command line means, and its life from the first socket to the last.
//!
//! ```text
//!           every loop runs           a signal            none left, or drain timeout
//! starting ─────────────────▶ running ────────▶ draining ────────────────────────────▶ cutting ──▶ over
//!    │ cannot start              │                 │ a second signal, a loop failed      ▲
//!    ▼                           └──a loop failed──┴────────(over with a failure)────────┘
//! over with a failure
//! ```
//!
//! While it cuts, and as long as it has nothing to undo while it starts, a signal ends the process on the
//! spot.

use std::iter;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use splice::{Address, EngineChoice, EngineName, EventLoop, Kind, Limits, Options, Remote, Waker};

use crate::access_log::{self, AccessLog};
use crate::cli::{EchoArgs, LifeArgs, RelayArgs};
use crate::complaint::Complaint;
use crate::listener::Listener;
use crate::listening::Listening;
use crate::live::Live;
use crate::place::Place;
use crate::refusal;
use crate::target::Target;

/// What all threads of a relay share.
pub(crate) struct Relay {
    pub(crate) goal: Goal,
    /// Clients come over TCP.
    listens_on_tcp: bool,
    pub(crate) options: Options,
    pub(crate) connect_timeout: Duration,
    pub(crate) access_log: Option<access_log::Sender>,
    pub(crate) live: Arc<Live>,
    pub(crate) next_id: AtomicU64,
    /// Connections that were closed before their end, by the end of the relay.
    pub(crate) cut_short: AtomicU64,
    pub(crate) shortage: Complaint,
    pub(crate) target_unreachable: Complaint,
    pub(crate) engine_refused: Complaint,
}

/// Where a client's bytes go.
pub(crate) enum Goal {
    Target(Arc<Target>),
    /// Back to it.
    Client,
}

/// What a relay is to do.
pub(crate) struct Plan {
    listen: Address,
    /// `None`: back to the client.
    target: Option<Address>,
    engine: EngineChoice,
    connect_timeout: Duration,
    access_log: Option<PathBuf>,
    busy_poll: Option<Duration>,
    life: LifeArgs,
}

impl From<RelayArgs> for Plan {
    fn from(args: RelayArgs) -> Self {
        Self {
            listen: args.listen,
            target: Some(args.target),
            engine: args.engine,
            connect_timeout: args.connect_timeout,
            access_log: args.access_log,
            busy_poll: None,
            life: args.life,
        }
    }
}

impl From<EchoArgs> for Plan {
    fn from(args: EchoArgs) -> Self {
        Self {
            listen: args.listen,
            target: None,
            engine: args.engine,
            connect_timeout: Duration::ZERO,
            access_log: None,
            busy_poll: args.busy_poll.then_some(BUSY_POLL),
            life: args.life,
        }
    }
}

/// What the echo servers of 2019 asked for ("SOCKMAP - TCP splicing of the future").
const BUSY_POLL: Duration = Duration::from_millis(10);

impl Relay {
    /// Whether `auto` may have pairs that go to the kernel.
    fn may_promote(&self) -> bool {
        self.options.segment_after.is_some()
            && self.listens_on_tcp
            && matches!(self.goal, Goal::Target(_))
    }

    /// Whether the target's segments have to fit the client: asking costs each connection a system
    /// call or two, which `auto` leaves to those who want the engine.
    pub(crate) fn translates_segments(&self) -> bool {
        self.options.engine == EngineChoice::Only(EngineName::Segment)
    }
}

/// A thread with a loop.
struct Worker {
    remote: Remote,
    listeners: Vec<Waker>,
    thread: JoinHandle<()>,
}

/// What the relay waits for once it runs.
enum Event {
    Signal,
    ListenersClosed,
    NoneLeft,
    LoopFailed(anyhow::Error),
}

/// What the doctor would say, to who asks for details: `auto` goes on without.
fn tell_what_does_not_work() {
    // Some need tens of milliseconds for the answer.
    if tracing::enabled!(tracing::Level::DEBUG) {
        let refusals = EngineName::ALL.iter().map(|engine| engine.probe());
        for refusal in refusals.filter_map(Result::err) {
            tracing::debug!("{refusal}");
        }
    }
}

/// Runs a relay until a signal ends it.
///
/// # Errors
/// What keeps it from starting, or made a loop fail.
pub(crate) fn run(plan: Plan) -> Result<()> {
    raise_descriptor_limit(plan.life.max_connections);
    if let EngineChoice::Only(engine) = plan.engine {
        if plan.target.is_none() {
            engine.can_echo()?;
        }
        let mut addresses = iter::once(&plan.listen).chain(&plan.target);
        if addresses.any(|address| !matches!(address, Address::Inet { .. })) {
            engine.can_take(Kind::Unix)?;
        }
    }
    if plan.engine == EngineChoice::Auto {
        tell_what_does_not_work();
    }
    let threads = plan.life.threads.map_or_else(
        || thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    let (sender, events) = mpsc::channel();
    // Until there is something to be undone, such as a socket's file, a signal ends it at once.
    let ends_at_once = watch_signals(sender.clone())?;
    let places = Place::to_listen(&plan.listen)?;
    let goal = match plan.target {
        Some(address) => Goal::Target(Target::new(address, plan.connect_timeout)?),
        None => Goal::Client,
    };
    let (log, log_sender) = plan
        .access_log
        .as_deref()
        .map(AccessLog::open)
        .transpose()?
        .unzip();
    ends_at_once.store(false, Ordering::Relaxed);
    let fits = match &goal {
        Goal::Target(target) if plan.engine == EngineChoice::Only(EngineName::Segment) => {
            target.segment_size()
        }
        _ => None,
    };
    let mut listening = Listening::on(&plan.listen, places, threads, fits)?;
    if let Some(time) = plan.busy_poll {
        listening.set_busy_poll(time)?;
    }
    if let Goal::Target(target) = &goal {
        refusal::of_itself(target, &listening.places)?;
        if plan.engine == EngineChoice::Only(EngineName::Segment) {
            refusal::of_families(&target.places(), &listening.places)?;
        }
    }
    let relay = Arc::new(Relay {
        goal,
        listens_on_tcp: matches!(plan.listen, Address::Inet { .. }),
        options: Options {
            engine: plan.engine,
            limits: Limits {
                idle_timeout: plan.life.idle_timeout,
                ..Limits::default()
            },
            ..Options::default()
        },
        connect_timeout: plan.connect_timeout,
        access_log: log_sender,
        live: Live::new(plan.life.max_connections),
        next_id: AtomicU64::new(0),
        cut_short: AtomicU64::new(0),
        shortage: Complaint::default(),
        target_unreachable: Complaint::default(),
        engine_refused: Complaint::default(),
    });
    let workers = std::mem::take(&mut listening.by_thread)
        .into_iter()
        .map(|sockets| Worker::start(sockets, listening.shared, &relay, plan.busy_poll, &sender))
        .collect::<Result<Vec<_>>>()?;
    for place in &listening.places {
        match &relay.goal {
            Goal::Target(target) => {
                tracing::info!("listening on {place}, relaying to {}", target.address);
            }
            Goal::Client => tracing::info!("listening on {place}, giving back what comes"),
        }
    }

    let ended = match events.recv() {
        Ok(Event::LoopFailed(error)) => Err(error),
        _ => drain(&relay, &workers, &sender, &events, plan.life.drain_timeout),
    };
    drop(listening);
    // From here on nobody takes a signal any more, and a log that takes no more lines, such as a
    // pipe whose reader has stopped, could hold the rest up for ever.
    ends_at_once.store(true, Ordering::Relaxed);
    for worker in &workers {
        worker.remote.end();
    }
    for worker in workers {
        // A panic there has been printed, and the others' connections deserve their end.
        let _ = worker.thread.join();
    }
    let cut_short = relay.cut_short.load(Ordering::Relaxed);
    if cut_short > 0 {
        tracing::warn!("cut {} short", connections(cut_short));
    }
    drop(relay);
    if let Some(log) = log {
        log.finish();
    }
    ended
}

/// Stops accepting and lets the connections end.
fn drain(
    relay: &Relay,
    workers: &[Worker],
    sender: &Sender<Event>,
    events: &Receiver<Event>,
    timeout: Duration,
) -> Result<()> {
    for worker in workers {
        worker.listeners.iter().for_each(Waker::close);
        let sender = sender.clone();
        // Letters are read in order: by then the listeners have taken in their backlogs. A loop
        // that has failed has no listeners any more, and the others go on.
        let closed = worker.remote.run({
            let sender = sender.clone();
            move |_| drop(sender.send(Event::ListenersClosed))
        });
        if closed.is_err() {
            let _ = sender.send(Event::ListenersClosed);
        }
    }
    let deadline = Instant::now().checked_add(timeout);
    let mut still_open = workers.len();
    loop {
        let left = deadline.map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        });
        match events.recv_timeout(left) {
            Ok(Event::ListenersClosed) => {
                still_open -= 1;
                if still_open == 0 {
                    // Only now is the number true: it holds who came out of the backlogs, and no
                    // listener counts somebody in who may not be there.
                    tracing::info!(
                        "no longer accepting; {} left with {} to end; a second signal ends the \
                         relay at once",
                        connections(relay.live.count() as u64),
                        humantime::format_duration(timeout)
                    );
                    let sender = sender.clone();
                    relay
                        .live
                        .when_none(move || drop(sender.send(Event::NoneLeft)));
                }
            }
            Ok(Event::NoneLeft) => return Ok(()),
            Ok(Event::LoopFailed(error)) => return Err(error),
            Ok(Event::Signal) => bail!("a second signal ended the relay before its connections"),
            Err(_) => return Ok(()),
        }
    }
}

fn connections(count: u64) -> String {
    match count {
        1 => "1 connection".into(),
        count => format!("{count} connections"),
    }
}

impl Worker {
    fn start(
        sockets: Vec<OwnedFd>,
        shared: bool,
        relay: &Arc<Relay>,
        busy_poll: Option<Duration>,
        events: &Sender<Event>,
    ) -> Result<Self> {
        let (ready, started) = mpsc::channel();
        let (relay, events) = (Arc::clone(relay), events.clone());
        let thread = thread::Builder::new()
            .name("loop".into())
            .spawn(move || {
                let mut event_loop = match EventLoop::new() {
                    Ok(event_loop) => event_loop,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                if let Some(time) = busy_poll
                    && let Err(error) = event_loop.set_busy_poll(time)
                {
                    tracing::warn!("{error}; only reads poll the device");
                }
                let listeners: Vec<_> = sockets
                    .into_iter()
                    .map(|socket| Listener::new(socket, shared, Arc::clone(&relay)))
                    .map(|listener| event_loop.spawn(Box::new(listener)))
                    .collect();
                let prepared = match relay.options.engine {
                    EngineChoice::Auto if !relay.may_promote() => Ok(()),
                    engine => event_loop.prepare(engine),
                };
                // An engine that cannot be used has the relay refuse to start; `auto` does without.
                if let Err(error) = prepared
                    && relay.options.engine != EngineChoice::Auto
                {
                    return drop(ready.send(Err(error)));
                }
                drop(relay);
                let _ = ready.send(Ok((event_loop.remote(), listeners)));
                // A panic is a defect, and a relay without its listeners must not look alive. What
                // the loop holds is closed with it.
                let ended = catch_unwind(AssertUnwindSafe(|| event_loop.run()));
                let error = match ended {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error.into(),
                    Err(_) => anyhow!("a loop of the relay failed by a defect; please report it"),
                };
                let _ = events.send(Event::LoopFailed(error));
            })
            .context("cannot start the thread of an event loop")?;
        let (remote, listeners) = started
            .recv()
            .context("an event loop ended as it started, by a defect; please report it")??;
        Ok(Self {
            remote,
            listeners,
            thread,
        })
    }
}

/// While the flag that it returns is set, and it is, a signal ends the process on the spot.
fn watch_signals(events: Sender<Event>) -> Result<Arc<AtomicBool>> {
    let ends_at_once = Arc::new(AtomicBool::new(true));
    for signal in [SIGTERM, SIGINT] {
        flag::register_conditional_shutdown(signal, crate::FAILED.into(), ends_at_once.clone())
            .context("signals cannot be handled")?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("signals cannot be handled")?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for _ in signals.forever() {
                if events.send(Event::Signal).is_err() {
                    break;
                }
            }
        })
        .context("cannot start the thread that waits for signals")?;
    Ok(ends_at_once)
}

/// A connection takes two descriptors, and the usual soft limit of 1024 is one for select(2).
pub(crate) fn raise_descriptor_limit(max_connections: Option<u32>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // It can fail only where something stronger than the limit forbids it.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    let wanted = max_connections.map(|most| u64::from(most) * 2 + DESCRIPTORS_BESIDE);
    if let (Some(maximum), Some(wanted)) = (maximum, wanted)
        && wanted > maximum
    {
        tracing::warn!(
            "--max-connections needs {wanted} descriptors and RLIMIT_NOFILE allows {maximum}; \
             raise it or connections will have to wait"
        );
    }
}

/// Descriptors that a relay has beside those of its connections: loops, listeners, pipes, logs.
const DESCRIPTORS_BESIDE: u64 = 100;

#[cfg(test)]
impl Relay {
    /// One that gives back what comes.
    pub(crate) fn back_to_clients(max_connections: Option<u32>) -> Self {
        Self {
            goal: Goal::Client,
            listens_on_tcp: true,
            options: Options::default(),
            connect_timeout: Duration::ZERO,
            access_log: None,
            live: Live::new(max_connections),
            next_id: AtomicU64::new(0),
            cut_short: AtomicU64::new(0),
            shortage: Complaint::default(),
            target_unreachable: Complaint::default(),
            engine_refused: Complaint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use netlab::PATIENCE;

    use super::*;

    /// `run` ends the program with the error then.
    #[test]
    fn a_panic_in_a_loop_is_told_to_the_relay() {
        let relay = Arc::new(Relay::back_to_clients(None));
        let (sender, events) = mpsc::channel();
        let worker = Worker::start(Vec::new(), false, &relay, None, &sender).expect("a worker");
        worker
            .remote
            .run(|_| panic!("the defect of this test"))
            .expect("it runs");
        match events.recv_timeout(PATIENCE) {
            Ok(Event::LoopFailed(error)) => {
                assert!(error.to_string().contains("defect"), "{error}");
            }
            _ => panic!("the relay does not hear of it"),
        }
        worker.thread.join().expect("the panic was caught");
    }
}
