//! A relay from the command line to its end.
//!
//! ```text
//!           every loop runs           a signal            none left, or drain timeout
//! starting ─────────────────▶ running ────────▶ draining ────────────────────────────▶ cutting ──▶ over
//!    │ cannot start              │                 │ a second signal, a loop failed      ▲
//!    ▼                           └──a loop failed──┴────────(over with a failure)────────┘
//! over with a failure
//! ```
//!
//! As long as the relay has nothing to undo while it starts, a signal ends the process at once with
//! status 0. While it cuts connections, a second signal ends it without waiting for the logs
//! (`signal.rs`).

use std::iter;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use splice::{Address, EngineChoice, EngineName, Kind, Limits, Options};

use crate::access_log::AccessLog;
use crate::cli::{EchoArgs, LifeArgs, RelayArgs};
use crate::connection_limit::ConnectionLimit;
use crate::diagnostics::{Diagnostics, LAST_WORDS};
use crate::exit_status::{CUT_SHORT, FAILED};
use crate::firewall;
use crate::listener::ListeningSockets;
use crate::refusal;
use crate::resource_limit::raise_descriptor_limit;
use crate::service::{Destination, Service, Warnings};
use crate::signal::{Request, Signals};
use crate::socket_address::SocketAddress;
use crate::target::Target;
use crate::worker::Worker;

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

/// What the echo servers of 2019 set ("SOCKMAP - TCP splicing of the future").
const BUSY_POLL: Duration = Duration::from_millis(10);

impl Plan {
    /// Whether the engine was asked for by name and translates segments.
    fn needs_segment(&self) -> bool {
        self.engine == EngineChoice::Only(EngineName::Segment)
    }

    /// Refuses an engine that cannot do what the plan asks for.
    fn check_engine(&self) -> Result<()> {
        let EngineChoice::Only(engine) = self.engine else {
            log_missing_engines();
            return Ok(());
        };
        if self.target.is_none() {
            engine.can_echo()?;
        }
        let mut addresses = iter::once(&self.listen).chain(&self.target);
        if addresses.any(|address| !matches!(address, Address::Inet { .. })) {
            engine.can_take(Kind::Unix)?;
        }
        Ok(())
    }

    fn destination(&self) -> Result<Destination> {
        Ok(match &self.target {
            Some(address) => {
                Destination::Target(Target::new(address.clone(), self.connect_timeout)?)
            }
            None => Destination::Client,
        })
    }

    /// Binds the listening sockets, and refuses a target that clients could not be joined with.
    fn listen(
        &self,
        addresses: Vec<SocketAddress>,
        destination: &Destination,
    ) -> Result<ListeningSockets> {
        let threads = self.life.threads.map_or_else(
            || thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        );
        let largest_segment = match destination {
            Destination::Target(target) if self.needs_segment() => target.segment_size(),
            _ => None,
        };
        let sockets = ListeningSockets::bind(&self.listen, addresses, threads, largest_segment)?;
        if let Some(time) = self.busy_poll {
            sockets.set_busy_poll(time)?;
        }
        if let Destination::Target(target) = destination {
            refusal::of_itself(target, &sockets.addresses)?;
            if self.needs_segment() {
                refusal::of_families(&target.addresses(), &sockets.addresses)?;
            }
        }
        Ok(sockets)
    }

    fn service(&self, destination: Destination, access_log: Option<AccessLog>) -> Service {
        Service {
            destination,
            listens_on_tcp: matches!(self.listen, Address::Inet { .. }),
            options: Options {
                engine: self.engine,
                limits: Limits {
                    idle_timeout: self.life.idle_timeout,
                    ..Limits::default()
                },
                bypass_firewall: self.bypass_firewall,
                ..Options::default()
            },
            connect_timeout: self.connect_timeout,
            access_log,
            connection_limit: ConnectionLimit::new(self.life.max_connections),
            next_id: AtomicU64::new(0),
            cut_short: AtomicU64::new(0),
            warnings: Warnings::default(),
        }
    }
}

/// Logs why engines are missing, which `auto` goes on without. The log level is asked first, since
/// some probes take tens of milliseconds.
fn log_missing_engines() {
    if tracing::enabled!(tracing::Level::DEBUG) {
        let probes = EngineName::ALL.iter().map(|engine| engine.probe());
        for refusal in probes.filter_map(Result::err) {
            tracing::debug!("{refusal}");
        }
    }
}

/// What the relay waits for once it runs.
enum Event {
    Signal,
    Reopen,
    ListenersClosed,
    NoneLeft,
    LoopFailed(Error),
}

/// How a relay ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    /// Connections were reset at the end of draining.
    CutShort,
}

