//! Both sides with all that is needed to give them back: what spliced and its keeper both hold.
//!
//! Each side has a real socket, a stand-in that its owner has got for it, and two pipes. Where bytes are, and how far the
//! owner is, only the kernel knows, so that each process that holds this can finish what the other one has begun.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::{connect_unspec, sockopt};
use serde::{Deserialize, Serialize};
use splice_base::socket_option;

use super::exchange::exchange;
use super::frozen::Frozen;
use super::owner::{Owner, places, processes};
use super::pipe::Pipe;
use super::side::{self, Ended, Side};
use super::stand_in::{StandIn, inode};

/// How many descriptors a side has.
const DESCRIPTORS: usize = 8;

/// The two sides.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) sides: [Taken; 2],
}

/// A side whose owner has, or is to get, a stand-in for its socket.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) side: Side,
    /// The end of the stand-in that is ours.
    pub(super) near: OwnedFd,
    /// The owner's end, until the owner has it.
    far: Option<OwnedFd>,
    far_inode: u64,
    /// From the stand-in to the socket.
    pub(super) from_owner: Pipe,
    /// From the socket to that of the other side.
    pub(super) onward: Pipe,
}

/// A side without its descriptors.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Told {
    side: side::Told,
    far_inode: u64,
}

/// The owners have the stand-ins.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Exchanged {
    /// For each side, what its owner had read from the other one and not written to this one.
    pub(super) owed_bytes: [u64; 2],
    /// For how long the owners stood still.
    pub(super) stood_still: Duration,
}

/// The owners have their sockets again.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct GivenBack {
    /// Descriptors that the owner has made of a stand-in meanwhile, in words.
    pub(super) also: Vec<String>,
    pub(super) stood_still: Duration,
}

impl Held {
    /// Makes stand-ins and pipes. The owners notice nothing.
    ///
    /// # Errors
    /// If they cannot be made.
    pub(super) fn prepare([first, second]: [Side; 2]) -> Result<Self> {
        Ok(Self {
            sides: [Taken::prepare(first)?, Taken::prepare(second)?],
        })
    }

    /// What another process needs to hold this, too.
    pub(super) fn told(&self) -> ([Told; 2], Vec<BorrowedFd<'_>>) {
        let told = self.sides.each_ref().map(|taken| Told {
            side: taken.side.told(),
            far_inode: taken.far_inode,
        });
        (
            told,
            self.sides.iter().flat_map(Taken::descriptors).collect(),
        )
    }

    /// What another process has told of; `None` if descriptors are missing.
    pub(super) fn of_told(
        [first, second]: [Told; 2],
        mut descriptors: Vec<OwnedFd>,
    ) -> Option<Self> {
        let rest = descriptors.split_off(DESCRIPTORS.min(descriptors.len()));
        Some(Self {
            sides: [
                Taken::of_told(first, descriptors)?,
                Taken::of_told(second, rest)?,
            ],
        })
    }

    /// Leaves the owners' ends of the stand-ins to the keeper, and later to the owners.
    pub(super) fn leave_far_ends(&mut self) {
        for taken in &mut self.sides {
            taken.far = None;
        }
    }

