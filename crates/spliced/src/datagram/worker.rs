//! A thread of the relay: its listeners and the sessions of the clients that the kernel gives to them.

mod opening;
mod other_terms;
mod passing;
mod resting;
mod room;
mod telling;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use self::resting::Resting;
use super::batch::Batch;
use super::control::{Control, Group, Hold, Phase};
use super::counters::Counters;
use super::icmp::Notices;
use super::outcome::Outcome;
use super::plan::shown;
use super::service::{DatagramService, ServiceTerms};
use super::session::{Session, Standing};
use super::sessions::Sessions;
use super::socket::{DatagramSocket, Host};
use crate::rate_limited_warning::more;
use crate::sessions::{Asked, Survey};
use crate::tally::Ending;

/// While the relay drains, a session without a datagram for this time has ended: longer than any answer
/// takes that a client still waits for on most networks.
const QUIET: Duration = Duration::from_secs(1);

/// Events of one wait.
const EVENTS: usize = 256;

/// How long the counters of the process may be behind while datagrams come.
const ACCOUNT_EVERY: Duration = Duration::from_secs(1);

/// A running thread.
#[derive(Debug)]
pub(crate) struct Worker {
    control: Arc<Control>,
    thread: JoinHandle<()>,
}

/// What an event belongs to, above the numbers of sessions.
const WAKE: u64 = u64::MAX;
const FIRST_LISTENER: u64 = 1 << 32;

