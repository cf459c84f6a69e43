//! poll(2) and select(2): a source is not readable for the program until its splice has ended.
//!
//! What is hidden is taken out of what the kernel is asked for. The eventfd of each splice that
//! hides something is waited for as well, and when one fires, everything is looked at again.

use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use libc::{c_ulong, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use rustix::io::Errno;

use crate::marks::{self, Spliced};
use crate::next::{POLL, PPOLL, PSELECT, SELECT, check, fail};

const READING: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLRDHUP;
const WRITING: c_short = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;
const INTEREST: c_short = READING | WRITING | libc::POLLPRI;

/// What the kernel is asked in place of the program.
struct Question {
    entries: Vec<pollfd>,
    /// The splices that hide something.
    ends: Vec<OwnedFd>,
    /// An entry has an error that the kernel does not know.
    has_error: bool,
}

impl Question {
    /// `None` if nothing is hidden.
    fn of(fds: &[pollfd]) -> Result<Option<Self>, Errno> {
        let mut question = Self {
            entries: fds.to_vec(),
            ends: Vec::new(),
            has_error: false,
        };
        let mut is_changed = false;
        for entry in &mut question.entries {
            entry.revents = 0;
            let Some(cookie) = marks::get(entry.fd).and_then(|_| marks::valid(entry.fd)) else {
                continue;
            };
            let spliced = Spliced::of(cookie);
            let hiding = [
                (READING, spliced.hides_reading()),
                (WRITING, spliced.hides_writing()),
            ];
            let asked = entry.events;
            for (events, splice) in hiding {
                if let Some(splice) = splice {
                    question.ends.push(splice.end_event()?);
                    entry.events &= !events;
                    is_changed = true;
                }
            }
            // Errors are reported unasked.
            if entry.events & INTEREST == 0 && asked != entry.events {
                entry.fd = -1;
            }
            if spliced.error.is_some() && entry.events & (READING | WRITING) != 0 {
                // An error makes a socket ready for both (`soreadable`, `sowriteable`).
                entry.revents = entry.events & (READING | WRITING) & !libc::POLLRDHUP;
                question.has_error = true;
                is_changed = true;
            }
        }
        Ok(is_changed.then_some(question))
    }
}

/// Waits as ppoll(2) does, for at most `timeout`. Returns how many entries are ready.
fn wait(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<c_int, Errno> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let question = Question::of(fds)?.unwrap_or_else(|| Question {
            entries: fds.to_vec(),
            ends: Vec::new(),
            has_error: false,
        });
        let left = match question.has_error {
            true => Some(Duration::ZERO),
            false => deadline.map(|at| at.saturating_duration_since(Instant::now())),
        };
        let known: Vec<c_short> = question.entries.iter().map(|entry| entry.revents).collect();
        let mut entries = question.entries;
        entries.extend(question.ends.iter().map(|end| pollfd {
            fd: end.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
        let left = left.map(|left| timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let left = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = entries.len() as nfds_t;
        // SAFETY: `entries` has that many entries; `left` and `mask` are null or valid.
        let ready = unsafe { PPOLL.get()(entries.as_mut_ptr(), count, left, mask) };
        if ready < 0 {
            return Err(last_error());
        }
        let mut own = 0;
        for ((entry, told), known) in fds.iter_mut().zip(&entries).zip(known) {
            entry.revents = told.revents | known;
            own += c_int::from(entry.revents != 0);
        }
        if own > 0 || ready == 0 {
            return Ok(own);
        }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INTR)
}

/// Whether an entry names a marked descriptor.
///
/// # Safety
/// `fds` points to `count` entries, or is null with none.
unsafe fn concerns_us<'fds>(fds: *mut pollfd, count: nfds_t) -> Option<&'fds mut [pollfd]> {
    // More than there can be descriptors: the kernel refuses it.
    const MOST: nfds_t = 1 << 20;
    if so_splice::is_empty() || fds.is_null() || count > MOST {
        return None;
    }
    // SAFETY: the caller says so.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, usize::try_from(count).ok()?) };
    fds.iter()
        .any(|entry| marks::get(entry.fd).is_some())
        .then_some(fds)
}

fn answer(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(fail)
}

/// As poll(2).
///
/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    match unsafe { concerns_us(fds, count) } {
        // SAFETY: as above.
        None => unsafe { POLL.get()(fds, count, timeout) },
        Some(fds) => {
            let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
            answer(wait(fds, timeout, ptr::null()))
        }
    }
}

/// As ppoll(2).
///
/// # Safety
/// As ppoll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    match unsafe { concerns_us(fds, count) } {
        // SAFETY: as above.
        None => unsafe { PPOLL.get()(fds, count, timeout, mask) },
        // SAFETY: null or the program's own time.
        Some(fds) => match unsafe { timeout.as_ref() }.map_or(Ok(None), duration) {
            Ok(timeout) => answer(wait(fds, timeout, mask)),
            Err(errno) => fail(errno),
        },
    }
}

/// As poll(2), of programs that were compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    check(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the program's own arguments.
    unsafe { poll(fds, count, timeout) }
}

