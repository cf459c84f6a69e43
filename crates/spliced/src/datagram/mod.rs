//! A relay of datagrams: UDP and UNIX datagram sockets.
//!
//! ```text
//!              ┌───────────── one worker a thread ─────────────┐
//! clients ──▶ listener ──▶ session of this client ──▶ its own connected socket ──▶ target
//!         ◀──────────────────────────────────────────◀
//! ```
//!
//! A client's first datagram opens a **session**: a socket that is connected to the target, so that an ICMP
//! error of the target is an error of this session. A session ends when it is idle, when its target or its
//! client is gone, or when it has to make room.
//!
//! ```text
//!         SIGTERM                every session is quiet, or the drain timeout, or a second signal
//! running ───────▶ draining ────────────────────────────────────────────────────────────────────▶ over
//! ```
//!
//! Nothing is queued outside of the sockets' buffers. What does not fit is dropped and counted, as a router
//! does it.

mod batch;
mod control;
mod counters;
mod destination;
mod held;
mod icmp;
mod listeners;
mod outcome;
mod piece;
mod plan;
mod queue;
mod sender;
mod sending;
mod service;
mod session;
mod sessions;
mod socket;
mod worker;

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

pub(crate) use self::control::{Group, Hold};
use self::destination::OneTarget;
pub(crate) use self::destination::{Destination, Route, Routes};
pub(crate) use self::listeners::Listeners;
pub(crate) use self::plan::{DatagramPlan, shown, threads_of};
pub(crate) use self::service::{DatagramService, ServiceTerms};
pub(crate) use self::worker::Worker;
use crate::access_log::AccessLog;
use crate::admin::{AdminSocket, Single, check_groups};
use crate::diagnostics::{Diagnostics, LAST_WORDS};
use crate::exit_status::{CUT_SHORT, FAILED};
use crate::metrics::Counts;
use crate::plural::counted;
use crate::refusal;
use crate::resource_limit::raise_descriptor_limit_for;
use crate::service::Process;
use crate::sessions::Survey;
use crate::signal::{Request, Signals};
use crate::target::Target;

/// How long a target's name may take at the start; later answers are taken when they come.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);

enum Event {
    Stop,
    Reopen,
    WorkerEnded(Result<(), Error>),
}

/// Relays as `plan` says until a signal ends it. Returns whether every session ended by itself.
///
/// # Errors
/// If the relay cannot start, or a thread fails.
pub(crate) fn run(plan: DatagramPlan, signals: Signals, diagnostics: &Diagnostics) -> Result<bool> {
    check_groups(&plan.control)?;
    let (sender, events) = mpsc::channel();
    let progress = signals.watch(diagnostics.clone(), false, {
        let sender = sender.clone();
        move |request| {
            // Nobody receives once the relay has ended.
            let _ = match request {
                Request::Stop => sender.send(Event::Stop),
                Request::Reopen => sender.send(Event::Reopen),
                Request::Reload => Ok(()),
            };
        }
    })?;
    raise_descriptor_limit_for(None, plan.terms.max_sessions as u64);
    let threads = plan.threads();
    let target = Target::of_datagrams(plan.target_address.clone(), Some(RESOLVE_WITHIN))?;
    let access_log = AccessLog::of(&plan.access_log)?;
    // From then on there may be a socket file to remove.
    progress.running();
    let Listeners {
        sockets,
        addresses,
        socket_file: _socket_file,
    } = Listeners::bind(&plan.listen, &plan.terms, threads, plan.file_access)?;
    if plan.is_one_kind() {
        let name = plan.target.to_string();
        refusal::of_itself(&name, &[Arc::clone(&target)], &addresses)?;
        target.keep_off(&addresses);
    }
    let terms = ServiceTerms {
        name: None,
        sessions: plan.terms.clone(),
        destination: Destination::Target(OneTarget::new(plan.target.to_string(), target)),
        access_log: access_log.clone(),
    };
    let process = Process::new();
    let service = DatagramService::new(&process, terms, addresses);
    let mut workers = Vec::new();
    let group = Arc::default();
    for socket in sockets {
        let sender = sender.clone();
        let ended = move |result| drop(sender.send(Event::WorkerEnded(result)));
        workers.push(Worker::start(socket, Arc::clone(&service), &group, ended)?);
    }
    for address in service.shown_addresses() {
        tracing::info!("listening on {address}, relaying to {}", plan.target);
    }
    let of_all = Arc::clone(&service);
    let askers: Vec<_> = workers.iter().map(Worker::asker).collect();
    let single = Single {
        listening: service.shown_addresses(),
        target: plan.target.to_string(),
        counts: move || {
            let made = of_all.made.load(Ordering::Relaxed);
            Counts {
                open: of_all.sessions.count() as u64,
                most: of_all.sessions.most() as u64,
                accepted: made,
                // A session begins with its socket to the target.
                joined: made,
            }
        },
        ask: move |survey: &Arc<Survey>| askers.iter().for_each(|ask| ask(survey)),
    };
    let (facts, admin) = single.open(&plan.control, diagnostics);
    let mut is_draining = false;
    let mut draining_until = None;
    // Until when the access log may be written.
    let mut ends_at = None;
    let mut left = workers.len();
    let mut result = Ok(());
    while left > 0 {
        let wait = draining_until.map_or(Duration::MAX, |until: Instant| {
            until.saturating_duration_since(Instant::now())
        });
        match events.recv_timeout(wait) {
            Ok(Event::Reopen) => access_log.iter().for_each(AccessLog::reopen),
            Ok(Event::Stop) if !is_draining => {
                is_draining = true;
                facts.drains();
                admin.iter().for_each(AdminSocket::stop_waiting);
                let timeout = plan.drain_timeout;
                let now = Instant::now();
                draining_until = Some(now.checked_add(timeout).unwrap_or(now));
                ends_at = draining_until;
                let left = service.sessions.count();
                workers.iter().for_each(Worker::drain);
                tracing::info!(
                    "no longer accepting clients; {} left with {} to become quiet; a second signal, at least a \
                     second after the first, ends the relay at once",
                    counted(left, "session"),
                    humantime::format_duration(timeout)
                );
            }
            Ok(Event::Stop) => {
                (draining_until, ends_at) = (None, None);
                workers.iter().for_each(Worker::end);
            }
            Ok(Event::WorkerEnded(ended)) => {
                left -= 1;
                if ended.is_err() && result.is_ok() {
                    result = ended;
                    workers.iter().for_each(Worker::end);
                }
            }
            Err(_) => {
                draining_until = None;
                workers.iter().for_each(Worker::end);
            }
        }
    }
    drop(admin);
    progress.ending(FAILED);
    workers.into_iter().for_each(Worker::join);
    let cut_short = process.cut_short_sessions.load(Ordering::Relaxed);
    if cut_short > 0 {
        progress.ending(CUT_SHORT);
        let sessions = counted(cut_short, "session");
        tracing::warn!("cut {sessions} short: the drain timeout or a second signal");
    }
    service.log_total();
    if let Some(log) = access_log {
        let left = ends_at.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now())
        });
        // The diagnostics have to be written within the drain timeout, too.
        log.finish(left.saturating_sub(LAST_WORDS).max(LAST_WORDS));
    }
    result.map(|()| cut_short == 0)
}
