//! The program from a plan to its end.
//!
//! ```text
//!           every loop runs           a signal            none left, or drain timeout
//! starting ─────────────────▶ running ────────▶ draining ────────────────────────────▶ cutting ──▶ over
//!    │ cannot start              │                 │ a second signal, a loop failed      ▲
//!    ▼                           └──a loop failed──┴────────(over with a failure)────────┘
//! over with a failure
//! ```
//!
//! While it runs, a request to reload changes it to another plan (`deployment/mod.rs`), or changes nothing.
//!
//! As long as the relay has nothing to undo while it starts, a signal ends the process at once with
//! status 0. While it cuts connections, a second signal ends it without waiting for the logs
//! (`signal.rs`).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};
use serde_json::{Value, json};
use splice::SocketName;

use crate::admin::{self, AdminSocket, Facts};
use crate::bypass;
use crate::cli::EchoArgs;
use crate::config::PrefixWatch;
use crate::control_args::ControlArgs;
use crate::datagram;
use crate::deployment::{Deployment, connections, log_missing_engines};
use crate::diagnostics::{Diagnostics, LAST_WORDS};
use crate::exit_status::{CUT_SHORT, Ended, FAILED};
use crate::metrics::Metrics;
use crate::plan::{Action, ListenerPlan, Plan};
use crate::plural::counted;
use crate::refusal::WrongUsage;
use crate::resource_limit::{raise_descriptor_limit_for, require_descriptors_to_serve};
use crate::service::Process;
use crate::sessions::Engines;
use crate::signal::{Request, Signals};
use crate::worker::Worker;

/// What `spliced echo` is to do.
///
/// # Errors
/// If an option belongs to another kind of address.
pub(crate) fn plan_of_echo(args: EchoArgs) -> Result<Plan> {
    let log = &args.access_log;
    log.check()
        .map_err(|sentence| WrongUsage::new(sentence.into()))?;
    let access = args.life.file_access;
    let name = SocketName::Connected(args.listen.clone());
    access.suit(&name).map_err(WrongUsage::new)?;
    let listener = ListenerPlan {
        file_access: access,
        engine: args.engine,
        idle_timeout: args.idle_timeout,
        peer_timeouts: args.life.peer_timeouts(),
        max_connections: args.life.max_connections,
        access_log: args.access_log,
        busy_poll: args.busy_poll.then_some(BUSY_POLL),
        ..ListenerPlan::of_one(args.listen, Action::Echo)
    };
    Ok(Plan {
        threads: args.life.threads,
        drain_timeout: args.life.drain_timeout,
        control: args.control,
        listeners: vec![Arc::new(listener)],
        backends: Vec::new(),
        bypasses: Vec::new(),
        datagram_listeners: Vec::new(),
    })
}

/// What the echo servers of 2019 set ("SOCKMAP - TCP splicing of the future").
const BUSY_POLL: Duration = Duration::from_millis(10);

/// Where a plan comes from that can be read again.
pub(crate) struct Configuration {
    pub(crate) path: PathBuf,
    pub(crate) read: Box<dyn Fn() -> Result<Plan>>,
}

/// What the relay waits for once it runs.
enum Event {
    Signal,
    Reopen,
    Reload,
    Asked(admin::Question),
    ListenersClosed,
    NoneLeft,
    LoopFailed(Error),
}

