//! A mesh: sockets that send frames to one another, which the kernel delivers.
//!
//! Each frame has a header with its length and its destination, the id of a member ([`Framing`]). User space
//! takes members in and lets them go, and answers what cannot be delivered with a [`Notice`]; with the engine `sockmap` it
//! reads and writes no frame, but for those to the mesh itself and to groups, if the program asks for them ([`Mesh::hear`]).
//! Where the kernel or the rights do not allow that, [`Mesh::create`] has user space move the frames (engine `copy`), and
//! [`Mesh::why_copy`] says why. A [`Mesh`] has no thread: the program calls [`Mesh::turn`] when its descriptor is readable,
//! and at least every [`Mesh::pace`].
//!
//! ```no_run
//! use std::net::TcpListener;
//! use std::os::fd::OwnedFd;
//! use std::time::Duration;
//! use splice::mesh::{Bounds, Framing, Mesh};
//!
//! let framing = Framing::new("u32be@0".parse()?, "u32be@4".parse()?, 65536)?;
//! let mut mesh = Mesh::create(framing, Bounds::default())?;
//! let listener = TcpListener::bind("127.0.0.1:7000")?;
//! for _ in 0..2 {
//!     mesh.join(OwnedFd::from(listener.accept()?.0))?;
//! }
//! loop {
//!     for event in mesh.turn(Duration::from_secs(1))? {
//!         println!("{event:?}");
//!     }
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounds;
mod copying;
mod engine;
mod event;
mod framing;
mod heard;
mod link;
mod member;
mod notice;
mod places;
mod program;
mod reader;
mod stream;
mod tables;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown, sockopt};
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
use splice_base::socket_option::is_closed;
use splice_bpf::types::{mesh_reason, mesh_role};

pub use self::bounds::Bounds;
pub use self::event::{Event, Refusal};
pub use self::framing::{Fault, Field, Framing, LONGEST_FRAME, Length};
pub use self::member::{Departure, MemberCounters};
pub use self::notice::{Code, Notice};
pub use self::reader::FrameReader;

use self::bounds::NOTICE_RESERVE;
use self::copying::Change;
use self::engine::Engine;
use self::member::{Member, Phase, Standing, Step, acknowledged_base};
use crate::name::{EngineChoice, EngineName};

/// How often the mesh looks after members that leave or wait for a notice.
const SOON: Duration = Duration::from_millis(5);

/// How often it looks for incomplete frames, at most and at least, in parts of the time they have.
const RARELY: Duration = Duration::from_secs(1);

/// The token of the engine's own descriptor in the epoll instance. No member has this id.
const ENGINE: u64 = 0;

/// Sockets that send frames to one another.
pub struct Mesh {
    framing: Framing,
    bounds: Bounds,
    engine: Engine,
    why_copy: Option<Error>,
    members: BTreeMap<u64, Member>,
    /// By place, the id that has it.
    ids: BTreeMap<u32, u64>,
    epoll: OwnedFd,
    next_id: u64,
    last_look: Instant,
    /// What was found out between two turns.
    events: Vec<Event>,
    /// The last turn has not taken every event of epoll(7).
    is_behind: bool,
    /// Ids that were used a moment ago, and must not be given again yet.
    resting: VecDeque<(Instant, u64)>,
    /// From this destination on, frames go to the program, as those to 0 do.
    passed_from: Option<u64>,
    /// Frames for the program that have left the ring, and their senders. It is not emptied while there are some.
    heard: VecDeque<(u64, Vec<u8>)>,
}

impl Mesh {
    /// A mesh without members. The kernel delivers its frames, or user space if that cannot be
    /// ([`why_copy`](Self::why_copy)).
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if it cannot keep the bounds.
    pub fn create(framing: Framing, bounds: Bounds) -> Result<Self> {
        Self::create_by(EngineChoice::Auto, framing, bounds)
    }

    /// A mesh without members, with an engine by name: `sockmap` or `copy`.
    ///
    /// # Errors
    /// As [`create`](Self::create), and if no mesh has this engine. With `sockmap`, [`ErrorKind::BpfRefused`] with the
    /// reason and the remedy if the kernel does not take the programs, and [`ErrorKind::EngineRefused`] if it loses frames.
    pub fn create_by(choice: EngineChoice, framing: Framing, bounds: Bounds) -> Result<Self> {
        bounds.check(&framing)?;
        let (engine, why_copy) = Engine::choose(choice, &framing, &bounds)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .context("cannot create an epoll instance")?;
        if let Some(own) = engine.descriptor() {
            let token = epoll::EventData::new_u64(ENGINE);
            epoll::add(&epoll, own, token, epoll::EventFlags::IN)
                .context("cannot watch the ring of the mesh")?;
        }
        Ok(Self {
            framing,
            bounds,
            engine,
            why_copy,
            members: BTreeMap::new(),
            ids: BTreeMap::new(),
            epoll,
            next_id: 1,
            last_look: Instant::now(),
            events: Vec::new(),
            is_behind: false,
            resting: VecDeque::new(),
            passed_from: None,
            heard: VecDeque::new(),
        })
    }

