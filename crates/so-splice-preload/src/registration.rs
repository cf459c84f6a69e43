//! epoll_ctl(2): what the program watches, and what the kernel is told of it while a socket is
//! spliced.
//!
//! ```text
//!            a splice begins                      it ends
//! in full ───────────────────▶ masked, or removed ───────▶ in full
//! ```
//!
//! A registration of which nothing is left is removed, since epoll reports errors unasked. So
//! epoll_wait(2) needs no replacement. An error that a splice has left and that the kernel does not
//! know is reported by the splice's eventfd, registered with the same data.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::fs;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{epoll_event, pollfd};
use rustix::io::Errno;

use crate::marks::{self, Spliced};
use crate::next::{EPOLL_CTL, POLL, Uncancelled, fail};

const READING: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDBAND | libc::EPOLLRDHUP) as u32;
const WRITING: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32;
const INTEREST: u32 = READING | WRITING | libc::EPOLLPRI as u32;
const MANNER: u32 = (libc::EPOLLET | libc::EPOLLONESHOT) as u32;

/// What one epoll instance watches one descriptor for.
struct Registration {
    /// What the program asked for.
    events: u32,
    data: u64,
    /// What the kernel has; `None` if it was removed there.
    told: Option<u32>,
    /// The eventfd that reports an error in its place.
    substitute: Option<RawFd>,
}

#[derive(Default)]
pub(crate) struct Table {
    /// By descriptor, then by epoll instance.
    registrations: BTreeMap<c_int, BTreeMap<c_int, Registration>>,
    epolls: BTreeSet<c_int>,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    registrations: BTreeMap::new(),
    epolls: BTreeSet::new(),
});

pub(crate) fn lock() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What splices hide of a socket, and what they have left.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Cover {
    hidden: u32,
    error_event: Option<RawFd>,
}

impl Cover {
    fn of(cookie: u64) -> Self {
        let spliced = Spliced::of(cookie);
        let mut hidden = 0;
        if spliced.hides_reading().is_some() {
            hidden |= READING;
        }
        if spliced.hides_writing().is_some() {
            hidden |= WRITING;
        }
        let left = || so_splice::event_of_error(cookie);
        Self {
            hidden,
            error_event: spliced.error.and_then(|_| left()),
        }
    }
}

fn control(epoll: c_int, operation: c_int, fd: c_int, events: u32, data: u64) -> c_int {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: `event` outlives the call.
    unsafe { EPOLL_CTL.get()(epoll, operation, fd, &raw mut event) }
}

impl Registration {
    /// Tells the kernel what is left of it under `cover`.
    fn put_under(&mut self, cover: Cover, epoll: c_int, fd: c_int) {
        let shown = self.events & !cover.hidden;
        let is_touched = self.events & cover.hidden & INTEREST != 0;
        let wanted = (!is_touched || shown & INTEREST != 0).then_some(shown);
        if wanted != self.told && !self.is_disarmed(epoll, fd) {
            match (self.told, wanted) {
                (Some(_), Some(events)) => {
                    control(epoll, libc::EPOLL_CTL_MOD, fd, events, self.data)
                }
                (None, Some(events)) => control(epoll, libc::EPOLL_CTL_ADD, fd, events, self.data),
                (_, None) => control(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0),
            };
            self.told = wanted;
        }
        self.substitute(cover.error_event, epoll, fd);
    }

    /// Whether it has fired once and waits to be armed again: then the kernel reports nothing, and
    /// to change it would arm it.
    fn is_disarmed(&self, epoll: c_int, fd: c_int) -> bool {
        if self.events & libc::EPOLLONESHOT as u32 == 0 || self.told.is_none() {
            return false;
        }
        // Each line is "tfd: NUMBER events: MASK data: ..." (`ep_show_fdinfo`).
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some("tfd:")
                && words.next().and_then(|word| word.parse().ok()) == Some(fd)
                && words
                    .nth(1)
                    .and_then(|mask| u32::from_str_radix(mask, 16).ok())
                    .is_some_and(|mask| mask & INTEREST == 0)
        })
    }

    /// It is dropped: nothing is reported in its place any more.
    fn withdraw(self, epoll: c_int) {
        if let Some(event) = self.substitute {
            control(epoll, libc::EPOLL_CTL_DEL, event, 0, 0);
        }
    }

    /// Has the eventfd of an error reported in its place, unless the kernel reports the socket
    /// anyway.
    fn substitute(&mut self, event: Option<RawFd>, epoll: c_int, fd: c_int) {
        if let Some(old) = self.substitute.take_if(|old| Some(*old) != event) {
            control(epoll, libc::EPOLL_CTL_DEL, old, 0, 0);
        }
        if let Some(event) = event
            && self.substitute.is_none()
            && self.events & (READING | WRITING) != 0
            && !is_ready(fd)
        {
            let events = self.events & MANNER | libc::EPOLLIN as u32;
            if control(epoll, libc::EPOLL_CTL_ADD, event, events, self.data) == 0 {
                self.substitute = Some(event);
            }
        }
    }
}