    /// Gives the owners the stand-ins.
    ///
    /// # Errors
    /// If the sockets cannot be adopted. Then everything is as it was.
    pub(super) fn exchange(&mut self) -> Result<Exchanged> {
        let known: BTreeSet<_> = processes()?.iter().map(|process| process.0).collect();
        let owners = self.sides.each_ref().map(|taken| taken.side.owner);
        let mut frozen = freeze(&owners)?;
        let among = new_among(&known, &owners)?;
        for Taken { side, .. } in &self.sides {
            side.refuse_changed()?;
            // It may have made another descriptor since it was looked at.
            side.owner
                .refuse_shared(side.number, &side.places_in(&among)?)?;
            side.refuse_urgent()?;
        }
        let owed_bytes = owed([&self.sides[0].side, &self.sides[1].side])?;
        let mut exchanged = Ok(stood_still(&frozen)?);
        let mut done = 0;
        for taken in &self.sides {
            let place = (taken.side.owner, taken.side.number);
            let far = taken.far.as_ref().context("it has the stand-in already")?;
            exchanged = put(&mut frozen, place, taken.side.inode()?, far.as_fd())
                .and_then(|()| stood_still(&frozen));
            match &exchanged {
                Ok(_) => done += 1,
                // It has the stand-in all the same, if it was only too late.
                Err(_) if taken.side.owner.inode(taken.side.number) == Some(taken.far_inode) => {
                    done += 1;
                    break;
                }
                Err(_) => break,
            }
        }
        let stood_still = match exchanged {
            Ok(time) => time,
            Err(error) => {
                for taken in &self.sides[..done] {
                    let place = (taken.side.owner, taken.side.number);
                    put(&mut frozen, place, taken.far_inode, taken.side.real.as_fd())
                        .with_context(|| {
                            format!("{error:#}, and its other socket cannot be given back")
                        })?;
                }
                return Err(error);
            }
        };
        for taken in &self.sides {
            taken.side.seize();
        }
        drop(frozen);
        self.leave_far_ends();
        Ok(Exchanged {
            owed_bytes,
            stood_still,
        })
    }

    /// Gives the sockets back to all that have the stand-ins now, unless bytes have not reached them yet: then `None`.
    ///
    /// # Errors
    /// If the owner cannot take a socket now. It may be tried again.
    pub(super) fn give_back(&self) -> Result<Option<GivenBack>> {
        // So the owner is not stopped in vain again and again.
        if !self.sides.iter().all(Taken::is_at_rest) || self.onward_bytes() > 0 {
            return Ok(None);
        }
        self.pass_failures_on();
        let all = processes()?;
        let known: BTreeSet<_> = all.iter().map(|process| process.0).collect();
        let places_among = |among: &[Owner]| -> Result<[Vec<(Owner, u32)>; 2]> {
            let [first, second] = &self.sides;
            Ok([
                places(first.far_inode, among)?,
                places(second.far_inode, among)?,
            ])
        };
        let owners: Vec<_> = places_among(&all)?
            .concat()
            .iter()
            .map(|place| place.0)
            .collect();
        let mut frozen = match freeze(&owners) {
            Ok(frozen) => frozen,
            // It has ended meanwhile.
            Err(_) if owners.iter().any(|owner| owner.threads().is_err()) => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = places_among(&new_among(&known, &owners)?)?;
        let is_frozen = |(owner, _): &(Owner, u32)| frozen.iter().any(|one| one.owner() == *owner);
        let have_everything = (self.sides.iter().zip(&found))
            .all(|(taken, places)| taken.has_everything(places))
            && self.onward_bytes() == 0;
        // A process that it has just forked has to stand still, too.
        if !have_everything || !found.iter().flatten().all(is_frozen) {
            return Ok(None);
        }
        stood_still(&frozen)?;
        let mut also = Vec::new();
        for (taken, places) in self.sides.iter().zip(found) {
            if taken.has_passed_on_failure() {
                continue;
            }
            let side = &taken.side;
            let stand_in = places
                .first()
                .and_then(|(owner, number)| splice_sockmap::of_process(owner.0, *number).ok());
            side.restore(stand_in.as_ref().map(AsFd::as_fd), taken.ended());
            for (owner, number) in places {
                let put = put(
                    &mut frozen,
                    (owner, number),
                    taken.far_inode,
                    side.real.as_fd(),
                );
                if put.is_err() {
                    side.seize();
                }
                put?;
                if (owner, number) != (side.owner, side.number) {
                    also.push(format!("{number} of {}", owner.name()));
                }
            }
        }
        let times = frozen.iter().map(Frozen::time);
        let stood_still = times.max().unwrap_or_default();
        Ok(Some(GivenBack { also, stood_still }))
    }

    /// Has the owners meet the failure of a connection as they would have without spliced: after the last byte that came.
    pub(super) fn pass_failures_on(&self) {
        for taken in &self.sides {
            // Otherwise the owner gets the socket itself, with these bytes and the error after them.
            if taken.is_dead() && rustix::io::ioctl_fionread(&taken.side.real).unwrap_or(0) == 0 {
                taken.fail();
            }
        }
    }

    /// What has left a socket and is not with the other one, if that still takes bytes.
    fn onward_bytes(&self) -> u64 {
        let [first, second] = &self.sides;
        let bytes = |from: &Taken, to: &Taken| match to.is_dead() {
            true => 0,
            false => from.onward.held_bytes(),
        };
        bytes(first, second) + bytes(second, first)
    }

    /// Resets both connections.
    pub(super) fn cut(&self) {
        for taken in &self.sides {
            taken.side.cut();
        }
    }
}

impl Taken {
    fn prepare(side: Side) -> Result<Self> {
        let StandIn { near, far } = StandIn::of(side.real.as_fd())?;
        Ok(Self {
            far_inode: inode(&far).context("cannot look at a stand-in")?,
            side,
            near,
            far: Some(far),
            from_owner: Pipe::new()?,
            onward: Pipe::new()?,
        })
    }

