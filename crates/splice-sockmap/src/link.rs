//! One source and its target.
//!
//! ```text
//! linked ──leave──▶ held still ──all that came has gone──▶ left
//!    ▲                  │
//!    └──────────────────┘ the target has not taken it in time, or bytes are unread
//! ```

mod counters;
mod losses;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, connect_unspec, recv};
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::socket_option::{attach_filter, detach_filter, has_filter};
use splice_bpf::wait_for_programs;

pub use self::counters::{LinkCounters, PassReason};
pub(crate) use self::losses::Losses;

use crate::key::Cookie;
use crate::loaded::{Loaded, Place};
use crate::orphans;
use crate::redirect::Redirect;
use crate::socket_kind::SocketKind;

/// How soon to look at a target again. The kernel's worker tries a full target anew every jiffy, which is a
/// millisecond at least.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How often in a row a queue of datagrams is looked at before what is there counts as passed. A datagram is in the queue for a
/// moment before its verdict (`unix_dgram_sendmsg`, `__udp_enqueue_schedule_skb`).
const MOST_LOOKS: u32 = 50;

/// How long a target may take to take what a source that is gone has brought it. Most take it in microseconds; one whose
/// reader does not read keeps its place longer.
const SETTLED: Duration = Duration::from_secs(1);

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A link from a source to a target, in [`Redirections`](crate::Redirections).
///
/// It ends when the source is closed, or by [`leave`](Self::leave). A link that is dropped stays until then: a source
/// that is removed in full flow loses bytes.
#[derive(Debug)]
pub struct Link {
    loaded: Arc<Loaded>,
    place: Place,
    source: SocketKind,
    cookie: Cookie,
    redirect: Redirect,
    losses: Losses,
    /// What was counted, once it has left.
    left: Option<Left>,
}

/// What is known of a link that has left.
#[derive(Clone, Copy, Debug)]
struct Left {
    counters: LinkCounters,
    lost: Option<u64>,
}

impl Link {
    pub(crate) fn new(
        loaded: Arc<Loaded>,
        place: Place,
        source: (SocketKind, Cookie),
        redirect: Redirect,
        losses: Losses,
    ) -> Self {
        Self {
            loaded,
            place,
            source: source.0,
            cookie: source.1,
            redirect,
            losses,
            left: None,
        }
    }

    /// What was redirected so far.
    pub fn counters(&self) -> LinkCounters {
        match self.left {
            Some(left) => left.counters,
            None => LinkCounters::of(&self.loaded.counts(self.place).unwrap_or_default()),
        }
    }

    /// How many datagrams that came to the source since it was linked have reached nobody, as far as the kernel counts them
    /// with the source. `None` for a stream, which loses nothing in these ways. Takes the source, since a link holds no
    /// socket of its own. Once the link has left it is known without looking, and stays.
    ///
    /// These are datagrams that
    /// - came while the source was leaving (`sk_psock_verdict_recv` without a program),
    /// - were redirected to a target that was closed at this moment, or has failed to send an earlier one
    ///   (`sk_psock_skb_redirect`),
    /// - found the source's own queue full.
    ///
    /// The kernel does not count what waits for a target when that is closed, the message whose sending fails
    /// (`sk_psock_backlog`), and what its peer or the network drops. If a thread is interrupted while it sends a datagram to a
    /// source that leaves, that may be dropped later, and is missing here.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the socket is not the link's source.
    pub fn lost(&self, source: impl AsFd) -> Result<Option<u64>> {
        if let Some(left) = self.left {
            return Ok(left.lost);
        }
        let source = source.as_fd();
        self.require_source(source)?;
        let empty = self.counters().empty_messages;
        self.losses.so_far(source, empty)
    }

    /// How many bytes are outstanding at the target: redirected to it by whatever link, and neither sent by its socket nor read
    /// by its reader. `None` without a [bound](crate::Redirections::bounded), and once the target is closed.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses the look.
    pub fn outstanding(&self) -> Result<Option<u64>> {
        let is_bounded = self
            .loaded
            .counts(self.place)
            .is_some_and(|of| of.target != 0);
        let look = self.loaded.look(self.place)?;
        Ok(look.filter(|_| is_bounded).map(|look| look.outstanding))
    }

