//! One epoll loop, for one thread.
//!
//! An epoll event carries the slot of a task, the slot's generation and the number under which the
//! task registered the descriptor.

mod ring;
mod slots;
mod timer;
mod token;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use self::ring::Called;
use self::slots::Slots;
use self::timer::timespec;
pub(crate) use self::token::Key;
use self::token::{BELL_TOKEN, BELLS, MAILBOX_TOKEN, RING_TOKEN, TIMER_TOKEN};
use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::ends::Ends;
use crate::engine::kernel::Bell;
use crate::engine::uring::Ring;
use crate::engine::{Carriers, EngineChoice, EngineName, sockmap};
use crate::error::{Context as _, Result};
use crate::handle::{Handle, Status};
use crate::mailbox::{Letter, Mailbox, Remote, Waker};
use crate::options::Options;
use crate::pair::Pair;
use crate::socket_option::set_epoll_busy_poll;
use crate::task::{Interest, Readiness, Step, Task};
use crate::timer_wheel::TimerWheel;

/// Events taken by one `epoll_wait`: enough to spread its cost, few enough to keep the time
/// until the next look at timers and letters short.
const EVENTS_PER_TURN: usize = 256;

/// How long a loop without tasks keeps the kernel side of engines loaded: loading it anew takes
/// some 40 ms, most of it for reading the kernel's type information.
const BELLS_KEPT: Duration = Duration::from_secs(3);

/// One epoll loop. It runs pairs and the other [`Task`]s placed on it, on the thread that turns
/// it.
///
/// Most programs use [`join`](crate::join()) or a [`Splicer`](crate::Splicer), which turn loops in
/// threads of their own. A program with a loop of its own watches the descriptor that
/// [`AsFd`] gives and calls [`turn`](Self::turn) with a zero timeout when it is readable.
///
/// Dropping the loop closes its tasks: its pairs end with
/// [`Reason::Shutdown`](crate::Reason::Shutdown).
pub struct EventLoop {
    pub(crate) epoll: OwnedFd,
    events: Vec<epoll::Event>,
    slots: Slots,
    pub(crate) wheel: TimerWheel,
    timer: OwnedFd,
    /// When the timer goes off, or went off last.
    armed: Option<Instant>,
    /// The loop is turned by a loop of somebody else's.
    driven: bool,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) now: Instant,
    ended: bool,
    turned: bool,
    pub(crate) carriers: Carriers,
    /// What a ring is told, too.
    busy_poll: Option<Duration>,
    /// When a ring that has no pairs was first seen without.
    ring_unused_since: Option<Instant>,
    /// What the engines in the kernel call user space with.
    bells: Vec<Arc<dyn Bell>>,
    /// When a loop that has bells was first seen without tasks.
    bells_unused_since: Option<Instant>,
}

