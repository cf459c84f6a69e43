//! One source and its target.
//!
//! ```text
//! linked ──leave──▶ held still ──all that came has gone──▶ left
//!    ▲                  │
//!    └──────────────────┘ the target has not taken it in time, or bytes are unread
//! ```

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, connect_unspec, recv};
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::socket_option::{attach_filter, detach_filter, has_filter};
use splice_bpf::types::redirection_pass;
use splice_bpf::wait_for_programs;

use crate::key::Cookie;
use crate::loaded::{Loaded, Place};
use crate::orphans;
use crate::redirect::Redirect;
use crate::socket_kind::SocketKind;

/// How soon to look at a target again. The kernel's worker tries a full target anew every jiffy, which is a
/// millisecond at least.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(1);

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
    /// What was counted, once it has left.
    left: Option<LinkCounters>,
}

/// Why a message was not redirected, and left to the source's own reader instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PassReason {
    /// It is longer than the target takes in one piece.
    TooLong,
    /// The kernel had no memory to put it into one piece (`bpf_skb_pull_data`).
    NoMemory,
    /// The [lease](crate::Lease) is over.
    Lapsed,
    /// Too much is [outstanding](crate::Redirections::bounded) at the target, or was when an earlier message of the same stream was passed.
    Full,
    /// The kernel refuses the target: it is closed, or not in a state to take anything (`sock_map_redirect_allowed`).
    TargetGone,
}

impl PassReason {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::TooLong,
        Self::NoMemory,
        Self::Lapsed,
        Self::Full,
        Self::TargetGone,
    ];

    /// Its name, as in "target gone".
    pub fn name(self) -> &'static str {
        match self {
            Self::TooLong => "too long",
            Self::NoMemory => "no memory",
            Self::Lapsed => "lease lapsed",
            Self::Full => "target full",
            Self::TargetGone => "target gone",
        }
    }

    /// Where the program counts it.
    fn index(self) -> usize {
        let index = match self {
            Self::TooLong => redirection_pass::TOO_LONG,
            Self::NoMemory => redirection_pass::NO_MEMORY,
            Self::Lapsed => redirection_pass::LAPSED,
            Self::Full => redirection_pass::FULL,
            Self::TargetGone => redirection_pass::REFUSED,
        };
        index as usize
    }
}

impl fmt::Display for PassReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How many messages and bytes of a source went where. On a stream a message is what the kernel handed to the
/// program at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Redirected. By [`Redirect::SendToEgress`] also those that send(2) has refused, since the target's buffer was full.
    pub messages: u64,
    /// The bytes of them.
    pub bytes: u64,
    /// Left to the source's own reader; [`passed_for`](Self::passed_for) says why.
    pub passed_messages: u64,
    /// The bytes of them.
    pub passed_bytes: u64,
    /// Empty datagrams, which were dropped: the kernel can neither redirect nor pass them.
    pub empty_messages: u64,
    passed: [u64; PassReason::ALL.len()],
}

impl LinkCounters {
    /// How many messages were passed for a reason.
    pub fn passed_for(&self, reason: PassReason) -> u64 {
        self.passed[reason.index()]
    }
}

impl Link {
    pub(crate) fn new(
        loaded: Arc<Loaded>,
        place: Place,
        source: (SocketKind, Cookie),
        redirect: Redirect,
    ) -> Self {
        Self {
            loaded,
            place,
            source: source.0,
            cookie: source.1,
            redirect,
            left: None,
        }
    }

    /// What was redirected so far.
    pub fn counters(&self) -> LinkCounters {
        if let Some(counters) = self.left {
            return counters;
        }
        let counts = self.loaded.counts(self.place).unwrap_or_default();
        LinkCounters {
            messages: counts.messages,
            bytes: counts.bytes,
            passed_messages: counts.passed.iter().sum(),
            passed_bytes: counts.passed_bytes,
            empty_messages: counts.empty,
            passed: counts.passed,
        }
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
    /// It waits until the kernel has handed over all that was redirected, at most for `patience`.
    ///
    /// A TCP source may be in full flow: a socket filter holds it still, and its peer retransmits what comes
    /// meanwhile. Other streams have no such filter, so their peer must have ended the stream. A datagram that comes
    /// at this moment may be dropped, as any datagram may.
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
        self.end();
        Ok(())
    }

    /// Takes both sockets out of the maps.
    pub(crate) fn end(&mut self) {
        self.left = Some(self.counters());
        self.loaded.remove(self.place);
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
        self.left = Some(self.counters());
    }

    /// Makes sure that nothing comes while the source leaves.
    pub(crate) fn hold<'a>(&self, source: BorrowedFd<'a>) -> Result<Option<Still<'a>>> {
        if Cookie::of(source)? != self.cookie {
            return Err(Error::new(
                ErrorKind::System,
                "the socket is not the source of the link: pass the one that was linked",
            ));
        }
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
        loop {
            // A look at the queue of a TCP socket brings about the verdict of what waits there.
            if !self.redirect.is_of_sent() && has_bytes(source, self.source) {
                return Err(busy(
                    "the source has passed bytes that nobody has read: read them first".into(),
                ));
            }
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
