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
//! As long as it has nothing to undo while it starts, a signal ends the process on the spot, with
//! status 0; while it cuts, a second signal does, without waiting for the logs (`signal.rs`).

use std::iter;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use splice::{Address, EngineChoice, EngineName, EventLoop, Kind, Limits, Options, Remote, Waker};

use crate::access_log::AccessLog;
use crate::cli::{EchoArgs, LifeArgs, RelayArgs};
use crate::diagnostics::{Diagnostics, LAST_WORDS};
use crate::firewall;
use crate::listener::Listener;
use crate::listening::Listening;
use crate::live::Live;
use crate::place::Place;
use crate::rate_limited_warning::RateLimitedWarning;
use crate::refusal;
use crate::signal::{Request, Signals};
use crate::target::Target;

/// What all threads of a relay share.
pub(crate) struct Relay {
    pub(crate) goal: Goal,
    /// Clients come over TCP.
    listens_on_tcp: bool,
    pub(crate) options: Options,
    pub(crate) connect_timeout: Duration,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) live: Arc<Live>,
    pub(crate) next_id: AtomicU64,
    /// Connections that were closed before their end, by the end of the relay.
    pub(crate) cut_short: AtomicU64,
    pub(crate) shortage: RateLimitedWarning,
    pub(crate) max_connections_reached: RateLimitedWarning,
    pub(crate) target_unreachable: RateLimitedWarning,
    pub(crate) engine_refused: RateLimitedWarning,
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
    bypass_firewall: bool,
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
            bypass_firewall: args.bypass_firewall,
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
            bypass_firewall: false,
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

    /// Whether pairs may go past the packet filters of this host.
    fn may_segment(&self) -> bool {
        self.may_promote() && self.options.engine == EngineChoice::Auto
            || self.translates_segments()
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
    Reopen,
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

/// How a relay ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    /// Connections were cut at the end of draining.
    CutShort,
}

/// Runs a relay until a signal ends it.
///
/// # Errors
/// What keeps it from starting, or made a loop fail.
pub(crate) fn run(plan: Plan, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    let (sender, events) = mpsc::channel();
    let progress = signals.watch(diagnostics.clone(), {
        let sender = sender.clone();
        move |request| {
            // Nobody listens once the relay has ended.
            let _ = sender.send(match request {
                Request::Stop => Event::Signal,
                Request::Reopen => Event::Reopen,
            });
        }
    })?;
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
    let places = Place::to_listen(&plan.listen)?;
    let goal = match plan.target {
        Some(address) => Goal::Target(Target::new(address, plan.connect_timeout)?),
        None => Goal::Client,
    };
    let log = plan
        .access_log
        .as_deref()
        .map(AccessLog::open)
        .transpose()?;
    let fits = match &goal {
        Goal::Target(target) if plan.engine == EngineChoice::Only(EngineName::Segment) => {
            target.segment_size()
        }
        _ => None,
    };
    // A socket's file has to be removed again.
    progress.running();
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
            bypass_firewall: plan.bypass_firewall,
            ..Options::default()
        },
        connect_timeout: plan.connect_timeout,
        access_log: log.clone(),
        live: Live::new(plan.life.max_connections),
        next_id: AtomicU64::new(0),
        cut_short: AtomicU64::new(0),
        shortage: RateLimitedWarning::default(),
        max_connections_reached: RateLimitedWarning::default(),
        target_unreachable: RateLimitedWarning::default(),
        engine_refused: RateLimitedWarning::default(),
    });
    let workers = std::mem::take(&mut listening.by_thread)
        .into_iter()
        .map(|sockets| Worker::start(sockets, listening.shared, &relay, plan.busy_poll, &sender))
        .collect::<Result<Vec<_>>>()?;
    if let Goal::Target(target) = &relay.goal
        && relay.may_segment()
    {
        if relay.options.bypass_firewall {
            tracing::info!("spliced connections bypass the packet filters of this host");
        } else {
            firewall::tell_what_is_kept_back(&listening.places, &target.places());
        }
    }
    for place in &listening.places {
        match &relay.goal {
            Goal::Target(target) => {
                tracing::info!("listening on {place}, relaying to {}", target.address);
            }
            Goal::Client => tracing::info!("listening on {place}, giving back what comes"),
        }
    }
    let drained = match next_event(&events, None, log.as_ref()) {
        Some(Event::LoopFailed(error)) => Err(error),
        _ => drain(&relay, &workers, &sender, &events, plan.life.drain_timeout),
    };
    drop(listening);
    progress.ending(crate::FAILED);
    for worker in &workers {
        worker.remote.end();
    }
    for worker in workers {
        // A panic there has been printed, and the others' connections deserve their end.
        let _ = worker.thread.join();
    }
    let cut_short = relay.cut_short.load(Ordering::Relaxed);
    let mut ended = Ended::Well;
    if cut_short > 0 {
        progress.ending(crate::CUT_SHORT);
        ended = Ended::CutShort;
        let why = drained
            .as_ref()
            .map_or("the relay failed", |drained| drained.why_over);
        tracing::warn!("cut {} short: {why}", connections(cut_short));
    }
    if let Some(log) = log {
        let deadline = drained.as_ref().ok().and_then(|drained| drained.deadline);
        let left = deadline.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now())
        });
        // The diagnostics have to be written as well within the drain timeout.
        log.finish(left.saturating_sub(LAST_WORDS).max(LAST_WORDS));
    }
    drained.map(|_| ended)
}

