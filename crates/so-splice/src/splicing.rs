//! What a program does: splice, undo, ask.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use splice::{Error, EventLoop, Reason, Result, Rules, Side};

use crate::merger::Merger;
use crate::personality::Personality;
use crate::process;
use crate::request::Request;
use crate::ring::{self, PASSES_MOST};
use crate::rules;
use crate::socket::Socket;
use crate::table::{self, Splice};

/// Splices the socket `source` as `request` says, or undoes its splice if the drain is negative.
/// What has arrived already is moved when this returns. `on_end` is called once at the end, in the
/// thread that ends the splice. Returns the splice, unless one was undone.
///
/// # Errors
/// Those of the personality; `EMFILE` and the like if the process has no descriptors left.
pub fn splice(
    personality: Personality,
    source: RawFd,
    request: &Request,
    on_end: impl FnOnce(&Splice) + Send + 'static,
) -> Result<Option<Arc<Splice>>> {
    let source = rules::socket(source, "the source")?;
    if request.drain < 0 {
        undo(personality, &source, request)?;
        return Ok(None);
    }
    let drain = rules::check(personality, &source, request)?;
    let uncollected = match personality {
        Personality::OpenBsd => pending_error(source.cookie),
        Personality::Linux | Personality::FreeBsd => None,
    };
    let splice = Arc::new(Splice::new(&source, &drain, personality, request));
    if !table::lock().insert(&splice) {
        let why = "another thread splices one of the sockets at this moment";
        return Err(rules::refused(Errno::BUSY, why));
    }
    // The first pass finds the error and moves nothing (`somove`).
    if let Some(errno) = uncollected {
        let errno = errno.raw_os_error();
        let side = Side::A;
        splice.ended(Reason::Failed { side, errno }, 0);
        on_end(&splice);
        return Ok(Some(splice));
    }
    let started = start(&splice, &source, &drain, request, on_end);
    match started {
        Ok(()) => {
            if personality != Personality::FreeBsd {
                bound_ring(&splice);
            }
            if personality == Personality::Linux && source.is_stream {
                merge_with_reverse(&splice)?;
            }
            Ok(Some(splice))
        }
        Err(error) => {
            table::lock().remove(&splice);
            Err(error)
        }
    }
}

fn start(
    splice: &Arc<Splice>,
    source: &Socket<'_>,
    drain: &Socket<'_>,
    request: &Request,
    on_end: impl FnOnce(&Splice) + Send + 'static,
) -> Result<()> {
    let options = splice.personality.options(request);
    let ending = Arc::clone(splice);
    let rules = Arc::clone(splice) as Arc<dyn Rules>;
    let on_end = move |reason, bytes| {
        ending.ended(reason, bytes);
        on_end(&ending);
    };
    let splicer = process::splicer()?;
    splice.set_handle(splicer.one_way_by(rules, source.fd, drain.fd, &options, on_end)?);
    Ok(())
}

/// Has the splice and its reverse become a pair, once the program has closed both sockets. A pair
/// has limits of its own, so splices with a limit stay what they are.
fn merge_with_reverse(splice: &Arc<Splice>) -> Result<()> {
    let reverse = table::lock().source(splice.drain).map(Arc::clone);
    let Some(reverse) = reverse.filter(|reverse| splice.is_reverse_of(reverse)) else {
        return Ok(());
    };
    let (Some(forth), Some(back)) = (splice.handle(), reverse.handle()) else {
        return Ok(());
    };
    let splices = [Arc::downgrade(splice), Arc::downgrade(&reverse)];
    let may = move || {
        let is_ours = |splice: Arc<Splice>| !splice.is_shared.load(Ordering::Relaxed);
        splices
            .iter()
            .all(|splice| splice.upgrade().is_some_and(is_ours))
    };
    let merger = Merger::new([&forth, &back], splice.numbers, Box::new(may));
    let place = move |event_loop: &mut EventLoop| drop(event_loop.spawn(Box::new(merger)));
    process::splicer()?.remote().run(place)
}

/// Bounds the passes of the ring that `last` closes, if it closes one.
fn bound_ring(last: &Arc<Splice>) {
    let Some(path) = &last.path else {
        return;
    };
    let (splices, paths): (Vec<_>, Vec<_>) = table::lock()
        .splices()
        .filter(|splice| !Arc::ptr_eq(splice, last))
        .filter_map(|splice| Some((Arc::clone(splice), splice.path?)))
        .unzip();
    let Some(ring) = ring::closed_by(path, &paths) else {
        return;
    };
    let passes = Arc::new(AtomicU32::new(PASSES_MOST));
    for member in ring.iter().map(|place| &splices[*place]).chain([last]) {
        member.bound_passes(&passes);
    }
}

/// Undoes the splice of the socket `source`.
///
/// # Errors
/// Those of the personality: `ENOTCONN` or `EPROTO` if it is not spliced.
pub fn unsplice(personality: Personality, source: RawFd) -> Result<()> {
    let source = rules::socket(source, "the source")?;
    undo(personality, &source, &Request::to(-1))
}

