//! What moves the frames: programs in the kernel, or user space. Both keep the same entries.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::types::{MeshInspection, MeshRecord};

use super::bounds::{Bounds, SKB_COST};
use super::copying::{Change, Copying};
use super::framing::Framing;
use super::heard::Heard;
use super::places::Places;
use super::tables::Tables;
use crate::name::{EngineChoice, EngineName};

pub(super) enum Engine {
    Sockmap(Box<Tables>),
    Copy(Box<Copying>),
}

impl Engine {
    /// The engine, and why it is not the kernel's.
    pub(super) fn choose(
        choice: EngineChoice,
        framing: &Framing,
        bounds: &Bounds,
    ) -> Result<(Self, Option<Error>)> {
        let sockmap = || Tables::load(framing, bounds.members, bounds.member_bytes).map(Box::new);
        let copy = || Self::Copy(Box::new(Copying::new(framing, bounds)));
        match choice {
            EngineChoice::Auto => Ok(match sockmap() {
                Ok(tables) => (Self::Sockmap(tables), None),
                Err(why) => (copy(), Some(why)),
            }),
            EngineChoice::Only(EngineName::Sockmap) => Ok((Self::Sockmap(sockmap()?), None)),
            EngineChoice::Only(EngineName::Copy) => Ok((copy(), None)),
            EngineChoice::Only(other) => Err(Error::new(
                ErrorKind::EngineRefused,
                format!("no mesh has the engine {other}; choose auto, copy or sockmap"),
            )),
        }
    }

    pub(super) fn name(&self) -> EngineName {
        match self {
            Self::Sockmap(_) => EngineName::Sockmap,
            Self::Copy(_) => EngineName::Copy,
        }
    }

    pub(super) fn places(&self) -> &Places {
        match self {
            Self::Sockmap(tables) => &tables.places,
            Self::Copy(copying) => &copying.places,
        }
    }

    pub(super) fn places_mut(&mut self) -> &mut Places {
        match self {
            Self::Sockmap(tables) => &mut tables.places,
            Self::Copy(copying) => &mut copying.places,
        }
    }

