//! What any thread may read of a pair, without a say in it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use super::attempts::Attempt;
use super::meter::Stream;
use super::status::Status;
use crate::counters::Counters;
use crate::name::EngineName;

/// Reads a pair from any thread while it runs, and what it was at its end afterwards. Dropping it changes nothing.
///
/// What the kernel moves is read where the kernel counts it, so the pair's loop does not wake up. Nothing here waits
/// for the loop.
#[derive(Clone, Debug)]
pub struct Observer(Arc<Status>);

impl Observer {
    pub(crate) fn new(status: Arc<Status>) -> Self {
        Self(status)
    }

    /// The bytes moved so far: at most one turn of the loop old, exact once the pair has ended.
    pub fn counters(&self) -> Counters {
        self.0.meter.read()
    }

    /// The messages moved so far, of sockets that keep them apart; 0 for streams.
    pub fn messages(&self) -> Counters {
        self.0.meter.read_messages()
    }

    /// The engine in use, and the reason in words. If segments get lost now, these say so as well.
    pub fn engine(&self) -> (EngineName, Cow<'static, str>) {
        let (engine, why) = self.0.engine();
        match self.why_lost() {
            Some(lost) => (
                engine,
                format!("{why}; its segments get lost: {lost}").into(),
            ),
            None => (engine, why),
        }
    }

    /// Why segments of the pair get lost now: an engine moves them past the network stack, which has no way for them.
    /// `None` if they do not.
    pub fn why_lost(&self) -> Option<String> {
        self.0.meter.why_lost()
    }

    /// When a byte last moved; when the pair began, if none has.
    pub fn moved_at(&self) -> Instant {
        self.0.meter.moved_at()
    }

    /// When the first byte that the second socket's peer has sent was moved towards the first one's; `None` if none has
    /// been.
    pub fn first_moved_at(&self) -> Option<Instant> {
        self.0.meter.first_moved_at()
    }

    /// What has come so far of attempts to give the pair to an engine in the kernel, each once however often it was.
    pub fn attempts(&self) -> impl Iterator<Item = Attempt> + use<> {
        self.0.attempts.read()
    }

    /// How far the streams have come that the two sides send.
    pub fn streams(&self) -> [Stream; 2] {
        self.0.meter.streams()
    }
}
