//! Copies of the messages of members, while somebody wants them.
//!
//! ```text
//!        start: nobody else captures          finish, or dropped
//! none ─────────────────────────────▶ taken ────────────────────▶ none
//!                                       │ killed                   ▲
//!                                       ▼                          │ the bypass, or the next capture
//!                                     stale: nothing is copied ────┘
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::clock::now_ns;
use splice_bpf::types::{
    BypassCaptureSetting, BypassMessage, BypassSettings, TraceEnd, TraceFilter,
    bypass_capture_limit, bypass_role,
};
use splice_bpf::{Map, RingBuffer, SharedArray, wait_for_programs};
use splice_sockmap::Pins;

use super::tables::{self, PINNED, SLOT, address};
use crate::trace::ConnectionFilter;

/// How long the programs copy messages after the last [`Capture::turn`].
const FRESH: Duration = Duration::from_secs(1);

/// As much as small messages come to in the time between two turns, on a machine that is busy.
const RING_BYTES: u32 = 16 << 20;

/// An owner that has not written its heartbeat for so long was killed, or stands still.
const OWNER_GONE: Duration = Duration::from_secs(3);

/// What a capture takes.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// Where the bypass is pinned.
    pub pins: PathBuf,
    /// Of which connections; `None`: of all.
    pub connection: Option<ConnectionFilter>,
    /// How many bytes of each message, at most [`CaptureOptions::SNAP_MOST`].
    pub snap_bytes: u32,
    /// Also messages of redirected connections that went over TCP.
    pub with_passed: bool,
}

impl CaptureOptions {
    /// The most bytes of a message.
    pub const SNAP_MOST: u32 = bypass_capture_limit::MOST;

    /// Everything that is redirected.
    pub fn of(pins: PathBuf) -> Self {
        Self {
            pins,
            connection: None,
            snap_bytes: Self::SNAP_MOST,
            with_passed: false,
        }
    }
}

/// A message on its way from one end to the other.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Message<'a> {
    /// When it was sent.
    pub at: Instant,
    /// The client, as it calls itself.
    pub client: SocketAddr,
    /// The server, as the client calls it.
    pub server: SocketAddr,
    /// Whether the client has sent it.
    pub is_of_client: bool,
    /// How long it is.
    pub bytes: u32,
    /// Its first bytes.
    pub payload: &'a [u8],
    /// The sequence number that its first byte had if all had gone over TCP.
    pub sequence: u32,
    /// What the other end had sent by then, in the same way.
    pub acknowledged: u32,
    /// Or it went over TCP.
    pub is_redirected: bool,
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("client", &self.client)
            .field("server", &self.server)
            .field("is_of_client", &self.is_of_client)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// How many messages were captured, and how many were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// Those that were taken.
    pub messages: u64,
    /// Those that were not: nobody took the ones before in time.
    pub lost: u64,
    /// Of those taken, the ones of which bytes are missing, since the kernel had no memory.
    pub torn: u64,
}

/// Why a capture has come to its end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureEnd {
    /// The bypass was turned off.
    BypassEnded,
    /// The process of the bypass was killed, or stands still: every message goes over TCP.
    BypassGone,
    /// It stood still for so long that it was taken for dead.
    Superseded,
}

/// A running capture.
pub struct Capture {
    claim: Arc<Claim>,
    captures: Map,
    ring: RingBuffer,
    /// What captures before it have come to.
    before: Counts,
    /// Itself, until the last message is there.
    last: Option<Counts>,
    /// Whether the owner of the bypass lived at the last look.
    had_owner: bool,
    is_over: bool,
}

/// What captures have come to.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    taken: u64,
    lost: u64,
    torn: u64,
    missed: u64,
}

/// Says that a capture lives, beside the thread that has it.
#[derive(Clone)]
pub struct CaptureHeartbeat(Arc<Claim>);

impl CaptureHeartbeat {
    /// Says it, for one second. Whether it has not ended.
    pub fn beat(&self) -> bool {
        self.0.go_on()
    }
}

impl fmt::Debug for CaptureHeartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureHeartbeat").finish_non_exhaustive()
    }
}

/// That a capture is the one of its bypass.
struct Claim {
    settings: SharedArray<BypassSettings>,
    /// What was said last of how long it goes on; `None` once it has ended.
    until_ns: Mutex<Option<u64>>,
}

impl Claim {
    /// Says that it lives. Whether it does, and was not taken for dead.
    fn go_on(&self) -> bool {
        let mut last = self.last();
        let next = now_ns() + FRESH.as_nanos() as u64;
        let has_said = last.is_some_and(|last| self.swap(last, next));
        *last = has_said.then_some(next);
        has_said
    }

