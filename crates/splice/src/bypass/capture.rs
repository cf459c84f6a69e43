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
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::clock::now_ns;
use splice_bpf::types::{
    BypassCaptureCounts, BypassCaptureSetting, BypassMessage, TraceEnd, TraceFilter,
    bypass_capture_limit, bypass_role,
};
use splice_bpf::{Object, RingBuffer, SharedArray, load, objects, wait_for_programs};
use splice_sockmap::Pins;

use super::tables::{self, PINNED, SLOT, address, explained};
use crate::trace::ConnectionFilter;

/// How long the programs copy messages after the last [`Capture::turn`].
const FRESH: Duration = Duration::from_secs(1);

/// An owner that has not written its heartbeat for so long has ended, or every message goes over TCP.
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
    /// The bypass is off, or its process has ended.
    BypassEnded,
    /// It stood still for so long that it was taken for dead.
    Superseded,
}

/// A running capture.
pub struct Capture {
    shared: tables::Shared,
    ring: RingBuffer,
    counts: SharedArray<BypassCaptureCounts>,
    /// What was said last of how long it goes on.
    until_ns: u64,
    missed_before: u64,
    missed: u64,
    is_over: bool,
    /// The kernel keeps what it runs, so it is not for the program.
    _object: Object,
}

impl Capture {
    /// Begins to capture.
    ///
    /// # Errors
    /// - [`ErrorKind::System`] if there is no bypass, or another process captures its messages.
    /// - [`ErrorKind::BpfRefused`] without the rights.
    pub fn start(options: &CaptureOptions) -> Result<Self> {
        let pins = Pins::at(&options.pins, PINNED);
        let shared = tables::Shared::open(&pins)?;
        let settings = shared.settings.at(0);
        let setting = BypassCaptureSetting {
            filter: filter(options.connection),
            snap_bytes: options.snap_bytes.min(CaptureOptions::SNAP_MOST),
            with_passed: options.with_passed.into(),
        };
        let object = load("bypass_capture", objects::BYPASS_CAPTURE, |opened| {
            opened.share("bypass_pairs", &shared.pairs)?;
            opened.share("bypass_marks", &shared.marks)?;
            opened.share("bypass_control_word", &shared.word)?;
            opened.set_constant(".rodata.setting", &setting)
        })
        .map_err(|error| explained(&error))?;
        let ring = object.map("bypass_captured")?.consume()?;
        let counts = object.map("bypass_capture_word")?.share_values()?;
        let program = object.program("bypass_capture")?;
        let said = settings.capture_until_ns.load(Ordering::Acquire);
        let mut capture = Self {
            ring,
            counts,
            until_ns: said,
            missed_before: 0,
            missed: 0,
            is_over: true,
            shared,
            _object: object,
        };
        if said > now_ns() || !capture.go_on() {
            return Err(Error::new(
                ErrorKind::System,
                "another process captures the messages of this bypass: wait until it ends, or end it",
            ));
        }
        capture.is_over = false;
        let placed = capture.shared.captures.set_program(SLOT, &program);
        placed.map_err(|errno| Error::system("cannot have messages captured", errno))?;
        capture.missed_before = capture.missed_now();
        Ok(capture)
    }

    /// Takes what was captured, and says that it goes on. Call it every 10 ms: otherwise messages are lost.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn turn<E>(
        &mut self,
        each: impl FnMut(&Message<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<CaptureEnd>, E> {
        self.take(each)?;
        if !self.go_on() {
            self.is_over = true;
            return Ok(Some(CaptureEnd::Superseded));
        }
        self.missed = self.missed_now() - self.missed_before;
        let settings = self.shared.settings.at(0);
        let heartbeat_ns = settings.lease.heartbeat_ns.load(Ordering::Acquire);
        let is_gone = now_ns().saturating_sub(heartbeat_ns) > OWNER_GONE.as_nanos() as u64;
        let has_ended = is_gone || settings.stopping.load(Ordering::Acquire) != 0;
        Ok(has_ended.then_some(CaptureEnd::BypassEnded))
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
        // Those that run may still write.
        if wait_for_programs().is_err() {
            std::thread::sleep(tables::PROGRAM_MOST);
        }
        self.take(each)?;
        Ok(self.captured())
    }

    /// How many messages it were so far.
    pub fn captured(&self) -> Captured {
        let counts = self.counts.at(0);
        let count = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
        Captured {
            messages: count(&counts.taken),
            lost: count(&counts.lost) + self.missed,
            torn: count(&counts.torn),
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

    /// Says that it lives. Whether it was not taken for dead.
    fn go_on(&mut self) -> bool {
        let next = now_ns() + FRESH.as_nanos() as u64;
        let until_ns = &self.shared.settings.at(0).capture_until_ns;
        let said =
            until_ns.compare_exchange(self.until_ns, next, Ordering::AcqRel, Ordering::Relaxed);
        self.until_ns = next;
        said.is_ok()
    }

    fn missed_now(&self) -> u64 {
        let missed = &self.shared.settings.at(0).capture_missed;
        missed.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        if self.is_over || !self.go_on() {
            return;
        }
        self.is_over = true;
        self.missed = self.missed_now() - self.missed_before;
        // In this order, so that it does not remove the program of the next.
        self.shared.captures.remove(&SLOT);
        let until_ns = &self.shared.settings.at(0).capture_until_ns;
        let _ = until_ns.compare_exchange(self.until_ns, 0, Ordering::AcqRel, Ordering::Relaxed);
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
