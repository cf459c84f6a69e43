//! Connections that are translated from their SYN on, so that neither of their ends meets a socket of this host
//! (`bpf/segment/forward.h`).
//!
//! ```text
//!                 the network and the filters allow it
//!           ┌──────────────────────────────────────────────┐
//!           │                                              ▼
//! Forward: by sockets ◀───────────────────────────────── from the SYN on ──close──▶ closed
//!                 something asks for the stack, or it is paused
//! ```
//!
//! A client whose SYN the program does not take gets to the listening socket, which its program keeps open all the
//! time. What becomes of one connection is in `segment/shared.h`.
//!
//! One thread for each network namespace looks after all connections: it tells the program that somebody is there,
//! ends those that are late or idle, counts those that are over, and gives their ports back.

mod alarm;
mod ended;
mod forwards;
mod network;
mod opening;
mod origin;
mod owner;
mod raw_socket;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::task::Wake as _;

use splice_base::error::Result;

pub use self::ended::{ForwardEnd, ForwardTimes, Forwarded};
use self::forwards::Forwards;
use self::owner::Owner;
pub use self::owner::{ForwardEvent, ForwardOptions};
use super::datapath::Datapath;

/// Why connections begin with sockets for now.
const PAUSED: &str = "forwarding is paused";

/// Connections that are forwarded while this lives. Dropping it resets them.
pub struct Forward {
    forwards: Arc<Forwards>,
    owner: Arc<Owner>,
}

impl Forward {
    /// Starts to forward connections of this thread's network namespace. The caller listens on the same addresses with
    /// an ordinary socket, which gets every client that cannot be forwarded.
    ///
    /// `on_event` is called on a thread of the library, which waits for it, and on the one that closes or drops this.
    ///
    /// Without CAP_NET_RAW it forwards nothing: nobody could reset a connection, or ask its ends for a sign of life.
    ///
    /// It returns once new connections are forwarded, or it is known why they are not ([`obstacle`](Self::obstacle)).
    /// That may change later: addresses, routes and packet filters are followed.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](crate::ErrorKind::BpfRefused) without CAP_BPF and CAP_NET_ADMIN, or if the kernel does
    /// not take the programs. [`ErrorKind::System`](crate::ErrorKind::System) if a thread or a socket is refused.
    pub fn start(
        options: ForwardOptions,
        on_event: impl Fn(ForwardEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        let datapath = Datapath::with_forwards()?;
        let forwards = Forwards::of(&datapath)?;
        let owner = forwards.add(options, Arc::new(on_event))?;
        Ok(Self { forwards, owner })
    }

    /// Makes room for so many connections that are forwarded at the same time in a network namespace, instead of
    /// 32 768. Each takes 344 bytes of the kernel's memory, used or not. It applies to namespaces in which this process
    /// has neither forwarded nor spliced a connection with `segment`. With 0, none has room.
    pub fn make_room(connections: u32) {
        Datapath::make_room(connections);
    }

    /// Goes on with other options, within a moment. Connections that there are keep their server; all else applies to
    /// them, too. If it is paused, no more are forwarded once this returns, and those that there are have been counted.
    pub fn change(&self, options: ForwardOptions) {
        let is_paused = options.is_paused;
        self.owner.cut().remove(&options.server);
        *self
            .owner
            .options
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(options);
        if is_paused {
            self.stop_forwarding(PAUSED);
        }
        self.forwards.state().looked_at = None;
        self.forwards.alarm.wake_by_ref();
    }

    fn stop_forwarding(&self, why: &str) {
        let state = self.forwards.state();
        self.forwards.by_sockets(&self.owner, why);
        drop(state);
        // Connections that have just begun count, too.
        self.forwards.sweep(false);
    }

    /// Why new connections begin with sockets; `None` while they are forwarded from the SYN on.
    pub fn obstacle(&self) -> Option<String> {
        self.owner.way().obstacle.clone()
    }

    /// How many connections are open or opening, as of at most 50 ms ago.
    pub fn connections(&self) -> usize {
        self.owner.live().values().sum()
    }

    /// Resets the connections to a server that new ones no longer go to.
    pub fn cut(&self, server: SocketAddr) {
        if self.owner.options().server == server {
            return;
        }
        self.owner.cut().insert(server);
        // The first look ends the connections, the second one finds them over.
        self.forwards.sweep(false);
        self.forwards.sweep(false);
    }

    /// Forwards no more connections. Those that there are go on.
    pub fn close(&self) {
        self.owner.is_closed.store(true, Relaxed);
        self.stop_forwarding("forwarding has ended");
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.close();
        self.owner.is_dropped.store(true, Relaxed);
        // The first look ends the connections, the second one finds them over.
        self.forwards.sweep(false);
        self.forwards.sweep(false);
        let mut state = self.forwards.state();
        state
            .owners
            .retain(|owner| !Arc::ptr_eq(owner, &self.owner));
        drop(state);
        // Its origin keeps the owner until another one needs the ports.
        self.owner.on_event().take();
    }
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward")
            .field("options", &self.owner.options())
            .finish_non_exhaustive()
    }
}