    /// Those that [`of_told`](Self::of_told) takes, in its order; `far` is among them only before the exchange.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let [real, claim] = self.side.descriptors();
        let far = self.far.as_ref().map(AsFd::as_fd);
        [real, claim, self.near.as_fd()]
            .into_iter()
            .chain(self.from_owner.descriptors())
            .chain(self.onward.descriptors())
            .chain(far)
            .collect()
    }

    fn of_told(told: Told, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let [
            real,
            claim,
            near,
            reader,
            writer,
            onward_reader,
            onward_writer,
            far,
        ]: [OwnedFd; DESCRIPTORS] = descriptors.try_into().ok()?;
        Some(Self {
            side: Side::of_told(told.side, [real, claim]),
            near,
            far: Some(far),
            far_inode: told.far_inode,
            from_owner: Pipe { reader, writer },
            onward: Pipe {
                reader: onward_reader,
                writer: onward_writer,
            },
        })
    }

    /// What the owner has written to the stand-in, in bytes; `None` if it has ended its stream.
    pub(super) fn written_bytes(&self) -> Option<u64> {
        let arrived = socket_option::progress(&self.near).ok()?;
        // The end of a stream counts like a byte.
        (arrived.is_established).then_some(arrived.read_bytes + arrived.unread_bytes)
    }

