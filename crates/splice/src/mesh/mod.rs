//! A mesh: sockets that send frames to one another, which the kernel delivers.
//!
//! Each frame has a header with its length and its destination, the id of a member ([`Framing`]). User space
//! takes members in and lets them go, and answers what cannot be delivered with a [`Notice`]; it reads and
//! writes no frame, but for those to the mesh itself and to groups, if the program asks for them ([`Mesh::hear`]). A [`Mesh`] has no thread: the program calls [`Mesh::turn`] when its descriptor is readable,
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
mod event;
mod framing;
mod link;
mod member;
mod notice;
mod program;
mod tables;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::Write as _;
use std::mem;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown, sockopt};
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
use splice_bpf::types::{mesh_reason, mesh_role};

pub use self::bounds::Bounds;
pub use self::event::{Event, Refusal};
pub use self::framing::{Field, Framing, LONGEST_FRAME, Length};
pub use self::member::{Departure, MemberCounters};
pub use self::notice::{Code, Notice};

use self::link::link;
use self::member::{Member, Phase};
use self::tables::Tables;

/// How often the mesh looks after members that leave or wait for a notice.
const SOON: Duration = Duration::from_millis(5);

/// How often it looks for incomplete frames, at most and at least, in parts of the time they have.
const RARELY: Duration = Duration::from_secs(1);

/// How long the last segment of a stream may be on its way to the verdict. The parser works in a queue when
/// the process has locked the socket (`strp_data_ready`).
const SETTLE: Duration = Duration::from_millis(500);

/// How long a member that leaves may take to receive what is on its way, and to close its side.
const LEAVE: Duration = Duration::from_secs(5);

/// What notices may need beyond the bound of a member, in bytes: a member that is full is told, too.
const NOTICE_RESERVE: u64 = 64 << 10;

/// The token of the ring in the epoll instance. No member has this id.
const RING: u64 = 0;

/// Sockets that send frames to one another.
pub struct Mesh {
    framing: Framing,
    bounds: Bounds,
    tables: Tables,
    members: BTreeMap<u64, Member>,
    /// By place, the id that has it.
    ids: BTreeMap<u32, u64>,
    epoll: OwnedFd,
    next_id: u64,
    /// What is written here goes to the member that it names.
    notices: TcpStream,
    _notices_source: TcpStream,
    last_look: Instant,
    /// What was found out between two turns.
    events: Vec<Event>,
    /// Ids that were used a moment ago, and must not be given again yet.
    resting: VecDeque<(Instant, u64)>,
    /// From this destination on, frames go to the program, as those to 0 do.
    passed_from: Option<u64>,
    /// Frames for the program that have left the ring, and their senders. It is not emptied while there are some.
    heard: VecDeque<(u64, Vec<u8>)>,
    /// What was written to `notices`, in bytes.
    written_bytes: u64,
    notices_place: u32,
}

