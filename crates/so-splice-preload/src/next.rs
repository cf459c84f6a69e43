//! The functions that this library replaces, as the next library in line has them.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_ulong, epoll_event, fd_set, iovec, msghdr, nfds_t, pollfd, sigset_t, size_t};
use libc::{sockaddr, socklen_t, ssize_t, timespec, timeval};
use rustix::io::Errno;

/// A function of the next library: `F` is its type.
pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
            function: PhantomData,
        }
    }

    /// The function.
    pub(crate) fn get(&self) -> F {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: the name is a C string.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            assert!(!address.is_null(), "libc has no {:?}", self.name);
            self.address.store(address, Ordering::Relaxed);
        }
        // SAFETY: `F` is the type of the function with this name: see the statics below.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

/// Declares the functions with their types. Those that are only jumped to have none.
macro_rules! next {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(pub(crate) static $name: Next<unsafe extern "C" fn($($argument),*) $(-> $result)?> =
            Next::new($symbol);)*
    };
}

next! {
    CLOSE = c"close": fn(c_int) -> c_int;
    CLOSE_RANGE = c"close_range": fn(u32, u32, c_int) -> c_int;
    DUP = c"dup": fn(c_int) -> c_int;
    DUP2 = c"dup2": fn(c_int, c_int) -> c_int;
    DUP3 = c"dup3": fn(c_int, c_int, c_int) -> c_int;
    EPOLL_CTL = c"epoll_ctl": fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    EXECL = c"execl": fn();
    EXECLE = c"execle": fn();
    EXECLP = c"execlp": fn();
    EXECV = c"execv": fn();
    EXECVE = c"execve": fn();
    EXECVEAT = c"execveat": fn();
    EXECVP = c"execvp": fn();
    EXECVPE = c"execvpe": fn();
    FCLOSE = c"fclose": fn(*mut libc::FILE) -> c_int;
    FCNTL = c"fcntl": fn(c_int, c_int, c_ulong) -> c_int;
    FEXECVE = c"fexecve": fn();
    GETSOCKOPT = c"getsockopt": fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    IOCTL = c"ioctl": fn(c_int, c_ulong, c_ulong) -> c_int;
    POLL = c"poll": fn(*mut pollfd, nfds_t, c_int) -> c_int;
    PPOLL = c"ppoll": fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    PSELECT = c"pselect": fn(
        c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t
    ) -> c_int;
    READ = c"read": fn(c_int, *mut c_void, size_t) -> ssize_t;
    READV = c"readv": fn(c_int, *const iovec, c_int) -> ssize_t;
    RECV = c"recv": fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    RECVFROM = c"recvfrom": fn(
        c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t
    ) -> ssize_t;
    RECVMSG = c"recvmsg": fn(c_int, *mut msghdr, c_int) -> ssize_t;
    SELECT = c"select": fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    SETSOCKOPT = c"setsockopt": fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    SHUTDOWN = c"shutdown": fn(c_int, c_int) -> c_int;
}

/// Keeps the thread from being cancelled while it holds a lock: a cancelled thread ends within a
/// system call, and drops nothing (pthread_cancel(3)).
pub(crate) struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    pub(crate) fn new() -> Self {
        // `PTHREAD_CANCEL_DISABLE` of glibc's pthread.h.
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: `before` outlives the call.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: no place for the former state is asked for.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Sets `errno`, and returns what a function returns that has failed.
pub(crate) fn fail<T: From<i8>>(errno: Errno) -> T {
    // SAFETY: it has no requirements.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: `errno` is the thread's own.
    unsafe { place.write(errno.raw_os_error()) };
    T::from(-1)
}

unsafe extern "C" {
    /// What glibc's fortified headers call if a buffer is too small.
    fn __chk_fail() -> !;
}

/// Ends the program if a buffer has less room than it says.
pub(crate) fn check(length: size_t, room: size_t) {
    if length > room {
        // SAFETY: it ends the program.
        unsafe { __chk_fail() };
    }
}