fn is_ready(fd: c_int) -> bool {
    let mut look = pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one `pollfd`.
    unsafe { POLL.get()(&raw mut look, 1, 0) > 0 }
}

/// A splice of the socket has begun or ended, or its error was taken.
pub(crate) fn refresh(cookie: u64) {
    // The lock is below all others, so the state is read outside of it, and again if it changes.
    let mut cover = Cover::of(cookie);
    let _uncancelled = Uncancelled::new();
    loop {
        for fd in marks::of(cookie) {
            if !marks::is_registered(fd) {
                continue;
            }
            let mut table = lock();
            // It may have been closed meanwhile, and be another's number.
            if marks::get(fd) == Some(cookie)
                && let Some(epolls) = table.registrations.get_mut(&fd)
            {
                for (epoll, registration) in epolls {
                    registration.put_under(cover, *epoll, fd);
                }
            }
        }
        let now = Cover::of(cookie);
        if now == cover {
            return;
        }
        cover = now;
    }
}

/// The program is about to close a descriptor.
pub(crate) fn closes(fd: c_int) {
    if !marks::is_registered(fd) || !marks::are_ours() {
        return;
    }
    let mut table = lock();
    for (epoll, registration) in table.registrations.remove(&fd).unwrap_or_default() {
        registration.withdraw(epoll);
    }
    if table.epolls.remove(&fd) {
        for epolls in table.registrations.values_mut() {
            if let Some(registration) = epolls.remove(&fd) {
                registration.withdraw(fd);
            }
        }
        table.registrations.retain(|_, epolls| !epolls.is_empty());
    }
    drop(table);
    marks::set_registered(fd, false);
}

/// As epoll_ctl(2). While a socket is spliced, the kernel watches it for what is not hidden.
///
/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the program's own arguments.
    let pass_on = || unsafe { EPOLL_CTL.get()(epoll, operation, fd, event) };
    if !marks::are_ours() {
        return pass_on();
    }
    let removed = || {
        let table = lock();
        let registration = table.registrations.get(&fd)?.get(&epoll)?;
        Some(registration.told.is_none() && marks::get(fd).is_some())
    };
    match operation {
        libc::EPOLL_CTL_DEL => {
            let was_removed = removed() == Some(true);
            let result = if was_removed { 0 } else { pass_on() };
            if result == 0 {
                forget(epoll, fd);
            }
            result
        }
        libc::EPOLL_CTL_ADD if removed() == Some(true) => fail(Errno::EXIST),
        libc::EPOLL_CTL_MOD if removed() == Some(true) && !event.is_null() => {
            // SAFETY: the program points to an event.
            record(epoll, fd, unsafe { event.read() }, false);
            0
        }
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            let result = pass_on();
            if result == 0 {
                // SAFETY: the kernel has read the event, too.
                record(epoll, fd, unsafe { event.read() }, true);
            }
            result
        }
        _ => pass_on(),
    }
}

/// Records what the program asked for, and hides what has to be hidden.
fn record(epoll: c_int, fd: c_int, event: epoll_event, is_told: bool) {
    let events = event.events;
    let mut table = lock();
    table.epolls.insert(epoll);
    let epolls = table.registrations.entry(fd).or_default();
    let before = epolls.remove(&epoll);
    let registration = Registration {
        events,
        data: event.u64,
        told: is_told.then_some(events),
        substitute: None,
    };
    epolls.insert(epoll, registration);
    drop(table);
    if let Some(before) = before {
        before.withdraw(epoll);
    }
    marks::set_registered(fd, true);
    marks::set_registered(epoll, true);
    if let Some(cookie) = marks::valid(fd) {
        refresh(cookie);
    }
}

fn forget(epoll: c_int, fd: c_int) {
    let mut table = lock();
    let Some(epolls) = table.registrations.get_mut(&fd) else {
        return;
    };
    if let Some(registration) = epolls.remove(&epoll) {
        registration.withdraw(epoll);
    }
    if epolls.is_empty() {
        table.registrations.remove(&fd);
    }
}

impl Table {
    /// In a forked child: the epoll instances are shared with the parent, whose splices they hide.
    pub(crate) fn abandon(&mut self) {
        *self = Self::default();
    }
}
