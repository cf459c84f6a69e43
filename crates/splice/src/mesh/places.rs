//! The members' entries, and which of their places are taken.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use splice_bpf::SharedArray;
use splice_bpf::types::{MeshMember, mesh_role};

use super::member::MemberCounters;

/// How long a place stays unused after its member has left: a verdict that has found the member may still
/// count there, for microseconds.
pub(super) const REST_OF_PLACE: Duration = Duration::from_millis(20);

/// Places that may rest beside one for each member.
const SPARE_PLACES: u32 = 64;

/// Where the entries are.
pub(super) enum Entries {
    /// In a map of the kernel, whose programs count there.
    Shared(SharedArray<MeshMember>),
    Own(Box<[MeshMember]>),
}

impl Entries {
    fn at(&self, place: u32) -> &MeshMember {
        match self {
            Self::Shared(entries) => entries.at(place as usize),
            Self::Own(entries) => &entries[place as usize],
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Shared(entries) => entries.len(),
            Self::Own(entries) => entries.len(),
        }
    }
}

pub(super) struct Places {
    entries: Entries,
    unused: u32,
    free: VecDeque<(Instant, u32)>,
}

impl Places {
    /// How many entries a mesh of so many members needs: one more is the mesh's own, and as many again may rest, and some
    /// more, so that a few members may come and go fast.
    pub(super) fn needed(members: u32) -> u32 {
        2 * members + 1 + SPARE_PLACES
    }

    /// Whether there is a place for another member now.
    pub(super) fn has_free(&self, now: Instant) -> bool {
        let has_rested = |since: &Instant| now.saturating_duration_since(*since) >= REST_OF_PLACE;
        (self.unused as usize) < self.entries.len()
            || self
                .free
                .front()
                .is_some_and(|(since, _)| has_rested(since))
    }

    pub(super) fn new(entries: Entries) -> Self {
        Self {
            entries,
            unused: 0,
            free: VecDeque::new(),
        }
    }

    /// A place with all counters at zero; `None` if all are taken.
    pub(super) fn claim(&mut self, now: Instant) -> Option<u32> {
        let place = match self.free.front() {
            Some((since, place)) if now.saturating_duration_since(*since) >= REST_OF_PLACE => {
                let place = *place;
                self.free.pop_front();
                place
            }
            _ if (self.unused as usize) < self.entries.len() => {
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
            searched,
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
        searched.store(0, Ordering::Relaxed);
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
        self.entries.at(place)
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
            lost_bytes: 0,
        }
    }
}
