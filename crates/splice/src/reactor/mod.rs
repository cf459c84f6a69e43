//! The event loop of one thread. It runs [`Task`]s, and knows no socket, no engine and no pair.
//!
//! An epoll event carries a [`Key`] (the task's slot and its generation) and the number under which
//! the task registered the descriptor. Upper layers keep what they need once per loop as a
//! [`Local`], which may bring a second [`Poller`].

mod local;
mod mailbox;
mod notifier;
mod poller;
mod readiness;
mod task;
mod task_table;
mod timer;
mod timer_wheel;
mod token;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use splice_base::error::{Result, ResultExt as _};
use splice_base::socket_option::set_epoll_busy_poll;

pub(crate) use self::local::Local;
use self::local::Locals;
use self::mailbox::{Mailbox, Message};
pub use self::mailbox::{Remote, Waker};
pub(crate) use self::notifier::Notifier;
use self::poller::EpollEvents;
pub(crate) use self::poller::Poller;
pub use self::readiness::{Interest, Readiness};
pub use self::task::{Context, Step, Task};
use self::task_table::TaskTable;
use self::timer::timespec;
use self::timer_wheel::TimerWheel;
pub(crate) use self::token::Key;
use self::token::{MAILBOX_TOKEN, NOTIFIER_TOKEN, NOTIFIERS, POLLER_TOKEN, TIMER_TOKEN};

/// How many events one `epoll_wait` takes: enough to spread its cost, few enough to get to timers
/// and messages soon.
const EVENTS_PER_TURN: usize = 256;

/// How long a loop without tasks keeps the kernel side of engines loaded. Loading takes some 40 ms,
/// most of it for parsing the kernel's type information.
const NOTIFIERS_KEPT: Duration = Duration::from_secs(3);

/// One epoll loop. It runs pairs and other [`Task`]s on the thread that turns it.
///
/// Most programs use [`join`](crate::join()) or a [`Splicer`](crate::Splicer), which turn loops in
/// background threads. A program with a loop of its own watches the descriptor that [`AsFd`]
/// returns, and calls [`turn`](Self::turn) with a zero timeout when it is readable.
///
/// Dropping the loop closes its tasks. Its pairs end with
/// [`Reason::Shutdown`](crate::Reason::Shutdown).
pub struct EventLoop {
    epoll: Arc<OwnedFd>,
    events: Vec<epoll::Event>,
    tasks: TaskTable,
    wheel: TimerWheel,
    timer: OwnedFd,
    /// The next or the last expiry of the timer.
    armed: Option<Instant>,
    /// Another event loop drives this one.
    driven: bool,
    mailbox: Arc<Mailbox>,
    now: Instant,
    ended: bool,
    turned: bool,
    locals: Locals,
    /// The busy-poll time, which a second poller gets, too.
    busy_poll: Option<Duration>,
    /// Since when no task uses the second poller.
    poller_unused_since: Option<Instant>,
    notifiers: Vec<Arc<dyn Notifier>>,
    /// Since when the loop has notifiers but no tasks.
    notifiers_unused_since: Option<Instant>,
}

