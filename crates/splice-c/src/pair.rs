//! Pairs: `splice_join` and its kind.
//!
//! ```text
//!                      SPLICE_FINAL                     without it
//! splice_join ─┬─▶ a pair of the library      or ─▶ two one-way splices
//!              │      │ ended                          │ both ended: one that ends by other than
//!              │      ▼                                ▼ EOF undoes the other
//!              └─▶ Ending: the result, and the descriptor that becomes readable
//! ```

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::SocketType;
use rustix::net::getpeername;
use rustix::net::sockopt::socket_type;
use so_splice::{Personality, Splice};
use splice::{Counters, Endpoint, EngineName, Handle, OneWay, Reason, Side};

use crate::ending::Ending;
use crate::fault::{Fault, Result, answer};
use crate::options::{SpliceOptions, Wanted};

/// Why a pair has ended. No reason has the number 6.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::enum_variant_names, reason = "C has no namespaces")]
pub enum SpliceReason {
    /// It runs.
    SpliceRunning = 0,
    /// Both streams have ended, and every byte was delivered.
    SpliceEndOfStream = 1,
    /// One side has reset its connection.
    SpliceReset = 2,
    /// No byte has moved for idle_ms.
    SpliceIdle = 3,
    /// A direction has moved max_bytes.
    SpliceByteLimit = 4,
    /// The caller has taken the sockets back.
    SpliceUndone = 5,
    /// A system call on one of the sockets has failed.
    SpliceFailed = 7,
}

/// What a pair has come to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpliceResult {
    /// Bytes moved from a to b. While the pair runs, with SPLICE_FINAL up to a second old.
    pub a_to_b: u64,
    /// Bytes moved from b to a.
    pub b_to_a: u64,
    /// Why it has ended: enum splice_reason.
    pub reason: i32,
    /// The errno of that reason, or 0.
    pub error: i32,
}

const _: () = assert!(size_of::<SpliceResult>() == 24);
const _: () = assert!(offset_of!(SpliceResult, reason) == 16);

#[derive(Debug)]
enum Kind {
    /// Given up by the caller.
    Final(Handle),
    /// It can be undone. There is only the first splice if the second one could not be started.
    Open(Vec<Arc<OneWay>>),
}

/// A pair.
#[derive(Debug)]
pub struct SplicePair {
    kind: Kind,
    ending: Arc<Ending>,
    /// The process that has joined it: a forked child has a copy of the handle, but not the pair.
    process: u32,
}

impl SplicePair {
    fn join(a: c_int, b: c_int, wanted: &Wanted) -> Result<Self> {
        let cookies = [(a, "a"), (b, "b")].map(|(number, name)| {
            borrow(number, name)?;
            let cookie = cookie(number, name)?;
            let splices = so_splice::last_of(cookie);
            match splices.iter().flatten().any(|splice| splice.is_active()) {
                false => Ok(cookie),
                true => Err(Fault::new(
                    Errno::BUSY,
                    format!("{name} is spliced already"),
                )),
            }
        });
        let [of_a, of_b] = cookies;
        if of_a? == of_b? {
            let why = "a and b are the same socket; so_splice() splices a socket to itself";
            return Err(Fault::new(Errno::INVAL, why));
        }
        let ending = Ending::new()?;
        let kind = match wanted.is_final {
            true => join_final([a, b], wanted, &ending)?,
            false => join_open([a, b], wanted, &ending)?,
        };
        Ok(Self {
            kind,
            ending,
            process: std::process::id(),
        })
    }

    fn result(&self) -> SpliceResult {
        let outcome = self.ending.outcome();
        let (reason, error) = outcome.map_or((SpliceReason::SpliceRunning, None), |(reason, _)| {
            told(reason)
        });
        let moved = outcome.map_or_else(|| self.live(), |(_, moved)| moved);
        SpliceResult {
            a_to_b: moved.a_to_b,
            b_to_a: moved.b_to_a,
            reason: reason as i32,
            error: error.map_or(0, Errno::raw_os_error),
        }
    }

    /// Whether this process has joined it.
    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// What a pair that runs has moved so far.
    fn live(&self) -> Counters {
        match &self.kind {
            Kind::Final(handle) => handle.counters(),
            Kind::Open(ways) => {
                let moved = |way: usize| ways.get(way).map_or(0, |way| way.moved_bytes());
                Counters {
                    a_to_b: moved(0),
                    b_to_a: moved(1),
                }
            }
        }
    }

