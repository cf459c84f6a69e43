//! The programs and maps of one mesh, and which places of its table are taken.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::obstacle::Obstacle;
use splice_base::release::{FULL_TARGETS, PARSER_COUNTS, Release};
use splice_bpf::types::{
    MeshFraming, MeshInspection, MeshMember, MeshPart, MeshRecord, mesh_role, mesh_size,
};
use splice_bpf::{Map, Object, Program, RingBuffer, SharedArray, load, objects};

use super::bounds::SKB_COST;
use super::framing::Framing;
use super::member::MemberCounters;

/// Reports that wait for user space, in bytes: some ten thousand. What does not fit is counted.
const RECORDS_BYTES: u32 = 256 << 10;

/// How many parts of one member's frames may wait for the program: a quarter of the ring, so that one member alone
/// does not fill it.
const MEMBER_PARTS: u32 = mesh_size::HEARD / size_of::<MeshPart>() as u32 / 4;

/// How long a place stays unused after its member has left: a verdict that has found the member may still
/// count there, for microseconds.
pub(super) const REST_OF_PLACE: Duration = Duration::from_millis(20);

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
    members: SharedArray<MeshMember>,
    framings: Map,
    records: Map,
    ring: RingBuffer,
    heard: Map,
    heard_ring: RingBuffer,
    inspect: Program,
    unused: u32,
    free: VecDeque<(Instant, u32)>,
}

impl Tables {
    /// For so many members.
    pub(super) fn load(framing: &Framing, members: u32, member_bytes: u32) -> Result<Self> {
        refuse_lossy(Release::here())?;
        // One more is the mesh's own socket; and as many again may rest.
        Self::load_object(2 * members + 1)
            .and_then(|object| Self::of(&object, framing, member_bytes))
            .map_err(|error| {
                let obstacle = Obstacle::of_bpf(&error);
                Error::new(
                    ErrorKind::BpfRefused,
                    format!("the mesh cannot be set up: {}", obstacle.reason),
                )
                .with_remedy(obstacle.remedy)
            })
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

    fn of(object: &Object, framing: &Framing, member_bytes: u32) -> Result<Self> {
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
            members: object.map("mesh_members")?.share_values()?,
            ring: records.consume()?,
            records,
            heard_ring: heard.consume()?,
            heard,
            framings,
            inspect: object.program("mesh_inspect")?,
            unused: 0,
            free: VecDeque::new(),
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

    /// A place with all counters at zero; `None` if all are taken.
    pub(super) fn claim(&mut self, now: Instant) -> Option<u32> {
        let place = match self.free.front() {
            Some((since, place)) if now.saturating_duration_since(*since) >= REST_OF_PLACE => {
                let place = *place;
                self.free.pop_front();
                place
            }
            _ if (self.unused as usize) < self.members.len() => {
                self.unused += 1;
                self.unused - 1
            }
            _ => return None,
        };
        let MeshMember {
            taken_bytes,
            sent_frames,
            unknown_frames,
            full_frames,
            unreported,
            fault,
            passed_frames,
            passed_parts,
            redirected,
            received_frames,
            notices,
            role,
            heard_parts,
            ..
        } = self.at(place);
        for count in [
            taken_bytes,
            sent_frames,
            unknown_frames,
            full_frames,
            unreported,
            passed_frames,
            passed_parts,
            redirected,
            received_frames,
            notices,
            heard_parts,
        ] {
            count.store(0, Ordering::Relaxed);
        }
        fault.store(0, Ordering::Relaxed);
        role.store(mesh_role::NOBODY, Ordering::Relaxed);
        Some(place)
    }

    pub(super) fn give_back(&mut self, place: u32, now: Instant) {
        self.at(place)
            .role
            .store(mesh_role::NOBODY, Ordering::Relaxed);
        self.free.push_back((now, place));
    }

    pub(super) fn at(&self, place: u32) -> &MeshMember {
        self.members.at(place as usize)
    }

    /// Whether the socket with this cookie is a source.
    pub(super) fn has(&self, cookie: u64) -> bool {
        self.by_cookie.read::<_, u32>(&cookie).is_some()
    }

    /// Kernel memory on its way to the member at a place, in bytes; `None` if its socket is closed.
    pub(super) fn on_the_way_bytes(&self, id: u64, place: u32) -> Option<u64> {
        let seen = self.inspect(id)?;
        let pending = self.handed(place).wrapping_sub(seen.write_seq);
        Some(
            u64::from(seen.wmem_queued)
                + u64::from(pending)
                + u64::from(seen.queued_skbs) * SKB_COST,
        )
    }

    /// The sequence number behind all that was handed to the member at a place.
    pub(super) fn handed(&self, place: u32) -> u32 {
        let entry = self.at(place);
        let redirected = entry.redirected.load(Ordering::Relaxed) as u32;
        let base = entry.write_base.load(Ordering::Relaxed);
        base.wrapping_add(redirected)
    }

    /// What the member at a place has sent and got.
    pub(super) fn counted(&self, place: u32) -> MemberCounters {
        let entry = self.at(place);
        MemberCounters {
            sent_frames: entry.sent_frames.load(Ordering::Relaxed),
            unknown_frames: entry.unknown_frames.load(Ordering::Relaxed),
            full_frames: entry.full_frames.load(Ordering::Relaxed),
            passed_frames: entry.passed_frames.load(Ordering::Relaxed),
            sent_bytes: entry.taken_bytes.load(Ordering::Relaxed),
            received_frames: entry.received_frames.load(Ordering::Relaxed),
            received_bytes: entry.redirected.load(Ordering::Relaxed),
        }
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

    pub(super) fn take_parts(&mut self, part: impl FnMut(&MeshPart)) {
        self.heard_ring.take_values(part);
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