    /// What moves the frames.
    pub fn engine(&self) -> EngineName {
        self.engine.name()
    }

    /// Why the kernel does not move the frames, though nobody has asked for another engine.
    pub fn why_copy(&self) -> Option<&Error> {
        self.why_copy.as_ref()
    }

    /// Takes a connected TCP socket in, whose bytes nobody has read or will read. Returns its id. Its first frame
    /// is a notice with that id.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if the mesh is full or the ids are used up,
    /// [`ErrorKind::UnsupportedSocket`] if the kernel does not take the socket, or it is a member already.
    pub fn join(&mut self, socket: impl Into<OwnedFd>) -> Result<u64> {
        let id = self.next_id;
        if !self.can_name(id) {
            return Err(Error::new(
                ErrorKind::EngineRefused,
                "all ids that the destination field can name have been used; use a wider field",
            ));
        }
        self.enter(socket.into(), id)?;
        self.next_id += 1;
        Ok(id)
    }

    fn enter(&mut self, socket: OwnedFd, id: u64) -> Result<()> {
        let socket = Arc::new(socket);
        if !self.may_have_more() {
            return Err(table_full());
        }
        // The parser gives a socket up whose buffer is smaller than a frame (`__strp_recv`).
        let buffer = sockopt::socket_recv_buffer_size(&socket)
            .context("cannot get the receive buffer of a socket")?;
        if buffer < self.framing.most_bytes() as usize {
            return Err(Error::new(
                ErrorKind::UnsupportedSocket,
                format!(
                    "a receive buffer of {buffer} bytes is smaller than a frame of the mesh may be; raise \
                     SO_RCVBUF, or let frames have fewer bytes"
                ),
            ));
        }
        let cookie =
            sockopt::socket_cookie(&socket).context("cannot get the cookie of a socket")?;
        if self.engine.has(cookie) {
            return Err(Error::new(
                ErrorKind::UnsupportedSocket,
                "the socket is a member of the mesh already; give it another one",
            ));
        }
        // What a member has reported that has left must not count for the next one at its place.
        self.read_records();
        self.take_heard();
        let base = acknowledged_base(&socket);
        let place = (self.engine.places_mut().claim(Instant::now())).ok_or_else(table_full)?;
        if let Err(errno) = self.add(id, cookie, place, &socket) {
            // The caller may have another descriptor, which would keep it watched.
            let _ = epoll::delete(&self.epoll, &socket);
            self.engine.remove(id, cookie);
            self.engine.places_mut().give_back(place, Instant::now());
            return Err(Error::new(
                ErrorKind::UnsupportedSocket,
                "the kernel does not take the socket into the mesh; give it a TCP connection that is open",
            )
            .with_source(errno));
        }
        self.ids.insert(place, id);
        let mut member = Member::new(socket, cookie, place, base);
        member.note(Code::Welcome, 0, 0);
        self.members.insert(id, member);
        self.send_notices(id);
        Ok(())
    }

