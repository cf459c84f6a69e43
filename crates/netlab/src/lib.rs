//! A network for tests: namespaces joined by veths, programs inside them, and a CPU that is kept awake.
//! Nothing of it remains afterwards.
//!
//! The usual shape is a [`Lab`], three namespaces in a row:
//!
//! ```text
//!  client 198.18.1.2 ---- 198.18.1.1 relay 198.18.2.1 ---- 198.18.2.2 server
//! ```
//!
//! The relay's namespace forwards packets. So the client reaches the server directly, by routing, and
//! through a relay that listens on [`Lab::RELAY_V4`]. The direct path is the reference for the relay.
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
//! # Cleaning up
//!
//! The name of every namespace, [`ControlGroup`] and [`Scratch`] directory contains the pid of the process
//! that created it. It is removed:
//!
//! - when its guard is dropped, also by a panic;
//! - when the process gets SIGINT, SIGTERM or SIGHUP (a program that has something to finish first calls
//!   [`end_gracefully`]);
//! - after SIGKILL, by the next [`sweep`], which the first use of this crate in a process runs.
//!
//! A [`Process`] dies with the thread that started it. This crate never configures the machine's own
//! network: it creates interfaces inside namespaces only.
//!
//! # Tests that need privileges
//!
//! See [`available`] and `SPLICED_REQUIRE`.

mod bpf_file_system;
mod built;
mod connection;
mod control_group;
mod ip;
mod lab;
mod namespace;
mod own_group;
mod patience;
mod pinned;
mod process;
mod program;
mod registry;
mod requires;
mod scratch;

pub use bpf_file_system::BpfFileSystem;
pub use built::{C_SOURCES, built, built_examples};
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
