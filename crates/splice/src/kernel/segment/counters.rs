//! Where any thread can read what has bypassed the sockets.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::flow::Flow;
use crate::kernel::KernelCounters;
use crate::routing::CourseReader;
use splice_bpf::types::segment_mark as mark;

/// The pair's counters, which are in its flow from the moment on in which it has one.
#[derive(Debug, Default)]
pub(super) struct SegmentCounters {
    flow: OnceLock<Arc<Flow>>,
    course: OnceLock<CourseReader>,
}

impl SegmentCounters {
    pub(super) fn flow(&self) -> Option<&Arc<Flow>> {
        self.flow.get()
    }

    /// The way of a pair is watched from one moment on.
    pub(super) fn set_course(&self, course: CourseReader) {
        let _ = self.course.set(course);
    }

    /// A pair gets its flow once.
    pub(super) fn set_flow(&self, flow: Flow) {
        let _ = self.flow.set(Arc::new(flow));
    }
}

impl KernelCounters for SegmentCounters {
    fn moved_bytes(&self) -> [u64; 2] {
        let Some(flow) = self.flow() else {
            return [0; 2];
        };
        [0, 1].map(|side| flow.moved_bytes(side))
    }

    fn moved_at(&self, now: Instant) -> Option<Instant> {
        now.checked_sub(self.flow()?.idle_for())
    }

    fn first_moved_at(&self, now: Instant) -> Option<Instant> {
        now.checked_sub(self.flow()?.since_first()?)
    }

    fn why_lost(&self) -> Option<String> {
        self.course.get()?.why_closed()
    }

    fn ended_streams(&self) -> [bool; 2] {
        let marks = |side| self.flow().map_or(0, |flow| flow.marks(side));
        [0, 1].map(|side| marks(side) & mark::FIN_ACKED != 0)
    }
}
