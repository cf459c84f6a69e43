//! `libso_splice.so`: preloaded into a program, it gives `setsockopt(SO_SPLICE)` as FreeBSD or
//! OpenBSD has it (`SO_SPLICE_PERSONALITY=freebsd|openbsd`). libso_splice(7) has the user's view.
//!
//! ```text
//! the program's call ──▶ option, waiting, reading, closing, starting ... ──▶ next ──▶ libc
//!                             │
//!                             ▼
//!               marks: which descriptors are spliced sockets     so-splice: what their splices do
//! ```
//!
//! A descriptor that is not marked costs one load. Nothing here calls a function that it replaces
//! except through [`next`], and reading, waiting and closing take locks for marked and watched
//! descriptors only, so that a signal handler may use all others. dup(2) of a socket and
//! epoll_ctl(2) take a lock always.
#![allow(
    unsafe_code,
    reason = "functions that replace those of libc; each passes on what the program gave"
)]

mod closing;
mod forking;
mod option;
mod reading;
mod starting;
mod waiting;

mod registration;

mod marks;
mod next;
mod personality;