/// Runs `plan`, that of `spliced COMMAND`, until a signal ends it. A request to reload reads the next one from
/// `configuration`.
///
/// # Errors
/// If the relay cannot start, or a loop fails.
pub(crate) fn run(
    plan: &Plan,
    command: &'static str,
    configuration: Option<Configuration>,
    signals: Signals,
    diagnostics: &Diagnostics,
) -> Result<Ended> {
    admin::check_groups(&plan.control)?;
    let (sender, events) = mpsc::channel();
    let progress = signals.watch(diagnostics.clone(), configuration.is_some(), {
        let sender = sender.clone();
        move |request| {
            // Nobody receives once the relay has ended.
            let _ = sender.send(match request {
                Request::Stop => Event::Signal,
                Request::Reopen => Event::Reopen,
                Request::Reload => Event::Reload,
            });
        }
    })?;
    raise_limit_for(plan);
    log_missing_engines();
    let busy_poll = plan
        .listeners
        .iter()
        .find_map(|listener| listener.busy_poll);
    // Without a configuration, no reload can add listeners of connections.
    let may_have_connections = configuration.is_some() || !plan.listeners.is_empty();
    let mut deployment = Deployment::new(plan.threads, may_have_connections, busy_poll, {
        let sender = sender.clone();
        move |error| drop(sender.send(Event::LoopFailed(error)))
    })?;
    // What checks servers and asks for names. A relay to one server does neither.
    if configuration.is_some() || plan.listeners.iter().any(|listener| listener.from_syn) {
        deployment.process.control.start()?;
    }
    if !plan.bypasses.is_empty() {
        // From then on there are pins to remove.
        progress.running();
    }
    let mut bypasses = bypass::Group::default();
    bypasses.apply(&plan.bypasses)?;
    // From then on there may be a socket file to remove.
    deployment.apply(plan, || progress.running(), require_descriptors_to_serve)?;
    let named = configuration.as_ref().map(|it| it.path.clone());
    let facts = Arc::new(Facts::new(command, named));
    if let Some(why) = deployment.log_what_is_copied() {
        facts.copies(why);
    }
    let admin = open_admin_socket(
        &plan.control,
        &facts,
        diagnostics,
        &deployment.process,
        &sender,
    );
    let mut running = Running {
        drain_timeout: plan.drain_timeout,
        control: plan.control.clone(),
        facts,
        prefixes: PrefixWatch::of(plan),
        deployment,
        bypasses,
        configuration,
        events,
    };
    let drained = match running.next_event(None) {
        Some(Event::LoopFailed(error)) => Err(error),
        _ => {
            running.facts.drains();
            // Another one may serve by now.
            admin.iter().for_each(AdminSocket::stop_waiting);
            running.drain(&sender)
        }
    };
    drop(admin);
    let all_left = running.bypasses.stop();
    let process = Arc::clone(&running.deployment.process);
    let threads = running.deployment.into_threads();
    progress.ending(FAILED);
    process.end();
    threads.loops.iter().for_each(Worker::end);
    let of_datagrams = threads.of_datagrams.iter();
    let of_datagrams = of_datagrams.flat_map(|(_, workers)| workers);
    of_datagrams.for_each(datagram::Worker::end);
    threads.loops.into_iter().for_each(Worker::join);
    for (service, workers) in threads.of_datagrams {
        workers.into_iter().for_each(datagram::Worker::join);
        service.log_total();
    }
    let cut_short = process.cut_short.load(Ordering::Relaxed);
    let mut ended = match all_left {
        true => Ended::Well,
        false => Ended::CutShort,
    };
    let sessions = process.cut_short_sessions.load(Ordering::Relaxed);
    if cut_short + sessions > 0 {
        progress.ending(CUT_SHORT);
        ended = Ended::CutShort;
        let why = drained
            .as_ref()
            .map_or("the relay failed", |drained| drained.why_over);
        if cut_short > 0 {
            tracing::warn!("reset {}: {why}", connections(cut_short));
        }
        if sessions > 0 {
            tracing::warn!("cut {} short: {why}", counted(sessions, "session"));
        }
    }
    let deadline = drained.as_ref().ok().and_then(|drained| drained.deadline);
    for log in threads.access_logs {
        let left = deadline.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now())
        });
        // The diagnostics have to be written within the drain timeout, too.
        log.finish(left.saturating_sub(LAST_WORDS).max(LAST_WORDS));
    }
    drained.map(|_| ended)
}

/// Without the socket the process still reloads on SIGHUP.
fn open_admin_socket(
    control: &ControlArgs,
    facts: &Arc<Facts>,
    diagnostics: &Diagnostics,
    process: &Arc<Process>,
    sender: &Sender<Event>,
) -> Option<AdminSocket> {
    let (sender, process) = (sender.clone(), Arc::clone(process));
    let metrics = Metrics::of_process(&process);
    let diagnostics = diagnostics.clone();
    let ask = move |question: admin::Question| match at_once(&process, &diagnostics, &question) {
        // Nobody receives if the client has gone away.
        Some(answer) => drop(question.answer.send(answer)),
        None => drop(sender.send(Event::Asked(question))),
    };
    AdminSocket::open(control, Arc::clone(facts), metrics, ask)
        .inspect_err(admin::warn_unreachable)
        .ok()
}