/// Waits for the next event until `deadline`. Requests to open the log again are served meanwhile.
fn next_event(
    events: &Receiver<Event>,
    deadline: Option<Instant>,
    log: Option<&AccessLog>,
) -> Option<Event> {
    loop {
        let left = deadline.map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        });
        match (events.recv_timeout(left).ok()?, log) {
            (Event::Reopen, Some(log)) => log.reopen(),
            (Event::Reopen, None) => {
                tracing::info!("there is no access log that could be opened again");
            }
            (event, _) => return Some(event),
        }
    }
}

/// How draining came to its end.
struct Drained {
    /// Why no connection had more time.
    why_over: &'static str,
    /// When the drain timeout is over; `None` when the clock has no such time.
    deadline: Option<Instant>,
}

/// Stops accepting and lets the connections end.
fn drain(
    relay: &Relay,
    workers: &[Worker],
    sender: &Sender<Event>,
    events: &Receiver<Event>,
    timeout: Duration,
) -> Result<Drained> {
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
    let over = |why_over| Ok(Drained { why_over, deadline });
    let mut still_open = workers.len();
    loop {
        match next_event(events, deadline, relay.access_log.as_ref()) {
            Some(Event::ListenersClosed) => {
                still_open -= 1;
                if still_open == 0 {
                    // Only now is the number true: it holds who came out of the backlogs, and no
                    // listener counts somebody in who may not be there.
                    tracing::info!(
                        "no longer accepting; {} left with {} to end; a second signal, from a \
                         second on after the first, ends the relay at once",
                        connections(relay.live.count() as u64),
                        humantime::format_duration(timeout)
                    );
                    let sender = sender.clone();
                    relay
                        .live
                        .when_none(move || drop(sender.send(Event::NoneLeft)));
                }
            }
            Some(Event::NoneLeft) => return over("the relay ended"),
            Some(Event::LoopFailed(error)) => return Err(error),
            Some(Event::Signal) => return over("a second signal ended the relay"),
            Some(Event::Reopen) => {}
            None => return over("the drain timeout was over"),
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
            shortage: RateLimitedWarning::default(),
            max_connections_reached: RateLimitedWarning::default(),
            target_unreachable: RateLimitedWarning::default(),
            engine_refused: RateLimitedWarning::default(),
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
