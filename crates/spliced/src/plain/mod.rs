//! A relay of connections that no engine takes: sockets with connections and message boundaries
//! (`SOCK_SEQPACKET`), and VSOCK streams. One thread reads and writes.
//!
//! ```text
//!         SIGTERM            no connection left, the drain timeout, a second signal
//! running ───────▶ draining ─────────────────────────────────────────────────────────▶ over
//! ```

mod connection;
mod opening;
mod place;
mod plan;
mod socket;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use slab::Slab;

use self::connection::{Connection, State};
use self::opening::Opening;
use self::place::Place;
pub(crate) use self::plan::PlainPlan;
use self::socket::Buffer;
use crate::access_log::AccessLog;
use crate::admin::{AdminSocket, Facts, Single, check_groups};
use crate::diagnostics::{Diagnostics, LAST_WORDS};
use crate::exit_status::{CUT_SHORT, FAILED};
use crate::metrics::Counts;
use crate::plural::counted;
use crate::rate_limited_warning::{RateLimitedWarning, more};
use crate::resource_limit::{limit_met, raise_descriptor_limit};
use crate::sessions::{Asked, Inbox, KILLED, Survey};
use crate::signal::{Request, Signals};

const WAKE: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// Events of one wait.
const EVENTS: usize = 256;

/// How many clients are accepted before the connections have their turn.
const ACCEPTED_AT_ONCE: usize = 16;

/// The pause before accepting again where a limit was met: a client waits in the backlog meanwhile.
const LIMIT_PAUSE: Duration = Duration::from_millis(100);

/// What the thread of the signals tells the relay.
struct Control {
    stops: AtomicU8,
    /// Connections that are open.
    open: AtomicU64,
    /// Connections so far.
    made: AtomicU64,
    /// Those that the target has taken.
    joined: AtomicU64,
    wake: OwnedFd,
    inbox: Inbox,
}

