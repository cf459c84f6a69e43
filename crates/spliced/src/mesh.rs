//! `spliced mesh`: accepts members, and lets the kernel deliver their frames.
//!
//! ```text
//!          a signal                  none left, or a second signal
//! running ─────────▶ all have to leave ───────────────────────────▶ over
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use splice::Address;
use splice::mesh::{Bounds, Departure, Event, Framing, Length, Mesh, Refusal};

use crate::diagnostics::Diagnostics;
use crate::exit_status::Ended;
use crate::file_access::FileAccess;
use crate::listener::ListeningSockets;
use crate::mesh_args::MeshArgs;
use crate::refusal::WrongUsage;
use crate::resource_limit::raise_descriptor_limit;
use crate::signal::{Request, Signals};
use crate::socket_address::SocketAddress;

/// How long the mesh accepts nobody when it has run out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What has gone through a mesh so far, without its present members.
#[derive(Debug, Default)]
struct Totals {
    members: u64,
    delivered_frames: u64,
    unknown_frames: u64,
    full_frames: u64,
}

struct Running {
    mesh: Mesh,
    bounds: Bounds,
    listening: Vec<OwnedFd>,
    accept_after: Option<Instant>,
    totals: Totals,
}

/// Runs a mesh until a signal ends it.
///
/// # Errors
/// If it cannot start.
pub(crate) fn run(args: &MeshArgs, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    if !matches!(args.listen, Address::Inet { .. }) {
        let why = format!(
            "a mesh cannot listen on {}: its members are TCP connections; write HOST:PORT",
            args.listen
        );
        return Err(WrongUsage::new(why).into());
    }
    let length: Length = args.frame;
    let framing = Framing::new(length, args.destination, args.most_bytes)?;
    let bounds = Bounds {
        members: args.members,
        member_bytes: args.member_bytes,
        frame_timeout: args.frame_timeout,
    };
    let stop = Arc::new(
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot make an eventfd")?,
    );
    let stops = Arc::new(AtomicU32::new(0));
    let progress = signals.watch(diagnostics.clone(), false, {
        let (stop, stops) = (Arc::clone(&stop), Arc::clone(&stops));
        move |request| {
            if request == Request::Stop {
                stops.fetch_add(1, Ordering::Relaxed);
                // It only fails if it has been told before.
                let _ = rustix::io::write(&stop, &1u64.to_ne_bytes());
            }
        }
    })?;
    raise_descriptor_limit(Some(args.members));
    let mesh = Mesh::create_by(args.engine, framing, bounds)?;
    if let Some(why) = mesh.why_copy() {
        tracing::warn!("user space moves the frames (engine copy): {why}");
    }
    let addresses = SocketAddress::to_listen(&args.listen)?;
    // From then on there may be a socket file to remove.
    progress.running();
    let mut sockets = ListeningSockets::bind(
        &args.listen,
        addresses,
        1,
        None,
        FileAccess::default(),
        &Arc::default(),
    )?;
    for address in &sockets.addresses {
        tracing::info!(
            "listening on {address}, frames with their length in {} and their destination in {}",
            length.field,
            args.destination
        );
    }
    let mut running = Running {
        mesh,
        bounds,
        listening: sockets
            .by_thread
            .iter_mut()
            .flat_map(std::mem::take)
            .collect(),
        accept_after: None,
        totals: Totals::default(),
    };
    running.until_told(&stop)?;
    running.listening.clear();
    let ended = running.end(&stops)?;
    let Totals {
        members,
        delivered_frames,
        unknown_frames,
        full_frames,
    } = running.totals;
    tracing::info!(
        "the mesh is over: {members} members, {delivered_frames} frames delivered, {unknown_frames} without a \
         destination, {full_frames} refused because too much was on the way"
    );
    Ok(ended)
}