/// The answer to what concerns the backends, or the log. It does not wait for the main thread, which may wait for the
/// names of a reload.
fn at_once(
    process: &Process,
    diagnostics: &Diagnostics,
    question: &admin::Question,
) -> Option<Result<Value>> {
    if process.is_over() {
        return Some(Err(admin::Ending.into()));
    }
    match &question.request {
        admin::Request::Backends => Some(Ok(json!({ "backends": process.backends.told() }))),
        admin::Request::Order(order) => Some(process.backends.obey(order, &question.by)),
        admin::Request::Log(wanted) => Some(diagnostics.answer(*wanted, &question.by)),
        _ => None,
    }
}

/// Raises the limit on descriptors, and warns if it is too low for what the listeners may have together.
fn raise_limit_for(plan: &Plan) {
    let (connections, sessions) = plan.most_clients();
    raise_descriptor_limit_for(connections, sessions);
}

/// A relay that serves clients.
struct Running {
    deployment: Deployment,
    bypasses: bypass::Group,
    configuration: Option<Configuration>,
    /// Of the routes as they are now.
    prefixes: PrefixWatch,
    drain_timeout: Duration,
    control: ControlArgs,
    facts: Arc<Facts>,
    events: Receiver<Event>,
}

/// How draining ended.
struct Drained {
    /// Why connections that were left had no more time.
    why_over: &'static str,
    /// Until when the logs may be written. `None`: only as long as the last words may take, after a second signal, or if the clock
    /// cannot represent the end of the drain timeout.
    deadline: Option<Instant>,
}

impl Running {
    /// Waits for the next event until `deadline`. Serves requests to reload or to reopen the logs
    /// meanwhile.
    fn next_event(&mut self, deadline: Option<Instant>) -> Option<Event> {
        loop {
            let cut_at = self.deployment.cut_what_is_due(Instant::now());
            let until = deadline.into_iter().chain(cut_at).min();
            let left = until.map_or(Duration::MAX, |at| {
                at.saturating_duration_since(Instant::now())
            });
            match self.events.recv_timeout(left) {
                Ok(Event::Reopen) => self.deployment.reopen_access_logs(),
                // The log says how it went.
                Ok(Event::Reload) => drop(self.reload(deadline.is_some())),
                Ok(Event::Asked(question)) => {
                    let answer = match question.request {
                        admin::Request::Reload => self.reload(deadline.is_some()),
                        admin::Request::Drain(_) | admin::Request::Undrain(_)
                            if deadline.is_some() =>
                        {
                            Err(admin::Ending.into())
                        }
                        admin::Request::Drain(name) => self.deployment.drain(&name, &question.by),
                        admin::Request::Undrain(name) => {
                            self.deployment.undrain(&name, &question.by)
                        }
                        admin::Request::Status => Ok(self.status()),
                        admin::Request::Listeners => {
                            Ok(json!({ "listeners": self.deployment.listeners_told() }))
                        }
                        // They have been answered at once.
                        admin::Request::Backends
                        | admin::Request::Order(_)
                        | admin::Request::Log(_) => continue,
                        admin::Request::Sessions(about) => {
                            self.deployment.ask(about, question.answer);
                            continue;
                        }
                    };
                    // Nobody receives if the client has gone away.
                    let _ = question.answer.send(answer);
                }
                Ok(event) => return Some(event),
                Err(_) if deadline.is_some_and(|at| at <= Instant::now()) => return None,
                Err(_) => {}
            }
        }
    }

    fn status(&self) -> Value {
        let process = &self.deployment.process;
        let mut status = json!({
            "connections": process.connections.count(),
            "listeners": self.deployment.listeners_told(),
            "backends": process.backends.told(),
        });
        let mut engines = Engines::of(&process.sessions);
        engines.add_copied(self.deployment.datagram_sessions() as u64);
        engines.tell(&mut status);
        status
    }

