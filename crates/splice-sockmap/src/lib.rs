//! SOCKMAP as an interface: maps of sockets, and the four redirects between their members.
//!
//! A BPF map of sockets is a container with weak references: a member leaves when its last descriptor is closed. A
//! program that is attached to the map decides where each message of a member goes. There are four redirects
//! ([`Redirect`]): what is sent on one socket, or received by it, goes to the reader or to the peer of another.
//!
//! ```no_run
//! use std::net::{TcpListener, TcpStream};
//! use std::time::Duration;
//! use splice_sockmap::{Redirect, Redirections, MapType};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let client = TcpStream::connect(listener.local_addr()?)?;
//! let (source, _) = listener.accept()?;
//! let target = TcpStream::connect("127.0.0.1:8080")?;
//!
//! let redirections = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 64)?;
//! let mut link = redirections.link(&source, &target)?;
//! // What the client sends now goes to port 8080, inside of the kernel.
//! drop(client);
//! link.leave(&source, Duration::from_secs(1))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`SockMap`] and [`SockHash`] are maps without a program, to hold sockets, to look at, and to pin.
//! - [`Redirections`] are the maps and the program of one redirect. [`Redirections::link`] adds a source and its
//!   target. It refuses pairs of kinds that the redirect does not support.
//! - An [`Attachment`] is a redirect that is attached to a map of your own, with your keys: [`SockMap::attach`],
//!   [`SockHash::attach`].
//! - Sockets come from this process, [from another by SCM_RIGHTS](handover), [from another by its
//!   number](of_process), or from a control group ([`Catcher`]).
//! - A [`Lease`] lets sockets of other processes outlive the one that has linked them: they pass everything then.
//! - They leave by being closed, by [`Link::leave`], or by [`Link::disconnect`].
//! - [`matrix`](matrix::matrix) tries every redirect between every two kinds of sockets on this kernel, [`time_line()`] says
//!   since when there is what, and [`defects()`] what to beware of.
//!
//! # What is not promised
//!
//! This is the kernel's interface, not an engine: redirects to an egress and from an ingress have no
//! back-pressure. What a target does not take waits in the kernel, charged to nobody (`sk_psock_backlog`, Linux 6.1
//! to 7.3), unless it is [bounded](Redirections::bounded). The engine `sockmap` of the library `splice` bounds it for
//! itself, and goes on in user space.

mod attachment;
mod bound;
mod catcher;
mod defect;
mod floor;
pub mod handover;
mod heartbeat;
mod key;
mod lease;
mod link;
mod loaded;
mod look;
mod map;
pub mod matrix;
mod member;
mod orphans;
mod pins;
mod protocol;
mod redirect;
mod redirections;
mod socket_kind;
mod taken;
mod time_line;

pub use attachment::Attachment;
pub use catcher::{Catcher, Caught, Filter};
pub use defect::{Defect, defects, has_fionread_defect};
pub use key::{Cookie, FourTuple, Key};
pub use lease::Lease;
pub use link::{Link, LinkCounters, PassReason};
pub use map::{Container, SockHash, SockMap, id_of_map_with};
pub use pins::{Lock, Names, Pins, leave};
pub use redirect::{Failure, Redirect};
pub use redirections::Redirections;
pub use socket_kind::SocketKind;
pub use splice_base::error::{Error, ErrorKind, Result};
pub use splice_bpf::SocketMapType as MapType;
pub use taken::of_process;
pub use time_line::{Step, time_line};
