//! Joins two sockets so that their bytes flow on their own: two sockets in, one handle out.
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
//!   engine in use and why, and, at the end, the [`Outcome`]. Dropping it closes both ends.
//! - [`echo()`] takes one and splices it to itself; everything else is as for two.
//! - An engine ([`EngineName`]) is a way of moving the bytes; [`EngineChoice::Auto`] picks.
//! - A [`Splicer`] runs the loops in threads of its own. A program that has its own loop drives an
//!   [`EventLoop`] from it, and may run its own [`Task`]s there, handing two connections over with
//!   [`pair_task`], or one with [`echo_task`].
//!
//! What holds for every engine, whichever moves the bytes: every byte arrives once and in order;
//! an end of stream arrives after all bytes before it and leaves the other direction open; a reset
//! arrives as a reset; a receiver that does not read holds its sender back, with a bounded amount
//! of memory in between ([`Limits::memory_bytes`]).
//!
//! # Signals
//!
//! splice(2) has no `MSG_NOSIGNAL`, nor has io_submit(2) before Linux 6.18. Rust programs ignore
//! `SIGPIPE` from the start; a program in another language that embeds this library has to ignore
//! it as well.

// From the top down: a module names those below it and never one above. `layers.toml` says so to
// `make check`.
mod api;
pub mod doctor;
mod policy;

mod session;

mod flow;
mod kernel;

mod carrier;
pub mod firewall;

mod endpoint;
mod reactor;

mod counters;
mod limits;
mod name;
mod options;
mod outcome;

pub use api::{Splicer, echo, echo_task, join, pair_task};
pub use counters::Counters;
pub use endpoint::{Endpoint, Kind, SegmentSize};
pub use limits::Limits;
pub use name::{EngineChoice, EngineName};
pub use options::Options;
pub use outcome::{Outcome, Reason, Side};
pub use reactor::{Context, EventLoop, Interest, Readiness, Remote, Step, Task, Waker};
pub use session::Handle;
pub use splice_base::address::Address;
pub use splice_base::error::{Error, ErrorKind, Result};
pub use splice_base::socket_option::{SocketMemory, busy_poll, set_busy_poll};
