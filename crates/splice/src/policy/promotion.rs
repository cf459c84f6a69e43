//! When `auto` tries a pair with a kernel engine, and with which.
//!
//! When a pair is tried with `segment`, once it is old or large enough ([`Attempt`]):
//!
//! ```text
//! the program is still loading: look again later
//!  ┌─┐
//!  │ ▼   other pairs of its loop come first
//! Open ──────────────────────────────────▶ Booked ─┐ they still do: later
//!  │                                         │  ▲──┘
//!  └───────────────────┬─────────────────────┘
//!                      ▼
//!                    Over: the engine tries to take it, or cannot be used
//! ```
//!
//! A pair that `segment` does not take, and that has moved little so far, is tried with `sockmap`
//! if [`Options::promote_after`] says so.

use std::time::{Duration, Instant};

use splice_base::error::{Error, ErrorKind, Result};

use crate::direction::CarrierChoice;
use crate::endpoint::Endpoint;
use crate::kernel::segment::datapath::DatapathHandle;
use crate::kernel::segment::{Asked, Segment};
use crate::kernel::sockmap::Sockmap;
use crate::name::{EngineChoice, EngineName};
use crate::options::Options;
use crate::reactor::Context;
use crate::session::pair::Plan;
use crate::session::pair::ends::Ends;
use crate::session::pair::promotion::{Candidate, Promotion, Proposal, Trigger};

/// How long a pair waits before it asks again for a program that is still being loaded: as long as
/// loading takes on an idle machine.
const LOAD_LOOK: Duration = Duration::from_millis(50);

/// The plan for a pair with these ends: its kernel engine, or the policy that decides on one.
///
/// # Errors
/// [`ErrorKind::EngineRefused`] if an engine was chosen by name
/// and cannot take the pair.
pub(crate) fn plan(ends: &Ends, options: &Options) -> Result<Plan> {
    check_messages(ends, options)?;
    let is_copied = ends.each().iter().any(|end| end.kind().is_only_copied());
    let EngineChoice::Only(engine) = options.engine else {
        if is_copied {
            return Ok(Plan {
                stays: Some("no other engine takes its kind of socket"),
                ..Plan::default()
            });
        }
        if ends.have_upper_protocol() {
            return Ok(Plan {
                stays: Some("one end has an upper layer protocol such as kTLS"),
                ..Plan::default()
            });
        }
        let promotion = Auto::new(ends, options, Instant::now());
        return Ok(Plan {
            carrier: CarrierChoice::Adaptive,
            promotion: promotion.map(|auto| Box::new(auto) as _),
            ..Plan::default()
        });
    };
    if ends.is_echo() {
        engine.can_echo()?;
    }
    if is_copied {
        can_take(engine, ends)?;
    }
    let plan = Plan {
        carrier: engine.carrier(),
        ..Plan::default()
    };
    Ok(match engine {
        EngineName::Sockmap => {
            can_take(engine, ends)?;
            let sockmap = Sockmap::new().map_err(|obstacle| engine.unavailable(obstacle))?;
            Plan {
                kernel: Some(Box::new(sockmap)),
                ..plan
            }
        }
        EngineName::Segment => Plan {
            promotion: Some(Box::new(ByName {
                asked: Asked::by(options),
            })),
            ..plan
        },
        _ => plan,
    })
}

/// Whether messages stay whole: a stream has none, and a byte limit may fall within one.
fn check_messages(ends: &Ends, options: &Options) -> Result<()> {
    let keeps = |end: &Endpoint| end.kind().keeps_messages();
    let count = ends.each().iter().filter(|end| keeps(end)).count();
    let why = match count {
        0 => return Ok(()),
        count if count < ends.each().len() => {
            "one of the sockets keeps messages apart, and the other one is a stream; join two of a kind"
        }
        _ if options.limits.byte_limit.is_some() => {
            "a byte limit could fall within a message; leave it out"
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::UnsupportedSocket, why))
}

/// Whether the engine takes both ends' kinds of socket.
fn can_take(engine: EngineName, ends: &Ends) -> Result<()> {
    let mut kinds = ends.each().iter().map(Endpoint::kind);
    kinds.try_for_each(|kind| engine.can_take(kind))
}

