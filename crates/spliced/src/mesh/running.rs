//! A mesh that runs.
//!
//! ```text
//!          a signal                  none left, or a second signal
//! running ─────────▶ all have to leave ───────────────────────────▶ over
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use splice::mesh::{Code, Departure, Event, Framing, MemberCounters, Mesh, Refusal};

use super::departed::{Departed, in_words};
use super::groups::{Delivery, Groups};
use super::present::Present;
use super::registration::{Newcomers, Registered, Wish, refuse};
use super::request::{self, Request};
use crate::access_log::AccessLog;
use crate::exit_status::Ended;
use crate::plural::counted;
use crate::signal;

/// How long the mesh accepts nobody when it has run out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How many frames are handed out by user space, and how many requests answered, in one turn. Signals, new clients
/// and notices wait meanwhile; a frame takes some 10 µs.
const AT_ONCE: usize = 256;

/// How long frames to groups that were accepted may be handed out at the end.
const LAST_COPIES: Duration = Duration::from_secs(5);

/// How often the mesh looks for idle members, in parts of the time that they may be idle.
const IDLE_LOOKS: u32 = 8;

/// What signals ask for.
pub(super) struct Told {
    /// Readable if there is a request.
    pub(super) wake: Arc<OwnedFd>,
    pub(super) requests: Receiver<signal::Request>,
    pub(super) stops: Arc<AtomicU32>,
}

/// What has gone through a mesh so far, without its present members.
#[derive(Debug, Default)]
struct Totals {
    members: u64,
    delivered_frames: u64,
    unknown_frames: u64,
    full_frames: u64,
    copies: u64,
}

pub(super) struct Running {
    mesh: Mesh,
    framing: Framing,
    listening: Vec<OwnedFd>,
    accept_after: Option<Instant>,
    totals: Totals,
    present: Present,
    delivery: Option<Delivery>,
    last_idle_look: Instant,
    pub(super) newcomers: Option<Newcomers>,
    pub(super) groups: Option<Groups>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) access_log: Option<AccessLog>,
    /// What it listens on, for the access log.
    pub(super) address: String,
}

impl Running {
    pub(super) fn new(mesh: Mesh, framing: Framing, listening: Vec<OwnedFd>) -> Self {
        Self {
            mesh,
            framing,
            listening,
            accept_after: None,
            totals: Totals::default(),
            present: Present::default(),
            delivery: None,
            last_idle_look: Instant::now(),
            newcomers: None,
            groups: None,
            idle_timeout: None,
            access_log: None,
            address: String::new(),
        }
    }

    /// Runs until a signal asks for the end.
    pub(super) fn until_told(&mut self, told: &Told) -> Result<()> {
        loop {
            let now = Instant::now();
            if self.accept_after.is_some_and(|at| at <= now) {
                self.accept_after = None;
            }
            let may_accept = self.accept_after.is_none() && self.mesh.has_room();
            let mut watched = vec![
                PollFd::new(&told.wake, PollFlags::IN),
                PollFd::from_borrowed_fd(self.mesh.as_fd(), PollFlags::IN),
            ];
            if may_accept {
                let listening = self.listening.iter();
                watched.extend(listening.map(|socket| PollFd::new(socket, PollFlags::IN)));
            }
            let before = watched.len();
            watched.extend(self.newcomers.iter().flat_map(Newcomers::watched));
            let time = Timespec::try_from(self.pace(now)).ok();
            match poll(&mut watched, time.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait for the mesh"),
            }
            let ready = watched.split_off(before);
            let ready: Vec<_> = ready.iter().map(|it| !it.revents().is_empty()).collect();
            drop(watched);
            if let Some(newcomers) = &mut self.newcomers {
                newcomers.set_ready(&ready);
            }
            self.obey(told);
            if told.stops.load(Ordering::Relaxed) > 0 {
                return Ok(());
            }
            if may_accept {
                self.accept();
            }
            self.register();
            self.turn(Duration::ZERO)?;
            self.hear()?;
            self.dismiss_idle();
        }
    }

    /// Has all members leave. Who is about to register is not taken in.
    pub(super) fn end(&mut self, told: &Told) -> Result<Ended> {
        self.listening.clear();
        if let Some(newcomers) = &mut self.newcomers {
            newcomers.end();
        }
        // What was accepted for groups first: members that leave get nothing more.
        let until = Instant::now() + LAST_COPIES;
        loop {
            self.turn(Duration::ZERO)?;
            if !self.hear()? && !self.mesh.is_behind() {
                break;
            }
            if told.stops.load(Ordering::Relaxed) > 1 {
                return Ok(Ended::CutShort);
            }
            if Instant::now() >= until {
                tracing::warn!("the mesh ends before all frames to groups were handed out");
                break;
            }
            self.obey(told);
        }
        let all: Vec<_> = self.mesh.members().collect();
        all.into_iter().for_each(|id| self.mesh.leave(id));
        while self.mesh.members().next().is_some() {
            if told.stops.load(Ordering::Relaxed) > 1 {
                return Ok(Ended::CutShort);
            }
            self.obey(told);
            self.turn(self.mesh.pace())?;
            self.hear()?;
        }
        Ok(Ended::Well)
    }