    /// Redirects a stream again that has been passed since its target was full ([`PassReason::Full`]). Whether it does.
    ///
    /// To keep the order, first wait until nothing is [outstanding](Self::outstanding), then read from the source what was
    /// passed, give it to the target, and tell how many passed bytes of this link you have seen, from the beginning.
    /// `false` means that more has been passed by now.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses it.
    pub fn resume(&self, seen_bytes: u64) -> Result<bool> {
        self.loaded.resume(self.place, seen_bytes)
    }

    /// Takes the source and the target out of the maps without losing a byte. Both are plain sockets again. Takes the
    /// source, since a link holds no socket of its own. After an error the link is as it was.
    ///
    /// It waits until the kernel has handed over all that was redirected, at most for `patience`. What arrives at this moment
    /// takes a grace period of the kernel more, some ten milliseconds.
    ///
    /// A TCP source may be in full flow: a socket filter holds it still, and its peer retransmits what comes
    /// meanwhile. Other streams have no such filter, so their peer must have ended the stream. A datagram that comes
    /// at this moment may be dropped, as any datagram may; [`lost`](Self::lost) counts it.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if
    /// - the socket is not the link's source: that would go on in full flow,
    /// - the target has not taken everything in time (`ETIMEDOUT`),
    /// - the source has passed bytes, or the target redirected ones, that nobody has read: they would be lost
    ///   (`EBUSY`); read them and try again,
    /// - the source is a UNIX or VSOCK stream that has not ended (`EBUSY`),
    /// - the source has a socket filter of its own (`EBUSY`).
    pub fn leave(&mut self, source: impl AsFd, patience: Duration) -> Result<()> {
        if self.left.is_some() {
            return Ok(());
        }
        let source = source.as_fd();
        let deadline = Instant::now() + patience;
        let _still = self.hold(source)?;
        self.drain(source, deadline)?;
        self.end(source);
        Ok(())
    }

    /// Takes both sockets out of the maps.
    pub(crate) fn end(&mut self, source: BorrowedFd<'_>) {
        let mut may_settle = false;
        if self.losses.are_known() {
            // Nothing holds datagrams back, so the last ones may be on their way to the target.
            self.loaded.remove_source(self.place);
            may_settle = self.loaded.has_moved(self.place);
        }
        let counters = self.counters();
        let lost = self.losses.so_far(source, counters.empty_messages);
        let lost = lost.unwrap_or_default();
        self.left = Some(Left { counters, lost });
        match may_settle {
            true => settle(&self.loaded, self.place),
            false => self.loaded.remove(self.place),
        }
    }

    /// Where its source is in these maps.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if it is a link of others.
    pub(crate) fn place_in(&self, loaded: &Arc<Loaded>) -> Result<Option<Place>> {
        if Arc::ptr_eq(&self.loaded, loaded) {
            return Ok(self.left.is_none().then_some(self.place));
        }
        Err(Error::new(
            ErrorKind::System,
            "a link was passed that is not one of this attachment",
        ))
    }

    /// [Leaves](Self::leave), and then dissolves the source's connection (`connect(2)` with `AF_UNSPEC`): a TCP peer
    /// sees a reset, a UDP socket takes datagrams from everybody again. The kernel does the same to a member, but
    /// drops what is under way.
    ///
    /// # Errors
    /// Those of [`leave`](Self::leave), and [`ErrorKind::UnsupportedSocket`] if the source is neither TCP nor UDP.
    pub fn disconnect(&mut self, source: impl AsFd, patience: Duration) -> Result<()> {
        if !matches!(self.source, SocketKind::Tcp | SocketKind::Udp) {
            return Err(Error::new(
                ErrorKind::UnsupportedSocket,
                format!("{} sockets cannot be disconnected: close it", self.source),
            ));
        }
        self.leave(&source, patience)?;
        connect_unspec(source).map_err(|errno| Error::system("cannot disconnect", errno))
    }

    /// Gives the maps up without a word: both sockets are closed.
    pub(crate) fn forget(mut self) {
        let counters = self.counters();
        self.left = Some(Left {
            counters,
            lost: None,
        });
    }