    /// A descriptor beside the members' that is readable when there is something to do.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Sockmap(tables) => Some(tables.as_fd()),
            Self::Copy(_) => None,
        }
    }

    /// What to watch a member's socket for.
    pub(super) fn flags(&self) -> EventFlags {
        match self {
            // A program takes what comes.
            Self::Sockmap(_) => EventFlags::RDHUP | EventFlags::ET,
            Self::Copy(_) => {
                EventFlags::IN
                    | EventFlags::PRI
                    | EventFlags::OUT
                    | EventFlags::RDHUP
                    | EventFlags::ET
            }
        }
    }

    /// Whether the socket with this cookie is a source.
    pub(super) fn has(&self, cookie: u64) -> bool {
        match self {
            Self::Sockmap(tables) => tables.has(cookie),
            Self::Copy(copying) => copying.has(cookie),
        }
    }

    /// Makes a socket a destination, to which nothing goes before [`open`](Self::open).
    pub(super) fn add_target(
        &mut self,
        id: u64,
        place: u32,
        socket: &Arc<OwnedFd>,
    ) -> std::result::Result<(), Errno> {
        match self {
            Self::Sockmap(tables) => tables.add_target(id, socket.as_fd()),
            Self::Copy(copying) => copying.add_target(id, place, socket),
        }
    }

    pub(super) fn open(&self, id: u64, place: u32) -> std::result::Result<(), Errno> {
        match self {
            Self::Sockmap(tables) => tables.open(id, place),
            // The role of its entry says it.
            Self::Copy(_) => Ok(()),
        }
    }

    /// Has the frames of a socket delivered.
    pub(super) fn add_source(
        &mut self,
        id: u64,
        cookie: u64,
        place: u32,
        socket: BorrowedFd<'_>,
    ) -> std::result::Result<(), Errno> {
        match self {
            Self::Sockmap(tables) => tables.add_source(cookie, place, socket),
            Self::Copy(copying) => {
                copying.add_source(id, cookie);
                Ok(())
            }
        }
    }

    /// Takes a socket out. What the engine still holds for it is lost.
    pub(super) fn remove(&mut self, id: u64, cookie: u64) {
        match self {
            Self::Sockmap(tables) => tables.remove(id, cookie),
            Self::Copy(copying) => copying.remove(id, cookie),
        }
    }

    /// How far a member has come; `None` if its socket is closed.
    pub(super) fn inspect(&self, id: u64) -> Option<MeshInspection> {
        match self {
            Self::Sockmap(tables) => tables.inspect(id),
            Self::Copy(copying) => copying.inspect(id),
        }
    }

    /// Memory on its way to the member at a place, in bytes; `None` if its socket is closed.
    pub(super) fn on_the_way_bytes(&self, id: u64, place: u32) -> Option<u64> {
        let seen = self.inspect(id)?;
        let pending = self.places().handed(place).wrapping_sub(seen.write_seq);
        Some(
            u64::from(seen.wmem_queued)
                + u64::from(pending)
                + u64::from(seen.queued_skbs) * SKB_COST,
        )
    }

    /// Sends a notice to the member that it names.
    pub(super) fn notify(&mut self, id: u64, notice: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Sockmap(tables) => tables.notify(notice),
            Self::Copy(copying) => {
                copying.notify(id, notice);
                Ok(())
            }
        }
    }

    /// Has frames to destination 0, and to those from `first` on, left to the program. Returns a further descriptor to
    /// watch.
    pub(super) fn pass_from(
        &mut self,
        framing: &Framing,
        bounds: &Bounds,
        first: u64,
    ) -> Result<Option<BorrowedFd<'_>>> {
        match self {
            Self::Sockmap(tables) => {
                tables.pass(framing, bounds.member_bytes, first)?;
                Ok(Some(tables.heard()))
            }
            Self::Copy(copying) => {
                copying.pass_from(first);
                Ok(None)
            }
        }
    }

    /// Takes the frames for the program.
    pub(super) fn take_heard(&mut self) -> Vec<Heard> {
        match self {
            Self::Sockmap(tables) => tables.take_heard(),
            Self::Copy(copying) => copying.take_heard(),
        }
    }

    /// Sends a frame of the program to the member that it names, or says why not: an `enum mesh_reason`.
    pub(super) fn send(&mut self, id: u64, frame: &[u8]) -> Result<u32> {
        match self {
            Self::Sockmap(tables) => tables.send(frame),
            Self::Copy(copying) => Ok(copying.send(id, frame)),
        }
    }

    pub(super) fn take_records(&mut self) -> Vec<MeshRecord> {
        match self {
            Self::Sockmap(tables) => tables.take_records(),
            Self::Copy(copying) => copying.take_records(),
        }
    }

    /// Notes what epoll(7) says of a member's socket. Returns whether that means something to the mesh itself, too.
    pub(super) fn note(&mut self, id: u64, flags: EventFlags) -> Option<Change> {
        match self {
            Self::Sockmap(_) if flags.contains(EventFlags::ERR) => Some(Change::Failed),
            Self::Sockmap(_) if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) => {
                Some(Change::Ended)
            }
            Self::Sockmap(_) => None,
            Self::Copy(copying) => {
                copying.note(id, flags);
                None
            }
        }
    }

    /// Moves what there is to move, and says what became of members' sockets meanwhile.
    pub(super) fn move_frames(&mut self) -> Vec<(u64, Change)> {
        match self {
            Self::Sockmap(_) => Vec::new(),
            Self::Copy(copying) => {
                copying.move_frames();
                copying.take_changes()
            }
        }
    }

    /// Whether a turn would have something to do without a new event.
    pub(super) fn has_work(&self) -> bool {
        match self {
            Self::Sockmap(_) => false,
            Self::Copy(copying) => copying.has_work(),
        }
    }
}
