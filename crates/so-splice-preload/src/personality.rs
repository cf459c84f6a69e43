//! Whose rules the program wants.

use std::ffi::CStr;
use std::sync::OnceLock;

use so_splice::Personality;

const VARIABLE: &CStr = c"SO_SPLICE_PERSONALITY";

/// The personality; `None` if the program's user has named one that does not exist. Then there is
/// no `SO_SPLICE`.
pub(crate) fn personality() -> Option<Personality> {
    static PERSONALITY: OnceLock<Option<Personality>> = OnceLock::new();
    *PERSONALITY.get_or_init(|| {
        // A program with more rights than its user does not listen to him (secure_getenv(3)).
        // SAFETY: the name is a C string.
        let value = unsafe { secure_getenv(VARIABLE.as_ptr()) };
        if value.is_null() {
            return Some(Personality::FreeBsd);
        }
        // SAFETY: the environment holds C strings. A program that changes it at this moment would
        // race with getenv(3), too.
        match unsafe { CStr::from_ptr(value) }.to_bytes() {
            b"freebsd" => Some(Personality::FreeBsd),
            b"openbsd" => Some(Personality::OpenBsd),
            other => {
                eprintln!(
                    "libso_splice: SO_SPLICE_PERSONALITY is '{}'; it must be 'freebsd' or \
                     'openbsd', so there is no SO_SPLICE",
                    String::from_utf8_lossy(other)
                );
                None
            }
        }
    })
}

unsafe extern "C" {
    fn secure_getenv(name: *const libc::c_char) -> *const libc::c_char;
}
