//! A relay of datagrams: UDP and UNIX datagram sockets.
//!
//! ```text
//!              ┌───────────── one worker a thread ─────────────┐
//! clients ──▶ listener ──▶ session of this client ──▶ its own connected socket ──▶ target
//!         ◀──────────────────────────────────────────◀
//! ```
//!
//! A client's first datagram opens a **session**: a socket that is connected to the target, so that an ICMP
//! error of the target is an error of this session. A session ends when it is idle, when its target or its
//! client is gone, or when it has to make room.
//!
//! ```text
//!         SIGTERM                every session is quiet, or the drain timeout, or a second signal
//! running ───────▶ draining ────────────────────────────────────────────────────────────────────▶ over
//! ```
//!
//! Nothing is queued outside of the sockets' buffers. What does not fit is dropped and counted, as a router
//! does it.

mod batch;
mod control;
mod counters;
mod held;
mod icmp;
mod listeners;
mod outcome;
mod piece;
mod plan;
mod queue;
mod routes;
mod sender;
mod sending;
mod service;
mod session;
mod sessions;
mod socket;
mod worker;

pub(crate) use self::control::{Group, Hold};
pub(crate) use self::listeners::Listeners;
pub(crate) use self::plan::{shown, threads_of};
pub(crate) use self::routes::{Route, Routes};
pub(crate) use self::service::{DatagramService, ServiceTerms};
pub(crate) use self::worker::Worker;