/// Runs a relay until a signal ends it.
///
/// # Errors
/// If the relay cannot start, or a loop fails.
pub(crate) fn run(plan: Plan, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    let (sender, events) = mpsc::channel();
    let progress = signals.watch(diagnostics.clone(), {
        let sender = sender.clone();
        move |request| {
            // Nobody receives once the relay has ended.
            let _ = sender.send(match request {
                Request::Stop => Event::Signal,
                Request::Reopen => Event::Reopen,
            });
        }
    })?;
    raise_descriptor_limit(plan.life.max_connections);
    plan.check_engine()?;
    let addresses = SocketAddress::to_listen(&plan.listen)?;
    let destination = plan.destination()?;
    let log = plan
        .access_log
        .as_deref()
        .map(AccessLog::open)
        .transpose()?;
    // From here on there may be a socket file to remove.
    progress.running();
    let mut sockets = plan.listen(addresses, &destination)?;
    let service = Arc::new(plan.service(destination, log.clone()));
    let workers = std::mem::take(&mut sockets.by_thread)
        .into_iter()
        .map(|of_thread| {
            let sender = sender.clone();
            let on_failure = move |error| drop(sender.send(Event::LoopFailed(error)));
            Worker::start(
                of_thread,
                sockets.shared,
                &service,
                plan.busy_poll,
                on_failure,
            )
        })
        .collect::<Result<Vec<_>>>()?;
    announce(&service, &sockets.addresses);
    let drained = match next_event(&events, None, log.as_ref()) {
        Some(Event::LoopFailed(error)) => Err(error),
        _ => drain(
            &service,
            &workers,
            &sender,
            &events,
            plan.life.drain_timeout,
        ),
    };
    drop(sockets);
    progress.ending(FAILED);
    workers.iter().for_each(Worker::end);
    workers.into_iter().for_each(Worker::join);
    let cut_short = service.cut_short.load(Ordering::Relaxed);
    let mut ended = Ended::Well;
    if cut_short > 0 {
        progress.ending(CUT_SHORT);
        ended = Ended::CutShort;
        let why = drained
            .as_ref()
            .map_or("the relay failed", |drained| drained.why_over);
        tracing::warn!("reset {}: {why}", connections(cut_short));
    }
    if let Some(log) = log {
        let deadline = drained.as_ref().ok().and_then(|drained| drained.deadline);
        let left = deadline.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now())
        });
        // The diagnostics have to be written within the drain timeout, too.
        log.finish(left.saturating_sub(LAST_WORDS).max(LAST_WORDS));
    }
    drained.map(|_| ended)
}

/// Logs what the relay does from now on, and what the packet filters mean for it.
fn announce(service: &Service, listening: &[SocketAddress]) {
    if let Destination::Target(target) = &service.destination
        && service.may_bypass_filters()
    {
        if service.options.bypass_firewall {
            tracing::info!("spliced connections bypass the packet filters of this host");
        } else {
            firewall::log_what_is_kept_back(listening, &target.addresses());
        }
    }
    for address in listening {
        match &service.destination {
            Destination::Target(target) => {
                tracing::info!("listening on {address}, relaying to {}", target.address);
            }
            Destination::Client => tracing::info!("listening on {address}, echoing every byte"),
        }
    }
}

/// Waits for the next event until `deadline`. Serves requests to reopen the access log meanwhile.
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
            (Event::Reopen, None) => tracing::info!("there is no access log to reopen"),
            (event, _) => return Some(event),
        }
    }
}

/// How draining ended.
struct Drained {
    /// Why connections that were left had no more time.
    why_over: &'static str,
    /// When the drain timeout ends; `None` if the clock cannot represent that time.
    deadline: Option<Instant>,
}

/// Stops accepting and lets the connections end.
fn drain(
    service: &Service,
    workers: &[Worker],
    sender: &Sender<Event>,
    events: &Receiver<Event>,
    timeout: Duration,
) -> Result<Drained> {
    for worker in workers {
        let sender = sender.clone();
        worker.stop_listening(move || drop(sender.send(Event::ListenersClosed)));
    }
    let deadline = Instant::now().checked_add(timeout);
    let over = |why_over| Ok(Drained { why_over, deadline });
    let mut still_open = workers.len();
    loop {
        match next_event(events, deadline, service.access_log.as_ref()) {
            Some(Event::ListenersClosed) => {
                still_open -= 1;
                if still_open == 0 {
                    // The count is exact only now: it includes the backlogs, and no listener holds a
                    // permit for a connection that may never come.
                    tracing::info!(
                        "no longer accepting; {} left with {} to end; a second signal, at least \
                         a second after the first, ends the relay at once",
                        connections(service.connection_limit.count() as u64),
                        humantime::format_duration(timeout)
                    );
                    let sender = sender.clone();
                    let none_left = move || drop(sender.send(Event::NoneLeft));
                    service.connection_limit.when_none(none_left);
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
