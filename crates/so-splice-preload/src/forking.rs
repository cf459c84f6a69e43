//! What is done as the library is loaded, and around a fork.

use std::cell::RefCell;
use std::sync::MutexGuard;

use crate::marks::{self, Marked};
use crate::registration::{self, Table};

thread_local! {
    /// What is locked while the process forks. Both locks are below those of `so-splice`, which
    /// registers its handlers later, so that they run before these.
    static LOCKS: RefCell<Option<(MutexGuard<'static, Table>, Marked)>> =
        const { RefCell::new(None) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    marks::take_over();
    // SAFETY: a preloaded library is never unloaded, so the functions stay.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

extern "C" fn before_fork() {
    let locks = (registration::lock(), marks::lock());
    LOCKS.with_borrow_mut(|held| *held = Some(locks));
}

extern "C" fn in_parent() {
    drop(LOCKS.take());
}

extern "C" fn in_child() {
    if let Some((mut table, _)) = LOCKS.take() {
        table.abandon();
    }
    marks::take_over();
}
