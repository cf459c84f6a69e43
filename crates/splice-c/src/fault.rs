//! What a call that fails leaves: `errno`, and the reason in words.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use rustix::io::Errno;
use splice::Error;

thread_local! {
    static REASON: RefCell<CString> = RefCell::new(c"no call of this thread has failed".into());
}

/// A call that fails: `errno`, and why.
pub(crate) struct Fault {
    errno: Errno,
    why: String,
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(crate) fn errno(&self) -> Errno {
        self.errno
    }

    pub(crate) fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self {
            errno,
            why: why.into(),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let errno = so_splice::errno_of(&error);
        // The number is in `errno` already.
        let number = format!(" (os error {})", errno.raw_os_error());
        Self::new(errno, error.to_string().replace(&number, ""))
    }
}

/// What a function returns to C: its value, or -1 with `errno`.
pub(crate) fn answer<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|fault| {
        let why = fault.why.replace('\0', " ");
        let reason = CString::new(why).unwrap_or_default();
        // A thread that ends may have none any more.
        let _ = REASON.try_with(|place| place.replace(reason));
        // SAFETY: it has no requirements.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: `errno` is the thread's own.
        unsafe { place.write(fault.errno.raw_os_error()) };
        T::from(-1)
    })
}

/// Why the last call of this thread that failed has failed, in words. Never NULL. Valid until the
/// next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn splice_strerror() -> *const c_char {
    let reason = REASON.try_with(|reason| reason.borrow().as_ptr());
    reason.unwrap_or_else(|_| c"the thread ends, and with it what its calls have left".as_ptr())
}
