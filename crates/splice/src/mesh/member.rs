//! One member: what user space knows of it.
//!
//! ```text
//! Staying ──EOF──▶ Ended ──all it sent had its verdict──▶ Draining ──all it gets is written──▶ Lingering ──▶ closed
//!    │                                                     ▲                       EOF, and all is acknowledged
//!    └──bad length, frame incomplete for too long, leave───┘
//! ```
//!
//! A reset closes it from each state, and so does a limit of time from the last three.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use splice_base::socket_option::{acknowledged_bytes, unacknowledged_bytes};

use super::notice::{Code, Notice};

/// How many different notices wait for one member. Further ones are counted together.
const MOST_NOTICES: usize = 64;

/// How long the last segment of a stream may be on its way to the verdict. The parser works in a queue when
/// the process has locked the socket (`strp_data_ready`).
const SETTLE: Duration = Duration::from_millis(500);

/// How long a member that leaves may take to receive what is on its way, and to close its side.
const LEAVE: Duration = Duration::from_secs(5);

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
    /// Of these, what its host had not acknowledged when its connection failed, or when it took too long to leave. 0 as
    /// long as it is a member.
    pub lost_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Staying,
    Ended { since: Instant },
    Draining { since: Instant, why: Departure },
    Lingering { since: Instant, why: Departure },
}

/// What is seen of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The bytes of its frames that had their verdict.
    pub(super) taken_bytes: u64,
    /// Whether that is all it has sent.
    pub(super) is_whole: bool,
    /// Whether the program has heard all its frames that are for the program.
    pub(super) is_heard: bool,
    /// Whether all that was handed to it was written to its socket, notices included.
    pub(super) is_written: bool,
    /// Whether both sides have ended, and each has acknowledged that.
    pub(super) is_closed: bool,
}

/// What there is to do for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Have the parser go on.
    Look,
    /// Hand it nothing more.
    Drain(Departure),
    /// End the stream to it.
    EndStream,
    /// Its socket can be closed.
    Close(Departure),
    /// Its socket is to be closed, though not everything was acknowledged.
    Abandon(Departure),
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) socket: Arc<OwnedFd>,
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
    /// Frames that the program has heard.
    pub(super) heard_frames: u64,
    pub(super) notices_sent: u64,
    /// Records of it that were lost, as far as it was told.
    pub(super) told_unreported: u64,
    /// What its host had acknowledged, and would of what was written before, when it joined, in bytes.
    pub(super) acknowledged_base: u64,
}

impl Member {
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        cookie: u64,
        place: u32,
        acknowledged_base: u64,
    ) -> Self {
        Self {
            socket,
            cookie,
            place,
            phase: Phase::Staying,
            has_ended: false,
            incomplete: None,
            pending: BTreeMap::new(),
            answers: VecDeque::new(),
            heard_frames: 0,
            notices_sent: 0,
            told_unreported: 0,
            acknowledged_base,
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

    /// Notes how many of its refused frames were not reported one by one.
    pub(super) fn note_unreported(&mut self, unreported: u64) {
        if unreported > self.told_unreported {
            let frames = u32::try_from(unreported - self.told_unreported).unwrap_or(u32::MAX);
            self.told_unreported = unreported;
            self.note(Code::Refused, 0, frames);
        }
    }

    /// The notice to it that is next: what became of its frames, and behind that what the program answers.
    pub(super) fn first_notice(&self, id: u64) -> Option<Notice> {
        match self.pending.first_key_value() {
            Some((&(code, destination), &frames)) => Some(Notice {
                receiver: id,
                code,
                frames,
                destination,
            }),
            None => self.answers.front().copied(),
        }
    }

    /// The notice that was next is sent.
    pub(super) fn sent_notice(&mut self) {
        if self.pending.pop_first().is_none() {
            self.answers.pop_front();
        }
        self.notices_sent += 1;
    }

    /// What its host has not acknowledged of so many bytes that were handed to it.
    pub(super) fn lost_bytes(&self, handed: u64) -> u64 {
        let acknowledged = acknowledged_bytes(&self.socket).unwrap_or_default();
        // The end of the stream counts as a byte there.
        handed.saturating_sub(acknowledged.saturating_sub(self.acknowledged_base))
    }

    /// What there is to do for it now. A frame has `frame_timeout` to become complete.
    pub(super) fn step(&mut self, seen: &Standing, frame_timeout: Duration, now: Instant) -> Step {
        let lasts = |since| now.saturating_duration_since(since);
        match self.phase {
            Phase::Staying if seen.is_whole => self.incomplete = None,
            Phase::Staying => match self.incomplete {
                Some((since, before)) if before == seen.taken_bytes => {
                    if lasts(since) < frame_timeout {
                        return Step::Look;
                    }
                    self.note(Code::Incomplete, 0, 1);
                    return Step::Drain(Departure::Incomplete);
                }
                _ => self.incomplete = Some((now, seen.taken_bytes)),
            },
            Phase::Ended { since } if seen.is_whole && (seen.is_heard || lasts(since) >= LEAVE) => {
                return Step::Drain(Departure::EndOfStream);
            }
            Phase::Ended { since } if !seen.is_whole && lasts(since) >= SETTLE => {
                return Step::Drain(Departure::WithinFrame);
            }
            Phase::Ended { .. } => return Step::Look,
            Phase::Draining { since, why } if lasts(since) >= LEAVE => return Step::Abandon(why),
            Phase::Draining { why, .. }
                if seen.is_written && seen.is_heard && !self.has_to_be_told() =>
            {
                self.phase = Phase::Lingering { since: now, why };
                return Step::EndStream;
            }
            Phase::Draining { .. } => {}
            Phase::Lingering { why, .. } if self.has_ended && seen.is_closed => {
                return Step::Close(why);
            }
            Phase::Lingering { since, why } if lasts(since) >= LEAVE => return Step::Abandon(why),
            Phase::Lingering { .. } => {}
        }
        Step::Nothing
    }

    /// Whether it has to be looked after soon.
    pub(super) fn is_busy(&self) -> bool {
        self.has_to_be_told() || self.phase != Phase::Staying
    }

    pub(super) fn has_to_be_told(&self) -> bool {
        !self.pending.is_empty() || !self.answers.is_empty()
    }
}

/// What a socket's host will have acknowledged of what was written before now, in bytes.
pub(super) fn acknowledged_base(socket: &OwnedFd) -> u64 {
    acknowledged_bytes(socket)
        .and_then(|bytes| Ok(bytes + unacknowledged_bytes(socket)?))
        .unwrap_or_default()
}