    fn add(
        &mut self,
        id: u64,
        cookie: u64,
        place: u32,
        socket: &Arc<OwnedFd>,
    ) -> std::result::Result<(), Errno> {
        // A notice must not wait for the acknowledgement of another.
        sockopt::set_tcp_nodelay(socket, true)?;
        self.engine.add_target(id, place, socket)?;
        let start = self.engine.inspect(id).ok_or(Errno::NOTCONN)?;
        let entry = self.engine.places().at(place);
        entry.write_base.store(start.write_seq, Ordering::Relaxed);
        entry.read_base.store(start.copied_seq, Ordering::Relaxed);
        entry.role.store(mesh_role::NEWCOMER, Ordering::Release);
        self.engine.open(id, place)?;
        let flags = self.engine.flags();
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(id), flags)?;
        (self.engine).add_source(id, cookie, place, socket.as_fd())?;
        // What has come before waits in the queue until something asks for it.
        look_into(socket);
        Ok(())
    }

    /// Whether another member can join now: there are not too many, and there is a place for it. A place rests some 20 ms
    /// when its member has left.
    pub fn has_room(&self) -> bool {
        self.may_have_more() && self.engine.places().has_free(Instant::now())
    }

    fn may_have_more(&self) -> bool {
        self.members.len() < self.bounds.members as usize
    }

    /// Whether there is an id left for a member that [`join`](Self::join)s.
    pub fn has_id(&self) -> bool {
        self.can_name(self.next_id)
    }

    /// Whether the last turn has left something undone: what is known of members is not the latest, and another turn is
    /// due.
    pub fn is_behind(&self) -> bool {
        self.is_behind || self.engine.has_work()
    }

    /// Has a member leave. It still gets what is on its way to it.
    pub fn leave(&mut self, id: u64) {
        self.drain(id, Departure::TakenOut);
    }

    /// The ids of the members.
    pub fn members(&self) -> impl Iterator<Item = u64> {
        self.members.keys().copied()
    }

    /// What a member has sent and got so far; `None` if there is no such member.
    pub fn counters(&self, id: u64) -> Option<MemberCounters> {
        self.members
            .get(&id)
            .map(|member| self.engine.places().counted(member.place))
    }

    /// Kernel memory on its way to a member, in bytes; `None` if there is no such member.
    pub fn on_the_way_bytes(&self, id: u64) -> Option<u64> {
        let member = self.members.get(&id)?;
        self.engine.on_the_way_bytes(id, member.place)
    }

    /// The longest time between two turns.
    pub fn pace(&self) -> Duration {
        if self.is_behind() || !self.heard.is_empty() {
            Duration::ZERO
        } else if self.members.values().any(Member::is_busy)
            || (self.may_have_more() && !self.has_room())
        {
            SOON
        } else {
            self.rarely()
        }
    }

    fn rarely(&self) -> Duration {
        (self.bounds.frame_timeout / 4).clamp(SOON, RARELY)
    }

    /// Waits until something happens, at most `time`, and looks after it.
    ///
    /// # Errors
    /// Those of epoll(7).
    pub fn turn(&mut self, time: Duration) -> Result<Vec<Event>> {
        let mut buffer = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let time = Timespec::try_from(time.min(self.pace())).ok();
        let seen = match epoll::wait(&self.epoll, &mut buffer, time.as_ref()) {
            Err(Errno::INTR) => 0,
            seen => seen.context("cannot wait for the mesh")?,
        };
        self.is_behind = seen == buffer.len();
        let seen = buffer.into_iter().take(seen);
        let mut changes = Vec::new();
        for event in seen.filter(|event| event.data.u64() != ENGINE) {
            let id = event.data.u64();
            let flags = event.flags;
            changes.extend(self.engine.note(id, flags).map(|change| (id, change)));
        }
        changes.extend(self.engine.move_frames());
        self.read_records();
        let mut events = mem::take(&mut self.events);
        let now = Instant::now();
        for (id, change) in changes {
            if change == Change::Failed {
                self.take(id, Step::Abandon(Departure::Reset), &mut events);
            } else if let Some(member) = self.members.get_mut(&id) {
                member.has_ended = true;
                if member.phase == Phase::Staying {
                    member.phase = Phase::Ended { since: now };
                }
            }
        }
        // Not more often because of a few: each look at a member is a system call.
        // Nor before everything is known that has happened: this process may have stood still.
        let everybody = !self.is_behind() && now.duration_since(self.last_look) >= self.rarely();
        if everybody {
            self.last_look = now;
        }
        let due = self
            .members
            .iter()
            .filter(|(_, member)| everybody || member.is_busy());
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.look_after(id, now, &mut events);
        }
        Ok(events)
    }

    fn read_records(&mut self) {
        for record in self.engine.take_records() {
            let Some(id) = self.ids.get(&record.source).copied() else {
                continue;
            };
            let (code, departure) = match record.reason {
                mesh_reason::FULL => (Code::Full, None),
                mesh_reason::TOO_LONG => (Code::TooLong, Some(Departure::TooLong)),
                mesh_reason::TOO_SHORT => (Code::TooShort, Some(Departure::TooShort)),
                _ => (Code::Unknown, None),
            };
            if let Some(member) = self.members.get_mut(&id) {
                member.note(code, record.destination, 1);
            }
            match departure {
                Some(why) => self.drain(id, why),
                None => self.events.push(Event::Refused {
                    sender: id,
                    destination: record.destination,
                    reason: if code == Code::Full {
                        Refusal::Full
                    } else {
                        Refusal::Unknown
                    },
                }),
            }
        }
    }

    /// Nothing more goes to the member, but for what is on its way.
    fn drain(&mut self, id: u64, why: Departure) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        if matches!(member.phase, Phase::Staying | Phase::Ended { .. }) {
            member.phase = Phase::Draining {
                since: Instant::now(),
                why,
            };
            self.engine
                .places()
                .at(member.place)
                .role
                .store(mesh_role::LEAVING, Ordering::Release);
        }
    }

    fn look_after(&mut self, id: u64, now: Instant, events: &mut Vec<Event>) {
        self.send_notices(id);
        let seen = self.engine.inspect(id);
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let Some(seen) = seen else {
            let why = match member.phase {
                // Both sides have ended.
                Phase::Lingering { why, .. } if member.has_ended => Step::Close(why),
                _ => Step::Abandon(Departure::Reset),
            };
            return self.take(id, why, events);
        };
        let places = self.engine.places();
        let entry = places.at(member.place);
        let taken_bytes = entry.taken_bytes.load(Ordering::Relaxed);
        let read_base = entry.read_base.load(Ordering::Relaxed);
        // The end of the stream has a sequence number, too.
        let come = (seen.rcv_nxt.wrapping_sub(read_base)).wrapping_sub(member.has_ended.into());
        let standing = Standing {
            taken_bytes,
            is_whole: come == taken_bytes as u32,
            is_heard: entry.passed_frames.load(Ordering::Relaxed) == member.heard_frames,
            is_written: entry.notices.load(Ordering::Relaxed) == member.notices_sent
                && places.handed(member.place) == seen.write_seq
                && seen.queued_skbs == 0,
            is_closed: is_closed(&member.socket).unwrap_or(true),
        };
        let step = member.step(&standing, self.bounds.frame_timeout, now);
        self.take(id, step, events);
    }

    fn take(&mut self, id: u64, step: Step, events: &mut Vec<Event>) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        match step {
            Step::Nothing => {}
            // The kernel's parser now and then leaves whole frames in the queue until the next segment, which may never
            // come, least of all after the end of the stream. A look there has it go on (`tcp_bpf_recvmsg_parser`, Linux
            // 6.4 on); there is nothing to read, since no frame is passed.
            Step::Look => look_into(&member.socket),
            Step::Drain(why) => self.drain(id, why),
            // Closing it with something unread would reset the connection, and what was just sent could be lost. The
            // parser leaves the part of a frame in the queue (`need_bytes`, strp_data_ready).
            Step::EndStream => {
                let _ = shutdown(&member.socket, Shutdown::Write);
            }
            Step::Close(why) => self.remove(id, why, false, events),
            Step::Abandon(why) => self.remove(id, why, true, events),
        }
    }

    /// Sends what waits for a member, unless something is on its way that was sent before.
    fn send_notices(&mut self, id: u64) {
        let room = self.on_the_way_bytes(id).unwrap_or(u64::MAX);
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        // Its stream is ended: a write would fail the connection.
        if matches!(member.phase, Phase::Lingering { .. }) {
            return;
        }
        let entry = self.engine.places().at(member.place);
        member.note_unreported(entry.unreported.load(Ordering::Relaxed));
        if !member.has_to_be_told()
            || entry.notices.load(Ordering::Relaxed) != member.notices_sent
            || room > u64::from(self.bounds.member_bytes) + NOTICE_RESERVE
        {
            return;
        }
        while let Some(notice) = member.first_notice(id) {
            if let Err(error) = self.engine.notify(id, &notice.to_frame(&self.framing)) {
                tracing::warn!("the mesh cannot send a notice: {error}");
                return;
            }
            member.sent_notice();
        }
    }

    fn remove(&mut self, id: u64, why: Departure, loses: bool, events: &mut Vec<Event>) {
        // What the program has not heard of it yet, it hears all the same.
        self.take_heard();
        let Some(member) = self.members.remove(&id) else {
            return;
        };
        self.engine
            .places()
            .at(member.place)
            .role
            .store(mesh_role::NOBODY, Ordering::Release);
        // The caller may have another descriptor, which would keep it watched.
        let _ = epoll::delete(&self.epoll, &member.socket);
        self.engine.remove(id, member.cookie);
        // Behind the removal, when the engine takes nothing more for it.
        let mut counters = self.engine.places().counted(member.place);
        if loses {
            counters.lost_bytes = member.lost_bytes(counters.received_bytes);
        }
        self.ids.remove(&member.place);
        let now = Instant::now();
        self.engine.places_mut().give_back(member.place, now);
        self.resting.push_back((now, id));
        events.push(Event::Left {
            member: id,
            why,
            counters,
        });
    }
}

/// Readable when a [`Mesh::turn`] has something to do.
impl AsFd for Mesh {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mesh")
            .field("framing", &self.framing)
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}

/// Has the kernel look whether there is something to read.
fn look_into(socket: &OwnedFd) {
    let _ = recv(socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT);
}

fn table_full() -> Error {
    Error::new(
        ErrorKind::EngineRefused,
        "the mesh has as many members as it may; allow more",
    )
}
