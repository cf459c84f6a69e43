//! A network to try things on: namespaces joined by veths, programs inside them, and one CPU kept
//! awake, all of which is gone afterwards.
//!
//! The usual shape is a [`Lab`], three namespaces in a row:
//!
//! ```text
//!  client 198.18.1.2 ---- 198.18.1.1 relay 198.18.2.1 ---- 198.18.2.2 server
//! ```
//!
//! The relay's namespace forwards packets, so the client reaches the server both ways: directly, by
//! routing, and through a relay that listens on [`Lab::RELAY_V4`]. The first is the reference that
//! the second is held against.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let lab = netlab::Lab::new()?;
//! let listener = lab.server().enter(|| std::net::TcpListener::bind((netlab::Lab::SERVER_V4, 80)))??;
//! let client = lab.client().enter(|| std::net::TcpStream::connect((netlab::Lab::SERVER_V4, 80)))??;
//! # drop((listener, client));
//! # Ok(())
//! # }
//! ```
//!
//! # What is left behind: nothing
//!
//! Every namespace, [`ControlGroup`] and [`Scratch`] directory carries the pid of the process that made it. It goes
//! away when its guard is dropped (a panic drops it too), when the process gets SIGINT, SIGTERM or
//! SIGHUP (a program that has something to finish first calls [`end_gracefully`]), and, should the process have been killed outright, when [`sweep`] runs next; every first
//! use of this crate in a process runs it. A [`Process`] dies with the thread that started it. The
//! machine's own network is never configured: interfaces are created inside namespaces only.
//!
//! # Tests that need more than a plain user has
//!
//! See [`available`] and `SPLICED_REQUIRE`.

mod connection;
mod control_group;
mod ip;
mod lab;
mod namespace;
mod patience;
mod pinned;
mod process;
mod program;
mod registry;
mod requires;
mod scratch;

pub use connection::connection;
pub use control_group::ControlGroup;
pub use lab::Lab;
pub use namespace::Namespace;
pub use patience::{PATIENCE, uninterrupted, until, until_at_rest, until_found};
pub use pinned::{Spinner, pin_thread};
pub use process::Process;
pub use program::program;
pub use registry::{end_gracefully, interrupted, sweep};
pub use requires::{Need, available, present};
pub use scratch::Scratch;