impl Worker {
    /// Starts the thread, one of `group`, which calls `ended` at its end.
    pub(crate) fn start(
        listeners: Vec<DatagramSocket>,
        service: Arc<DatagramService>,
        group: &Arc<Group>,
        ended: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<Self> {
        let control = Control::new(group)?;
        service.add_thread(&control);
        let relaying = Relaying::new(listeners, service, Arc::clone(&control))?;
        let thread = thread::Builder::new()
            .name("datagrams".into())
            .spawn(move || ended(relaying.run()))
            .context("cannot start a thread")?;
        Ok(Self { control, thread })
    }

    /// Takes no more clients, and ends once every session of its group is quiet.
    pub(crate) fn drain(&self) {
        self.control.go_to(Phase::Draining);
    }

    /// As [`drain`](Self::drain), until it is resumed.
    pub(crate) fn leave(&self) {
        self.control.go_to(Phase::Leaving);
    }

    /// Takes clients again after [`leave`](Self::leave). Returns false if it has ended.
    pub(crate) fn resume(&self) -> bool {
        self.control.resume()
    }

    /// After [`leave`](Self::leave) keeps it from ending until that is dropped; `None` if it ends.
    pub(crate) fn hold(&self) -> Option<Hold> {
        self.control.hold()
    }

    /// Ends every session, since the relay ends.
    pub(crate) fn end(&self) {
        self.control.go_to(Phase::Ending);
    }

    /// Ends every session, since the listener was removed.
    pub(crate) fn cut(&self) {
        self.control.go_to(Phase::Cut);
    }

    /// The terms have changed.
    pub(crate) fn tell(&self) {
        self.control.tell();
    }

    /// Whether it ends without having sessions to wait for.
    pub(crate) fn ends(&self) -> bool {
        self.control.phase() >= Phase::Over
    }

    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// What asks the thread about its sessions.
    pub(crate) fn asker(&self) -> impl Fn(&Arc<Survey>) + Send + Sync + use<> {
        let control = Arc::clone(&self.control);
        move |survey| {
            control.inbox.put(survey);
            control.notify();
        }
    }

    pub(crate) fn join(self) {
        // A panic was reported by its hook.
        let _ = self.thread.join();
    }
}

/// The thread's own state.
struct Relaying {
    epoll: OwnedFd,
    listeners: Vec<DatagramSocket>,
    host: Host,
    batch: Batch,
    sessions: Sessions,
    resting: Resting,
    counters: Counters,
    control: Arc<Control>,
    /// Wakes this thread when a session may be cut.
    closer: task::Waker,
    service: Arc<DatagramService>,
    /// For sessions that begin now.
    terms: Arc<ServiceTerms>,
    phase: Phase,
    /// Until when it was running.
    ran_until: Instant,
    asked: Asked,
    /// What has moved until then is in the counters of the process.
    accounted_at: Instant,
    /// Something has moved since then.
    is_behind: bool,
    notices: Notices,
}

impl Relaying {
    fn new(
        listeners: Vec<DatagramSocket>,
        service: Arc<DatagramService>,
        control: Arc<Control>,
    ) -> Result<Self> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).context("cannot create an epoll instance")?;
        let watch = |fd: &OwnedFd, token: u64| {
            let added = epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN);
            added.context("cannot watch a socket")
        };
        watch(control.wake_fd(), WAKE)?;
        for (index, listener) in (FIRST_LISTENER..).zip(&listeners) {
            watch(listener.fd(), index)?;
        }
        Ok(Self {
            epoll,
            listeners,
            host: Host::new().context("cannot create a UDP socket")?,
            batch: Batch::new(),
            sessions: Sessions::default(),
            resting: Resting::new(&service),
            counters: Counters::default(),
            closer: Arc::clone(&control).into(),
            control,
            terms: service.terms(),
            service,
            phase: Phase::Running,
            ran_until: Instant::now(),
            asked: Asked::default(),
            accounted_at: Instant::now(),
            is_behind: false,
            notices: Notices::new(Instant::now()),
        })
    }

    fn run(mut self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let result = loop {
            match self.phase {
                Phase::Over | Phase::Ending | Phase::Cut => break Ok(()),
                Phase::Draining | Phase::Leaving => {
                    if self.control.is_over(self.phase) {
                        // They wait for it.
                        self.service.threads().iter().for_each(|it| it.notify());
                        break Ok(());
                    }
                    if self.take_phase() {
                        continue;
                    }
                }
                Phase::Running | Phase::Held => {}
            }
            events.clear();
            let timeout = match self.asked.is_empty() {
                true => self.next_turn(Instant::now()),
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
            self.account(now);
        };
        self.control.inbox.close();
        let outcome = match self.phase {
            Phase::Cut => Outcome::ListenerRemoved,
            _ => Outcome::CutShort,
        };
        if outcome == Outcome::CutShort {
            let left = self.sessions.len() as u64;
            self.service
                .process
                .cut_short_sessions
                .fetch_add(left, Ordering::Relaxed);
        }
        while let Some(number) = self.sessions.any() {
            self.end(number, outcome);
        }
        self.service.add(&self.counters);
        result
    }

    /// Goes to the phase that it was told. Returns false if it is in that phase.
    fn take_phase(&mut self) -> bool {
        let phase = self.control.phase();
        let before = std::mem::replace(&mut self.phase, phase);
        if before == Phase::Running {
            self.ran_until = Instant::now();
        }
        before != phase
    }

    /// Looks at what it was told.
    fn look(&mut self) {
        self.control.look();
        self.take_phase();
        self.asked.take(&self.control.inbox);
        if self.control.take_told() {
            self.take_terms();
            self.end_those_that_are_cut();
        }
        self.displace_for_others();
    }

    /// Ends the sessions whose servers are to have none any more.
    fn end_those_that_are_cut(&mut self) {
        for number in 0..self.sessions.numbers() {
            let session = self.sessions.get(number);
            if let Some(outcome) = session.and_then(|session| session.held.why_cut()) {
                self.end(number, outcome);
            }
        }
    }

    /// Goes on with what it is asked about its sessions.
    fn answer(&mut self) {
        let sessions = &self.sessions;
        let ending = self.asked.go_on(sessions.numbers(), |number| {
            sessions.get(number).map(Session::told)
        });
        for number in ending {
            self.end(number, Outcome::Killed);
        }
    }

    fn idle_timeout(&self) -> Duration {
        match self.phase {
            Phase::Running => self.terms.sessions.idle_timeout,
            _ => self.terms.sessions.idle_timeout.min(QUIET),
        }
    }

    /// The session that is idle first, with its standing and when that is.
    fn next_idle(&self) -> Option<(usize, Standing, Instant)> {
        let (number, standing, at) = self.sessions.next_idle(self.idle_timeout())?;
        // The listener may come back at once, also for those that have been quiet for long.
        let at = match self.phase {
            Phase::Leaving | Phase::Held => at.max(self.ran_until + QUIET),
            _ => at,
        };
        Some((number, standing, at))
    }

    /// Until the next session is idle, a port has rested, or something is to be counted.
    fn next_turn(&self, now: Instant) -> Option<Timespec> {
        let idle = self.next_idle();
        let at = idle.map(|(_, _, at)| at).into_iter();
        let at = at.chain(self.resting.next()).min()?;
        let mut left = at.saturating_duration_since(now);
        if self.is_behind {
            let since = now.saturating_duration_since(self.accounted_at);
            left = left.min(ACCOUNT_EVERY.saturating_sub(since));
        }
        // epoll_wait(2) counts in milliseconds on older kernels, rounded up.
        Timespec::try_from(left).ok()
    }

    /// Brings the counters of the process up to date, if it is time to.
    fn account(&mut self, now: Instant) {
        if self.is_behind && now.saturating_duration_since(self.accounted_at) >= ACCOUNT_EVERY {
            self.is_behind = false;
            let since = std::mem::replace(&mut self.accounted_at, now);
            self.sessions.each_used_since(since, Session::account);
        }
    }

    fn expire(&mut self, now: Instant) {
        self.resting.close_until(now);
        while let Some((number, standing, at)) = self.next_idle() {
            if at > now {
                return;
            }
            let outcome = match (self.phase, standing) {
                (Phase::Running, Standing::Finished) => Outcome::Answered,
                (Phase::Running, _) => Outcome::Idle,
                (Phase::Leaving | Phase::Held, _) => Outcome::Quiet,
                _ => Outcome::QuietAtEnd,
            };
            self.end(number, outcome);
        }
    }

    /// Ends a session that the target's side has failed.
    fn fail(&mut self, number: usize, errno: Errno) {
        let Some(session) = self.sessions.get(number) else {
            return;
        };
        let has_answered = session.to_client.seen() > 0;
        session.held.failed(&session.target, errno, has_answered);
        self.service.failed.emit(|suppressed| {
            tracing::warn!(
                "session {} from {} to {} ended: {}{}",
                session.id,
                session.client,
                shown(&session.target),
                Outcome::TargetFailed(errno),
                more(suppressed)
            );
        });
        self.end(number, Outcome::TargetFailed(errno));
    }

    fn end(&mut self, number: usize, outcome: Outcome) {
        let Some(mut session) = self.sessions.remove(number) else {
            return;
        };
        if outcome.ending() == Ending::Displaced {
            self.counters.displaced += 1;
        }
        self.counters.to_target.add(&session.to_target);
        self.counters.to_client.add(&session.to_client);
        tracing::debug!("session {} ended: {outcome}", session.id);
        session.ended(outcome);
        self.rest(session);
    }

    fn warn_dropped(&self, why: &str) {
        self.service.dropped.emit(|suppressed| {
            tracing::warn!("a client's datagram was dropped: {why}{}", more(suppressed));
        });
    }
}
