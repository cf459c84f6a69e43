//! The engine `sockmap`: the programs and maps of one mesh.

use std::collections::HashMap;
use std::io::Write as _;
use std::mem;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
use splice_base::obstacle::Obstacle;
use splice_base::release::{FULL_TARGETS, PARSER_COUNTS, Release};
use splice_bpf::types::{
    MeshFraming, MeshInspection, MeshPart, MeshRecord, mesh_reason, mesh_role,
};
use splice_bpf::{Map, Object, Program, RingBuffer, load, objects};

use super::framing::Framing;
use super::heard::{Heard, MEMBER_PARTS};
use super::link::link;
use super::places::{Entries, Places};

/// Reports that wait for user space, in bytes: some ten thousand. What does not fit is counted.
const RECORDS_BYTES: u32 = 256 << 10;

/// How long the kernel may take for the verdict on a frame of user space. It has it before write(2) returns,
/// unless ksoftirqd has to do it, which waits for a CPU.
const VERDICT: Duration = Duration::from_secs(5);

/// The pause between two looks for that verdict.
const LOOK: Duration = Duration::from_micros(50);

/// Refuses a kernel that is known to lose or double frames.
fn refuse_lossy(release: Option<Release>) -> Result<()> {
    let lacks = |fixed_in| release.and_then(|release| release.lacks(fixed_in)) == Some(true);
    if !lacks(FULL_TARGETS) && !lacks(PARSER_COUNTS) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::EngineRefused,
        "the mesh cannot be set up: this kernel may lose a frame or send it twice if its receiver's send buffer is full",
    )
    .with_remedy("run Linux 6.1.142, 6.12.35 or 6.16, or later releases of these series"))
}

pub(super) struct Tables {
    targets: Map,
    sources: Map,
    by_cookie: Map,
    by_id: Map,
    pub(super) places: Places,
    framings: Map,
    records: Map,
    ring: RingBuffer,
    heard: Map,
    heard_ring: RingBuffer,
    inspect: Program,
    /// What is written here goes to the member that it names.
    notices: TcpStream,
    notices_source: TcpStream,
    notices_place: u32,
    /// What was written there, in bytes.
    written_bytes: u64,
    /// Frames for user space, as far as they have come, by the places of their senders.
    partial: HashMap<u32, Vec<u8>>,
}

impl Tables {
    /// For so many members.
    pub(super) fn load(framing: &Framing, members: u32, member_bytes: u32) -> Result<Self> {
        refuse_lossy(Release::here())?;
        let ends = link().context("cannot make the mesh's own connection over loopback")?;
        let mut tables = Self::load_object(Places::needed(members))
            .and_then(|object| Self::of(&object, framing, member_bytes, ends))
            .map_err(|error| {
                let obstacle = Obstacle::of_bpf(&error);
                Error::new(
                    ErrorKind::BpfRefused,
                    format!("the mesh cannot be set up: {}", obstacle.reason),
                )
                .with_remedy(obstacle.remedy)
            })?;
        tables.open_notices()?;
        Ok(tables)
    }

    fn load_object(places: u32) -> Result<Object> {
        load("mesh", objects::MESH, |opened| {
            for map in [
                "mesh_targets",
                "mesh_sources",
                "mesh_by_cookie",
                "mesh_by_id",
                "mesh_members",
            ] {
                opened.resize(map, places)?;
            }
            opened.resize("mesh_records", RECORDS_BYTES)
        })
    }

    fn of(
        object: &Object,
        framing: &Framing,
        member_bytes: u32,
        (notices, notices_source): (TcpStream, TcpStream),
    ) -> Result<Self> {
        let sources = object.map("mesh_sources")?;
        object.attach_to_map("mesh_parser", &sources)?;
        object.attach_to_map("mesh_verdict", &sources)?;
        let heard = object.map("mesh_heard")?;
        let framings = object.map("mesh_framings")?;
        framings
            .update(&0u32, &framing.as_entry(member_bytes))
            .map_err(cannot_write_framing)?;
        let records = object.map("mesh_records")?;
        Ok(Self {
            targets: object.map("mesh_targets")?,
            sources,
            by_cookie: object.map("mesh_by_cookie")?,
            by_id: object.map("mesh_by_id")?,
            places: Places::new(Entries::Shared(object.map("mesh_members")?.share_values()?)),
            ring: records.consume()?,
            records,
            heard_ring: heard.consume()?,
            heard,
            framings,
            inspect: object.program("mesh_inspect")?,
            notices,
            notices_source,
            notices_place: 0,
            written_bytes: 0,
            partial: HashMap::new(),
        })
    }

    /// Has frames to destination 0, and to those from `first` on, left to user space.
    pub(super) fn pass(&self, framing: &Framing, member_bytes: u32, first: u64) -> Result<()> {
        let entry = MeshFraming {
            passes: 1,
            passed_from: first,
            member_parts: MEMBER_PARTS,
            ..framing.as_entry(member_bytes)
        };
        self.framings
            .update(&0u32, &entry)
            .map_err(cannot_write_framing)
    }