impl Control {
    /// Has the loop look at what it was told.
    fn notify(&self) {
        // It fails only if it was told 2^64 times before.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Wake for Control {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

/// Watches a socket of a connection.
fn watch(epoll: &OwnedFd, number: usize, socket: &OwnedFd) -> Result<(), Errno> {
    let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(epoll, socket, EventData::new_u64(number as u64), flags)
}

/// Relays as `plan` says until a signal ends it. Returns whether every connection ended by itself.
///
/// # Errors
/// If the relay cannot start, or cannot wait for events.
pub(crate) fn run(plan: PlainPlan, signals: Signals, diagnostics: &Diagnostics) -> Result<bool> {
    check_groups(&plan.control)?;
    let access_log = AccessLog::of(&plan.access_log)?;
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let control = Arc::new(Control {
        stops: AtomicU8::new(0),
        open: AtomicU64::new(0),
        made: AtomicU64::new(0),
        joined: AtomicU64::new(0),
        wake: wake.context("cannot create an eventfd")?,
        inbox: Inbox::default(),
    });
    let progress = signals.watch(diagnostics.clone(), false, {
        let (control, access_log) = (Arc::clone(&control), access_log.clone());
        move |request| match request {
            Request::Stop => {
                control.stops.fetch_add(1, Ordering::Release);
                control.notify();
            }
            Request::Reopen => access_log.iter().for_each(AccessLog::reopen),
            Request::Reload => {}
        }
    })?;
    raise_descriptor_limit(plan.max_connections);
    // From then on there may be a socket file to remove.
    progress.running();
    let target = Place::of(&plan.target, plan.connect_timeout)?;
    let (listener, address, _socket_file) = Place::to_listen(&plan.listen)?.listen()?;
    let (counting, asked) = (Arc::clone(&control), Arc::clone(&control));
    let log = access_log.clone();
    let mut relay = Relay::new(plan, target, (listener, address.clone()), log, control)?;
    tracing::info!("listening on {address}, relaying to {}", relay.plan.target);
    let single = Single {
        listening: vec![address.to_string()],
        target: relay.plan.target.to_string(),
        counts: move || {
            let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
            Counts {
                open: count(&counting.open),
                accepted: count(&counting.made),
                joined: count(&counting.joined),
            }
        },
        ask: move |survey: &Arc<Survey>| {
            asked.inbox.put(survey);
            asked.notify();
        },
    };
    relay.told = Some(single.open(&relay.plan.control, diagnostics));
    let result = relay.run();
    relay.control.inbox.close();
    relay.told = None;
    progress.ending(FAILED);
    let cut_short = relay.connections.len();
    if cut_short > 0 {
        progress.ending(CUT_SHORT);
        let connections = counted(cut_short, "connection");
        tracing::warn!("cut {connections}: the drain timeout or a second signal");
    }
    let left: Vec<usize> = relay.connections.iter().map(|(number, _)| number).collect();
    for number in left {
        relay.end(number, "cut short at the end of the relay");
    }
    if let Some(log) = access_log {
        drop(relay);
        log.finish(LAST_WORDS);
    }
    result.map(|()| cut_short == 0)
}

struct Relay {
    plan: PlainPlan,
    target: Arc<Place>,
    /// Wakes the thread when a name is resolved.
    waker: Waker,
    epoll: OwnedFd,
    /// `None` once it drains.
    listener: Option<OwnedFd>,
    /// What that is bound to.
    address: String,
    /// The listener is watched.
    is_accepting: bool,
    /// When to accept again, where a limit was met.
    accept_again: Option<Instant>,
    connections: Slab<Connection>,
    /// Those whose target has not taken them yet.
    opening: BTreeSet<usize>,
    /// Connections that have more to move than one turn allows.
    unfinished: VecDeque<usize>,
    buffer: Buffer,
    made: u64,
    access_log: Option<AccessLog>,
    control: Arc<Control>,
    asked: Asked,
    drain_until: Option<Instant>,
    /// What others are told, and where.
    told: Option<(Arc<Facts>, Option<AdminSocket>)>,
    warning: RateLimitedWarning,
}

impl Relay {
    fn new(
        plan: PlainPlan,
        target: Place,
        (listener, address): (OwnedFd, String),
        access_log: Option<AccessLog>,
        control: Arc<Control>,
    ) -> Result<Self> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).context("cannot create an epoll instance")?;
        for (fd, token) in [(&control.wake, WAKE), (&listener, LISTENER)] {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)
                .context("cannot watch a socket")?;
        }
        Ok(Self {
            buffer: Buffer::for_messages(plan.is_messages()),
            plan,
            target: Arc::new(target),
            waker: Arc::clone(&control).into(),
            epoll,
            listener: Some(listener),
            address,
            is_accepting: true,
            accept_again: None,
            connections: Slab::new(),
            opening: BTreeSet::new(),
            unfinished: VecDeque::new(),
            made: 0,
            access_log,
            control,
            asked: Asked::default(),
            drain_until: None,
            told: None,
            warning: RateLimitedWarning::of("connections that failed or were refused"),
        })
    }

    fn run(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let now = Instant::now();
            let stops = self.control.stops.load(Ordering::Acquire);
            if stops > 0 && self.drain_until.is_none() {
                self.drain(now);
            }
            let is_over = self.drain_until.is_some_and(|until| until <= now);
            if stops > 1 || is_over || (stops > 0 && self.connections.is_empty()) {
                return Ok(());
            }
            self.expire(now);
            self.open(now, false);
            if self.accept_again.is_some_and(|at| at <= now) {
                self.accept_again = None;
                self.watch_listener();
            }
            events.clear();
            let timeout = self.timeout(now);
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for events"),
            }
            for _ in 0..self.unfinished.len() {
                if let Some(number) = self.unfinished.pop_front() {
                    self.go_on(number);
                }
            }
            for event in &events {
                match event.data.u64() {
                    // The top of the loop looks at what it was told.
                    WAKE => {
                        let _ = rustix::io::read(&self.control.wake, &mut [0u8; 8]);
                        self.asked.take(&self.control.inbox);
                        self.open(now, true);
                    }
                    LISTENER => self.accept(),
                    // All of its sockets are looked at.
                    number => self.go_on(number as usize),
                }
            }
            self.answer();
        }
    }

    /// Goes on with what it is asked about its connections.
    fn answer(&mut self) {
        let (connections, address, target) = (&self.connections, &self.address, &self.plan.target);
        let ending = self.asked.go_on(connections.capacity(), |number| {
            let connection = connections.get(number)?;
            Some(connection.told(address.clone(), target.to_string()))
        });
        for number in ending {
            self.end(number, KILLED);
        }
    }

    fn drain(&mut self, now: Instant) {
        if let Some((facts, admin)) = &self.told {
            facts.drains();
            admin.iter().for_each(AdminSocket::stop_waiting);
        }
        let timeout = self.plan.drain_timeout;
        // Those in the backlog were accepted by the kernel: they are served.
        while self.listener.is_some() && self.accept_one() {}
        self.listener = None;
        self.drain_until = Some(now.checked_add(timeout).unwrap_or(now));
        tracing::info!(
            "no longer accepting; {} left with {} to end; a second signal, at least a second after the first, \
             ends the relay at once",
            counted(self.connections.len(), "connection"),
            humantime::format_duration(timeout)
        );
    }

    fn timeout(&self, now: Instant) -> Option<Timespec> {
        if !self.unfinished.is_empty() || !self.asked.is_empty() {
            return Some(Timespec::default());
        }
        let expiry = self.plan.idle_timeout.and_then(|timeout| {
            let used = self.connections.iter().map(|(_, one)| one.used).min()?;
            used.checked_add(timeout)
        });
        let opening = self.opening.iter();
        let opening = opening.filter_map(|number| self.connections.get(*number)?.next_at());
        let times = [expiry, self.drain_until, self.accept_again, opening.min()];
        let next = times.into_iter().flatten().min()?;
        Timespec::try_from(next.saturating_duration_since(now)).ok()
    }

    fn expire(&mut self, now: Instant) {
        let Some(timeout) = self.plan.idle_timeout else {
            return;
        };
        let is_idle = |one: &Connection| now.saturating_duration_since(one.used) >= timeout;
        let idle: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, one)| is_idle(one))
            .map(|(number, _)| number)
            .collect();
        for number in idle {
            self.end(number, "idle timeout");
        }
    }

    /// Accepts, as far as the limit allows.
    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            if !self.accept_one() {
                return;
            }
        }
    }

    /// Accepts one client. Returns false if there is none, or it has to wait.
    fn accept_one(&mut self) -> bool {
        let Some(listener) = &self.listener else {
            return false;
        };
        let most = self.plan.max_connections.unwrap_or(u32::MAX) as usize;
        if self.connections.len() >= most {
            self.unwatch_listener();
            return false;
        }
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(client) => {
                self.join(client);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(Errno::CONNABORTED) => true,
            Err(errno) => {
                let why = limit_met(errno).unwrap_or_else(|| errno.to_string());
                self.warn(&format!("cannot accept, the client waits: {why}"));
                self.unwatch_listener();
                self.accept_again = Instant::now().checked_add(LIMIT_PAUSE);
                false
            }
        }
    }

    fn unwatch_listener(&mut self) {
        if let Some(listener) = &self.listener
            && std::mem::take(&mut self.is_accepting)
        {
            // It fails only for a descriptor that is not watched.
            let _ = epoll::delete(&self.epoll, listener);
        }
    }

    fn watch_listener(&mut self) {
        if let Some(listener) = &self.listener
            && !self.is_accepting
            && self.accept_again.is_none()
        {
            let token = EventData::new_u64(LISTENER);
            self.is_accepting = epoll::add(&self.epoll, listener, token, EventFlags::IN).is_ok();
        }
    }

    /// Connects a client to the target.
    fn join(&mut self, client: OwnedFd) {
        self.made += 1;
        self.control.made.store(self.made, Ordering::Relaxed);
        self.control.open.fetch_add(1, Ordering::Relaxed);
        let within = self.plan.connect_timeout;
        let opening = Opening::new(Arc::clone(&self.target), Instant::now(), within);
        let messages = self.plan.is_messages();
        let connection = Connection::new(self.made, client, opening, messages);
        let number = self.connections.insert(connection);
        self.opening.insert(number);
        let client = self.connections[number].client();
        match watch(&self.epoll, number, client) {
            Ok(()) => self.go_on(number),
            Err(errno) => self.end(number, &format!("it cannot be watched: {errno}")),
        }
    }

    /// Goes on with the openings whose time has come, or with all of them if a name may have been resolved.
    fn open(&mut self, now: Instant, is_woken: bool) {
        let is_due = |number: &usize| {
            let connection = self.connections.get(*number);
            let next_at = connection.and_then(Connection::next_at);
            next_at.is_some_and(|at| is_woken || at <= now)
        };
        let due: Vec<_> = self.opening.iter().copied().filter(is_due).collect();
        for number in due {
            self.go_on(number);
        }
    }

    /// Goes on with an opening. Returns whether the connection is still there.
    fn go_on_opening(&mut self, number: usize) -> bool {
        let Some(connection) = self.connections.get_mut(number) else {
            return false;
        };
        let epoll = &self.epoll;
        let opened = connection.open(&self.waker, |socket| watch(epoll, number, socket));
        if let Err(why) = opened {
            self.end(number, &why);
            return false;
        }
        if connection.next_at().is_none() {
            self.opening.remove(&number);
            self.control.joined.fetch_add(1, Ordering::Relaxed);
            self.log(&self.connections[number], None);
        }
        true
    }

    /// Moves what a connection can move now.
    fn go_on(&mut self, number: usize) {
        if self.opening.contains(&number) && !self.go_on_opening(number) {
            return;
        }
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        match connection.go_on(&mut self.buffer) {
            State::Waiting => {}
            State::Unfinished if self.unfinished.contains(&number) => {}
            State::Unfinished => self.unfinished.push_back(number),
            State::Over => self.end(number, "end of both streams"),
            State::Failed(why) => self.end(number, &why),
        }
    }

    fn end(&mut self, number: usize, outcome: &str) {
        let Some(connection) = self.connections.try_remove(number) else {
            return;
        };
        self.control.open.fetch_sub(1, Ordering::Relaxed);
        self.unfinished.retain(|other| *other != number);
        self.opening.remove(&number);
        if connection.is_refused() {
            self.warn(&format!("{}: {outcome}", self.plan.target));
        }
        self.log(&connection, Some(outcome));
        drop(connection);
        self.watch_listener();
    }

    /// Logs that the target has taken a connection, or the end of it with an outcome.
    fn log(&self, connection: &Connection, outcome: Option<&str>) {
        let log = self.access_log.as_ref();
        if let Some(log) = log.filter(|log| outcome.is_some() || log.has_starts()) {
            connection.log(log, &self.address, &self.plan.target.to_string(), outcome);
        }
    }

    fn warn(&self, why: &str) {
        self.warning.emit(|suppressed| {
            tracing::warn!("{why}{}", more(suppressed));
        });
    }
}