/// `segment` was chosen by name. The pair tries it at once, and the loop waits for its program.
#[derive(Debug)]
struct ByName {
    asked: Asked,
}

impl Promotion for ByName {
    fn wants(&self, _moved_bytes: u64) -> bool {
        false
    }

    fn ask_at(&self) -> Option<Instant> {
        None
    }

    fn propose(
        &mut self,
        _trigger: Trigger,
        candidate: &Candidate<'_>,
        cx: &mut Context<'_>,
    ) -> Proposal {
        if let Err(refusal) = can_take(EngineName::Segment, candidate.ends) {
            return Proposal::Unavailable(refusal.to_string().into());
        }
        match cx.local::<DatapathHandle>().datapath() {
            Ok(datapath) => Proposal::Try(Box::new(Segment::new(datapath, true, self.asked))),
            Err(obstacle) => Proposal::Unavailable(obstacle.reason.into()),
        }
    }

    fn declined(&mut self, _engine: EngineName, _now: Instant) {}

    fn may_redirect(&self) -> bool {
        false
    }

    /// A pair asks once, when it starts.
    fn is_over(&self) -> bool {
        true
    }
}

/// No engine was chosen by name.
#[derive(Debug)]
struct Auto {
    schedule: Schedule,
    asked: Asked,
}

impl Auto {
    /// `None` for a pair that stays in user space in any case.
    fn new(ends: &Ends, options: &Options, now: Instant) -> Option<Self> {
        if ends.is_echo() {
            return None;
        }
        let segment_after = options.segment_after;
        let segment_after = segment_after.filter(|_| can_take(EngineName::Segment, ends).is_ok());
        let schedule = Schedule::new(
            now,
            options.promote_after_bytes,
            segment_after,
            options.promote_after,
        )?;
        Some(Self {
            schedule,
            asked: Asked::by(options),
        })
    }

    fn segment(&mut self, cx: &mut Context<'_>) -> Proposal {
        let now = cx.now();
        let handle = cx.local::<DatapathHandle>();
        match handle.datapath_at_hand() {
            None => {
                self.schedule.ask_at = Some(now + LOAD_LOOK);
                Proposal::Nothing
            }
            Some(Ok(datapath)) => {
                if let Err(at) = handle.pace().admit(now, self.schedule.is_booked()) {
                    self.schedule.book(at);
                    return Proposal::Nothing;
                }
                self.schedule.attempt = Attempt::Over;
                Proposal::Try(Box::new(Segment::new(datapath, false, self.asked)))
            }
            Some(Err(obstacle)) => {
                self.schedule.declined(EngineName::Segment, now);
                Proposal::Unavailable(obstacle.reason.into())
            }
        }
    }

    fn sockmap(&mut self, candidate: &Candidate<'_>) -> Proposal {
        let engine = EngineName::Sockmap;
        let sockmap = can_take(engine, candidate.ends)
            .and_then(|()| Sockmap::new().map_err(|obstacle| engine.unavailable(obstacle)));
        match sockmap {
            Ok(sockmap) => Proposal::Try(Box::new(sockmap)),
            Err(refusal) => {
                self.schedule.sockmap_at = None;
                Proposal::Unavailable(refusal.to_string().into())
            }
        }
    }
}

impl Promotion for Auto {
    fn wants(&self, moved_bytes: u64) -> bool {
        self.schedule.wants(moved_bytes)
    }

    fn ask_at(&self) -> Option<Instant> {
        self.schedule.ask_at
    }

    fn propose(
        &mut self,
        trigger: Trigger,
        candidate: &Candidate<'_>,
        cx: &mut Context<'_>,
    ) -> Proposal {
        let now = cx.now();
        match self
            .schedule
            .next(trigger, now, candidate.moved_bytes, candidate.is_held)
        {
            None => Proposal::Nothing,
            Some(EngineToTry::Segment) => self.segment(cx),
            Some(EngineToTry::Sockmap) => self.sockmap(candidate),
        }
    }

    fn declined(&mut self, engine: EngineName, now: Instant) {
        self.schedule.declined(engine, now);
    }

    fn may_redirect(&self) -> bool {
        self.schedule.sockmap_at.is_some()
    }