    /// Where the owner still has the stand-in.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub(super) fn places(&self) -> Result<Vec<(Owner, u32)>> {
        places(self.far_inode, &processes()?)
    }

    fn ended(&self) -> Ended {
        match socket_option::progress(&self.near) {
            Ok(progress) if progress.is_established => Ended::Not,
            _ if socket_option::is_closed(&self.near).unwrap_or(true) => Ended::Reset,
            _ => Ended::Stream,
        }
    }

    /// Whether the connection of the socket is gone: nothing can be delivered there.
    fn is_dead(&self) -> bool {
        socket_option::is_closed(&self.side.real).unwrap_or(true)
    }

    /// Resets the stand-in: its owner meets the failure of the connection there, since spliced has taken the error from the
    /// socket.
    pub(super) fn fail(&self) {
        // Each fails only on a socket that is not connected any more.
        let _ = sockopt::set_socket_linger(&self.near, Some(Duration::ZERO));
        let _ = connect_unspec(&self.near);
    }

    /// Whether the owner keeps the stand-in, which is as dead as the socket, and has the error.
    fn has_passed_on_failure(&self) -> bool {
        self.is_dead() && socket_option::is_closed(&self.near).unwrap_or(true)
    }

    /// Whether nothing of the owner is on its way, as far as can be seen while it runs.
    fn is_at_rest(&self) -> bool {
        let unread = rustix::io::ioctl_fionread(&self.near).unwrap_or(0);
        self.is_dead() || unread + self.from_owner.held_bytes() == 0
    }

    /// Whether all that the owner, which stands still and has the stand-in in these places, has written is with the real
    /// socket.
    fn has_everything(&self, places: &[(Owner, u32)]) -> bool {
        if self.is_dead() {
            return true;
        }
        let Ok(near) = socket_option::progress(&self.near) else {
            return true;
        };
        let ended = self.ended();
        let everything_is_read = match (places.first(), ended) {
            // Somebody has it who cannot be seen.
            (None, Ended::Not) => false,
            (None, _) | (Some(_), Ended::Reset) => near.unread_bytes == 0,
            (Some((owner, number)), _) => {
                // What is still on its way over loopback has not arrived at our end.
                let far = splice_sockmap::of_process(owner.0, *number);
                let far = far.ok().and_then(|far| socket_option::progress(far).ok());
                // The end of the stream counts like a byte.
                let end_bytes = u64::from(ended == Ended::Stream);
                far.is_some_and(|far| far.written_bytes + end_bytes == near.read_bytes)
            }
        };
        // In this order: what was read is in the pipe, or further.
        everything_is_read && self.from_owner.held_bytes() == 0
    }
}

/// Stops processes, each once.
fn freeze(owners: &[Owner]) -> Result<Vec<Frozen>> {
    let mut frozen: Vec<Frozen> = Vec::new();
    for owner in owners {
        if frozen.iter().all(|one| one.owner() != *owner) {
            frozen.push(Frozen::freeze(*owner)?);
        }
    }
    Ok(frozen)
}

/// How long they have stood still. Refuses if that is too long.
fn stood_still(frozen: &[Frozen]) -> Result<Duration> {
    let longest = |longest: Duration, one: &Frozen| Ok(one.refuse_late()?.max(longest));
    frozen.iter().try_fold(Duration::ZERO, longest)
}

/// The owners, and processes that are not among those known.
fn new_among(known: &BTreeSet<u32>, owners: &[Owner]) -> Result<Vec<Owner>> {
    let mut all = processes()?;
    all.retain(|process| !known.contains(&process.0) || owners.contains(process));
    Ok(all)
}

/// Makes a descriptor of a frozen process another socket than the one that it is now.
fn put(
    frozen: &mut [Frozen],
    (owner, number): (Owner, u32),
    present_inode: u64,
    socket: BorrowedFd<'_>,
) -> Result<()> {
    let frozen = frozen.iter_mut().find(|one| one.owner() == owner);
    let frozen = frozen.with_context(|| format!("{} has ended", owner.name()))?;
    let closes_on_exec = owner.closes_on_exec(number)?;
    let watching = owner.registrations(number, present_inode)?;
    exchange(frozen, number, socket, closes_on_exec, &watching)
}

/// For each side, how many bytes its owner has read from the other one and not written to this one.
///
/// # Errors
/// In words, if these cannot be two sockets of a relay.
fn owed(sides: [&Side; 2]) -> Result<[u64; 2]> {
    let [first, second] = sides;
    let progress = [first.progress()?, second.progress()?];
    let mut owed_bytes = [0; 2];
    for (at, owed) in owed_bytes.iter_mut().enumerate() {
        let (here, there) = (sides[at], sides[1 - at]);
        let (written_bytes, read_bytes) = (progress[at].written_bytes, progress[1 - at].read_bytes);
        let Some(missing) = read_bytes.checked_sub(written_bytes) else {
            bail!(
                "{} has written {written_bytes} bytes to {} and read only {read_bytes} from {}: it is no plain relay of \
                 these two",
                here.owner.name(),
                here.number,
                there.number
            );
        };
        *owed = missing;
    }
    Ok(owed_bytes)
}