impl EventLoop {
    /// Creates a loop without tasks.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the process has no descriptors left.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .context("cannot create an epoll instance")?;
        let epoll = Arc::new(epoll);
        let mailbox = Arc::new(Mailbox::new(Arc::clone(&epoll))?);
        epoll::add(
            &epoll,
            &*mailbox,
            EventData::new_u64(MAILBOX_TOKEN),
            EventFlags::IN | EventFlags::ET,
        )
        .context("cannot watch the event loop's eventfd")?;
        let timer = timer::create(epoll.as_fd())?;
        let now = Instant::now();
        Ok(Self {
            epoll,
            events: Vec::with_capacity(EVENTS_PER_TURN),
            tasks: TaskTable::default(),
            wheel: TimerWheel::new(now),
            timer,
            armed: None,
            driven: false,
            mailbox,
            now,
            ended: false,
            turned: false,
            locals: Locals::default(),
            busy_poll: None,
            poller_unused_since: None,
            notifiers: Vec::new(),
            notifiers_unused_since: None,
        })
    }

    /// Makes the loop poll the device of its sockets for up to `time` before it sleeps, if the
    /// driver supports that. A loop with an io_uring polls for at most 10 ms.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) on kernels before 6.9.
    pub fn set_busy_poll(&mut self, time: Duration) -> Result<()> {
        set_epoll_busy_poll(self.epoll.as_fd(), time)?;
        self.busy_poll = Some(time);
        match self.locals.poller() {
            Some(poller) => poller.set_busy_poll(time),
            None => Ok(()),
        }
    }

    /// A [`Remote`], which reaches this loop from other threads.
    pub fn remote(&self) -> Remote {
        Remote::new(Arc::clone(&self.mailbox))
    }

    /// The loop's own descriptors: its epoll instance, its timer, and what wakes it. A forked child
    /// has copies, which are of no use there.
    pub fn descriptors(&self) -> [RawFd; 3] {
        [
            self.epoll.as_raw_fd(),
            self.timer.as_raw_fd(),
            self.mailbox.as_fd().as_raw_fd(),
        ]
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

    /// Waits for events for at most `timeout` (without a limit if `None`), and handles them.
    ///
    /// A zero timeout tells the loop that another loop drives it. From then on, pending work makes
    /// its descriptor readable, too.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when `epoll_wait` or the timerfd fails.
    pub fn turn(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.turned = true;
        if timeout == Some(Duration::ZERO) && !self.driven {
            self.driven = true;
            self.watch_poller()?;
        }
        self.wait(timeout)?;
        self.now = Instant::now();
        while let Some((key, source, readiness)) = self.next_from_poller() {
            self.with_task(key, |task, cx| task.ready(cx, source, readiness));
        }
        // The vector is moved out, since the tasks borrow the loop.
        let events = std::mem::take(&mut self.events);
        for event in &events {
            match event.data.u64() {
                MAILBOX_TOKEN => self.read_messages(),
                TIMER_TOKEN | POLLER_TOKEN => {}
                token if token > NOTIFIER_TOKEN - NOTIFIERS => {
                    let notifier = self.notifiers.get((NOTIFIER_TOKEN - token) as usize);
                    if let Some(notifier) = notifier.map(Arc::clone) {
                        notifier.answer();
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
        // Only the tasks that were runnable before this turn, so that a busy task cannot starve the
        // loop.
        for _ in 0..self.tasks.waiting() {
            let Some(key) = self.tasks.next_waiting() else {
                break;
            };
            self.with_task(key, |task, cx| task.resume(cx));
        }
        self.settle()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        let unused = self.tasks.is_empty() && !self.notifiers.is_empty();
        let unused_since = unused.then(|| *self.notifiers_unused_since.get_or_insert(self.now));
        self.notifiers_unused_since = unused_since;
        let timeout = match timeout {
            None if unused => Some(NOTIFIERS_KEPT),
            other => other,
        };
        let timeout = if self.has_work() {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        self.events.clear();
        let timeout = match self.wait_in_poller(timeout)? {
            EpollEvents::None => return Ok(()),
            EpollEvents::Pending => Some(Duration::ZERO),
            EpollEvents::Unknown => timeout,
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
        // Never earlier, however short the caller's timeout is.
        if self.events.is_empty() && unused_since.is_some_and(|at| at.elapsed() >= NOTIFIERS_KEPT) {
            for notifier in self.notifiers.drain(..) {
                // Other loops may still have the descriptor open.
                let _ = epoll::delete(&self.epoll, notifier.fd());
            }
        }
        if self.driven
            && let Some(poller) = self.locals.poller()
        {
            poller.turn()?;
        }
        Ok(())
    }

    /// A task is runnable without a new event.
    fn has_work(&mut self) -> bool {
        self.tasks.waiting() > 0
            || self
                .locals
                .poller()
                .is_some_and(|poller| poller.has_events())
    }

    fn read_messages(&mut self) {
        for message in self.mailbox.take() {
            match message {
                Message::Run(action) => action(self),
                Message::Wake(key) => self.with_task(key, |task, cx| task.resume(cx)),
                Message::Close(key) => self.close(key),
                Message::End => self.ended = true,
            }
        }
    }

    fn expire_deadlines(&mut self) {
        let mut passed = Vec::new();
        self.wheel.expire(self.now, |index| passed.push(index));
        for index in passed {
            if let Some(key) = self.tasks.key_at(index) {
                self.with_task(key, |task, cx| task.deadline_passed(cx));
            }
        }
    }

    /// Makes the descriptor readable once, so that a caller that only waits for it comes in and
    /// shows how it turns the loop. A pair that the kernel takes at once may bring no event.
    fn be_turned_once(&self) {
        if !self.turned {
            let _ = self.mailbox.post(Message::Run(Box::new(|_| ())));
        }
    }

    /// Places a task on the loop and starts it.
    pub fn spawn(&mut self, task: Box<dyn Task>) -> Waker {
        let waker = self.spawn_in_turn(task, |_| ());
        // Neither the timerfd nor the poller fails on valid arguments.
        let _ = self.settle_between_turns();
        waker
    }

    /// Places a task within a turn, which arms the timer at its end. `placed` gets the task's key
    /// before the task starts.
    pub(crate) fn spawn_in_turn(&mut self, task: Box<dyn Task>, placed: impl FnOnce(Key)) -> Waker {
        let key = self.tasks.insert(task);
        placed(key);
        self.with_task(key, |task, cx| task.start(cx));
        Waker::new(Arc::clone(&self.mailbox), key)
    }

    /// An upper layer's state for this loop, created at the first call.
    pub(crate) fn local<T: Local + Default>(&mut self) -> &mut T {
        self.locals.get()
    }

    /// How many notifiers the loop answers.
    #[cfg(test)]
    pub(crate) fn notifiers(&self) -> usize {
        self.notifiers.len()
    }

    /// Arms the timer and submits requests, for a caller that waits for the descriptor next.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the timerfd or the second poller fails.
    pub(crate) fn settle_between_turns(&mut self) -> Result<()> {
        self.be_turned_once();
        self.settle()
    }

    /// How many tasks are on the loop.
    pub fn tasks(&self) -> usize {
        let tasks = self.tasks.iter();
        tasks.filter(|task| !task.is_aftermath()).count()
    }

    fn with_task(&mut self, key: Key, call: impl FnOnce(&mut dyn Task, &mut Context<'_>) -> Step) {
        let Some(mut task) = self.tasks.take(key) else {
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
        self.tasks.put_back(key, task, matches!(step, Step::Again));
    }

    /// Closes a task, unless it has ended.
    pub(crate) fn close(&mut self, key: Key) {
        if let Some(mut task) = self.tasks.take(key) {
            task.close(&mut Context {
                event_loop: self,
                key,
            });
            self.remove(key);
        }
    }

    fn remove(&mut self, key: Key) {
        self.wheel.cancel(key.index as usize);
        self.tasks.remove(key);
        if self.tasks.is_empty() {
            self.locals.emptied();
        }
    }

    /// Answers a notifier on this loop, until the loop is empty.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System), `ENOSPC` when the user's epoll watches are used up.
    pub(crate) fn watch_notifier(&mut self, notifier: Arc<dyn Notifier>) -> Result<()> {
        let mut known = self.notifiers.iter();
        if known.any(|known| Arc::ptr_eq(known, &notifier)) {
            return Ok(());
        }
        let data = EventData::new_u64(NOTIFIER_TOKEN - self.notifiers.len() as u64);
        let flags = Interest::TAKE_SHARED.flags();
        epoll::add(&self.epoll, notifier.fd(), data, flags)
            .context("cannot watch a BPF ring buffer")?;
        self.notifiers.push(notifier);
        Ok(())
    }

    /// Completes whatever the descriptor does not report.
    fn settle(&mut self) -> Result<()> {
        if self.driven {
            self.locals.drop_poller_if_unused();
            if let Some(poller) = self.locals.poller() {
                poller.turn()?;
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
        let messages = self.mailbox.shut();
        for key in self.tasks.keys() {
            self.close(key);
        }
        // Dropped last: an action that holds a pair ends it, and the pair may use the mailbox.
        drop(messages);
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop")
            .field("tasks", &self.tasks.len())
            .finish_non_exhaustive()
    }
}
