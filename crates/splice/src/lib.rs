//! Joins two sockets so that their bytes flow without the caller: two sockets in, one handle out.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::os::unix::net::UnixStream;
//! use splice::{Endpoint, EngineChoice, EngineName, Options, Reason, join};
//!
//! let (mut client, a) = UnixStream::pair()?;
//! let (b, mut server) = UnixStream::pair()?;
//! let options = Options { engine: EngineChoice::Only(EngineName::Copy), ..Options::default() };
//! let pair = join(Endpoint::new(a)?, Endpoint::new(b)?, &options)?;
//!
//! client.write_all(b"hello")?;
//! client.shutdown(std::net::Shutdown::Write)?;
//! let mut text = String::new();
//! server.read_to_string(&mut text)?;
//! assert_eq!(text, "hello");
//!
//! drop((client, server));
//! let outcome = pair.wait();
//! assert_eq!(outcome.reason, Reason::EndOfStream);
//! assert_eq!(outcome.moved.a_to_b, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The tour
//!
//! - An [`Endpoint`] is one connected stream socket, owned.
//! - [`join()`] takes two of them and [`Options`] and returns a [`Handle`]: live [`Counters`], the
//!   engine in use and the reason for it, and, at the end, the [`Outcome`]. Dropping the handle
//!   closes both ends.
//! - An [`Observer`] reads a pair while it runs, from any thread, and has no say in it.
//! - [`echo()`] takes one and splices it to itself; all else is as for two.
//! - An engine ([`EngineName`]) is a way of moving bytes; [`EngineChoice::Auto`] picks one.
//! - A [`Splicer`] runs loops in background threads. A program with a loop of its own drives an
//!   [`EventLoop`] from it. It may run its own [`Task`]s there, and hand over two connections with
//!   [`pair_task`] or one with [`echo_task`].
//!
//! Every engine guarantees this: every byte arrives once and in order; EOF arrives after all bytes
//! before it and leaves the other direction open; a reset arrives as a reset; a receiver that does
//! not read blocks its sender, with a bounded amount of memory in between
//! ([`Limits::memory_bytes`]).
//!
//! # Signals
//!
//! splice(2) has no `MSG_NOSIGNAL`, nor has io_submit(2) before Linux 6.18. Rust programs ignore
//! `SIGPIPE` from the start; a program in another language that embeds this library must ignore it,
//! too.

// Layers from top to bottom: a module names only those below it. `make check` enforces the order in
// `layers.toml`.
mod api;
pub mod bypass;
pub mod doctor;
mod policy;
pub mod trace;

mod session;

mod direction;
mod kernel;

mod carrier;
pub mod firewall;
mod routing;

mod endpoint;
mod reactor;

mod counters;
mod limits;
pub mod mesh;
mod name;
mod options;
mod outcome;
mod plural;
mod sock_diag;

pub use api::{
    Splicer, echo, echo_task, join, merged_task, observed_echo_task, observed_pair_task, pair_task,
};
pub use counters::Counters;
pub use endpoint::{Endpoint, Kind, SegmentSize};
pub use kernel::segment::forward::{
    Forward, ForwardEnd, ForwardEvent, ForwardOptions, ForwardTimes, Forwarded,
};
pub use limits::Limits;
pub use name::{EngineChoice, EngineName};
pub use options::Options;
pub use outcome::{Outcome, PeerNames, Reason, Side};
pub use reactor::{Context, EventLoop, Interest, Readiness, Remote, Step, Task, Waker};
pub use session::one_way::{IdleTimer, OneWay, OneWayOptions, Rules};
pub use session::{Attempt, Handle, Observer, Stream};
pub use splice_base::address::{Address, SeqpacketAddress, VsockAddress};
pub use splice_base::error::{Error, ErrorKind, Result};
pub use splice_base::keep_alive::{KeepAlive, KeepAliveTimes};
pub use splice_base::socket_name::SocketName;
pub use splice_base::socket_option::{SocketMemory, busy_poll, set_busy_poll, set_pacing_rate};
pub use splice_base::user_timeout::UserTimeout;
