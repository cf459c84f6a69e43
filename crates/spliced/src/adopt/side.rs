//! One of the two sockets: where it is open, and what its owner had set.

use std::io::ErrorKind;
use std::net::{self, IpAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketType, connect_unspec, getpeername, getsockname,
    ipproto, shutdown, sockopt,
};
use serde::{Deserialize, Serialize};
use splice_base::socket_option::{self, Progress};

use super::owner::{Owner, places, processes};
use super::stand_in::{addresses, inode};

/// A socket that is open as `number` of `owner`.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) owner: Owner,
    pub(super) number: u32,
    /// This process's descriptor of it.
    pub(super) real: OwnedFd,
    linger: Option<Duration>,
    /// Keeps others from adopting the stand-in.
    claim: OwnedFd,
}

/// A side without its descriptors, as one process tells another.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Told {
    pid: u32,
    number: u32,
    linger: Option<Duration>,
}

impl Side {
    /// Takes a duplicate of the socket, of which its owner notices nothing.
    ///
    /// # Errors
    /// In words, why it cannot be adopted.
    pub(super) fn take(pid: u32, number: u32) -> Result<Self> {
        let owner = Owner(pid);
        owner.refuse_unfit()?;
        let side = Self::of_fit(owner, number)?;
        let places = side.places_in(&processes()?)?;
        owner.refuse_shared(number, &places)?;
        Ok(side)
    }

    /// The same for an owner that is fit, and without a look at other processes.
    ///
    /// # Errors
    /// In words, why it cannot be adopted.
    pub(super) fn of_fit(owner: Owner, number: u32) -> Result<Self> {
        let what = format!("the descriptor {number} of {}", owner.name());
        let no_tcp = || {
            anyhow!(
                "{what} is no TCP socket, and only TCP counts what its owner has read and written"
            )
        };
        let real =
            splice_sockmap::of_process(owner.0, number).map_err(|error| match error.kind() {
                splice::ErrorKind::UnsupportedSocket
                    if error.to_string().contains("multipath TCP") =>
                {
                    anyhow!(
                        "{what} is a Multipath TCP socket, whose bytes go over several connections"
                    )
                }
                splice::ErrorKind::UnsupportedSocket => no_tcp(),
                _ => error.into(),
            })?;
        let is_tcp = sockopt::socket_type(&real)? == SocketType::STREAM
            && matches!(
                sockopt::socket_domain(&real)?,
                AddressFamily::INET | AddressFamily::INET6
            )
            && sockopt::socket_protocol(&real)? == Some(ipproto::TCP);
        if !is_tcp {
            return Err(no_tcp());
        }
        if sockopt::socket_acceptconn(&real)? {
            bail!("{what} is a listening socket; name a connected one");
        }
        if let Some(name) = socket_option::upper_protocol(&real)? {
            bail!(
                "{what} has a protocol on top of TCP in the kernel ({name}), whose bytes are not the connection's"
            );
        }
        if let Some(map) = splice_sockmap::id_of_map_with(&real)? {
            bail!(
                "{what} is in a map of sockets already (bpftool map show id {map}), where a program may redirect its bytes"
            );
        }
        let side = Self {
            claim: claim(owner, number)?.into(),
            linger: sockopt::socket_linger(&real)?,
            owner,
            number,
            real,
        };
        side.progress()?;
        side.refuse_urgent()?;
        Ok(side)
    }