impl Running {
    fn until_told(&mut self, stop: &OwnedFd) -> Result<()> {
        loop {
            let now = Instant::now();
            if self.accept_after.is_some_and(|at| at <= now) {
                self.accept_after = None;
            }
            let may_accept = self.accept_after.is_none() && self.has_room();
            let mut watched = vec![
                PollFd::new(stop, PollFlags::IN),
                PollFd::from_borrowed_fd(self.mesh.as_fd(), PollFlags::IN),
            ];
            if may_accept {
                watched.extend(
                    self.listening
                        .iter()
                        .map(|socket| PollFd::new(socket, PollFlags::IN)),
                );
            }
            let pace = match self.accept_after {
                Some(_) => self.mesh.pace().min(PAUSE),
                None => self.mesh.pace(),
            };
            match poll(&mut watched, Timespec::try_from(pace).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait for the mesh"),
            }
            let is_told = !watched[0].revents().is_empty();
            drop(watched);
            if is_told {
                return Ok(());
            }
            if may_accept {
                self.accept();
            }
            self.turn(Duration::ZERO)?;
        }
    }

    fn has_room(&self) -> bool {
        self.mesh.members().count() < self.bounds.members as usize
    }

    fn accept(&mut self) {
        for listening in &self.listening {
            if !self.has_room() {
                return;
            }
            match accept_with(listening, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let from = rustix::net::getpeername(&socket).ok().flatten();
                    let from = from.and_then(|from| std::net::SocketAddr::try_from(from).ok());
                    let from = from.map_or_else(|| "somewhere".into(), |from| from.to_string());
                    match self.mesh.join(socket) {
                        Ok(id) => {
                            self.totals.members += 1;
                            tracing::info!("member {id} has come from {from}");
                        }
                        Err(error) => {
                            tracing::warn!("a client from {from} cannot be a member: {error}")
                        }
                    }
                }
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    tracing::warn!(
                        "cannot accept a client: {errno}; raise the limit on descriptors"
                    );
                    self.accept_after = Some(Instant::now() + PAUSE);
                }
                // A client that has gone again, or none.
                Err(_) => {}
            }
        }
    }

    fn turn(&mut self, time: Duration) -> Result<()> {
        for event in self.mesh.turn(time)? {
            match event {
                Event::Refused {
                    sender,
                    destination,
                    reason,
                } => {
                    let why = match reason {
                        Refusal::Full => "too much is on its way there",
                        _ => "there is no such member",
                    };
                    tracing::debug!("refused a frame from {sender} to {destination}: {why}");
                }
                Event::Left {
                    member,
                    why,
                    counters,
                } => {
                    self.totals.delivered_frames += counters.sent_frames;
                    self.totals.unknown_frames += counters.unknown_frames;
                    self.totals.full_frames += counters.full_frames;
                    tracing::info!(
                        "member {member} has left, {}: {} frames sent, {} without a destination, {} refused, {} \
                         received",
                        in_words(why),
                        counters.sent_frames,
                        counters.unknown_frames,
                        counters.full_frames,
                        counters.received_frames
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Has all members leave.
    fn end(&mut self, stops: &AtomicU32) -> Result<Ended> {
        let all: Vec<_> = self.mesh.members().collect();
        all.into_iter().for_each(|id| self.mesh.leave(id));
        while self.mesh.members().next().is_some() {
            if stops.load(Ordering::Relaxed) > 1 {
                return Ok(Ended::CutShort);
            }
            self.turn(self.mesh.pace())?;
        }
        Ok(Ended::Well)
    }
}

fn in_words(why: Departure) -> &'static str {
    match why {
        Departure::EndOfStream => "it ended its stream",
        Departure::WithinFrame => "it ended its stream within a frame",
        Departure::Reset => "its connection was reset",
        Departure::TooLong => "a frame was too long",
        Departure::TooShort => "a frame was shorter than its header",
        Departure::Incomplete => "a frame did not become complete in time",
        _ => "the mesh ends",
    }
}