impl Mesh {
    /// A mesh without members.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if it cannot keep the bounds, [`ErrorKind::BpfRefused`] with the reason and the remedy
    /// if the kernel does not take the programs.
    pub fn create(framing: Framing, bounds: Bounds) -> Result<Self> {
        bounds.check(&framing)?;
        let mut tables = Tables::load(&framing, bounds.members, bounds.member_bytes)?;
        let (notices, source) =
            link().context("cannot make the mesh's own connection over loopback")?;
        let now = Instant::now();
        let place = tables.claim(now).ok_or_else(table_full)?;
        tables
            .at(place)
            .role
            .store(mesh_role::NOTICES, Ordering::Release);
        let cookie =
            sockopt::socket_cookie(&source).context("cannot get the cookie of a socket")?;
        tables
            .add_source(cookie, place, source.as_fd())
            .context("the kernel does not take the mesh's own connection")?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .context("cannot create an epoll instance")?;
        epoll::add(
            &epoll,
            &tables,
            epoll::EventData::new_u64(RING),
            epoll::EventFlags::IN,
        )
        .context("cannot watch the ring of the mesh")?;
        Ok(Self {
            framing,
            bounds,
            tables,
            members: BTreeMap::new(),
            ids: BTreeMap::new(),
            epoll,
            next_id: 1,
            notices,
            _notices_source: source,
            last_look: now,
            events: Vec::new(),
            resting: VecDeque::new(),
            passed_from: None,
            heard: VecDeque::new(),
            written_bytes: 0,
            notices_place: place,
        })
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
        if self.members.len() >= self.bounds.members as usize {
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
        if self.tables.has(cookie) {
            return Err(Error::new(
                ErrorKind::UnsupportedSocket,
                "the socket is a member of the mesh already; give it another one",
            ));
        }
        // What a member has reported that has left must not count for the next one at its place.
        self.read_records();
        self.take_parts();
        let place = self.tables.claim(Instant::now()).ok_or_else(table_full)?;
        if let Err(errno) = self.add(id, cookie, place, &socket) {
            // The caller may have another descriptor, which would keep it watched.
            let _ = epoll::delete(&self.epoll, &socket);
            self.tables.remove(id, cookie);
            self.tables.give_back(place, Instant::now());
            return Err(Error::new(
                ErrorKind::UnsupportedSocket,
                "the kernel does not take the socket into the mesh; give it a TCP connection that is open",
            )
            .with_source(errno));
        }
        self.ids.insert(place, id);
        let mut member = Member::new(socket, cookie, place);
        member.note(Code::Welcome, 0, 0);
        self.members.insert(id, member);
        self.send_notices(id);
        Ok(())
    }

    fn add(
        &self,
        id: u64,
        cookie: u64,
        place: u32,
        socket: &OwnedFd,
    ) -> std::result::Result<(), Errno> {
        // A notice must not wait for the acknowledgement of another.
        sockopt::set_tcp_nodelay(socket, true)?;
        self.tables.add_target(id, socket.as_fd())?;
        let entry = self.tables.at(place);
        let start = self.tables.inspect(id).ok_or(Errno::NOTCONN)?;
        entry.write_base.store(start.write_seq, Ordering::Relaxed);
        entry.read_base.store(start.copied_seq, Ordering::Relaxed);
        entry.role.store(mesh_role::NEWCOMER, Ordering::Release);
        self.tables.open(id, place)?;
        let flags = epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(id), flags)?;
        self.tables.add_source(cookie, place, socket.as_fd())?;
        // What has come before waits in the queue until something asks for it.
        let _ = recv(
            socket,
            &mut [0u8; 1][..],
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
        Ok(())
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
            .map(|member| self.tables.counted(member.place))
    }

    /// Kernel memory on its way to a member, in bytes; `None` if there is no such member.
    pub fn on_the_way_bytes(&self, id: u64) -> Option<u64> {
        let member = self.members.get(&id)?;
        self.tables.on_the_way_bytes(id, member.place)
    }

    /// The longest time between two turns.
    pub fn pace(&self) -> Duration {
        if !self.heard.is_empty() {
            return Duration::ZERO;
        }
        match self.members.values().any(Member::is_busy) {
            true => SOON,
            false => self.rarely(),
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
        self.read_records();
        let mut events = mem::take(&mut self.events);
        let now = Instant::now();
        for event in buffer.into_iter().take(seen) {
            let id = event.data.u64();
            if id == RING {
                continue;
            }
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::ERR) {
                self.remove(id, Departure::Reset, &mut events);
            } else if flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP)
                && let Some(member) = self.members.get_mut(&id)
            {
                member.has_ended = true;
                if member.phase == Phase::Staying {
                    member.phase = Phase::Ended { since: now };
                }
            }
        }
        // Not more often because of a few: each look at a member is a system call.
        let everybody = now.duration_since(self.last_look) >= self.rarely();
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
        for record in self.tables.take_records() {
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
            self.tables
                .at(member.place)
                .role
                .store(mesh_role::LEAVING, Ordering::Release);
        }
    }