    /// The engine, and the reason in words.
    fn engine(&self) -> (EngineName, String) {
        let (name, why) = match &self.kind {
            Kind::Final(handle) => handle.engine(),
            Kind::Open(ways) => {
                let engines = ways.iter().map(|way| way.engine());
                let copy = (EngineName::Copy, "".into());
                // One that copies may have had less to do.
                engines.fold(copy, |found, other| match found.0 {
                    EngineName::Copy => other,
                    _ => found,
                })
            }
        };
        (name, why.into_owned())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.map(|left| Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            let mut fds = [PollFd::new(&self.ending, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Err(Fault::new(Errno::TIMEDOUT, "the pair still runs")),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) if deadline.is_none_or(|at| Instant::now() < at) => {}
                Err(errno) => return Err(Fault::new(errno, "cannot wait for the pair's end")),
            }
        }
    }

    fn undo(&self) -> Result<()> {
        let Kind::Open(ways) = &self.kind else {
            let why = "the pair was joined with SPLICE_FINAL, so its sockets cannot be taken back";
            return Err(Fault::new(Errno::BUSY, why));
        };
        if !self.is_own() {
            let why = "the pair is the parent's, which has joined it";
            return Err(Fault::new(Errno::PERM, why));
        }
        if self.ending.outcome().is_some() {
            return Err(Fault::new(Errno::NOTCONN, "the pair has ended already"));
        }
        for way in ways {
            // Only splices that both run are merged.
            if !way.undo() && way.is_merged() {
                let why = "the caller has closed both sockets, so they cannot be taken back";
                return Err(Fault::new(Errno::BUSY, why));
            }
        }
        // A loop may be about to tell of an end of its own.
        self.wait(None)
    }
}

/// What a caller is told of an end.
fn told(reason: Reason) -> (SpliceReason, Option<Errno>) {
    match reason {
        Reason::EndOfStream => (SpliceReason::SpliceEndOfStream, None),
        Reason::Reset(_) => (SpliceReason::SpliceReset, Some(Errno::CONNRESET)),
        Reason::Idle | Reason::HalfClosed => (SpliceReason::SpliceIdle, Some(Errno::TIMEDOUT)),
        Reason::ByteLimit => (SpliceReason::SpliceByteLimit, Some(Errno::FBIG)),
        Reason::Undone => (SpliceReason::SpliceUndone, None),
        Reason::Looped => (SpliceReason::SpliceFailed, Some(Errno::LOOP)),
        Reason::Failed { errno, .. } => {
            let errno = Errno::from_raw_os_error(errno);
            (SpliceReason::SpliceFailed, Some(errno))
        }
        Reason::MessageTooLong(_) => (SpliceReason::SpliceFailed, Some(Errno::MSGSIZE)),
        Reason::Refused => (SpliceReason::SpliceFailed, Some(Errno::OPNOTSUPP)),
        _ => (SpliceReason::SpliceFailed, Some(Errno::CANCELED)),
    }
}

/// What tells sockets apart.
fn cookie(number: c_int, name: &str) -> Result<u64> {
    so_splice::cookie(number).map_err(|errno| {
        let what = match errno {
            Errno::BADF => "an open descriptor",
            _ => "a socket",
        };
        Fault::new(errno, format!("{name} ({number}) is not {what}"))
    })
}

fn borrow<'fd>(number: c_int, name: &str) -> Result<BorrowedFd<'fd>> {
    cookie(number, name)?;
    // SAFETY: it was open just now, and the caller keeps it open during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    if !matches!(socket_type(fd), Ok(SocketType::STREAM)) {
        let why = format!("{name} is not a stream socket; only streams can be joined");
        return Err(Fault::new(Errno::PROTONOSUPPORT, why));
    }
    match getpeername(fd) {
        Ok(_) => Ok(fd),
        Err(_) => Err(Fault::new(
            Errno::NOTCONN,
            format!("{name} is not connected"),
        )),
    }
}

/// Where duplicates begin, if the limit of descriptors allows it: programs that call select(2) have
/// only descriptors below `FD_SETSIZE`, which is 1024.
const FIRST_FD: c_int = 1024;

fn join_final(numbers: [c_int; 2], wanted: &Wanted, ending: &Arc<Ending>) -> Result<Kind> {
    let duplicate = |number, name| {
        let fd = borrow(number, name)?;
        let duplicate = fcntl_dupfd_cloexec(fd, FIRST_FD).or_else(|_| fcntl_dupfd_cloexec(fd, 0));
        duplicate.map_err(|errno| Fault::new(errno, format!("cannot duplicate {name}")))
    };
    let [a, b] = numbers;
    let [a, b] = [duplicate(a, "a")?, duplicate(b, "b")?];
    let told = Arc::clone(ending);
    let handle = so_splice::splicer()?.join_then(
        Endpoint::new(a)?,
        Endpoint::new(b)?,
        &wanted.pair(),
        move |outcome| told.pair_ended(outcome.reason, outcome.moved),
    );
    Ok(Kind::Final(handle?))
}