    /// What another process needs to have the side, too, beside duplicates of its descriptors.
    pub(super) fn told(&self) -> Told {
        Told {
            pid: self.owner.0,
            number: self.number,
            linger: self.linger,
        }
    }

    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.real.as_fd(), self.claim.as_fd()]
    }

    /// The side that another process has told of.
    pub(super) fn of_told(told: Told, [real, claim]: [OwnedFd; 2]) -> Self {
        Self {
            owner: Owner(told.pid),
            number: told.number,
            real,
            linger: told.linger,
            claim,
        }
    }

    /// Its two addresses.
    pub(super) fn addresses(&self) -> String {
        addresses(self.real.as_fd())
    }

    /// The number by which `/proc` names it.
    ///
    /// # Errors
    /// Of fstat(2).
    pub(super) fn inode(&self) -> Result<u64> {
        inode(&self.real).context("cannot look at a socket")
    }

    /// Refuses if the number has become another file.
    ///
    /// # Errors
    /// If it has.
    pub(super) fn refuse_changed(&self) -> Result<()> {
        if self.owner.inode(self.number) != Some(self.inode()?) {
            bail!("{} has just closed {}", self.owner.name(), self.number);
        }
        Ok(())
    }

    /// Where the socket is open.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub(super) fn places_in(&self, among: &[Owner]) -> Result<Vec<(Owner, u32)>> {
        places(self.inode()?, among).with_context(|| {
            format!(
                "whether others have the socket {} of {}, too, cannot be found out; raise the limits",
                self.number,
                self.owner.name()
            )
        })
    }

    /// Refuses a socket with an urgent byte that its owner has not read.
    ///
    /// # Errors
    /// If there is one.
    pub(super) fn refuse_urgent(&self) -> Result<()> {
        let mut fds = [PollFd::new(&self.real, PollFlags::PRI)];
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            && fds[0].revents().contains(PollFlags::PRI)
        {
            bail!(
                "the socket {} of {} has an urgent byte that was not read, which splice(2) does not pass; try again when it \
                 was read",
                self.number,
                self.owner.name()
            );
        }
        Ok(())
    }

    /// Refuses the two ends of one connection: its bytes would go in a circle. Each end has read what the other one has
    /// written, so the numbers of bytes do not tell them from the two sides of a relay.
    ///
    /// # Errors
    /// If `other` is its peer.
    pub(super) fn refuse_peer(&self, other: &Self) -> Result<()> {
        if self.is_peer_of(other) {
            bail!(
                "{} and {} are the two ends of one connection; name sockets of two connections between which a process relays",
                self.number,
                other.number
            );
        }
        Ok(())
    }

    pub(super) fn is_peer_of(&self, other: &Self) -> bool {
        are_one_connection(&self.real, &other.real)
    }

    /// How far its connection is.
    ///
    /// # Errors
    /// If a peer has ended its stream already: then there is nothing left to adopt.
    pub(super) fn progress(&self) -> Result<Progress> {
        let progress = socket_option::progress(&self.real).context("cannot read TCP_INFO")?;
        if !progress.is_established {
            bail!(
                "the connection of the socket {} of {} is ending or has ended; adopt one that is established",
                self.number,
                self.owner.name()
            );
        }
        Ok(progress)
    }

    /// From now on only spliced has descriptors: if all its processes are killed, the peer must not see a clean end. And
    /// splice(2) must not block.
    pub(super) fn seize(&self) {
        // It fails only on a socket that is not connected any more, which needs no reset.
        let _ = sockopt::set_socket_linger(&self.real, Some(Duration::ZERO));
        self.set_non_blocking(true);
    }

    /// Makes the socket what its owner has made of its stand-in: still open, ended, or closed.
    pub(super) fn restore(&self, stand_in: Option<BorrowedFd<'_>>, ended: Ended) {
        if stand_in.is_none() && ended == Ended::Reset {
            return;
        }
        // Each fails only on a socket that is not connected any more.
        let _ = sockopt::set_socket_linger(&self.real, self.linger);
        if let Some(stand_in) = stand_in {
            let flags = fcntl_getfl(stand_in);
            self.set_non_blocking(flags.is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)));
            if ended == Ended::Stream {
                let _ = shutdown(&self.real, Shutdown::Write);
            }
        }
    }

    fn set_non_blocking(&self, is_non_blocking: bool) {
        if let Ok(mut flags) = fcntl_getfl(&self.real) {
            flags.set(OFlags::NONBLOCK, is_non_blocking);
            // It fails for no socket.
            let _ = fcntl_setfl(&self.real, flags);
        }
    }

    /// Resets the connection.
    pub(super) fn cut(&self) {
        // It fails only on a socket that is not connected any more.
        let _ = sockopt::set_socket_linger(&self.real, Some(Duration::ZERO));
        let _ = connect_unspec(&self.real);
    }
}

/// Whether two sockets are each other's peer, as far as their addresses tell: behind address translation they do not.
fn are_one_connection(one: &OwnedFd, other: &OwnedFd) -> bool {
    // A relay that has the client's address and the server's one has two connections with the same addresses.
    let is_transparent = |socket| socket_option::is_transparent(socket).unwrap_or(false);
    if is_transparent(one) && is_transparent(other) {
        return false;
    }
    match (ends(one), ends(other)) {
        (Some([local, peer]), Some(theirs)) => [peer, local] == theirs,
        _ => false,
    }
}

/// The local address and the peer's. An IPv4 address may be mapped at one end only, and a scope is each host's own.
fn ends(socket: &OwnedFd) -> Option<[(IpAddr, u16); 2]> {
    let canonical = |address: SocketAddrAny| {
        let address = net::SocketAddr::try_from(address).ok()?;
        Some((address.ip().to_canonical(), address.port()))
    };
    Some([
        canonical(getsockname(socket).ok()?)?,
        canonical(getpeername(socket).ok()??)?,
    ])
}

/// How the owner has ended its stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Not,
    /// It sends nothing more.
    Stream,
    /// Closed with bytes that it has not read, for example.
    Reset,
}

/// Takes a name that only one process of a network namespace can have, and that is free again when it ends.
fn claim(owner: Owner, number: u32) -> Result<UnixDatagram> {
    let name = format!("spliced/adopt/{}/{number}", owner.0);
    let address = SocketAddr::from_abstract_name(name)?;
    UnixDatagram::bind_addr(&address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow!(
            "the descriptor {number} of {} is adopted by another spliced; end that one first",
            owner.name()
        ),
        _ => anyhow!(
            "cannot take a name for the descriptor {number} of {}: {error}",
            owner.name()
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use netlab::{Need, available};
    use socket2::SockRef;

    use super::*;

    fn connection(listen: &str) -> [OwnedFd; 2] {
        let listener = TcpListener::bind(listen).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let one = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let (other, _) = listener.accept().expect("accepted");
        [one.into(), other.into()]
    }

    #[test]
    fn the_ends_of_a_connection_are_told_from_the_sides_of_a_relay() {
        let [one, other] = connection("127.0.0.1:0");
        let [mapped_one, mapped_other] = connection("[::]:0");
        for [first, second] in [[&one, &other], [&mapped_one, &mapped_other]] {
            assert!(are_one_connection(first, second));
            assert!(are_one_connection(second, first));
        }
        for [first, second] in [[&one, &one], [&one, &mapped_other], [&other, &mapped_one]] {
            assert!(!are_one_connection(first, second));
        }
    }

    /// A relay with the addresses of both peers (HAProxy's `usesrc client`).
    #[test]
    fn a_transparent_relay_has_two_connections_with_the_same_addresses() {
        if !available(Need::Root) {
            return;
        }
        let [one, other] = connection("127.0.0.1:0");
        for (socket, is_one) in [(&one, true), (&other, false)] {
            let socket = SockRef::from(socket);
            socket.set_ip_transparent_v4(true).expect("transparent");
            assert_eq!(are_one_connection(&one, &other), is_one);
        }
    }
}
