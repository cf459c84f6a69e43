//! The engine `copy`: user space reads the frames and writes each to the member that it names.
//!
//! It keeps the same entries as the kernel's programs, and the same bound. A member that is full stops nobody: a frame
//! for it is refused. So every member is read as soon as it has sent something.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll;
use rustix::io::Errno;
use splice_base::socket_option::progress;
use splice_bpf::types::{MeshInspection, MeshRecord, mesh_reason, mesh_role};

use super::bounds::{Bounds, NOTICE_RESERVE};
use super::framing::{Fault, Framing};
use super::heard::{Heard, MEMBER_PARTS, MOST_PARTS, parts};
use super::notice::FROM_MESH;
use super::places::{Entries, Places};
use super::reader::FrameReader;
use super::stream::{Read, Stream};

/// For one read, in bytes: as much as TCP hands over in one segment at most.
const READ_BYTES: usize = 64 << 10;

/// How many reads a turn makes at most, so that a program has its turn as well: some milliseconds.
const READS_OF_TURN: usize = 256;

/// Buffers that are kept for the next member that needs one.
const SPARES: usize = 16;

/// Refused frames that wait for user space, as many as the ring of the kernel holds. What is beyond is counted.
const RECORDS_MOST: usize = 10_000;

/// What has become of a member's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Its stream has ended, and everything before was read.
    Ended,
    Failed,
}

pub(super) struct Copying {
    framing: Framing,
    member_bytes: u32,
    pub(super) places: Places,
    streams: HashMap<u64, Stream>,
    by_cookie: HashMap<u64, u64>,
    buffer: Vec<u8>,
    spares: Vec<VecDeque<u8>>,
    /// Those that may have something to be read, and those that have something to be sent.
    ready: VecDeque<u64>,
    dirty: Vec<u64>,
    records: Vec<MeshRecord>,
    changes: Vec<(u64, Change)>,
    /// How often the members were read in turn.
    round: u64,
    /// From this destination on, frames are for the program, as those to 0 are.
    passed_from: Option<u64>,
    heard: Vec<Heard>,
}

impl Copying {
    pub(super) fn new(framing: &Framing, bounds: &Bounds) -> Self {
        let entries = (0..Places::needed(bounds.members)).map(|_| Default::default());
        Self {
            framing: *framing,
            member_bytes: bounds.member_bytes,
            places: Places::new(Entries::Own(entries.collect())),
            streams: HashMap::new(),
            by_cookie: HashMap::new(),
            buffer: vec![0; READ_BYTES],
            spares: Vec::with_capacity(SPARES),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            records: Vec::new(),
            changes: Vec::new(),
            round: 0,
            passed_from: None,
            heard: Vec::new(),
        }
    }

    pub(super) fn has(&self, cookie: u64) -> bool {
        self.by_cookie.contains_key(&cookie)
    }

    /// Makes a socket a destination.
    pub(super) fn add_target(
        &mut self,
        id: u64,
        place: u32,
        socket: &Arc<OwnedFd>,
    ) -> Result<(), Errno> {
        // As the kernel (`sock_map_sk_state_allowed`).
        if !progress(socket)?.is_established {
            return Err(Errno::OPNOTSUPP);
        }
        let stream = Stream::new(Arc::clone(socket), place, self.framing);
        self.streams.insert(id, stream);
        Ok(())
    }

    /// Has the frames of a destination delivered.
    pub(super) fn add_source(&mut self, id: u64, cookie: u64) {
        self.by_cookie.insert(cookie, id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_source = true;
        }
    }

    pub(super) fn remove(&mut self, id: u64, cookie: u64) {
        self.streams.remove(&id);
        self.by_cookie.remove(&cookie);
    }

    pub(super) fn inspect(&self, id: u64) -> Option<MeshInspection> {
        let stream = self.streams.get(&id)?;
        Some(MeshInspection {
            id,
            found: 1,
            write_seq: stream.written(),
            copied_seq: 0,
            rcv_nxt: stream.come(),
            wmem_queued: stream.queued_bytes(),
            queued_skbs: 0,
        })
    }