    /// Changes to the configuration as it is now, or changes nothing but what [`bypass::Interrupted`] tells.
    fn reload(&mut self, is_ending: bool) -> Result<Value> {
        let Some(configuration) = &self.configuration else {
            bail!(
                "the process was started without a configuration, so there is nothing to read again"
            );
        };
        let applied = match is_ending {
            true => Err(admin::Ending.into()),
            false => (configuration.read)().and_then(|plan| {
                let bypasses = &mut self.bypasses;
                self.deployment
                    .apply(&plan, || (), || bypasses.apply(&plan.bypasses))?;
                raise_limit_for(&plan);
                let threads = self.deployment.threads();
                if plan
                    .threads
                    .is_some_and(|wanted| usize::from(wanted) != threads)
                {
                    tracing::warn!(
                        "the process keeps its {threads} threads; restart it to change their number"
                    );
                }
                if plan.control != self.control {
                    tracing::warn!(
                        "the process keeps its control socket and its address for metrics; restart it to change [process]"
                    );
                }
                self.drain_timeout = plan.drain_timeout;
                self.prefixes = PrefixWatch::of(&plan);
                Ok(())
            }),
        };
        match applied {
            Ok(()) => {
                tracing::info!("the configuration was reloaded");
                self.facts.reloaded(None);
                Ok(json!({ "reloaded": true }))
            }
            Err(error) => {
                let told = match error.is::<bypass::Interrupted>() {
                    true => "not reloaded",
                    false => "not reloaded, nothing has changed",
                };
                // Each mistake of the configuration has a line.
                let why = format!("{error:#}").trim_end().replace('\n', "; ");
                tracing::error!("{told}: {why}");
                self.facts.reloaded(Some(format!("{told}: {why}")));
                Err(error.context(told))
            }
        }
    }

    /// Stops accepting and lets the connections end.
    fn drain(&mut self, sender: &Sender<Event>) -> Result<Drained> {
        let timeout = self.drain_timeout;
        let mut still_open = self.deployment.stop_listening({
            let sender = sender.clone();
            move || drop(sender.send(Event::ListenersClosed))
        });
        let deadline = Instant::now().checked_add(timeout);
        let over = |why_over| Ok(Drained { why_over, deadline });
        let open = Arc::clone(&self.deployment.process.connections);
        loop {
            match self.next_event(deadline) {
                Some(Event::ListenersClosed) => {
                    still_open -= 1;
                    if still_open == 0 {
                        // The count is exact only now: it includes the backlogs, and no listener holds a
                        // permit for a connection that may never come.
                        tracing::info!(
                            "no longer accepting; {} left with {} to end; a second signal, at least \
                             a second after the first, ends the relay at once",
                            both(
                                open.count(),
                                self.deployment.datagram_sessions(),
                                self.deployment.has_connections(),
                            ),
                            humantime::format_duration(timeout)
                        );
                        let sender = sender.clone();
                        open.when_none(move || drop(sender.send(Event::NoneLeft)));
                    }
                }
                Some(Event::NoneLeft) => return over("the relay ended"),
                Some(Event::LoopFailed(error)) => return Err(error),
                Some(Event::Signal) => {
                    return Ok(Drained {
                        why_over: "a second signal ended the relay",
                        deadline: None,
                    });
                }
                Some(Event::Reopen | Event::Reload | Event::Asked(_)) => {}
                None => return over("the drain timeout was over"),
            }
        }
    }
}

/// How many there are of both, of which `sessions` are of datagrams. `has_connections`: there is a listener of connections.
fn both(all: usize, sessions: usize, has_connections: bool) -> String {
    // One may have ended since all were counted.
    let of_streams = all.saturating_sub(sessions);
    let (connections, told) = (connections(of_streams as u64), counted(sessions, "session"));
    match (of_streams, sessions) {
        (0, 0) if !has_connections => told,
        (_, 0) => connections,
        (0, _) => told,
        (_, _) => format!("{connections} and {told}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_sessions_are_told_by_their_names() {
        for (all, sessions, told) in [
            (0, 0, "0 connections"),
            (1, 0, "1 connection"),
            (3, 3, "3 sessions"),
            (4, 3, "1 connection and 3 sessions"),
            (3, 1, "2 connections and 1 session"),
            (0, 1, "1 session"),
        ] {
            assert_eq!(both(all, sessions, true), told);
        }
        assert_eq!(both(0, 0, false), "0 sessions");
    }
}