/// As ppoll(2), of programs that were compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As ppoll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the program's own arguments.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// The three sets of select(2), each null or the program's own.
#[derive(Clone, Copy)]
struct Sets([*mut fd_set; 3]);

/// What each set asks for, and what answers it (`select_poll_one`).
const ASKED: [(c_short, c_short); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// Where the bit of a descriptor is. Programs have larger sets than `fd_set`, whose accessors check
/// its size.
fn word_of(set: *mut fd_set, fd: c_int) -> *mut c_ulong {
    set.cast::<c_ulong>()
        .wrapping_add(fd as usize / c_ulong::BITS as usize)
}

fn bit_of(fd: c_int) -> c_ulong {
    1 << (fd as u32 % c_ulong::BITS)
}

impl Sets {
    /// The entries of the descriptors below `end`, if one of them is marked.
    fn entries(self, end: c_int) -> Option<Vec<pollfd>> {
        if so_splice::is_empty() {
            return None;
        }
        let mut entries = Vec::new();
        for fd in 0..end {
            let asked = self.0.iter().zip(ASKED).filter(|(set, _)| {
                // SAFETY: a set that is not null has the descriptors below `end`.
                !set.is_null() && unsafe { word_of(**set, fd).read() } & bit_of(fd) != 0
            });
            let events = asked.fold(0, |events, (_, (asked, _))| events | asked);
            if events != 0 {
                entries.push(pollfd {
                    fd,
                    events,
                    revents: 0,
                });
            }
        }
        let is_ours = entries.iter().any(|entry| marks::get(entry.fd).is_some());
        is_ours.then_some(entries)
    }

    /// Writes the answer, and returns how many bits are set.
    fn answer(self, entries: &[pollfd]) -> c_int {
        let mut count = 0;
        for (set, (asked, answers)) in self.0.into_iter().zip(ASKED) {
            for entry in entries {
                if set.is_null() || entry.events & asked == 0 {
                    continue;
                }
                if entry.revents & answers == 0 {
                    // SAFETY: the descriptor is below `end`.
                    unsafe { *word_of(set, entry.fd) &= !bit_of(entry.fd) };
                } else {
                    count += 1;
                }
            }
        }
        count
    }

    fn wait(
        self,
        mut entries: Vec<pollfd>,
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<c_int, Errno> {
        wait(&mut entries, timeout, mask)?;
        if entries
            .iter()
            .any(|entry| entry.revents & libc::POLLNVAL != 0)
        {
            return Err(Errno::BADF);
        }
        Ok(self.answer(&entries))
    }
}

/// As select(2). Linux returns in `timeout` what is left of it.
///
/// # Safety
/// As select(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    end: c_int,
    reading: *mut fd_set,
    writing: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets([reading, writing, exceptions]);
    let Some(entries) = sets.entries(end) else {
        // SAFETY: the program's own arguments.
        return unsafe { SELECT.get()(end, reading, writing, exceptions, timeout) };
    };
    let begun = Instant::now();
    // SAFETY: null or the program's own time.
    let most = unsafe { timeout.as_mut() };
    let most_time = match &most {
        None => None,
        // More than a second of microseconds is accepted (`kern_select`).
        Some(time) => match duration(&timespec {
            tv_sec: time.tv_sec.saturating_add(time.tv_usec / 1_000_000),
            tv_nsec: time.tv_usec % 1_000_000 * 1000,
        }) {
            Ok(time) => time,
            Err(errno) => return fail(errno),
        },
    };
    let result = sets.wait(entries, most_time, ptr::null());
    if let (Some(time), Some(most_time)) = (most, most_time) {
        let left = most_time.saturating_sub(begun.elapsed());
        time.tv_sec = left.as_secs() as libc::time_t;
        time.tv_usec = left.subsec_micros().into();
    }
    answer(result)
}

/// As pselect(2).
///
/// # Safety
/// As pselect(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    end: c_int,
    reading: *mut fd_set,
    writing: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = Sets([reading, writing, exceptions]);
    let Some(entries) = sets.entries(end) else {
        // SAFETY: the program's own arguments.
        return unsafe { PSELECT.get()(end, reading, writing, exceptions, timeout, mask) };
    };
    // SAFETY: null or the program's own time.
    match unsafe { timeout.as_ref() }.map_or(Ok(None), duration) {
        Ok(timeout) => answer(sets.wait(entries, timeout, mask)),
        Err(errno) => fail(errno),
    }
}

/// # Errors
/// `EINVAL` if it is no time.
fn duration(time: &timespec) -> Result<Option<Duration>, Errno> {
    let nanoseconds = u32::try_from(time.tv_nsec)
        .ok()
        .filter(|part| *part < 1_000_000_000);
    match (u64::try_from(time.tv_sec), nanoseconds) {
        (Ok(seconds), Some(nanoseconds)) => Ok(Some(Duration::new(seconds, nanoseconds))),
        _ => Err(Errno::INVAL),
    }
}