    fn require_source(&self, socket: BorrowedFd<'_>) -> Result<()> {
        if Cookie::of(socket)? == self.cookie {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::System,
            "the socket is not the source of the link: pass the one that was linked",
        ))
    }

    /// Makes sure that nothing comes while the source leaves.
    pub(crate) fn hold<'a>(&self, source: BorrowedFd<'a>) -> Result<Option<Still<'a>>> {
        self.require_source(source)?;
        // Its owner decides when it sends.
        if self.redirect.is_of_sent() {
            return Ok(None);
        }
        match self.source {
            SocketKind::Tcp => Still::of(source, &self.loaded).map(Some),
            stream if stream.is_stream() && !has_ended(source) => Err(busy(format!(
                "the source is a {stream} socket, whose peer could send while it leaves: end the stream first"
            ))),
            _ => Ok(None),
        }
    }

    /// Waits until nothing is under way to the target.
    pub(crate) fn drain(&self, source: BorrowedFd<'_>, deadline: Instant) -> Result<()> {
        let mut looks = 0;
        loop {
            // A look at the queue of a TCP socket brings about the verdict of what waits there.
            if !self.redirect.is_of_sent() && has_bytes(source, self.source) {
                looks += 1;
                if self.source.is_stream() || looks == MOST_LOOKS || Instant::now() >= deadline {
                    return Err(busy(
                        "the source has passed bytes that nobody has read: read them first".into(),
                    ));
                }
                thread::sleep(LOOK_AGAIN);
                continue;
            }
            looks = 0;
            match self.loaded.look(self.place)? {
                // Closed by its owner: nothing can be waited for.
                None => return Ok(()),
                Some(look) if look.backlog == 0 && look.unread == 0 => return Ok(()),
                // A reader may be at it.
                Some(look) if look.backlog == 0 && Instant::now() >= deadline => {
                    return Err(busy(
                        "the target has bytes that nobody has read: read them first".into(),
                    ));
                }
                Some(look) if Instant::now() >= deadline => {
                    return Err(Error::system(
                        format!(
                            "the target has not taken {} messages that were redirected to it",
                            look.backlog
                        ),
                        Errno::TIMEDOUT,
                    ));
                }
                Some(_) => {}
            }
            thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Undoes a link that is a moment old. What has come in that moment may be on its way through the target.
pub(crate) fn withdraw(loaded: &Arc<Loaded>, place: Place) {
    loaded.remove_source(place);
    match loaded.has_moved(place) {
        true => settle(loaded, place),
        false => loaded.remove(place),
    }
}

/// Takes the target of a source that is gone out of its map as soon as it has taken everything.
fn settle(loaded: &Arc<Loaded>, place: Place) {
    let deadline = Instant::now() + SETTLED;
    while !loaded.is_drained(place) {
        if Instant::now() >= deadline {
            return orphans::add(Arc::clone(loaded), place);
        }
        thread::sleep(LOOK_AGAIN);
    }
    loaded.remove(place);
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.left.is_none() {
            // With the last reference to the maps the kernel would remove the source in full flow. It does so without
            // harm when the socket is closed.
            orphans::add(Arc::clone(&self.loaded), self.place);
        }
    }
}

/// A TCP source to which nothing comes, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Still<'a>(BorrowedFd<'a>);

impl<'a> Still<'a> {
    fn of(source: BorrowedFd<'a>, loaded: &Loaded) -> Result<Self> {
        let failed = |errno| Error::system("cannot hold the source still", errno);
        if has_filter(source).map_err(failed)? {
            return Err(busy(
                "the source has a socket filter, which would have to be replaced: detach it first"
                    .into(),
            ));
        }
        if let Some(quiet) = loaded.quiet() {
            attach_filter(source, quiet).map_err(failed)?;
        }
        let still = Self(source);
        // A segment may have passed before there was a filter.
        wait_for_programs().map_err(failed)?;
        Ok(still)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        // It was attached, and nobody else knows of it.
        let _ = detach_filter(self.0);
    }
}

fn busy(what: String) -> Error {
    Error::new(ErrorKind::System, what).with_source(Errno::BUSY)
}

fn peek(socket: BorrowedFd<'_>) -> std::result::Result<usize, Errno> {
    let mut byte = [0];
    recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).map(|(_, length)| length)
}

/// Whether the peer of a UNIX or VSOCK stream sends nothing more. A look at the queue does not tell: a VSOCK socket in a
/// map returns EAGAIN at the end of its stream (`vsock_msg_wait_data`, 7.2).
fn has_ended(stream: BorrowedFd<'_>) -> bool {
    // Errors are reported without being asked for, and end it as well.
    let mut polled = [PollFd::from_borrowed_fd(stream, PollFlags::RDHUP)];
    poll(&mut polled, Some(&AT_ONCE)).is_ok() && !polled[0].revents().is_empty()
}