fn join_open(numbers: [c_int; 2], wanted: &Wanted, ending: &Arc<Ending>) -> Result<Kind> {
    let [a, b] = numbers;
    let start = |way: usize, from, to| {
        let told = Arc::clone(ending);
        let on_end = move |splice: &Splice| {
            if let Some((reason, moved_bytes)) = splice.outcome() {
                told.way_ended(way, reason, moved_bytes);
            }
        };
        let request = wanted.one_way(to);
        let splice = so_splice::splice(Personality::Linux, from, &request, on_end)?;
        splice
            .and_then(|splice| splice.handle())
            .ok_or_else(|| Fault::new(Errno::NOTCONN, "the splice was undone at once"))
    };
    let forth = start(0, a, b)?;
    let back = match start(1, b, a) {
        Ok(back) => back,
        Err(fault) => {
            ending.decide(Reason::Failed {
                side: Side::B,
                errno: fault.errno().raw_os_error(),
            });
            let was_running = forth.undo();
            if was_running && forth.moved_bytes() == 0 {
                return Err(fault);
            }
            // What was moved has to be accounted for, so there is a pair, which has ended.
            ending.way_ended(1, Reason::Undone, 0);
            return Ok(Kind::Open(vec![forth]));
        }
    };
    forth.share_idle_timer(&back);
    let ways = vec![forth, back];
    ending.know(&ways);
    Ok(Kind::Open(ways))
}

/// Joins the sockets a and b: what arrives at one is moved to the other, in both directions, until
/// both streams have ended, an error, or a limit of the options, which may be NULL.
///
/// Without SPLICE_FINAL both sockets stay the caller's: splice_undo() gives them back at the exact
/// byte, and so does a limit. If he closes both (all descriptors of this process), the pair goes on
/// by itself and may go into the kernel. With SPLICE_FINAL he must close both right after this
/// call; he must not use them any more.
///
/// Returns 0 and the handle in *pair, or -1 with errno: EBADF, ENOTSOCK; EPROTONOSUPPORT, not two
/// stream sockets; ENOTCONN; EBUSY, one of them is spliced already; EINVAL, wrong options, or twice
/// the same socket; EOPNOTSUPP, the engine that was asked for cannot be used; EFAULT, pair is NULL;
/// EMFILE. Then no byte was moved and both sockets are the caller's; with SPLICE_FINAL, socket
/// options may have changed. An engine may also refuse later: then the pair ends with
/// SPLICE_FAILED, EOPNOTSUPP and a reset of both connections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice_join(
    a: c_int,
    b: c_int,
    options: *const SpliceOptions,
    pair: *mut *mut SplicePair,
) -> c_int {
    // SAFETY: the caller points to a struct or nowhere.
    let wanted = unsafe { Wanted::read(options) };
    let joined = wanted.and_then(|wanted| match pair.is_null() {
        true => Err(Fault::new(Errno::FAULT, "pair is NULL")),
        false => SplicePair::join(a, b, &wanted),
    });
    answer(joined.map(|joined| {
        // SAFETY: the caller points to room for a handle.
        unsafe { pair.write(Box::into_raw(Box::new(joined))) };
        0
    }))
}

/// Reads what the pair has moved so far, and why it has ended, if it has. Returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice_counters(
    pair: *const SplicePair,
    result: *mut SpliceResult,
) -> c_int {
    // SAFETY: a handle of splice_join() that was not released.
    let pair = unsafe { &*pair };
    // SAFETY: the caller points to room for a result.
    unsafe { result.write(pair.result()) };
    0
}

/// The name of the engine in use. The reason, in words, is written to why, which has room for
/// why_size bytes, cut if it is longer; why may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice_engine(
    pair: *const SplicePair,
    why: *mut c_char,
    why_size: usize,
) -> *const c_char {
    // SAFETY: a handle of splice_join() that was not released.
    let pair = unsafe { &*pair };
    let (name, words) = pair.engine();
    if !why.is_null() && why_size > 0 {
        // SAFETY: the caller says that there is room for `why_size` bytes.
        let room = unsafe { std::slice::from_raw_parts_mut(why.cast::<u8>(), why_size) };
        let mut length = words.len().min(why_size - 1);
        while !words.is_char_boundary(length) {
            length -= 1;
        }
        room[..length].copy_from_slice(&words.as_bytes()[..length]);
        room[length] = 0;
    }
    c_name(name).as_ptr()
}