    fn look_after(&mut self, id: u64, now: Instant, events: &mut Vec<Event>) {
        self.send_notices(id);
        let Some(seen) = self.tables.inspect(id) else {
            return self.remove(id, Departure::Reset, events);
        };
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let entry = self.tables.at(member.place);
        let taken = entry.taken_bytes.load(Ordering::Relaxed);
        let come = seen
            .rcv_nxt
            .wrapping_sub(entry.read_base.load(Ordering::Relaxed));
        // The end of the stream has a sequence number, too.
        let is_whole = come.wrapping_sub(u32::from(member.has_ended)) == taken as u32;
        let is_heard = entry.passed_frames.load(Ordering::Relaxed) == member.heard_frames;
        match member.phase {
            Phase::Staying if is_whole => member.incomplete = None,
            Phase::Staying => match member.incomplete {
                Some((since, before)) if before == taken => {
                    // The kernel's parser now and then leaves whole frames in the queue until the next segment, which
                    // may never come. A look there has it go on (tcp_bpf_recvmsg_parser, Linux 6.4 on); there is nothing
                    // to read, since no frame is passed.
                    let _ = recv(
                        &member.socket,
                        &mut [0],
                        RecvFlags::PEEK | RecvFlags::DONTWAIT,
                    );
                    if now.saturating_duration_since(since) >= self.bounds.frame_timeout {
                        member.note(Code::Incomplete, 0, 1);
                        self.drain(id, Departure::Incomplete);
                    }
                }
                _ => member.incomplete = Some((now, taken)),
            },
            Phase::Ended { since }
                if is_whole && (is_heard || now.saturating_duration_since(since) >= LEAVE) =>
            {
                self.drain(id, Departure::EndOfStream);
            }
            Phase::Ended { since }
                if !is_whole && now.saturating_duration_since(since) >= SETTLE =>
            {
                self.drain(id, Departure::WithinFrame);
            }
            Phase::Ended { .. } => {}
            Phase::Draining { since, why } => {
                let handed = self.tables.handed(member.place);
                let is_told = !member.has_to_be_told()
                    && entry.notices.load(Ordering::Relaxed) == member.notices_sent;
                let is_late = now.saturating_duration_since(since) >= LEAVE;
                if is_late
                    || (is_told && is_heard && handed == seen.write_seq && seen.queued_skbs == 0)
                {
                    if member.has_ended || is_late {
                        self.remove(id, why, events);
                    } else {
                        // Closing it with something unread would reset the connection and lose the notice.
                        let _ = shutdown(&member.socket, Shutdown::Write);
                        member.phase = Phase::Lingering { since: now, why };
                    }
                }
            }
            Phase::Lingering { since, why } => {
                if member.has_ended || now.saturating_duration_since(since) >= LEAVE {
                    self.remove(id, why, events);
                }
            }
        }
    }

    /// Sends what waits for a member, unless something is on its way that was sent before.
    fn send_notices(&mut self, id: u64) {
        let room = self.on_the_way_bytes(id).unwrap_or(u64::MAX);
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let entry = self.tables.at(member.place);
        let unreported = entry.unreported.load(Ordering::Relaxed);
        if unreported > member.told_unreported {
            let frames = u32::try_from(unreported - member.told_unreported).unwrap_or(u32::MAX);
            member.told_unreported = unreported;
            member.note(Code::Refused, 0, frames);
        }
        if !member.has_to_be_told()
            || entry.notices.load(Ordering::Relaxed) != member.notices_sent
            || room > u64::from(self.bounds.member_bytes) + NOTICE_RESERVE
        {
            return;
        }
        loop {
            let pending = member.pending.first_key_value();
            let notice = match (pending, member.answers.front()) {
                (Some((&(code, destination), &frames)), _) => Notice {
                    receiver: id,
                    code,
                    frames,
                    destination,
                },
                (None, Some(answer)) => *answer,
                (None, None) => return,
            };
            let frame = notice.to_frame(&self.framing);
            // The kernel takes it out of the connection while it is being sent, so there is always room.
            if let Err(error) = self.notices.write_all(&frame) {
                tracing::warn!("the mesh cannot send a notice: {error}");
                return;
            }
            self.written_bytes += frame.len() as u64;
            if member.pending.pop_first().is_none() {
                member.answers.pop_front();
            }
            member.notices_sent += 1;
        }
    }

    fn remove(&mut self, id: u64, why: Departure, events: &mut Vec<Event>) {
        let Some(member) = self.members.remove(&id) else {
            return;
        };
        self.tables
            .at(member.place)
            .role
            .store(mesh_role::NOBODY, Ordering::Release);
        // The caller may have another descriptor, which would keep it watched.
        let _ = epoll::delete(&self.epoll, &member.socket);
        self.tables.remove(id, member.cookie);
        let counters = self.tables.counted(member.place);
        self.ids.remove(&member.place);
        let now = Instant::now();
        self.tables.give_back(member.place, now);
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

fn table_full() -> Error {
    Error::new(
        ErrorKind::EngineRefused,
        "the mesh has as many members as it may; allow more",
    )
}