    pub(super) fn take_records(&mut self) -> Vec<MeshRecord> {
        mem::take(&mut self.records)
    }

    /// What became of the members' sockets since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<(u64, Change)> {
        mem::take(&mut self.changes)
    }

    /// Whether a turn would have something to do without a new event.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.changes.is_empty()
    }

    /// Sends a notice to the member that gets it.
    pub(super) fn notify(&mut self, id: u64, notice: &[u8]) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let most_bytes = self.member_bytes as usize + NOTICE_RESERVE as usize;
        stream.push(notice, most_bytes, &mut self.spares);
        let entry = self.places.at(stream.place);
        let bytes = notice.len() as u64;
        entry.redirected.fetch_add(bytes, Ordering::Relaxed);
        entry.notices.fetch_add(1, Ordering::Relaxed);
        if entry.role.load(Ordering::Relaxed) == mesh_role::NEWCOMER {
            entry.role.store(mesh_role::MEMBER, Ordering::Relaxed);
        }
        self.flush(id);
    }

    /// Notes what epoll(7) says of a member's socket.
    pub(super) fn note(&mut self, id: u64, flags: epoll::EventFlags) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if flags.contains(epoll::EventFlags::OUT) && !stream.is_dirty {
            stream.is_dirty = true;
            self.dirty.push(id);
        }
        let end = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        stream.expects_end |= flags.intersects(end);
        stream.has_urgent |= flags.contains(epoll::EventFlags::PRI);
        let is_news = flags.intersects(end | epoll::EventFlags::IN);
        if is_news && stream.is_source && !stream.is_ready && !stream.has_ended {
            stream.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// Reads what has come and sends what there is room for.
    pub(super) fn move_frames(&mut self) {
        let mut reads = READS_OF_TURN;
        loop {
            self.flush_all();
            if self.ready.is_empty() || reads == 0 {
                return;
            }
            self.round += 1;
            // Everybody once; those who have more go to the end.
            for _ in 0..self.ready.len().min(reads) {
                reads -= 1;
                if let Some(id) = self.ready.pop_front() {
                    self.read(id);
                }
            }
        }
    }

    fn read(&mut self, id: u64) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let mut buffer = mem::take(&mut self.buffer);
        match stream.read(&mut buffer) {
            Read::Bytes(count) => {
                let (place, reader) = (stream.place, stream.reader.take());
                let is_ready = stream.is_ready;
                if let Some(mut reader) = reader {
                    self.take_frames(place, &mut reader, &buffer[..count]);
                    if let Some(stream) = self.streams.get_mut(&id) {
                        stream.reader = Some(reader);
                    }
                }
                if is_ready {
                    self.ready.push_back(id);
                }
            }
            Read::Nothing => {
                if stream.is_ready {
                    self.ready.push_back(id);
                }
            }
            Read::End => self.changes.push((id, Change::Ended)),
            Read::Failed => self.changes.push((id, Change::Failed)),
        }
        self.buffer = buffer;
    }

    fn take_frames(&mut self, place: u32, reader: &mut FrameReader, bytes: &[u8]) {
        let is_faulty = self.places.at(place).fault.load(Ordering::Relaxed) != 0;
        let fed = reader.feed(bytes, |frame| self.deliver(place, frame));
        let Err(fault) = fed else {
            return;
        };
        if is_faulty {
            return;
        }
        let (reason, length) = match fault {
            Fault::TooLong(length) => (mesh_reason::TOO_LONG, length),
            Fault::TooShort(length) => (mesh_reason::TOO_SHORT, length),
        };
        self.places.at(place).fault.store(reason, Ordering::Relaxed);
        self.report(place, reason, length);
    }

    fn deliver(&mut self, place: u32, frame: &[u8]) {
        // A whole frame has one.
        let destination = self.framing.destination_of(frame).unwrap_or_default();
        let is_for_program = (self.passed_from)
            .is_some_and(|first| destination == FROM_MESH || destination >= first);
        let reason = match is_for_program {
            true => self.pass(place, frame),
            false => self.hand(destination, frame),
        };
        let source = self.places.at(place);
        source
            .taken_bytes
            .fetch_add(frame.len() as u64, Ordering::Relaxed);
        match reason {
            mesh_reason::NONE if is_for_program => &source.passed_frames,
            mesh_reason::NONE => &source.sent_frames,
            mesh_reason::FULL => &source.full_frames,
            _ => &source.unknown_frames,
        }
        .fetch_add(1, Ordering::Relaxed);
        if reason != mesh_reason::NONE {
            self.report(place, reason, destination);
        }
    }

    /// Hands a frame to a member, or says why not: an `enum mesh_reason`.
    fn hand(&mut self, destination: u64, frame: &[u8]) -> u32 {
        let target = self.streams.get_mut(&destination).filter(|target| {
            self.places.at(target.place).role.load(Ordering::Relaxed) == mesh_role::MEMBER
        });
        let Some(target) = target else {
            return mesh_reason::UNKNOWN;
        };
        if !target.has_room(frame.len(), self.member_bytes, self.round) {
            return mesh_reason::FULL;
        }
        target.push(frame, self.member_bytes as usize, &mut self.spares);
        if !target.is_dirty {
            target.is_dirty = true;
            self.dirty.push(destination);
        }
        let entry = self.places.at(target.place);
        let bytes = frame.len() as u64;
        entry.redirected.fetch_add(bytes, Ordering::Relaxed);
        entry.received_frames.fetch_add(1, Ordering::Relaxed);
        mesh_reason::NONE
    }

    /// Keeps a frame for the program, within the bounds that the kernel's ring has.
    fn pass(&mut self, place: u32, frame: &[u8]) -> u32 {
        let source = self.places.at(place);
        if source.role.load(Ordering::Relaxed) == mesh_role::LEAVING {
            return mesh_reason::UNKNOWN;
        }
        let count = parts(frame.len());
        let passed = source.passed_parts.load(Ordering::Relaxed);
        let waiting = passed - source.heard_parts.load(Ordering::Relaxed);
        let all: u64 = (self.heard.iter())
            .map(|heard| parts(heard.frame.len()))
            .sum();
        if waiting + count > MEMBER_PARTS.into() || all + count > MOST_PARTS.into() {
            return mesh_reason::FULL;
        }
        source.passed_parts.fetch_add(count, Ordering::Relaxed);
        self.heard.push(Heard {
            source: place,
            frame: frame.to_vec(),
        });
        mesh_reason::NONE
    }

    /// Has frames to destination 0, and to those from `first` on, left to the program.
    pub(super) fn pass_from(&mut self, first: u64) {
        self.passed_from = Some(first);
    }

    /// Takes the frames for the program.
    pub(super) fn take_heard(&mut self) -> Vec<Heard> {
        mem::take(&mut self.heard)
    }

    /// Sends a frame of the program to a member, or says why not: an `enum mesh_reason`.
    pub(super) fn send(&mut self, destination: u64, frame: &[u8]) -> u32 {
        let reason = self.hand(destination, frame);
        self.flush(destination);
        reason
    }

    fn report(&mut self, source: u32, reason: u32, destination: u64) {
        // A fault is reported once and ends the member, so it is never left out.
        let is_fault = matches!(reason, mesh_reason::TOO_LONG | mesh_reason::TOO_SHORT);
        if self.records.len() < RECORDS_MOST || is_fault {
            self.records.push(MeshRecord {
                source,
                reason,
                destination,
            });
        } else {
            let entry = self.places.at(source);
            entry.unreported.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush_all(&mut self) {
        let mut dirty = mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            self.flush(id);
        }
        // The allocation serves again.
        self.dirty = dirty;
    }

    fn flush(&mut self, id: u64) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.is_dirty = false;
        if stream.flush(&mut self.spares).is_ok() {
            return;
        }
        // What it has sent before that still counts.
        if !stream.is_source || stream.has_ended {
            self.changes.push((id, Change::Failed));
        } else if !stream.is_ready {
            stream.is_ready = true;
            self.ready.push_back(id);
        }
    }
}