    fn is_over(&self) -> bool {
        self.schedule.is_over()
    }
}

/// The state of a pair with `segment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Open,
    /// The pair is tried at this time.
    Booked(Instant),
    /// The pair was tried, or will not be.
    Over,
}

/// The next engine to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineToTry {
    Segment,
    Sockmap,
}

/// The schedule of one pair, without the engines.
#[derive(Debug)]
struct Schedule {
    attempt: Attempt,
    /// A pair that has moved so much is tried with `segment` and not with `sockmap`.
    after_bytes: u64,
    ask_at: Option<Instant>,
    /// When it is due for `sockmap`; `None` once that is ruled out.
    sockmap_at: Option<Instant>,
}

impl Schedule {
    fn new(
        joined_at: Instant,
        after_bytes: u64,
        segment_after: Option<Duration>,
        sockmap_after: Option<Duration>,
    ) -> Option<Self> {
        let at = |after: Duration| joined_at.checked_add(after);
        let sockmap_at = sockmap_after.and_then(at);
        match segment_after {
            Some(after) => Some(Self {
                attempt: Attempt::Open,
                after_bytes,
                ask_at: at(after),
                sockmap_at,
            }),
            None => sockmap_at.map(|at| Self {
                attempt: Attempt::Over,
                after_bytes,
                ask_at: Some(at),
                sockmap_at: Some(at),
            }),
        }
    }

    /// A booked pair asks at its time, whatever it moves until then.
    fn wants(&self, moved_bytes: u64) -> bool {
        self.attempt == Attempt::Open && moved_bytes >= self.after_bytes
    }

    fn is_booked(&self) -> bool {
        matches!(self.attempt, Attempt::Booked(_))
    }

    fn is_over(&self) -> bool {
        self.attempt == Attempt::Over && self.sockmap_at.is_none()
    }

    fn book(&mut self, at: Instant) {
        self.attempt = Attempt::Booked(at);
        self.ask_at = Some(at);
    }

    fn next(
        &mut self,
        trigger: Trigger,
        now: Instant,
        moved_bytes: u64,
        is_held: bool,
    ) -> Option<EngineToTry> {
        match (trigger, self.attempt) {
            (Trigger::Start, _) => return None,
            (_, Attempt::Booked(at)) if at > now => return None,
            (_, Attempt::Open | Attempt::Booked(_)) => {
                if trigger == Trigger::Deadline {
                    self.ask_at = None;
                }
                return Some(EngineToTry::Segment);
            }
            (Trigger::Moved, Attempt::Over) => return None,
            (Trigger::Deadline, Attempt::Over) => self.ask_at = None,
        }
        // Bulk is well served by `pipe`.
        if is_held || moved_bytes >= self.after_bytes {
            self.sockmap_at = None;
        }
        self.sockmap_at.map(|_| EngineToTry::Sockmap)
    }