fn c_name(name: EngineName) -> &'static std::ffi::CStr {
    match name {
        EngineName::Copy => c"copy",
        EngineName::Pipe => c"pipe",
        EngineName::Aio => c"aio",
        EngineName::Uring => c"uring",
        EngineName::Sockmap => c"sockmap",
        EngineName::Segment => c"segment",
        _ => c"unknown",
    }
}

/// Waits until the pair has ended, for at most timeout_ms milliseconds, or without limit if that is
/// negative. Signals do not interrupt it. result may be NULL.
///
/// Returns 0, or -1 with errno ETIMEDOUT if the pair still runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice_wait(
    pair: *const SplicePair,
    timeout_ms: c_int,
    result: *mut SpliceResult,
) -> c_int {
    // SAFETY: a handle of splice_join() that was not released.
    let pair = unsafe { &*pair };
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let waited = pair.wait(timeout);
    // SAFETY: null, or the caller points to room for a result.
    unsafe { tell(pair, result) };
    answer(waited.map(|()| 0))
}

/// # Safety
/// `result` is null or points to room for a result.
unsafe fn tell(pair: &SplicePair, result: *mut SpliceResult) {
    if !result.is_null() {
        // SAFETY: the caller says so.
        unsafe { result.write(pair.result()) };
    }
}

/// A descriptor that becomes readable when the pair has ended, for poll(2) and its kind. It is the
/// library's, and is closed by splice_release(). Do not read from it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice_fd(pair: *const SplicePair) -> c_int {
    // SAFETY: a handle of splice_join() that was not released.
    let pair = unsafe { &*pair };
    pair.ending.as_fd().as_raw_fd()
}

/// Takes both sockets back. When this returns, the pair reads nothing more, and every byte that it
/// has not moved is readable at the socket where it arrived. result may be NULL.
///
/// Returns 0, or -1 with errno: EBUSY, the pair was joined with SPLICE_FINAL, or both sockets are
/// closed; ENOTCONN, it has ended already; EPERM, this process is a child of the pair's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice_undo(pair: *mut SplicePair, result: *mut SpliceResult) -> c_int {
    // SAFETY: a handle of splice_join() that was not released.
    let pair = unsafe { &*pair };
    let undone = pair.undo();
    if pair.is_own() {
        // SAFETY: null, or the caller points to room for a result.
        unsafe { tell(pair, result) };
    }
    answer(undone.map(|()| 0))
}

/// Frees the handle. A pair that still runs is undone; with SPLICE_FINAL both connections are reset;
/// if the caller has closed both sockets, it goes on. In a forked child it only frees. NULL is
/// allowed. No other thread may use the handle meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice_release(pair: *mut SplicePair) {
    // SAFETY: null, or a handle of splice_join() that was not released.
    let pair = unsafe { take(pair) };
    if let Some(SplicePair {
        kind: Kind::Open(ways),
        ..
    }) = pair.as_deref()
    {
        // The table of splices has them, too, so to drop them ends nothing.
        for way in ways {
            way.undo();
        }
    }
}

/// Frees the handle. A pair that still runs goes on until it ends by itself. NULL is allowed. No
/// other thread may use the handle meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice_detach(pair: *mut SplicePair) {
    // SAFETY: null, or a handle of splice_join() that was not released.
    let pair = unsafe { take(pair) };
    // The table of splices keeps those that can be undone.
    if let Some(Kind::Final(handle)) = pair.map(|pair| pair.kind) {
        handle.detach();
    }
}

/// Takes a handle, unless this process is a child of its owner.
///
/// # Safety
/// `pair` is null or a handle that was not released.
unsafe fn take(pair: *mut SplicePair) -> Option<Box<SplicePair>> {
    if pair.is_null() {
        return None;
    }
    // SAFETY: the caller says so.
    let pair = unsafe { Box::from_raw(pair) };
    if pair.is_own() {
        return Some(pair);
    }
    // SAFETY: the child's copy of it, and nobody uses what is forgotten below.
    unsafe { rustix::io::close(pair.ending.as_fd().as_raw_fd()) };
    // Its locks may have been held by threads that the child does not have.
    std::mem::forget(pair);
    None
}