    /// Says that it has ended.
    fn end(&self) {
        if let Some(last) = self.last().take() {
            // Or another one has it.
            self.swap(last, 0);
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<u64>> {
        self.until_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        let word = &self.settings.at(0).capture_until_ns;
        let swapped = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        swapped.is_ok()
    }

    fn counts(&self) -> Counts {
        let of = self.settings.at(0);
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Counts {
            taken: count(&of.capture_taken),
            lost: count(&of.capture_lost),
            torn: count(&of.capture_torn),
            missed: count(&of.capture_missed),
        }
    }
}

impl Capture {
    /// Begins to capture.
    ///
    /// # Errors
    /// - [`ErrorKind::System`] if there is no bypass or its process was killed, or another process captures its messages.
    /// - [`ErrorKind::BpfRefused`] without the rights.
    pub fn start(options: &CaptureOptions) -> Result<Self> {
        let pins = Pins::at(&options.pins, PINNED);
        let shared = tables::Shared::open(&pins)?;
        if is_gone(shared.settings.at(0)) {
            return Err(Error::new(
                ErrorKind::System,
                format!(
                    "the process of the bypass with its pins in {} was killed or stands still, so that nothing is redirected",
                    options.pins.display()
                ),
            )
            .with_remedy("start the bypass again, or end it with 'spliced bypass off'"));
        }
        let setting = BypassCaptureSetting {
            filter: filter(options.connection),
            snap_bytes: options.snap_bytes.min(CaptureOptions::SNAP_MOST),
            with_passed: options.with_passed.into(),
        };
        let map = Map::create_ring("bypass_captured", RING_BYTES)?;
        let ring = map.consume()?;
        let said = shared.settings.at(0);
        let said = said.capture_until_ns.load(Ordering::Acquire);
        let claim = Claim {
            settings: shared.settings,
            until_ns: Mutex::new(Some(said)),
        };
        if said > now_ns() || !claim.go_on() {
            return Err(Error::new(
                ErrorKind::System,
                "another process captures the messages of this bypass: wait until it ends, or end it (one that was killed counts for two seconds)",
            ));
        }
        // Of a dead capture.
        shared.captures.remove(&SLOT);
        let mut capture = Self {
            claim: Arc::new(claim),
            captures: shared.captures,
            ring,
            before: Counts::default(),
            last: None,
            had_owner: true,
            is_over: false,
        };
        let failed = |errno| Error::system("cannot have messages captured", errno);
        let settings = &shared.capture_settings;
        settings.update(&0u32, &setting).map_err(failed)?;
        // Programs that run may use the setting of a dead capture.
        wait();
        capture.before = capture.claim.counts();
        let placed = capture.captures.set_inner(SLOT, &map);
        placed.map_err(failed)?;
        Ok(capture)
    }

    /// What says that it lives while the thread that has it is kept from [`turn`](Self::turn).
    pub fn heartbeat(&self) -> CaptureHeartbeat {
        CaptureHeartbeat(Arc::clone(&self.claim))
    }

    /// Takes what was captured, and says that it goes on. Call it every 10 ms: otherwise messages are
    /// lost, and after a second, all are.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn turn<E>(
        &mut self,
        each: impl FnMut(&Message<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<CaptureEnd>, E> {
        self.take(each)?;
        if !self.claim.go_on() {
            self.is_over = true;
            return Ok(Some(CaptureEnd::Superseded));
        }
        let settings = self.claim.settings.at(0);
        // Before its heartbeat: the owner that stops writes none.
        let is_off = settings.stopping.load(Ordering::Acquire) != 0;
        let has_owner = settings.lease.is_held();
        if is_off {
            // What a killed one has left may be cleared up within the time below.
            let was_alive = has_owner || self.had_owner;
            return Ok(Some(match was_alive {
                true => CaptureEnd::BypassEnded,
                false => CaptureEnd::BypassGone,
            }));
        }
        self.had_owner = has_owner;
        Ok(is_gone(settings).then_some(CaptureEnd::BypassGone))
    }

    /// Ends it, and takes what there is.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn finish<E>(
        mut self,
        each: impl FnMut(&Message<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Captured, E> {
        self.end();
        self.take(each)?;
        Ok(self.captured())
    }

    /// How many messages it were so far.
    pub fn captured(&self) -> Captured {
        let Counts {
            taken,
            lost,
            torn,
            missed,
        } = self.last.unwrap_or_else(|| self.claim.counts());
        Captured {
            messages: taken - self.before.taken,
            lost: lost + missed - self.before.lost - self.before.missed,
            torn: torn - self.before.torn,
        }
    }

    fn take<E>(
        &mut self,
        mut each: impl FnMut(&Message<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let (now, now_ns) = (Instant::now(), now_ns());
        let mut told = Ok(());
        self.ring.take_records(|of: &BypassMessage, bytes| {
            if told.is_err() {
                return;
            }
            let end = |bytes, port| SocketAddr::new(address(bytes), port as u16);
            let age = Duration::from_nanos(now_ns.saturating_sub(of.time_ns));
            let ahead = Duration::from_nanos(of.time_ns.saturating_sub(now_ns));
            told = each(&Message {
                at: now.checked_sub(age).unwrap_or(now) + ahead,
                client: end(of.client, of.client_port),
                server: end(of.server, of.server_port),
                is_of_client: of.sender == bypass_role::CLIENT,
                bytes: of.bytes,
                payload: &bytes[..(of.captured as usize).min(bytes.len())],
                sequence: of.sequence,
                acknowledged: of.acknowledged,
                is_redirected: of.is_redirected != 0,
            });
        });
        told
    }

    fn end(&mut self) {
        if self.is_over || !self.claim.go_on() {
            return;
        }
        self.is_over = true;
        let Counts { missed, .. } = self.claim.counts();
        // In this order, so that it does not remove the ring of the next.
        self.captures.remove(&SLOT);
        wait();
        self.last = Some(Counts {
            missed,
            ..self.claim.counts()
        });
        self.claim.end();
    }
}

fn is_gone(of: &BypassSettings) -> bool {
    let heartbeat_ns = of.lease.heartbeat_ns.load(Ordering::Acquire);
    now_ns().saturating_sub(heartbeat_ns) > OWNER_GONE.as_nanos() as u64
}

/// Waits for programs that run, and may still write into a ring.
fn wait() {
    if wait_for_programs().is_err() {
        thread::sleep(tables::PROGRAM_MOST);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").finish_non_exhaustive()
    }
}

fn filter(connection: Option<ConnectionFilter>) -> TraceFilter {
    let any = TraceEnd {
        any_address: 1,
        any_port: 1,
        ..TraceEnd::default()
    };
    connection.map_or(TraceFilter { ends: [any; 2] }, |of| of.for_program())
}