fn undo(personality: Personality, source: &Socket<'_>, request: &Request) -> Result<()> {
    rules::check_undo(personality, source, request)?;
    let splice = table::lock().source(source.cookie).map(Arc::clone);
    let handle = splice.and_then(|splice| splice.handle());
    match handle.is_some_and(|handle| handle.undo()) {
        true => Ok(()),
        false => Err(rules::nothing_to_undo(personality)),
    }
}

/// Undoes all splices of this process.
pub fn unsplice_all() {
    if table::is_empty() {
        return;
    }
    let splices: Vec<_> = table::lock().splices().map(Arc::clone).collect();
    for handle in splices.iter().filter_map(|splice| splice.handle()) {
        handle.undo();
    }
}

/// The bytes that the last splice of the socket `source` has moved; 0 if there was none.
///
/// # Errors
/// `EBADF`; `ENOTSOCK`; FreeBSD has `ENOTCONN` for a listening socket.
pub fn moved_bytes(personality: Personality, source: RawFd) -> Result<u64> {
    let source = rules::socket(source, "the source")?;
    if personality == Personality::FreeBsd && source.is_listening() {
        return Err(rules::refused(Errno::NOTCONN, "the socket is listening"));
    }
    let splice = table::lock().source(source.cookie).map(Arc::clone);
    Ok(splice.map_or(0, |splice| splice.moved_bytes()))
}

/// The last splice of the socket `source`.
fn last(source: RawFd) -> Result<Arc<Splice>> {
    let source = rules::socket(source, "the source")?;
    let splice = table::lock().source(source.cookie).map(Arc::clone);
    splice.ok_or_else(|| rules::refused(Errno::NOTCONN, "the socket was never spliced"))
}

/// Why the last splice of the socket `source` has ended: `None` while it runs, and if it was undone
/// or its stream has ended.
///
/// # Errors
/// `EBADF`; `ENOTSOCK`; `ENOTCONN` if the socket was never spliced.
pub fn error_of_last(source: RawFd) -> Result<Option<Errno>> {
    Ok(last(source)?.error())
}

/// The number of a descriptor that is readable once the last splice of the socket `source` has
/// ended. It is closed with the next splice of the socket.
///
/// # Errors
/// As [`error_of_last`]; `EMFILE` and the like.
pub fn watch_end(source: RawFd) -> Result<RawFd> {
    let event = last(source)?.event();
    event.map_err(|errno| Error::system("cannot create an eventfd", errno))
}

/// The program is about to close its last descriptor of a socket.
pub fn closed(cookie: u64) {
    let splices = table::lock().forget(cookie);
    for splice in splices {
        // Another process may have descriptors, and then this was not the last one.
        if !splice.is_shared.load(Ordering::Relaxed) {
            end_for(&splice, cookie);
        }
    }
}

/// The program is about to shut the reading half of a socket down.
pub fn shut_source(cookie: u64) {
    let splice = table::lock().source(cookie).map(Arc::clone);
    splice.iter().for_each(|splice| end_for(splice, cookie));
}

/// The program is about to shut the writing half of a socket down.
pub fn shut_drain(cookie: u64) {
    let splice = table::lock().drain(cookie).map(Arc::clone);
    splice.iter().for_each(|splice| fail_drain(splice));
}

/// Ends a splice whose socket `cookie` the program gives up.
fn end_for(splice: &Splice, cookie: u64) {
    match splice.source == cookie {
        true => drop(splice.handle().map(|handle| handle.undo())),
        false => fail_drain(splice),
    }
}

fn fail_drain(splice: &Splice) {
    if let Some(handle) = splice.handle() {
        handle.end(Reason::Failed {
            side: Side::B,
            errno: Errno::PIPE.raw_os_error(),
        });
    }
}

/// The error that splices have left with the socket: what `SO_ERROR` is to return next.
pub fn pending_error(cookie: u64) -> Option<Errno> {
    let splices = table::last_of(cookie);
    splices
        .iter()
        .flatten()
        .find_map(|splice| splice.left(cookie))
}

/// Takes that error.
pub fn take_error(cookie: u64) -> Option<Errno> {
    let splices = table::last_of(cookie);
    splices.iter().flatten().find_map(|splice| {
        let errno = splice.left(cookie)?;
        splice.set_left(cookie, None);
        Some(errno)
    })
}

/// What an error is for a program that gets a number.
pub fn errno_of(error: &Error) -> Errno {
    use splice::ErrorKind;
    match (
        error.os_error().and_then(Errno::from_io_error),
        error.kind(),
    ) {
        (Some(errno), _) => errno,
        (None, ErrorKind::UnsupportedSocket) => Errno::PROTONOSUPPORT,
        (None, ErrorKind::EngineRefused | ErrorKind::BpfRefused) => Errno::OPNOTSUPP,
        (None, _) => Errno::NXIO,
    }
}

/// The number of a descriptor that stays readable as long as [`pending_error`] is there: that of
/// the splice that has left the error.
pub fn event_of_error(cookie: u64) -> Option<RawFd> {
    let splices = table::last_of(cookie);
    let with_error = splices
        .iter()
        .flatten()
        .find(|splice| splice.left(cookie).is_some())?;
    with_error.event().ok()
}