    /// What has gone through it so far, members that are present included.
    pub(super) fn totals(&self) -> String {
        let Totals {
            members,
            mut delivered_frames,
            mut unknown_frames,
            mut full_frames,
            copies,
        } = self.totals;
        for counters in self.mesh.members().filter_map(|id| self.mesh.counters(id)) {
            delivered_frames += counters.sent_frames;
            unknown_frames += counters.unknown_frames;
            full_frames += counters.full_frames;
        }
        let mut text = format!(
            "{members} members, {delivered_frames} frames delivered, {unknown_frames} without a destination, \
             {full_frames} refused because too much was on the way"
        );
        if self.groups.is_some() {
            text += &format!(", {copies} copies to members of groups");
        }
        if let Some(newcomers) = &self.newcomers {
            text += &format!(", {} refused", counted(newcomers.refusals, "client"));
        }
        text
    }

    fn pace(&self, now: Instant) -> Duration {
        if self.delivery.is_some() {
            return Duration::ZERO;
        }
        let mut pace = self.mesh.pace();
        if self.accept_after.is_some() {
            pace = pace.min(PAUSE);
        }
        if let Some(due) = self.newcomers.as_ref().and_then(Newcomers::due) {
            pace = pace.min(due.saturating_duration_since(now));
        }
        match self.idle_timeout {
            Some(time) => pace.min(time / IDLE_LOOKS),
            None => pace,
        }
    }

    fn obey(&mut self, told: &Told) {
        let _ = rustix::io::read(&told.wake, &mut [0u8; 8]);
        for request in told.requests.try_iter() {
            match request {
                signal::Request::Stop => {}
                signal::Request::Reopen => {
                    tracing::info!("the mesh so far: {}", self.totals());
                    if let Some(log) = &self.access_log {
                        log.reopen();
                    }
                }
                signal::Request::Reload => {
                    let newcomers = self.newcomers.as_mut();
                    if let Some(tokens) = newcomers.and_then(|it| it.tokens.as_mut()) {
                        tokens.read_again();
                    }
                }
            }
        }
    }

