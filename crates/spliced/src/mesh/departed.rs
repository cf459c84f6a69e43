//! A member that has left, as the logs tell of it.

use splice::EngineName;
use splice::mesh::{Departure, MemberCounters};

use super::present::Person;
use crate::access_log::{AccessLog, Entry, Moved};

pub(super) struct Departed<'a> {
    pub(super) member: u64,
    pub(super) person: &'a Person,
    /// What moved its frames.
    pub(super) engine: EngineName,
    pub(super) why: &'a str,
    pub(super) counters: &'a MemberCounters,
}

impl Departed<'_> {
    /// Writes its line. The mesh listens on `address`.
    pub(super) fn log(&self, log: &AccessLog, address: &str) {
        let Self {
            member,
            person,
            engine,
            why,
            counters,
        } = *self;
        let name = person.name.as_ref();
        let name = name.map(|name| name.escape_debug().to_string());
        let client = person
            .from
            .map_or_else(String::new, |from| from.to_string());
        let moved = |bytes, frames, dropped| Moved {
            bytes,
            datagrams: None,
            dropped,
            messages: Some(frames),
        };
        log.write(&Entry {
            client: &client,
            name: name.as_deref(),
            route: None,
            backend: None,
            server: None,
            engine: Some(engine.as_str()),
            why_engine: match engine {
                EngineName::Copy => "user space delivers the frames of this mesh",
                _ => "the kernel delivers the frames of this mesh",
            },
            moved: Some([
                moved(
                    counters.sent_bytes,
                    counters.sent_frames + counters.passed_frames,
                    Some(counters.unknown_frames + counters.full_frames),
                ),
                moved(counters.received_bytes, counters.received_frames, None),
            ]),
            lasted: Some(person.since.elapsed()),
            ..Entry::copied(member, address, "", Some(why))
        });
    }
}

pub(super) fn in_words(why: Departure) -> &'static str {
    match why {
        Departure::EndOfStream => "it ended its stream",
        Departure::WithinFrame => "it ended its stream within a frame",
        Departure::Reset => "its connection was reset",
        Departure::TooLong => "a frame was too long",
        Departure::TooShort => "a frame was shorter than its header",
        Departure::Incomplete => "a frame did not become complete in time",
        Departure::Idle => "it was idle",
        _ => "the mesh ends",
    }
}
