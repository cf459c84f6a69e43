//! One of the two sockets: where it is open, and what its owner had set.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::net::{
    AddressFamily, Shutdown, SocketType, connect_unspec, ipproto, shutdown, sockopt,
};
use splice::Reason;
use splice_base::socket_option::{self, Progress};

use super::exchange::exchange;
use super::frozen::Frozen;
use super::owner::Owner;
use super::stand_in::{addresses, inode};

/// A socket that is open as `number` of `owner`.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) owner: Owner,
    pub(super) number: u32,
    /// This process's descriptor of it.
    pub(super) real: OwnedFd,
    closes_on_exec: bool,
    linger: Option<Duration>,
    /// Keeps others from adopting the stand-in.
    _claim: UnixDatagram,
}

impl Side {
    /// Takes a duplicate of the socket, of which its owner notices nothing.
    ///
    /// # Errors
    /// In words, why it cannot be adopted.
    pub(super) fn take(pid: u32, number: u32) -> Result<Self> {
        let owner = Owner(pid);
        owner.refuse_unfit()?;
        let what = format!("the descriptor {number} of {}", owner.name());
        let no_tcp = || {
            anyhow!(
                "{what} is no TCP socket, and only TCP counts what its owner has read and written"
            )
        };
        let real = splice_sockmap::of_process(pid, number).map_err(|error| match error.kind() {
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
            _claim: claim(owner, number)?,
            closes_on_exec: owner.closes_on_exec(number)?,
            linger: sockopt::socket_linger(&real)?,
            owner,
            number,
            real,
        };
        side.progress()?;
        owner.refuse_shared(number, side.inode()?)?;
        Ok(side)
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

    /// Makes the number `socket` in its owner, which is frozen.
    ///
    /// # Errors
    /// If the owner cannot be made to.
    pub(super) fn exchange(&self, frozen: &mut [Frozen], socket: BorrowedFd<'_>) -> Result<()> {
        let owner = frozen.iter_mut().find(|one| one.owner() == self.owner);
        let owner = owner.with_context(|| format!("{} has ended", self.owner.name()))?;
        // The socket or its stand-in.
        let present = self
            .owner
            .inode(self.number)
            .with_context(|| format!("{} has closed {}", self.owner.name(), self.number))?;
        let watching = self.owner.registrations(self.number, present)?;
        exchange(owner, self.number, socket, self.closes_on_exec, &watching)
    }

    /// From now on this process has the only descriptors, and if it is killed, its peer must not see a clean end.
    pub(super) fn reset_if_this_process_dies(&self) {
        // It fails only on a socket that is not connected any more, which needs no reset.
        let _ = sockopt::set_socket_linger(&self.real, Some(Duration::ZERO));
    }

    /// Makes the socket what its owner has made of its stand-in: still open, ended, or closed.
    pub(super) fn restore(&self, ended: Option<Reason>, is_open: bool) {
        let is_reset = matches!(ended, Some(reason) if reason != Reason::EndOfStream);
        if !is_open && is_reset {
            return;
        }
        // Each fails only on a socket that is not connected any more.
        let _ = sockopt::set_socket_linger(&self.real, self.linger);
        if is_open && ended == Some(Reason::EndOfStream) {
            let _ = shutdown(&self.real, Shutdown::Write);
        }
    }

    /// Resets the connection.
    pub(super) fn cut(&self) {
        self.reset_if_this_process_dies();
        // It fails only on a socket that is not connected any more.
        let _ = connect_unspec(&self.real);
    }
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