fn has_bytes(socket: BorrowedFd<'_>, kind: SocketKind) -> bool {
    match peek(socket) {
        Ok(0) => !kind.is_stream(),
        Ok(_) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use netlab::until;
    use rustix::net::sockopt::{
        set_socket_recv_buffer_size, set_socket_send_buffer_size, socket_error,
    };
    use rustix::net::{SendFlags, Shutdown, send, shutdown};

    use super::*;
    use crate::member::Pair;
    use crate::{MapType, Redirections};

    fn read_to(end: usize, socket: &OwnedFd) -> usize {
        let mut count = 0;
        let mut buffer = vec![0; 64 << 10];
        until("all has come", || {
            while let Ok((_, length @ 1..)) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                count += length;
            }
            count >= end
        });
        count
    }

    /// As if they had come after the last look at the target.
    #[test]
    fn datagrams_that_come_while_their_source_leaves_still_go_to_the_target() {
        if !netlab::available(netlab::Need::Bpf) {
            return;
        }
        /// More than the peer of a UNIX socket queues (`max_dgram_qlen`, 10 or 512).
        const DATAGRAMS: usize = 1000;
        for map_type in MapType::ALL {
            let redirections = Redirections::new(Redirect::IngressToEgress, map_type, 1);
            let redirections = redirections.expect("loaded");
            let made = |kind| Pair::of(kind).expect("made");
            let (source, target) = (made(SocketKind::Udp), made(SocketKind::UnixDatagram));
            let mut link = redirections
                .link(&source.member, &target.member)
                .expect("linked");
            for sent in 1..=DATAGRAMS {
                assert_eq!(send(&source.peer, &[7], SendFlags::NOSIGNAL), Ok(1));
                until("it is redirected", || {
                    link.counters().messages == sent as u64
                });
            }
            let waiting = || link.loaded.look(link.place).expect("a look");
            assert!(waiting().expect("it is there").backlog > 0);
            link.end(source.member.as_fd());
            assert_eq!(link.counters().messages, DATAGRAMS as u64);
            assert_eq!(link.lost(&source.member).expect("told"), Some(0));
            assert_eq!(read_to(DATAGRAMS, &target.peer), DATAGRAMS);
        }
    }

    /// Passed, the FIN would be an empty message behind what waits for the source's own egress, and the kernel's worker
    /// would take it for an error: EPIPE, and the rest is lost (`sk_psock_verdict_apply`, `sk_psock_backlog`).
    #[test]
    fn the_fin_of_a_source_that_has_just_lost_its_link_harms_nothing() {
        if !netlab::available(netlab::Need::Bpf) {
            return;
        }
        /// Far more than the buffers of a target hold once they are bounded.
        const WAITING_BYTES: usize = 2 << 20;
        for map_type in MapType::ALL {
            let load =
                || Redirections::new(Redirect::IngressToEgress, map_type, 4).expect("loaded");
            let (into, from) = (load(), load());
            let [other, source, target] =
                [(); 3].map(|()| Pair::of(SocketKind::Tcp).expect("made"));
            set_socket_send_buffer_size(&source.member, 64 << 10).expect("bounded");
            set_socket_recv_buffer_size(&source.peer, 64 << 10).expect("bounded");
            let feeding = into.link(&other.member, &source.member).expect("linked");
            let link = from.link(&source.member, &target.member).expect("linked");
            let piece = vec![7; 64 << 10];
            for _ in 0..WAITING_BYTES / piece.len() {
                assert_eq!(
                    send(&other.peer, &piece, SendFlags::NOSIGNAL),
                    Ok(piece.len())
                );
            }
            until("all was redirected to the source", || {
                feeding.counters().bytes == WAITING_BYTES as u64
            });

            link.loaded.lose(link.place);
            shutdown(&source.peer, Shutdown::Write).expect("ended");
            until("its reader sees the end", || {
                recv(&source.member, &mut [0; 1][..], RecvFlags::DONTWAIT) == Ok((0, 0))
            });
            assert_eq!(from.passed_without_link(), 0, "a FIN is no message");
            assert_eq!(read_to(WAITING_BYTES, &source.peer), WAITING_BYTES);
            assert_eq!(socket_error(&source.member).expect("read"), Ok(()));

            // The other link is as it was.
            assert_eq!(send(&other.peer, b"more", SendFlags::NOSIGNAL), Ok(4));
            assert_eq!(read_to(4, &source.peer), 4);
            drop((link, feeding));
            drop((source, target, other));
        }
    }
}
