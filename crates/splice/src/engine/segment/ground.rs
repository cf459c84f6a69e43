//! The kernel side in one network namespace: programs, maps, and the devices it stands on.

mod footing;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use self::footing::{Approach, Footing};
use super::slots::{Offer, Slots};
use crate::bpf_clock;
use crate::bpf_object::device::{Way, namespace};
use crate::bpf_object::{Map, Program, SharedArray, load, statistics};
use crate::bpf_types::{
    SegmentChangeOver, SegmentFlow, SegmentGate, SegmentInspection, SegmentPlace, SegmentTuple,
};
use crate::bpf_types::{segment_reason as reason, segment_state as state};
use crate::error::Result;
use crate::firewall::Firewall;
use crate::obstacle::Obstacle;

static OBJECT: &[u8] = include_bytes!("../../../bpf/prebuilt/segment.bpf.o");

/// The grounds of this process, by the namespace's cookie.
static GROUNDS: Mutex<Vec<(u64, Weak<Ground>)>> = Mutex::new(Vec::new());

/// Where the program counts; the kernel keeps 15 letters of a name.
const COUNTS_MAP: &str = "segment_counts";

/// The index of lo in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// How far apart the pairs of a loop change over, ten to a tick of its deadlines. One takes 26 µs of the
/// loop's time, half of them in its first turn (1000 pairs under load, release build); the rest is for
/// bytes. But while some have changed over and others have not, the latter are served last where the
/// CPU is short, so it is not drawn out either.
const BETWEEN_PAIRS: Duration = Duration::from_micros(100);
/// The most that one turn of the loop begins with, should it come late.
const PAIRS_PER_TURN: u32 = 10;

/// What all spliced pairs of one network namespace share. Relays in a row within a process find each
/// other's flows in it; those of several processes hand segments on over lo.
pub(crate) struct Ground {
    ingress: Program,
    egress: Program,
    inspect: Program,
    forget: Program,
    tracked: Program,
    asleep: Program,
    tuples: Map,
    /// Or why the packet filters cannot be watched.
    firewall: OnceLock<std::result::Result<Arc<Firewall>, String>>,
    flows: SharedArray<SegmentFlow>,
    /// At the index of their flow.
    change_overs: SharedArray<SegmentChangeOver>,
    gate: SharedArray<SegmentGate>,
    book: Mutex<Book>,
    /// Held while the program is attached to a device.
    attaching: Mutex<()>,
}

/// The ground, or what is in the way of one.
type Found = std::result::Result<Arc<Ground>, Obstacle>;

/// A loop's hold on the ground, taken when the first pair wants it. As long as the loop has
/// tasks, the program stays where it is attached.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    found: Option<Found>,
    loading: Option<JoinHandle<Found>>,
    /// When the next pair may begin to change over.
    next_at: Option<Instant>,
    /// The loop's turn that pairs last began in, and how many.
    begun: Option<(Instant, u32)>,
}

impl Standing {
    pub(crate) fn ground(&mut self) -> Found {
        self.found.get_or_insert_with(Ground::found).clone()
    }

    /// The same without a wait, which would be one for all pairs of the loop: `None` while another
    /// thread loads the program.
    pub(crate) fn ground_at_hand(&mut self) -> Option<Found> {
        if self.found.is_none() {
            self.found = match self.loading.take() {
                Some(loading) if loading.is_finished() => {
                    let found = loading.join();
                    let defect = || Obstacle::new("loading the program failed", "report it");
                    Some(found.unwrap_or_else(|_| Err(defect())))
                }
                Some(loading) => {
                    self.loading = Some(loading);
                    None
                }
                // It begins in this thread's network namespace.
                None => match thread::Builder::new()
                    .name("load".into())
                    .spawn(Ground::found)
                {
                    Ok(loading) => {
                        self.loading = Some(loading);
                        None
                    }
                    Err(error) => {
                        let reason = format!("no thread can load the program: {error}");
                        let remedy = "raise RLIMIT_NPROC, or pids.max of the control group";
                        Some(Err(Obstacle::new(reason, remedy)))
                    }
                },
            };
        }
        self.found.clone()
    }