    fn accept(&mut self) {
        for at in 0..self.listening.len() {
            if !self.mesh.has_room() {
                return;
            }
            match accept_with(&self.listening[at], SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let from = rustix::net::getpeername(&socket).ok().flatten();
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    match &mut self.newcomers {
                        Some(newcomers) => newcomers.add(socket, from),
                        None if !self.mesh.has_id() => {
                            refuse(&socket, &self.framing, Code::NoRoom);
                            tracing::warn!(
                                "a client cannot be a member: all ids that the destination field can name have been \
                                 used; use a wider field"
                            );
                        }
                        None => {
                            let joined = self.mesh.join(socket);
                            self.has_come(joined, from, None);
                        }
                    }
                }
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    // Who has not registered yet gives way to who comes.
                    let newcomers = self.newcomers.as_mut();
                    if newcomers.is_some_and(Newcomers::give_way) {
                        continue;
                    }
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

    fn has_come(
        &mut self,
        joined: Result<u64, splice::Error>,
        from: Option<SocketAddr>,
        name: Option<String>,
    ) {
        let shown = from.map_or_else(|| "somewhere".into(), |from| from.to_string());
        match joined {
            Ok(id) => {
                self.totals.members += 1;
                match &name {
                    Some(name) => {
                        tracing::info!("member {id} has come from {shown}, it is called {name:?}");
                    }
                    None => tracing::info!("member {id} has come from {shown}"),
                }
                self.present.enter(id, from, name);
            }
            Err(error) => tracing::warn!("a client from {shown} cannot be a member: {error}"),
        }
    }

    /// Takes in who has registered.
    fn register(&mut self) {
        let Some(newcomers) = &mut self.newcomers else {
            return;
        };
        for Registered { socket, from, wish } in newcomers.turn() {
            let refused = match &wish {
                // It was not full when the client came.
                _ if !self.mesh.has_room() => Some(Code::NoRoom),
                Wish::Name(_) if !self.mesh.has_id() => Some(Code::NoRoom),
                Wish::Number(number) if !self.mesh.can_name(*number) => Some(Code::BadName),
                Wish::Number(number) if !self.mesh.is_free(*number) => Some(Code::Taken),
                Wish::Name(name) if self.present.named(name).is_some() => Some(Code::Taken),
                _ => None,
            };
            if let (Some(code), Some(newcomers)) = (refused, &mut self.newcomers) {
                newcomers.refuse(socket, from, code);
                continue;
            }
            match wish {
                Wish::Number(number) => {
                    let joined = self.mesh.join_as(socket, number).map(|()| number);
                    self.has_come(joined, from, None);
                }
                Wish::Name(name) => {
                    let joined = self.mesh.join(socket);
                    self.has_come(joined, from, Some(name));
                }
            }
        }
    }

    /// Answers requests, and hands out frames to groups. Returns whether there may be more.
    fn hear(&mut self) -> Result<bool> {
        for _ in 0..AT_ONCE {
            if self.delivery.is_some() {
                self.hand_out()?;
                continue;
            }
            let Some((sender, frame)) = self.mesh.next_heard() else {
                return Ok(false);
            };
            match self.framing.destination_of(&frame) {
                Some(0) => self.answer(sender, &frame),
                destination => self.begin(sender, destination.unwrap_or(0), frame),
            }
        }
        Ok(true)
    }

    fn answer(&mut self, sender: u64, frame: &[u8]) {
        if !self.mesh.can_answer(sender) {
            return self.mesh.refuse(sender, 0, Refusal::Full);
        }
        let body = &frame[self.framing.header_bytes() as usize..];
        let done = |done| match done {
            true => Code::Done,
            false => Code::BadRequest,
        };
        let (code, tag, destination) = match (Request::parse(body), &mut self.groups) {
            (Ok(Request::LookUp { tag, name }), _) => {
                let found = request::name_of(name).and_then(|name| self.present.named(name));
                match found {
                    Some(id) => (Code::Found, tag, id),
                    None => (Code::NoSuchName, tag, 0),
                }
            }
            (Ok(Request::Join { tag, group }), Some(groups)) => {
                let is_in = self.present.has(sender) && groups.join(sender, group);
                (done(is_in), tag, group)
            }
            (Ok(Request::Leave { tag, group }), Some(groups)) => {
                (done(groups.leave(sender, group)), tag, group)
            }
            (Ok(Request::Join { tag, group } | Request::Leave { tag, group }), None) => {
                (Code::BadRequest, tag, group)
            }
            (Ok(Request::Register { .. }), _) => (Code::BadRequest, 0, 0),
            (Err(tag), _) => (Code::BadRequest, tag, 0),
        };
        self.mesh.answer(sender, code, tag, destination);
    }

    /// A frame to a group has come.
    fn begin(&mut self, sender: u64, group: u64, frame: Vec<u8>) {
        let groups = self.groups.as_ref().filter(|groups| groups.has(group));
        let receivers = groups
            .map(|groups| groups.receivers(group, sender, self.mesh.members()))
            .unwrap_or_default();
        if receivers.is_empty() {
            return self.mesh.refuse(sender, group, Refusal::Unknown);
        }
        self.delivery = Some(Delivery {
            sender,
            frame,
            receivers,
        });
    }

    /// Hands a frame to one more member of its group.
    fn hand_out(&mut self) -> Result<()> {
        let Some(delivery) = &mut self.delivery else {
            return Ok(());
        };
        let Some(receiver) = delivery.receivers.pop_front() else {
            self.delivery = None;
            return Ok(());
        };
        // Whoever has left meanwhile is no member of the group any more.
        if !self.present.has(receiver) {
            return Ok(());
        }
        match self.mesh.send(receiver, &mut delivery.frame)? {
            None => self.totals.copies += 1,
            Some(reason) => self.mesh.refuse(delivery.sender, receiver, reason),
        }
        Ok(())
    }

    fn dismiss_idle(&mut self) {
        let Some(time) = self.idle_timeout else {
            return;
        };
        // What members have sent may not be known yet.
        if self.last_idle_look.elapsed() < time / IDLE_LOOKS || self.mesh.is_behind() {
            return;
        }
        self.last_idle_look = Instant::now();
        let mesh = &self.mesh;
        for id in self.present.idle(time, |id| mesh.counters(id)) {
            self.mesh.dismiss(id);
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
                } => self.has_left(member, why, &counters),
                _ => {}
            }
        }
        Ok(())
    }

    fn has_left(&mut self, member: u64, why: Departure, counters: &MemberCounters) {
        self.totals.delivered_frames += counters.sent_frames;
        self.totals.unknown_frames += counters.unknown_frames;
        self.totals.full_frames += counters.full_frames;
        let why = in_words(why);
        tracing::info!(
            "member {member} has left, {why}: {} frames sent, {} without a destination, {} refused, {} received{}",
            counters.sent_frames + counters.passed_frames,
            counters.unknown_frames,
            counters.full_frames,
            counters.received_frames,
            match counters.lost_bytes {
                0 => String::new(),
                bytes => format!(", of which it has not acknowledged {bytes} bytes"),
            }
        );
        if let Some(groups) = &mut self.groups {
            groups.forget(member);
        }
        let person = self.present.leave(member);
        if let (Some(log), Some(person)) = (&self.access_log, person) {
            let departed = Departed {
                member,
                person: &person,
                engine: self.mesh.engine(),
                why,
                counters,
            };
            departed.log(log, &self.address);
        }
    }
}
