//! What the program says to members and hears from them, where it is more than a place for them to meet.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
use splice_bpf::types::mesh_size;

use super::member::Departure;
use super::notice::{Code, FROM_MESH, Notice};
use super::tables::REST_OF_PLACE;
use super::{Mesh, RING, Refusal};

/// How many answers may wait for one member.
const MOST_ANSWERS: usize = 16;

/// How long the kernel may take for the verdict on a frame of user space. It has it before write(2) returns,
/// unless ksoftirqd has to do it, which waits for a CPU.
const VERDICT: Duration = Duration::from_secs(5);

/// The pause between two looks for that verdict.
const LOOK: Duration = Duration::from_micros(50);

impl Mesh {
    /// Has frames come to the program that are for destination 0, and for all destinations from `groups` on.
    /// Members have lower ids. To be called before the first joins.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if there are members.
    pub fn hear(&mut self, groups: Option<u64>) -> Result<()> {
        if !self.members.is_empty() {
            return Err(Error::new(
                ErrorKind::EngineRefused,
                "the mesh has members, whose frames nobody would hear; ask for them before",
            ));
        }
        // The largest number stands for nobody then, and nobody has such an id.
        let first = groups.unwrap_or(u64::MAX);
        self.tables
            .pass(&self.framing, self.bounds.member_bytes, first)?;
        epoll::add(
            &self.epoll,
            self.tables.heard(),
            epoll::EventData::new_u64(RING),
            epoll::EventFlags::IN,
        )
        .context("cannot watch the ring of the mesh")?;
        self.passed_from = Some(first);
        Ok(())
    }

    /// The next frame that a member has sent to the program, and who. `None`: wait for the next turn.
    pub fn next_heard(&mut self) -> Option<(u64, Vec<u8>)> {
        if self.heard.is_empty() {
            self.take_parts();
        }
        let (id, frame) = self.heard.pop_front()?;
        if let Some(member) = self.members.get_mut(&id) {
            member.heard_frames += 1;
            let parts = frame.len().div_ceil(mesh_size::PART as usize) as u64;
            let entry = self.tables.at(member.place);
            entry.heard_parts.fetch_add(parts, Ordering::Relaxed);
        }
        Some((id, frame))
    }

    /// Empties the ring of frames for the program.
    pub(super) fn take_parts(&mut self) {
        let (ids, members, heard) = (&self.ids, &mut self.members, &mut self.heard);
        self.tables.take_parts(|part| {
            let Some(id) = ids.get(&part.source) else {
                return;
            };
            let Some(member) = members.get_mut(id) else {
                return;
            };
            let whole = part.frame_bytes as usize;
            let partial = &mut member.partial;
            if part.offset == 0 {
                // The frame before was refused when the ring was full.
                partial.clear();
            }
            let left = whole.saturating_sub(partial.len());
            let bytes = left.min(part.content.len());
            partial.extend_from_slice(&part.content[..bytes]);
            if partial.len() == whole {
                heard.push_back((*id, std::mem::take(partial)));
            }
        });
    }

    /// Takes a socket in under an id of the program's choice, otherwise as [`join`](Self::join) does.
    ///
    /// # Errors
    /// Those of [`join`](Self::join), and [`ErrorKind::EngineRefused`] if the mesh does not give this id; see
    /// [`is_free`](Self::is_free).
    pub fn join_as(&mut self, socket: impl Into<OwnedFd>, id: u64) -> Result<()> {
        if !self.is_free(id) {
            return Err(Error::new(
                ErrorKind::EngineRefused,
                format!("the mesh cannot give the id {id}; choose one that is free"),
            ));
        }
        self.enter(socket.into(), id)?;
        self.next_id = self.next_id.max(id.saturating_add(1));
        Ok(())
    }

    /// Whether the destination field can name this id, and neither the mesh nor a group has it.
    pub fn can_name(&self, id: u64) -> bool {
        id != FROM_MESH
            && id <= self.framing.most_ids()
            && self.passed_from.is_none_or(|it| id < it)
    }

    /// Whether a member can be given this id now. That of a member that has left rests some 20 ms: a verdict that
    /// has found the member may still use it.
    pub fn is_free(&mut self, id: u64) -> bool {
        let now = Instant::now();
        while let Some((since, _)) = self.resting.front()
            && now.saturating_duration_since(*since) >= REST_OF_PLACE
        {
            self.resting.pop_front();
        }
        self.can_name(id)
            && !self.members.contains_key(&id)
            && !self.resting.iter().any(|(_, resting)| *resting == id)
    }

    /// Whether a member has taken enough of the earlier answers to get another one.
    pub fn can_answer(&self, id: u64) -> bool {
        let member = self.members.get(&id);
        member.is_some_and(|member| member.answers.len() < MOST_ANSWERS)
    }

    /// Says something to a member. It comes behind what is on its way to it, and behind earlier answers.
    pub fn answer(&mut self, id: u64, code: Code, frames: u32, destination: u64) {
        if let Some(member) = self.members.get_mut(&id) {
            member.answers.push_back(Notice {
                receiver: id,
                code,
                frames,
                destination,
            });
            self.send_notices(id);
        }
    }

    /// Tells a member that a frame of it could not be delivered to `destination`.
    pub fn refuse(&mut self, sender: u64, destination: u64, reason: Refusal) {
        let code = match reason {
            Refusal::Unknown => Code::Unknown,
            Refusal::Full => Code::Full,
        };
        if let Some(member) = self.members.get_mut(&sender) {
            member.note(code, destination, 1);
        }
    }

    /// Has a member leave because it is idle, and tells it so.
    pub fn dismiss(&mut self, id: u64) {
        if let Some(member) = self.members.get_mut(&id) {
            member.note(Code::Idle, 0, 0);
        }
        self.drain(id, Departure::Idle);
    }

    /// Sends a frame to a member, as the program's own. It names the receiver from then on.
    ///
    /// # Errors
    /// If the mesh's own connection fails.
    pub fn send(&mut self, receiver: u64, frame: &mut [u8]) -> Result<Option<Refusal>> {
        if self.framing.readdress(frame, receiver).is_none() || !self.can_name(receiver) {
            return Ok(Some(Refusal::Unknown));
        }
        // So that what changes is the verdict on this frame.
        self.settle()?;
        let refused = |mesh: &Self| {
            let entry = mesh.tables.at(mesh.notices_place);
            [&entry.unknown_frames, &entry.full_frames].map(|count| count.load(Ordering::Relaxed))
        };
        let before = refused(self);
        self.notices
            .write_all(frame)
            .context("cannot write to the mesh's own connection")?;
        self.written_bytes += frame.len() as u64;
        self.settle()?;
        let after = refused(self);
        Ok(if after[0] != before[0] {
            Some(Refusal::Unknown)
        } else if after[1] != before[1] {
            Some(Refusal::Full)
        } else {
            None
        })
    }

    /// Waits until all that was written to the mesh's own connection has had its verdict.
    fn settle(&self) -> Result<()> {
        let taken = &self.tables.at(self.notices_place).taken_bytes;
        let start = Instant::now();
        while taken.load(Ordering::Acquire) != self.written_bytes {
            if start.elapsed() >= VERDICT {
                return Err(Error::new(
                    ErrorKind::EngineRefused,
                    "the kernel has stopped delivering what the mesh itself sends",
                ));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}
