//! The engine `sockmap`: the programs and maps of one mesh.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::sockopt;
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
use splice_base::obstacle::Obstacle;
use splice_base::release::{FULL_TARGETS, PARSER_COUNTS, Release};
use splice_bpf::types::{MeshInspection, MeshRecord, mesh_role};
use splice_bpf::{Map, Object, Program, RingBuffer, load, objects};

use super::framing::Framing;
use super::link::link;
use super::places::{Entries, Places};

/// Reports that wait for user space, in bytes: some ten thousand. What does not fit is counted.
const RECORDS_BYTES: u32 = 256 << 10;

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
    records: Map,
    ring: RingBuffer,
    inspect: Program,
    /// What is written here goes to the member that it names.
    notices: TcpStream,
    notices_source: TcpStream,
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
        object
            .map("mesh_framings")?
            .update(&0u32, &framing.as_entry(member_bytes))
            .map_err(|errno| Error::system("cannot write the framing of the mesh", errno))?;
        let records = object.map("mesh_records")?;
        Ok(Self {
            targets: object.map("mesh_targets")?,
            sources,
            by_cookie: object.map("mesh_by_cookie")?,
            by_id: object.map("mesh_by_id")?,
            places: Places::new(Entries::Shared(object.map("mesh_members")?.share_values()?)),
            ring: records.consume()?,
            records,
            inspect: object.program("mesh_inspect")?,
            notices,
            notices_source,
        })
    }

    /// Has frames of the mesh's own connection delivered.
    fn open_notices(&mut self) -> Result<()> {
        // The first claim of all.
        let place = self.places.claim(Instant::now()).unwrap_or_default();
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
        self.notices.write_all(notice)
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

    pub(super) fn take_records(&mut self) -> Vec<MeshRecord> {
        let mut records = Vec::new();
        self.ring
            .take_values(|record: &MeshRecord| records.push(*record));
        records
    }
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
