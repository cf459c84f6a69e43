//! A thread of the relay: its listeners and the sessions of the clients that the kernel gives to them.

mod room;
mod telling;

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};

use super::batch::Batch;
use super::counters::{Counters, Flow};
use super::icmp::Notices;
use super::plan::DatagramPlan;
use super::sender::Sender;
use super::sending::send_all;
use super::session::{Session, Standing};
use super::sessions::Sessions;
use super::socket::{DatagramSocket, Offload, Piece};
use super::terms::DatagramTerms;
use crate::access_log::AccessLog;
use crate::client_limit::ClientLimit;
use crate::rate_limited_warning::RateLimitedWarning;
use crate::resource_limit::limit_met;
use crate::sessions::{Asked, Inbox, KILLED, Survey};
use crate::socket_address::SocketAddress;
use crate::target::Target;

/// While the relay drains, a session without a datagram for this time has ended: longer than any answer
/// takes that a client still waits for on most networks.
const QUIET: Duration = Duration::from_secs(1);

/// How often a listener is read before the sessions have their turn.
const BATCHES_AT_ONCE: usize = 4;

/// Events of one wait.
const EVENTS: usize = 256;

/// What the threads have in common.
pub(crate) struct Shared {
    pub(crate) plan: DatagramPlan,
    /// That the listeners of each thread are bound to.
    pub(crate) addresses: Vec<SocketAddress>,
    pub(crate) target: Arc<Target>,
    pub(crate) access_log: Option<AccessLog>,
    /// Sessions that are open.
    pub(crate) open: AtomicUsize,
    /// Sessions so far.
    pub(crate) made: AtomicUsize,
    /// Which of the target's addresses a session takes: the next one, once one has refused.
    pub(crate) next_address: AtomicUsize,
    pub(crate) cut_short: AtomicUsize,
    pub(crate) total: Mutex<Counters>,
    pub(crate) full: RateLimitedWarning,
    pub(crate) dropped: RateLimitedWarning,
    pub(crate) too_big: RateLimitedWarning,
    pub(crate) clients: Arc<ClientLimit>,
}

impl Shared {
    /// Logs the start of a session, or its end with an outcome.
    fn log(&self, session: &Session, outcome: Option<&str>) {
        let log = self.access_log.as_ref();
        if let Some(log) = log.filter(|log| outcome.is_some() || log.has_starts()) {
            let listener = self.plan.shown(&self.addresses[session.listener]);
            session.log(log, &self.plan, &listener, outcome);
        }
    }
}

/// A running thread.
#[derive(Debug)]
pub(crate) struct Worker {
    control: Arc<Control>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Control {
    phase: AtomicU8,
    wake: OwnedFd,
    inbox: Inbox,
}

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const ENDING: u8 = 2;

/// What an event belongs to, above the numbers of sessions.
const WAKE: u64 = u64::MAX;
const FIRST_LISTENER: u64 = 1 << 32;

impl Worker {
    /// Starts the thread, which calls `ended` at its end.
    pub(crate) fn start(
        listeners: Vec<DatagramSocket>,
        shared: Arc<Shared>,
        ended: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot create an eventfd")?;
        let control = Arc::new(Control {
            phase: AtomicU8::new(RUNNING),
            wake,
            inbox: Inbox::default(),
        });
        let relaying = Relaying::new(listeners, shared, Arc::clone(&control))?;
        let thread = thread::Builder::new()
            .name("datagrams".into())
            .spawn(move || ended(relaying.run()))
            .context("cannot start a thread")?;
        Ok(Self { control, thread })
    }

    /// Takes no more clients, and ends once every session is quiet.
    pub(crate) fn drain(&self) {
        self.tell(DRAINING);
    }

    /// Ends every session.
    pub(crate) fn end(&self) {
        self.tell(ENDING);
    }

    /// What asks the thread about its sessions.
    pub(crate) fn asker(&self) -> impl Fn(&Arc<Survey>) + Send + Sync + use<> {
        let control = Arc::clone(&self.control);
        move |survey| {
            control.inbox.put(survey);
            control.notify();
        }
    }

    fn tell(&self, phase: u8) {
        self.control.phase.store(phase, Ordering::Release);
        self.control.notify();
    }