    /// Whether a pair may begin to change over in the loop's turn of `now`, else when; `booked` was told
    /// so before. While one does, the loop's others wait, and many may want to at once: all that were
    /// accepted together.
    pub(crate) fn admit(&mut self, now: Instant, booked: bool) -> std::result::Result<(), Instant> {
        let begun = match self.begun {
            Some((turn, count)) if turn == now => count,
            _ => 0,
        };
        let next_at = self.next_at.map_or(now, |next| next.max(now));
        if begun < PAIRS_PER_TURN && (booked || next_at == now) {
            self.begun = Some((now, begun + 1));
            if !booked {
                self.next_at = Some(now + BETWEEN_PAIRS);
            }
            return Ok(());
        }
        self.next_at = Some(next_at + BETWEEN_PAIRS);
        Err(next_at + BETWEEN_PAIRS)
    }

    /// The loop has no tasks left. Who was refused is not going to be let in.
    pub(crate) fn leave(&mut self) {
        self.found.take_if(|found| found.is_ok());
        self.loading = None;
        self.next_at = None;
    }

    /// The same, and connections over lo have their handshakes seen from now on.
    pub(crate) fn prepare(&mut self) -> std::result::Result<(), Obstacle> {
        let ground = self.ground()?;
        ground
            .stand_on(LOOPBACK)
            .map_err(|error| Obstacle::of_bpf(&error.to_string()))?;
        Ok(())
    }
}

/// What is in use.
struct Book {
    slots: Slots,
    owners: HashMap<SegmentTuple, u32>,
    devices: HashMap<u32, Footing>,
    /// Devices that another thread was to attach the program to, or to ask for it.
    approaches: HashMap<u32, Approach>,
    way: Way,
}

/// How many segments went which way, by the reasons' names (`bpf/reasons.h`): in all network namespaces, since
/// the programs that are there were loaded, by whatever process. Empty where no program is loaded.
///
/// # Errors
/// Where the process may not list the maps of this machine.
pub(crate) fn counts() -> Result<Vec<(&'static str, u64)>> {
    let counts = statistics::counters(COUNTS_MAP, reason::NAMES.len())?;
    Ok(reason::NAMES.into_iter().zip(counts).collect())
}

impl Ground {
    /// The ground of this thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](crate::ErrorKind::BpfRefused) when the kernel does not take the program.
    pub(crate) fn here() -> Result<Arc<Self>> {
        let namespace = namespace()?;
        let mut grounds = GROUNDS.lock().unwrap_or_else(PoisonError::into_inner);
        grounds.retain(|(_, ground)| ground.strong_count() > 0);
        let known = grounds.iter().find(|(cookie, _)| *cookie == namespace);
        if let Some(ground) = known.and_then(|(_, ground)| ground.upgrade()) {
            return Ok(ground);
        }
        let ground = Arc::new(Self::new()?);
        grounds.push((namespace, Arc::downgrade(&ground)));
        Ok(ground)
    }

    /// The same, in a person's words where there is none.
    pub(crate) fn found() -> Found {
        let ground = Self::here().map_err(|error| Obstacle::of_bpf(&error.to_string()))?;
        // Not when the first pair asks: its loop would wait. What keeps it from being watched is told to
        // each pair that does not bypass it.
        let _ = ground.firewall();
        Ok(ground)
    }