impl EventLoop {
    /// Makes a loop with nothing on it.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when the process has no descriptors left.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .context("cannot create an epoll instance")?;
        let mailbox = Arc::new(Mailbox::new()?);
        epoll::add(
            &epoll,
            &*mailbox,
            EventData::new_u64(MAILBOX_TOKEN),
            EventFlags::IN,
        )
        .context("cannot watch the event loop's eventfd")?;
        let timer = timer::create(epoll.as_fd())?;
        let now = Instant::now();
        Ok(Self {
            epoll,
            events: Vec::with_capacity(EVENTS_PER_TURN),
            slots: Slots::default(),
            wheel: TimerWheel::new(now),
            timer,
            armed: None,
            driven: false,
            mailbox,
            now,
            ended: false,
            turned: false,
            carriers: Carriers::default(),
            busy_poll: None,
            ring_unused_since: None,
            bells: Vec::new(),
            bells_unused_since: None,
        })
    }

    /// Has the loop poll the device of its sockets for up to `time` before it sleeps, where the
    /// device's driver can be polled. A loop with an io_uring polls for 10 ms at most.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) on kernels before 6.9.
    pub fn set_busy_poll(&mut self, time: Duration) -> Result<()> {
        set_epoll_busy_poll(self.epoll.as_fd(), time)?;
        self.busy_poll = Some(time);
        match &self.carriers.ring {
            Some(ring) => ring
                .set_busy_poll(time)
                .context("io_uring cannot be made to poll the device"),
            None => Ok(()),
        }
    }

    /// A way to reach this loop from other threads.
    pub fn remote(&self) -> Remote {
        Remote::new(Arc::clone(&self.mailbox))
    }

    /// Loads what an engine needs once, which its first pair would wait for otherwise, or, with
    /// [`EngineChoice::Auto`], go without for a while. As long as this loop has tasks it stays
    /// loaded.
    ///
    /// # Errors
    /// As [`EngineName::probe`]. Without what could not be had, `auto` picks other engines.
    pub fn prepare(&mut self, engine: EngineChoice) -> Result<()> {
        let segments = &mut self.carriers.segments;
        let prepared = match engine {
            EngineChoice::Only(EngineName::Segment) => segments.prepare(),
            EngineChoice::Auto => segments.ground().map(drop),
            EngineChoice::Only(EngineName::Sockmap) => return self.hear(sockmap::bell()?),
            EngineChoice::Only(other) => return other.probe(),
        };
        prepared.map_err(|obstacle| EngineName::Segment.hindered(obstacle))
    }

    /// Turns until [`Remote::end`] is called.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when `epoll_wait` fails.
    pub fn run(&mut self) -> Result<()> {
        while !self.ended {
            self.turn(None)?;
        }
        Ok(())
    }

    /// Waits for something to do, at most for `timeout` (for ever when `None`), and does it.
    ///
    /// With a zero timeout the loop takes itself to be driven by another one: from then on work
    /// that waits for its turn makes its descriptor readable, too.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when `epoll_wait` or the timerfd fails.
    pub fn turn(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.turned = true;
        if timeout == Some(Duration::ZERO) && !self.driven {
            self.driven = true;
            self.watch_ring()?;
        }
        self.wait(timeout)?;
        self.now = Instant::now();
        while let Some((key, source, readiness)) = self.carriers.next_news() {
            self.with_task(key, |task, cx| task.ready(cx, source, readiness));
        }
        // The vector is put aside so that the tasks can have the loop.
        let events = std::mem::take(&mut self.events);
        for event in &events {
            match event.data.u64() {
                MAILBOX_TOKEN => self.read_letters(),
                TIMER_TOKEN | RING_TOKEN => {}
                token if token > BELL_TOKEN - BELLS => {
                    let bell = self.bells.get((BELL_TOKEN - token) as usize);
                    if let Some(bell) = bell.map(Arc::clone) {
                        bell.answer();
                    }
                }
                token => {
                    let (key, source) = Key::from_token(token);
                    let flags = event.flags;
                    self.with_task(key, |task, cx| {
                        task.ready(cx, source, Readiness::from_flags(flags))
                    });
                }
            }
        }
        self.events = events;
        self.expire_deadlines();
        // Only those that waited before this turn, so that a busy task cannot keep the loop.
        for _ in 0..self.slots.waiting() {
            let Some(key) = self.slots.next_waiting() else {
                break;
            };
            self.with_task(key, |task, cx| task.resume(cx));
        }
        self.settle()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        let unused = self.slots.is_empty() && !self.bells.is_empty();
        let unused_since = unused.then(|| *self.bells_unused_since.get_or_insert(self.now));
        self.bells_unused_since = unused_since;
        let timeout = match timeout {
            None if unused => Some(BELLS_KEPT),
            other => other,
        };
        let timeout = if self.has_work() {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        self.events.clear();
        let timeout = match self.wait_on_ring(timeout)? {
            Called::ByNobody => return Ok(()),
            Called::ByEpoll => Some(Duration::ZERO),
            Called::Unknown => timeout,
        };
        let timeout = timeout.map(timespec);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for events"),
        }
        // Not before, however short the caller's timeout is.
        if self.events.is_empty() && unused_since.is_some_and(|at| at.elapsed() >= BELLS_KEPT) {
            for bell in self.bells.drain(..) {
                // Other loops may keep the descriptor open.
                let _ = epoll::delete(&self.epoll, bell.fd());
            }
        }
        if let Some(ring) = &mut self.carriers.ring
            && self.driven
        {
            ring.turn()
                .context("cannot use the event loop's io_uring")?;
        }
        Ok(())
    }

    /// Somebody waits for the next turn, and for nothing else.
    fn has_work(&self) -> bool {
        self.slots.waiting() > 0 || self.carriers.has_news()
    }

    fn read_letters(&mut self) {
        for letter in self.mailbox.take() {
            match letter {
                Letter::Run(action) => action(self),
                Letter::Wake(key) => self.with_task(key, |task, cx| task.resume(cx)),
                Letter::Close(key) => self.close(key),
                Letter::End => self.ended = true,
            }
        }
    }

    fn expire_deadlines(&mut self) {
        let mut passed = Vec::new();
        self.wheel.expire(self.now, |index| passed.push(index));
        for index in passed {
            if let Some(key) = self.slots.key_at(index) {
                self.with_task(key, |task, cx| task.deadline_passed(cx));
            }
        }
    }

    /// Joins two endpoints on this loop.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) when an engine was asked for
    /// by name and cannot take the pair. Both sockets are closed then.
    pub fn join(&mut self, a: Endpoint, b: Endpoint, options: &Options) -> Result<Handle> {
        self.run_pair(Ends::Apart([a, b]), options)
    }

    /// Splices an endpoint to itself on this loop: see [`echo_task`](crate::echo_task).
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) when an engine was asked for
    /// by name that needs two sockets. The socket is closed then.
    pub fn echo(&mut self, endpoint: Endpoint, options: &Options) -> Result<Handle> {
        self.run_pair(Ends::Echo(endpoint), options)
    }

    fn run_pair(&mut self, ends: Ends, options: &Options) -> Result<Handle> {
        let status = Arc::new(Status::new());
        let pair = Pair::new(ends, options, None, Arc::clone(&status), None)?;
        self.place(pair, &status);
        self.be_turned_once();
        let handle = Handle::new(status, self.remote());
        // The caller may be between two turns and wait for the descriptor next.
        self.settle()?;
        Ok(handle)
    }

    /// A caller that only waits for the descriptor has to come in once, to show how it turns the loop;
    /// a pair that the kernel took at once may bring no event.
    fn be_turned_once(&self) {
        if !self.turned {
            let _ = self.mailbox.post(Letter::Run(Box::new(|_| ())));
        }
    }

    pub(crate) fn place(&mut self, pair: Pair, status: &Status) {
        let key = self.slots.insert(Box::new(pair));
        status.set_key(key);
        self.with_task(key, |task, cx| task.start(cx));
    }

    /// Places a task on the loop and starts it.
    pub fn spawn(&mut self, task: Box<dyn Task>) -> Waker {
        let waker = self.spawn_in_turn(task);
        self.be_turned_once();
        // As in `join`. A timerfd takes any time, and a ring what it is given.
        let _ = self.settle();
        waker
    }

    /// Within a turn, which arms the timer at its end.
    pub(crate) fn spawn_in_turn(&mut self, task: Box<dyn Task>) -> Waker {
        let key = self.slots.insert(task);
        self.with_task(key, |task, cx| task.start(cx));
        Waker::new(Arc::clone(&self.mailbox), key)
    }

    /// How many tasks are on the loop.
    pub fn tasks(&self) -> usize {
        let tasks = self.slots.tasks();
        tasks.filter(|task| !task.is_aftermath()).count()
    }

    fn with_task(&mut self, key: Key, call: impl FnOnce(&mut dyn Task, &mut Context<'_>) -> Step) {
        let Some(mut task) = self.slots.take(key) else {
            return;
        };
        let mut step = call(
            &mut *task,
            &mut Context {
                event_loop: self,
                key,
            },
        );
        while let Step::Become(next) = step {
            self.wheel.cancel(key.index as usize);
            task = next;
            step = task.start(&mut Context {
                event_loop: self,
                key,
            });
        }
        if matches!(step, Step::Done) {
            self.remove(key);
            return;
        }
        self.slots.put_back(key, task, matches!(step, Step::Again));
    }

    pub(crate) fn close(&mut self, key: Key) {
        if let Some(mut task) = self.slots.take(key) {
            task.close(&mut Context {
                event_loop: self,
                key,
            });
            self.remove(key);
        }
    }

    fn remove(&mut self, key: Key) {
        self.wheel.cancel(key.index as usize);
        self.slots.remove(key);
        if self.slots.is_empty() {
            self.carriers.segments.leave();
        }
    }

    pub(crate) fn hear(&mut self, bell: Arc<dyn Bell>) -> Result<()> {
        if self.bells.iter().any(|known| Arc::ptr_eq(known, &bell)) {
            return Ok(());
        }
        let data = EventData::new_u64(BELL_TOKEN - self.bells.len() as u64);
        let flags = Interest::TAKE_SHARED.flags();
        epoll::add(&self.epoll, bell.fd(), data, flags).context("cannot watch a BPF ring")?;
        self.bells.push(bell);
        Ok(())
    }

    /// Leaves nothing undone that the descriptor would not tell of.
    fn settle(&mut self) -> Result<()> {
        if self.driven {
            if self.carriers.ring.as_ref().is_some_and(Ring::is_unused) {
                self.carriers.ring = None;
            }
            if let Some(ring) = &mut self.carriers.ring {
                ring.turn()
                    .context("cannot use the event loop's io_uring")?;
            }
        }
        self.arm_timer()
    }
}

impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        let letters = self.mailbox.shut();
        for key in self.slots.keys() {
            self.close(key);
        }
        // Dropped only now: an action that brings a pair ends it, which may look at the mailbox.
        drop(letters);
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop")
            .field("tasks", &self.slots.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_is_driven_keeps_what_was_prepared() {
        let engine = EngineChoice::Only(EngineName::Sockmap);
        let forbidden = EngineName::Sockmap.probe().err();
        if !netlab::present("sockmap", forbidden.map(|error| error.to_string())) {
            return;
        }
        let mut event_loop = EventLoop::new().unwrap();
        event_loop.prepare(engine).unwrap();
        for _ in 0..3 {
            event_loop.turn(Some(Duration::ZERO)).unwrap();
        }
        assert_eq!(event_loop.bells.len(), 1);
    }
}