    pub(crate) fn join(self) {
        // A panic was reported by its hook.
        let _ = self.thread.join();
    }
}

impl Control {
    /// Has the thread look at what it was told.
    fn notify(&self) {
        // It fails only if it was told 2^64 times before.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Shared {
    /// Logs what all threads have moved.
    pub(crate) fn log_total(&self) {
        let total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        tracing::info!(
            "{} sessions, {} of them displaced; to the target {}; to the clients {}",
            total.sessions,
            total.displaced,
            total.to_target,
            total.to_client
        );
    }
}

/// The thread's own state.
struct Relaying {
    epoll: OwnedFd,
    listeners: Vec<DatagramSocket>,
    offload: Offload,
    batch: Batch,
    sessions: Sessions,
    counters: Counters,
    control: Arc<Control>,
    shared: Arc<Shared>,
    phase: u8,
    asked: Asked,
    notices: Notices,
}

impl Relaying {
    fn new(
        listeners: Vec<DatagramSocket>,
        shared: Arc<Shared>,
        control: Arc<Control>,
    ) -> Result<Self> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).context("cannot create an epoll instance")?;
        let watch = |fd: &OwnedFd, token: u64| {
            let added = epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN);
            added.context("cannot watch a socket")
        };
        watch(&control.wake, WAKE)?;
        for (index, listener) in (FIRST_LISTENER..).zip(&listeners) {
            watch(listener.fd(), index)?;
        }
        Ok(Self {
            epoll,
            listeners,
            offload: Offload::probe().context("cannot create a UDP socket")?,
            batch: Batch::new(),
            sessions: Sessions::default(),
            counters: Counters::default(),
            control,
            shared,
            phase: RUNNING,
            asked: Asked::default(),
            notices: Notices::new(Instant::now()),
        })
    }

    fn run(mut self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let result = loop {
            if self.phase == ENDING || (self.phase == DRAINING && self.sessions.is_empty()) {
                break Ok(());
            }
            events.clear();
            let timeout = match self.asked.is_empty() {
                true => self.next_expiry(Instant::now()),
                false => Some(Timespec::default()),
            };
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => break Err(error).context("cannot wait for datagrams"),
            }
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    WAKE => self.look(),
                    token if token >= FIRST_LISTENER => {
                        self.pass_on((token - FIRST_LISTENER) as usize, now)
                    }
                    number => self.pass_back(number as usize, now),
                }
            }
            self.expire(now);
            self.answer();
        };
        self.control.inbox.close();
        let left = self.sessions.len();
        if left > 0 {
            self.shared.cut_short.fetch_add(left, Ordering::Relaxed);
        }
        while let Some(number) = self.sessions.any() {
            self.end(number, "cut short at the end of the relay".into());
        }
        let mut total = self
            .shared
            .total
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        total.add(&self.counters);
        drop(total);
        result
    }

    /// Looks at what it was told.
    fn look(&mut self) {
        // What it is told from now on wakes it again.
        let _ = rustix::io::read(&self.control.wake, &mut [0u8; 8]);
        self.phase = self.control.phase.load(Ordering::Acquire);
        self.asked.take(&self.control.inbox);
    }

    /// Goes on with what it is asked about its sessions.
    fn answer(&mut self) {
        let (sessions, shared) = (&self.sessions, &self.shared);
        let ending = self.asked.go_on(sessions.numbers(), |number| {
            let session = sessions.get(number)?;
            let listener = &shared.addresses[session.listener];
            Some(session.told(shared.plan.shown(listener)))
        });
        for number in ending {
            self.end(number, KILLED.into());
        }
    }

    fn idle_timeout(&self) -> Duration {
        match self.phase {
            RUNNING => self.shared.plan.terms.idle_timeout,
            _ => self.shared.plan.terms.idle_timeout.min(QUIET),
        }
    }

    /// Until the next session is idle.
    fn next_expiry(&self, now: Instant) -> Option<Timespec> {
        let (_, _, at) = self.sessions.next_idle(self.idle_timeout())?;
        let left = at.saturating_duration_since(now);
        // epoll_wait(2) counts in milliseconds on older kernels, rounded up.
        Timespec::try_from(left).ok()
    }

    fn expire(&mut self, now: Instant) {
        let timeout = self.idle_timeout();
        while let Some((number, standing, at)) = self.sessions.next_idle(timeout) {
            if at > now {
                return;
            }
            let outcome = match (self.phase, standing) {
                (RUNNING, Standing::Finished) => "answered",
                (RUNNING, _) => "idle",
                _ => "quiet, and the relay ends",
            };
            self.end(number, outcome.into());
        }
    }

    /// Passes on what clients have sent to a listener.
    fn pass_on(&mut self, listener: usize, now: Instant) {
        for _ in 0..BATCHES_AT_ONCE {
            let mut batch = std::mem::replace(&mut self.batch, Batch::empty());
            // An error of an unconnected socket belongs to no session.
            let received = self.listeners[listener].receive(&self.offload, &mut batch);
            if received.is_ok() {
                for (message, buffer) in batch.messages.iter().zip(&batch.buffers) {
                    let piece = Piece {
                        bytes: &buffer[..message.length],
                        stride: message.stride,
                        congestion: message.congestion,
                        ttl: message.ttl,
                        connected: None,
                    };
                    if message.is_cut {
                        self.counters.to_target.dropped.too_long += 1;
                    } else if message.ttl == Some(0) {
                        self.counters.to_target.dropped.nowhere += piece.datagrams() as u64;
                    } else {
                        self.send_on(listener, &message.sender, piece, now);
                    }
                }
            }
            let is_full = received.is_ok() && batch.messages.len() == Batch::MESSAGES;
            self.batch = batch;
            if !is_full {
                return;
            }
        }
    }

    /// Sends what a client has sent, and opens its session if it has none.
    fn send_on(&mut self, listener: usize, sender: &Sender, mut piece: Piece<'_>, now: Instant) {
        // An error that came before belongs to what was sent before: this datagram has another try, in
        // a session of its own.
        for _ in 0..2 {
            let found = self.sessions.find(listener, sender);
            let number = match found.map_or_else(|| self.open(listener, sender, now), Ok) {
                Ok(number) => number,
                Err(why) => {
                    self.counters.to_target.dropped.nowhere += piece.datagrams() as u64;
                    self.warn_dropped(&why);
                    return;
                }
            };
            let Some(session) = self.sessions.get_mut(number) else {
                return;
            };
            session.used = now;
            session.is_assured |= session.to_client.seen() > 0;
            session.longest = session.longest.max(piece.stride);
            let too_long = session.to_target.dropped.too_long;
            piece.connected = session.udp_target();
            let socket = &session.socket;
            let offload = &self.offload;
            let result = send_all(offload, &piece, &mut session.to_target, |piece| {
                socket.send(offload, piece)
            });
            match result {
                Ok(()) => {
                    if session.to_target.dropped.too_long > too_long {
                        self.tell_too_big(number, Some(&piece), now);
                    }
                    self.sessions.touch(number, &self.shared.plan.terms);
                    return;
                }
                Err(errno) => self.fail(number, errno, now),
            }
        }
        self.counters.to_target.dropped.nowhere += piece.datagrams() as u64;
    }

    /// Passes on what the target has sent to a session.
    fn pass_back(&mut self, number: usize, now: Instant) {
        let Some(session) = self.sessions.get_mut(number) else {
            return;
        };
        match session.socket.receive(&self.offload, &mut self.batch) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(Errno::MSGSIZE) => {
                session.to_target.dropped.too_long += 1;
                return self.tell_too_big(number, None, now);
            }
            Err(errno) => return self.fail(number, errno, now),
        }
        session.used = now;
        let listener = &self.listeners[session.listener];
        let client = &session.client;
        let mut gone = None;
        for (message, buffer) in self.batch.messages.iter().zip(&self.batch.buffers) {
            let piece = Piece {
                bytes: &buffer[..message.length],
                stride: message.stride,
                congestion: message.congestion,
                ttl: message.ttl,
                connected: None,
            };
            if message.is_cut {
                session.to_client.dropped.too_long += 1;
                continue;
            }
            if message.ttl == Some(0) {
                session.to_client.dropped.nowhere += piece.datagrams() as u64;
                continue;
            }
            let offload = &self.offload;
            let result = send_all(offload, &piece, &mut session.to_client, |piece| {
                listener.answer(offload, piece, client)
            });
            match result {
                Ok(()) => {}
                // Nobody can answer it, and it may go on sending.
                Err(Errno::DESTADDRREQ) => session.to_client.dropped.nowhere += 1,
                Err(errno) => {
                    session.to_client.dropped.nowhere += piece.datagrams() as u64;
                    gone = Some(errno);
                }
            }
        }
        self.sessions.touch(number, &self.shared.plan.terms);
        // A UDP client is never gone: nothing tells.
        if let Some(errno) = gone {
            self.end(
                number,
                format!("the client cannot be answered: {}", words(errno)),
            );
        }
    }

    /// Ends a session that the target's side has failed.
    fn fail(&mut self, number: usize, errno: Errno, now: Instant) {
        let Some(session) = self.sessions.get(number) else {
            return;
        };
        if session.to_client.datagrams == 0 {
            // The next session tries the next address, if the target has several.
            self.shared.next_address.fetch_add(1, Ordering::Relaxed);
        }
        self.tell_failed(number, errno, now);
        self.end(number, format!("the target failed: {}", words(errno)));
    }

    fn end(&mut self, number: usize, outcome: String) {
        let Some(session) = self.sessions.remove(number) else {
            return;
        };
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        self.counters.to_target.add(&session.to_target);
        self.counters.to_client.add(&session.to_client);
        tracing::debug!("session {} ended: {outcome}", session.id);
        self.shared.log(&session, Some(&outcome));
    }

    /// Opens a session for a client. Returns why there is none.
    fn open(&mut self, listener: usize, client: &Sender, now: Instant) -> Result<usize, String> {
        // The thread may not have been woken yet.
        if self.control.phase.load(Ordering::Acquire) != RUNNING {
            return Err("the relay is ending".into());
        }
        let permit = self.permit(client, now)?;
        self.make_room()?;
        let addresses = self.shared.target.addresses();
        if addresses.is_empty() {
            return Err(self.shared.target.why_nowhere());
        }
        let first = self.shared.next_address.load(Ordering::Relaxed);
        let mut why = String::new();
        for turn in 0..addresses.len() {
            let target = &addresses[first.wrapping_add(turn) % addresses.len()];
            match connect(target, &self.shared.plan.terms) {
                Ok(socket) => {
                    let number = self.sessions.next_number();
                    let token = EventData::new_u64(number as u64);
                    if let Err(errno) = epoll::add(&self.epoll, socket.fd(), token, EventFlags::IN)
                    {
                        return Err(format!("a session cannot be watched: {}", words(errno)));
                    }
                    self.shared.open.fetch_add(1, Ordering::Relaxed);
                    self.counters.sessions += 1;
                    let id = self.shared.made.fetch_add(1, Ordering::Relaxed) as u64 + 1;
                    let session = Session {
                        id,
                        client: client.clone(),
                        listener,
                        socket,
                        target: target.clone(),
                        to_target: Flow::default(),
                        to_client: Flow::default(),
                        is_assured: false,
                        longest: 0,
                        _permit: permit,
                        began: now,
                        used: now,
                    };
                    self.shared.log(&session, None);
                    return Ok(self.sessions.insert(session, self.client_of(client)));
                }
                Err(errno) => {
                    let reason = limit_met(errno).unwrap_or_else(|| words(errno));
                    why = format!("{target} cannot be reached: {reason}");
                }
            }
        }
        Err(why)
    }

    fn warn_dropped(&self, why: &str) {
        self.shared.dropped.emit(|suppressed| {
            tracing::warn!(
                "a client's datagram was dropped: {why} ({suppressed} more since the last such line)"
            );
        });
    }
}

/// A socket of a session's own to `target`.
fn connect(target: &SocketAddress, terms: &DatagramTerms) -> Result<DatagramSocket, Errno> {
    let socket = DatagramSocket::new(target, terms)?;
    if matches!(target, SocketAddress::Unix(_)) {
        // The kernel picks a name, to which the target can send its answers (unix(7), autobind).
        bind(socket.fd(), &SocketAddrUnix::new_unnamed())?;
    }
    target.connect(socket.fd())?;
    Ok(socket)
}

fn words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
