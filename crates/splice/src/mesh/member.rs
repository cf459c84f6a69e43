//! One member: what user space knows of it.
//!
//! ```text
//! Staying ──EOF──▶ Ended ──all it sent had its verdict──▶ Draining ──all it gets is sent──▶ closed
//!    │                                                     ▲   │
//!    └──bad length, frame incomplete for too long, leave───┘   └──▶ Lingering ──EOF──▶ closed
//! ```
//!
//! A reset closes it from each state, and so does a limit of time from the last three.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::notice::{Code, Notice};

/// How many different notices wait for one member. Further ones are counted together.
const MOST_NOTICES: usize = 64;

/// Why a member has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// It ended its stream behind a whole frame.
    EndOfStream,
    /// It ended its stream within a frame.
    WithinFrame,
    /// Its connection was reset.
    Reset,
    /// The length of one of its frames is above the limit.
    TooLong,
    /// The length of one of its frames is less than that of the header.
    TooShort,
    /// One of its frames did not become complete in time.
    Incomplete,
    /// The program took it out.
    TakenOut,
    /// The program took it out because it neither sent nor got anything.
    Idle,
}

/// What a member has sent and got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounters {
    /// Frames that it sent and that were handed to their destinations.
    pub sent_frames: u64,
    /// Frames that it sent to nobody.
    pub unknown_frames: u64,
    /// Frames that it sent, and for which their destination had no room.
    pub full_frames: u64,
    /// Frames that it sent to the program: to the mesh itself or a group.
    pub passed_frames: u64,
    /// The bytes of all frames that it sent.
    pub sent_bytes: u64,
    /// Frames that were handed to it, without notices.
    pub received_frames: u64,
    /// Their bytes, and those of the notices.
    pub received_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Staying,
    Ended { since: Instant },
    Draining { since: Instant, why: Departure },
    Lingering { since: Instant, why: Departure },
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) socket: OwnedFd,
    pub(super) cookie: u64,
    pub(super) place: u32,
    pub(super) phase: Phase,
    /// Whether its stream has ended.
    pub(super) has_ended: bool,
    /// Since when it has sent a part of a frame, and what was taken of it before that.
    pub(super) incomplete: Option<(Instant, u64)>,
    /// Notices that were not sent yet, and how many frames each is about.
    pub(super) pending: BTreeMap<(Code, u64), u32>,
    /// What the program says to it, which waits behind the notices.
    pub(super) answers: VecDeque<Notice>,
    /// A frame for the program, as far as it has come.
    pub(super) partial: Vec<u8>,
    /// Frames that the program has heard.
    pub(super) heard_frames: u64,
    pub(super) notices_sent: u64,
    /// Records of it that were lost, as far as it was told.
    pub(super) told_unreported: u64,
}

impl Member {
    pub(super) fn new(socket: OwnedFd, cookie: u64, place: u32) -> Self {
        Self {
            socket,
            cookie,
            place,
            phase: Phase::Staying,
            has_ended: false,
            incomplete: None,
            pending: BTreeMap::new(),
            answers: VecDeque::new(),
            partial: Vec::new(),
            heard_frames: 0,
            notices_sent: 0,
            told_unreported: 0,
        }
    }

    pub(super) fn note(&mut self, code: Code, destination: u64, frames: u32) {
        let mut key = (code, destination);
        if self.pending.len() >= MOST_NOTICES && !self.pending.contains_key(&key) {
            key = (code, 0);
        }
        let count = self.pending.entry(key).or_default();
        *count = count.saturating_add(frames);
    }

    /// Whether it has to be looked after soon.
    pub(super) fn is_busy(&self) -> bool {
        self.has_to_be_told() || self.phase != Phase::Staying
    }

    pub(super) fn has_to_be_told(&self) -> bool {
        !self.pending.is_empty() || !self.answers.is_empty()
    }
}