    /// Has frames of the mesh's own connection delivered.
    fn open_notices(&mut self) -> Result<()> {
        // The first claim of all.
        self.notices_place = self.places.claim(Instant::now()).unwrap_or_default();
        let place = self.notices_place;
        self.places
            .at(place)
            .role
            .store(mesh_role::NOTICES, Ordering::Release);
        let cookie = sockopt::socket_cookie(&self.notices_source)
            .context("cannot get the cookie of a socket")?;
        self.add_source(cookie, place, self.notices_source.as_fd())
            .context("the kernel does not take the mesh's own connection")
    }

    /// Sends a notice to the member that it names. The kernel takes it out of the connection while it is being sent, so
    /// there is always room.
    pub(super) fn notify(&mut self, notice: &[u8]) -> std::io::Result<()> {
        self.notices.write_all(notice)?;
        self.written_bytes += notice.len() as u64;
        Ok(())
    }

    /// Sends a frame to the member that it names, and returns what the verdict was: an `enum mesh_reason`.
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<u32> {
        // So that what changes is the verdict on this frame.
        self.settle()?;
        let refused = |tables: &Self| {
            let entry = tables.places.at(tables.notices_place);
            [&entry.unknown_frames, &entry.full_frames].map(|count| count.load(Ordering::Relaxed))
        };
        let before = refused(self);
        self.notify(frame)
            .context("cannot write to the mesh's own connection")?;
        self.settle()?;
        let after = refused(self);
        Ok(if after[0] != before[0] {
            mesh_reason::UNKNOWN
        } else if after[1] != before[1] {
            mesh_reason::FULL
        } else {
            mesh_reason::NONE
        })
    }

    /// Waits until all that was written to the mesh's own connection has had its verdict.
    fn settle(&self) -> Result<()> {
        let taken = &self.places.at(self.notices_place).taken_bytes;
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

    /// Whether the socket with this cookie is a source.
    pub(super) fn has(&self, cookie: u64) -> bool {
        self.by_cookie.read::<_, u32>(&cookie).is_some()
    }

    /// Makes a socket a destination, to which nothing goes before [`open`](Self::open).
    pub(super) fn add_target(
        &self,
        id: u64,
        socket: BorrowedFd<'_>,
    ) -> std::result::Result<(), Errno> {
        self.targets.insert_socket(&id, socket)
    }

    /// Has the frames of a socket delivered.
    pub(super) fn add_source(
        &self,
        cookie: u64,
        place: u32,
        socket: BorrowedFd<'_>,
    ) -> std::result::Result<(), Errno> {
        self.by_cookie.update(&cookie, &place)?;
        self.sources.insert_socket(&cookie, socket)
    }

    pub(super) fn open(&self, id: u64, place: u32) -> std::result::Result<(), Errno> {
        self.by_id.update(&id, &place)
    }

    /// Takes a socket out of all maps. What waits in its backlog is lost.
    pub(super) fn remove(&self, id: u64, cookie: u64) {
        self.by_id.remove(&id);
        self.sources.remove(&cookie);
        self.targets.remove(&id);
        self.by_cookie.remove(&cookie);
    }

    /// How far a member has come; `None` if its socket is closed.
    pub(super) fn inspect(&self, id: u64) -> Option<MeshInspection> {
        let question = MeshInspection {
            id,
            ..MeshInspection::default()
        };
        let answer = self.inspect.run(&question).ok()?;
        (answer.found == 1).then_some(answer)
    }

    /// Readable when there are parts of frames for the program.
    pub(super) fn heard(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }

    /// Empties the ring of frames for user space.
    pub(super) fn take_heard(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        let partial = &mut self.partial;
        self.heard_ring.take_values(|part: &MeshPart| {
            let frame = partial.entry(part.source).or_default();
            if part.offset == 0 {
                // The frame before was refused when the ring was full, or its sender has left.
                frame.clear();
            }
            let whole = part.frame_bytes as usize;
            let left = whole.saturating_sub(frame.len());
            frame.extend_from_slice(&part.content[..left.min(part.content.len())]);
            if frame.len() == whole {
                heard.push(Heard {
                    source: part.source,
                    frame: mem::take(frame),
                });
            }
        });
        heard
    }

    pub(super) fn take_records(&mut self) -> Vec<MeshRecord> {
        let mut records = Vec::new();
        self.ring
            .take_values(|record: &MeshRecord| records.push(*record));
        records
    }
}

fn cannot_write_framing(errno: Errno) -> Error {
    Error::system("cannot write the framing of the mesh", errno)
}

impl AsFd for Tables {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.records.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_loses_frames_is_refused_with_what_to_run() {
        let on = |release| refuse_lossy(Release::of(release, ""));
        for release in ["6.1.141", "6.12.20", "5.15.1"] {
            let error = on(release).expect_err("it loses frames");
            assert_eq!(error.kind(), ErrorKind::EngineRefused);
            let said = error.to_string();
            assert!(said.contains("lose a frame"), "{release}: {said}");
            assert!(said.contains("6.1.142"), "{release}: {said}");
        }
        // It may have the fix.
        for release in ["6.1.142", "6.6.1", "6.8.0-52-generic", "7.2.13", "next"] {
            on(release).expect("it is not known to lose frames");
        }
    }
}