    fn new() -> Result<Self> {
        let object = load("segment", OBJECT, |_| Ok(()))?;
        bpf_clock::prepare();
        let flows: SharedArray<SegmentFlow> = object.map("segment_flows")?.share_values()?;
        Ok(Self {
            ingress: object.program("segment_ingress")?,
            egress: object.program("segment_egress")?,
            change_overs: object.map("segment_change_overs")?.share_values()?,
            gate: object.map("segment_gates")?.share_values()?,
            inspect: object.program("segment_inspect")?,
            forget: object.program("segment_forget")?,
            tracked: object.program("segment_tracked")?,
            asleep: object.program("segment_asleep")?,
            tuples: object.map("segment_tuples")?,
            book: Mutex::new(Book {
                slots: Slots::new(flows.len() as u32),
                owners: HashMap::new(),
                devices: HashMap::new(),
                approaches: HashMap::new(),
                way: Way::Tcx,
            }),
            attaching: Mutex::new(()),
            firewall: OnceLock::new(),
            flows,
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Every change of the book is complete before anything can panic.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel about two sockets, each by what its peer's segments carry.
    pub(crate) fn inspect(
        &self,
        tuples: &[SegmentTuple; 2],
    ) -> std::result::Result<SegmentInspection, Errno> {
        self.inspect.run(&SegmentInspection {
            tuple: *tuples,
            ..SegmentInspection::default()
        })
    }

    /// Has connection tracking forget two connections; tells how many it knew.
    pub(super) fn forget(&self, tuples: &[SegmentTuple; 2]) -> std::result::Result<u32, Errno> {
        let answer = self.forget.run(&SegmentInspection {
            tuple: *tuples,
            ..SegmentInspection::default()
        })?;
        Ok(answer.forgotten)
    }

    /// What connection tracking knows of two connections ([`segment_tracked`](crate::bpf_types::segment_tracked)).
    pub(super) fn tracked(
        &self,
        tuples: &[SegmentTuple; 2],
    ) -> std::result::Result<[u32; 2], Errno> {
        let answer = self.tracked.run(&SegmentInspection {
            tuple: *tuples,
            ..SegmentInspection::default()
        })?;
        Ok(answer.tracked)
    }

    /// The packet filters that segments are moved past, or why they cannot be watched. The first call loads
    /// a program; [`found`](Self::found) makes it.
    pub(super) fn firewall(&self) -> std::result::Result<&Arc<Firewall>, &str> {
        let watch = || Firewall::watch().map_err(|error| error.to_string());
        let firewall = self.firewall.get_or_init(watch);
        firewall.as_ref().map_err(String::as_str)
    }

    /// The filter of sockets that sleep.
    pub(super) fn asleep(&self) -> &Program {
        &self.asleep
    }

    /// From now on goes to devices as on a kernel that has no tcx.
    #[cfg(test)]
    pub(super) fn stand_by_clsact(&self) {
        self.book().way = Way::Clsact;
    }

    /// Leaves all devices, and tells which.
    #[cfg(test)]
    pub(super) fn step_off(&self) -> Vec<u32> {
        self.book()
            .devices
            .drain()
            .map(|(device, _)| device)
            .collect()
    }

    /// From now on has room for so many more flows only.
    #[cfg(test)]
    pub(super) fn keep_slots(&self, count: usize) {
        self.book().slots.keep_free(count);
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        let book = self.book();
        assert_eq!(book.owners.len(), self.tuples.count());
        book.owners.len()
    }

    /// Payload that was translated, repetitions included, in bytes. A slot keeps its counts until
    /// it is used again, which is after all others.
    #[cfg(test)]
    pub(super) fn translated_bytes(&self) -> u64 {
        let flows = (0..self.flows.len()).map(|slot| self.flows.at(slot));
        let sides = flows.flat_map(|flow| &flow.side);
        sides.map(|side| side.payload_bytes.load(Relaxed)).sum()
    }

    #[cfg(test)]
    pub(super) fn tuples(&self) -> Vec<SegmentTuple> {
        self.book().owners.keys().copied().collect()
    }

    /// Has the program see a packet that never was on a wire.
    #[cfg(test)]
    pub(super) fn feed(&self, packet: &[u8]) -> std::result::Result<i32, Errno> {
        self.feed_on(1, packet)
    }

    /// The same, as if it came in on a device.
    #[cfg(test)]
    pub(super) fn feed_on(&self, device: u32, packet: &[u8]) -> std::result::Result<i32, Errno> {
        let (verdict, _) = self.ingress.run_on(packet, device, false)?;
        Ok(verdict)
    }

    /// As if that device had summed it up; what the kernel answers then is told at `run_on`.
    #[cfg(test)]
    pub(super) fn feed_summed_up(
        &self,
        device: u32,
        packet: &[u8],
    ) -> std::result::Result<(i32, Vec<u8>), Errno> {
        self.ingress.run_on(packet, device, true)
    }

    /// As if a socket of this host had sent it; what leaves then.
    #[cfg(test)]
    pub(super) fn feed_out(&self, packet: &[u8]) -> std::result::Result<Vec<u8>, Errno> {
        let (_, left) = self.egress.run_on(packet, LOOPBACK, false)?;
        Ok(left)
    }

    /// A slot for a flow, and its serial number; `None` when there is none.
    pub(super) fn take_slot(&self) -> Option<(u32, u32)> {
        let mut book = self.book();
        let now = Instant::now();
        // Two for one, so that there are more than a few again.
        for _ in 0..2 {
            if let Some(old) = book.slots.give_up(now) {
                self.clear(&mut book, old.slot, old.serial, &old.tuples);
            }
        }
        book.slots.take()
    }

    /// The flow is over: from now on its slot may become another's (`Flow::has_slot`).
    pub(super) fn offer_slot(&self, slot: u32, serial: u32, tuples: [SegmentTuple; 2]) -> Instant {
        let mut book = self.book();
        let now = Instant::now();
        let offer = Offer {
            slot,
            serial,
            tuples,
        };
        book.slots.offer(now, offer);
        now
    }

    /// Lets segments with this tuple find the flow.
    pub(super) fn enter(
        &self,
        tuple: &SegmentTuple,
        place: &SegmentPlace,
    ) -> std::result::Result<(), Errno> {
        let mut book = self.book();
        self.tuples.update(tuple, place)?;
        book.owners.insert(*tuple, place.serial);
        Ok(())
    }

    /// Takes a slot back, if it is still this flow's.
    pub(super) fn give_back_slot(
        &self,
        slot: u32,
        serial: u32,
        tuples: &[SegmentTuple; 2],
        offered_at: Option<Instant>,
    ) {
        let mut book = self.book();
        if self.flow(slot).serial.load(Relaxed) == serial {
            self.clear(&mut book, slot, serial, tuples);
            book.slots.give_back(slot, serial, offered_at);
        }
    }

    /// The slot is nobody's, and nothing leads to it. Tuples that belong to a later flow by now stay.
    fn clear(&self, book: &mut Book, slot: u32, serial: u32, tuples: &[SegmentTuple; 2]) {
        let entry = self.flow(slot);
        entry.serial.store(0, Relaxed);
        entry.state.store(state::FREE, Release);
        for tuple in tuples {
            if book.owners.get(tuple) == Some(&serial) {
                book.owners.remove(tuple);
                self.tuples.remove(tuple);
            }
        }
    }

    /// How many flows have sockets that may still send.
    pub(super) fn awake(&self) -> &AtomicU32 {
        &self.gate.at(0).awake
    }

    pub(super) fn change_over(&self, slot: u32) -> &SegmentChangeOver {
        self.change_overs.at(slot as usize)
    }

    pub(super) fn flow(&self, slot: u32) -> &SegmentFlow {
        self.flows.at(slot as usize)
    }
}

impl fmt::Debug for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let book = self.book();
        f.debug_struct("Ground")
            .field("tuples", &book.owners.len())
            .field("devices", &book.devices.keys())
            .finish_non_exhaustive()
    }
}