    fn declined(&mut self, engine: EngineName, now: Instant) {
        self.attempt = Attempt::Over;
        if engine == EngineName::Sockmap {
            self.sockmap_at = None;
        }
        self.ask_at = self.sockmap_at.map(|at| at.max(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Kind;

    const SEGMENT_AFTER: Duration = Duration::from_millis(50);
    const SOCKMAP_AFTER: Duration = Duration::from_millis(200);
    const AFTER_BYTES: u64 = 64 << 10;

    fn both(now: Instant) -> Schedule {
        Schedule::new(now, AFTER_BYTES, Some(SEGMENT_AFTER), Some(SOCKMAP_AFTER)).expect("one")
    }

    #[test]
    fn auto_tries_segment_where_the_engine_takes_both_kinds_of_socket() {
        for (kinds, is_tried) in [
            ([Kind::Tcp4, Kind::Tcp6], true),
            ([Kind::Unix, Kind::Tcp4], false),
            ([Kind::Tcp4, Kind::Mptcp], false),
        ] {
            let (a, b) = std::os::unix::net::UnixStream::pair().expect("a pair");
            let [a, b] = [(a, kinds[0]), (b, kinds[1])]
                .map(|(socket, kind)| Endpoint::prepared(socket.into(), kind));
            let ends = Ends::Two([a, b]);
            let options = Options {
                promote_after: Some(SOCKMAP_AFTER),
                ..Options::default()
            };
            let auto = Auto::new(&ends, &options, Instant::now()).expect("an engine is left");
            let attempt = auto.schedule.attempt;
            assert_eq!(attempt == Attempt::Open, is_tried, "{kinds:?}");
        }
    }

    #[test]
    fn auto_leaves_a_pair_with_an_upper_protocol_to_copy() {
        let (a, b) = netlab::connection();
        let [a, b] = [a, b].map(|socket| Endpoint::prepared(socket.into(), Kind::Tcp4));
        let options = Options::default();
        let ends = Ends::Two([a, b.layered()]);
        let layered = plan(&ends, &options).expect("a plan");
        assert!(layered.kernel.is_none() && layered.promotion.is_none());
        assert!(layered.stays.is_some_and(|why| why.contains("kTLS")));
        let (a, b) = netlab::connection();
        let plain = [a, b].map(|socket| Endpoint::prepared(socket.into(), Kind::Tcp4));
        let plain = plan(&Ends::Two(plain), &options).expect("a plan");
        assert!(plain.promotion.is_some() && plain.stays.is_none());
    }

    #[test]
    fn without_an_engine_there_is_nothing_to_schedule() {
        assert!(Schedule::new(Instant::now(), AFTER_BYTES, None, None).is_none());
    }

    #[test]
    fn a_pair_is_tried_when_it_is_old_or_large_enough() {
        let now = Instant::now();
        let mut old = both(now);
        assert_eq!(old.ask_at, Some(now + SEGMENT_AFTER));
        assert!(!old.wants(AFTER_BYTES - 1));
        let asked = old.next(Trigger::Deadline, now + SEGMENT_AFTER, 0, false);
        assert_eq!(asked, Some(EngineToTry::Segment));
        let mut large = both(now);
        assert!(large.wants(AFTER_BYTES));
        let asked = large.next(Trigger::Moved, now, AFTER_BYTES, false);
        assert_eq!(asked, Some(EngineToTry::Segment));
    }

    #[test]
    fn a_booked_pair_waits_for_its_time_whatever_it_moves() {
        let now = Instant::now();
        let mut pair = both(now);
        let at = now + Duration::from_millis(70);
        pair.book(at);
        assert_eq!(pair.ask_at, Some(at));
        assert_eq!(pair.next(Trigger::Moved, now, AFTER_BYTES, false), None);
        assert_eq!(pair.ask_at, Some(at));
        assert_eq!(
            pair.next(Trigger::Deadline, at, 0, false),
            Some(EngineToTry::Segment)
        );
    }

    #[test]
    fn a_quiet_pair_that_segment_declines_goes_to_sockmap_and_nowhere_after_that() {
        let now = Instant::now();
        let mut pair = both(now);
        let declined_at = now + SEGMENT_AFTER;
        pair.declined(EngineName::Segment, declined_at);
        assert_eq!(pair.ask_at, Some(now + SOCKMAP_AFTER));
        assert!(!pair.wants(u64::MAX));
        let at = now + SOCKMAP_AFTER;
        assert_eq!(
            pair.next(Trigger::Deadline, at, 100, false),
            Some(EngineToTry::Sockmap)
        );
        assert!(!pair.is_over());
        pair.declined(EngineName::Sockmap, at);
        assert!(pair.is_over());
        assert_eq!((pair.ask_at, pair.sockmap_at), (None, None));
        assert_eq!(pair.next(Trigger::Deadline, at, 100, false), None);
    }

    #[test]
    fn a_pair_that_moves_bulk_or_is_tried_does_not_go_to_sockmap() {
        let now = Instant::now();
        let at = now + SOCKMAP_AFTER;
        let mut bulk = both(now);
        bulk.declined(EngineName::Segment, now);
        assert_eq!(bulk.next(Trigger::Deadline, at, AFTER_BYTES, false), None);
        assert_eq!(bulk.sockmap_at, None);
        let mut tried = both(now);
        tried.attempt = Attempt::Over;
        assert_eq!(tried.next(Trigger::Deadline, at, 0, true), None);
        assert!(tried.is_over());
    }
}
