//! What the program says to members and hears from them, where it is more than a place for them to meet.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::epoll;
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
use splice_bpf::types::mesh_reason;

use super::heard::{Heard, parts};
use super::member::Departure;
use super::notice::{Code, FROM_MESH, Notice};
use super::places::REST_OF_PLACE;
use super::{ENGINE, Mesh, Refusal};

/// How many answers may wait for one member.
const MOST_ANSWERS: usize = 16;

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
        let further = self.engine.pass_from(&self.framing, &self.bounds, first)?;
        if let Some(further) = further {
            let token = epoll::EventData::new_u64(ENGINE);
            epoll::add(&self.epoll, further, token, epoll::EventFlags::IN)
                .context("cannot watch the ring of the mesh")?;
        }
        self.passed_from = Some(first);
        Ok(())
    }

    /// The next frame that a member has sent to the program, and who. `None`: wait for the next turn.
    pub fn next_heard(&mut self) -> Option<(u64, Vec<u8>)> {
        if self.heard.is_empty() {
            self.take_heard();
        }
        let (id, frame) = self.heard.pop_front()?;
        if let Some(member) = self.members.get_mut(&id) {
            member.heard_frames += 1;
            let entry = self.engine.places().at(member.place);
            let count = parts(frame.len());
            entry.heard_parts.fetch_add(count, Ordering::Relaxed);
        }
        Some((id, frame))
    }

    /// Takes the frames for the program from the engine.
    pub(super) fn take_heard(&mut self) {
        for Heard { source, frame } in self.engine.take_heard() {
            if let Some(id) = self.ids.get(&source) {
                self.heard.push_back((*id, frame));
            }
        }
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
        Ok(match self.engine.send(receiver, frame)? {
            mesh_reason::NONE => None,
            mesh_reason::FULL => Some(Refusal::Full),
            _ => Some(Refusal::Unknown),
        })
    }
}
