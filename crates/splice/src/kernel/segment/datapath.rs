//! The kernel side in one network namespace: programs, maps, and the devices that they are attached to.

mod attachment;
mod handle;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use rustix::io::Errno;

use self::attachment::{AttachState, Attachment};
pub(crate) use self::handle::DatapathHandle;
use super::flow_slots::{FlowSlots, Offer};
use crate::firewall::Firewall;
use splice_base::error::Result;
use splice_base::obstacle::Obstacle;
use splice_bpf::types::{
    SegmentChangeOver, SegmentFlow, SegmentGate, SegmentInspection, SegmentPlace, SegmentTuple,
};
use splice_bpf::types::{segment_reason as reason, segment_state as state};
use splice_bpf::{
    AttachMode, Map, Program, SharedArray, clock, load, namespace, objects, statistics,
};

/// The datapaths of this process, by the namespace's cookie.
static DATAPATHS: Mutex<Vec<(u64, Weak<Datapath>)>> = Mutex::new(Vec::new());

/// The map with the counters. The kernel keeps 15 characters of a name.
const COUNTS_MAP: &str = "segment_counts";

/// The index of lo in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// What all spliced pairs of one network namespace share. Chained relays in one process find each other's
/// flows here. Those of several processes pass segments on over lo.
pub(crate) struct Datapath {
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
    table: Mutex<Table>,
    /// Locked while the program is being attached to a device.
    attaching: Mutex<()>,
}

/// The datapath, or why there is none.
type Found = std::result::Result<Arc<Datapath>, Obstacle>;

/// What is in use.
struct Table {
    slots: FlowSlots,
    owners: HashMap<SegmentTuple, u32>,
    devices: HashMap<u32, Attachment>,
    /// Devices that another thread works on, or that refused the program.
    attach_states: HashMap<u32, AttachState>,
    mode: AttachMode,
}

/// How many segments each reason of `bpf/lib/reasons.h` has counted, by its name: in all network namespaces,
/// since the programs were loaded, by whatever process. Empty if no program is loaded.
///
/// # Errors
/// If the process may not list the BPF maps of this machine.
pub(crate) fn counts() -> Result<Vec<(&'static str, u64)>> {
    let counts = statistics::counters(COUNTS_MAP, reason::NAMES.len())?;
    Ok(reason::NAMES.into_iter().zip(counts).collect())
}

impl Datapath {
    /// The datapath of this thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`](crate::ErrorKind::BpfRefused) when the kernel does not take the program.
    pub(crate) fn here() -> Result<Arc<Self>> {
        let namespace = namespace()?;
        let mut datapaths = DATAPATHS.lock().unwrap_or_else(PoisonError::into_inner);
        datapaths.retain(|(_, datapath)| datapath.strong_count() > 0);
        let known = datapaths.iter().find(|(cookie, _)| *cookie == namespace);
        if let Some(datapath) = known.and_then(|(_, datapath)| datapath.upgrade()) {
            return Ok(datapath);
        }
        let datapath = Arc::new(Self::new()?);
        datapaths.push((namespace, Arc::downgrade(&datapath)));
        Ok(datapath)
    }

    /// The same, with a reason and a remedy where there is none.
    pub(crate) fn found() -> Found {
        let datapath = Self::here().map_err(|error| Obstacle::of_bpf(&error))?;
        // Not only when the first pair asks: its loop would wait. A failure is reported to each pair that does
        // not bypass the filters.
        let _ = datapath.firewall();
        Ok(datapath)
    }

    fn new() -> Result<Self> {
        let object = load("segment", objects::SEGMENT, |_| Ok(()))?;
        clock::prepare();
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
            table: Mutex::new(Table {
                slots: FlowSlots::new(flows.len() as u32),
                owners: HashMap::new(),
                devices: HashMap::new(),
                attach_states: HashMap::new(),
                mode: AttachMode::Tcx,
            }),
            attaching: Mutex::new(()),
            firewall: OnceLock::new(),
            flows,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change of the table is complete before anything can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel about two sockets, each by the tuple of its peer's segments.
    pub(crate) fn inspect(
        &self,
        tuples: &[SegmentTuple; 2],
    ) -> std::result::Result<SegmentInspection, Errno> {
        self.inspect.run(&SegmentInspection {
            tuple: *tuples,
            ..SegmentInspection::default()
        })
    }

    /// Removes two connections from connection tracking; returns how many it knew.
    pub(super) fn forget(&self, tuples: &[SegmentTuple; 2]) -> std::result::Result<u32, Errno> {
        let answer = self.forget.run(&SegmentInspection {
            tuple: *tuples,
            ..SegmentInspection::default()
        })?;
        Ok(answer.forgotten)
    }

    /// What connection tracking knows of two connections ([`segment_tracked`](splice_bpf::types::segment_tracked)).
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

    /// The packet filters that segments bypass, or why they cannot be watched. The first call, which
    /// [`found`](Self::found) makes, loads a program.
    pub(super) fn firewall(&self) -> std::result::Result<&Arc<Firewall>, &str> {
        let watch = || Firewall::watch().map_err(|error| error.to_string());
        let firewall = self.firewall.get_or_init(watch);
        firewall.as_ref().map_err(String::as_str)
    }

    /// The filter of sockets that sleep.
    pub(super) fn asleep(&self) -> &Program {
        &self.asleep
    }

    /// Attaches from now on as on a kernel without tcx.
    #[cfg(test)]
    pub(super) fn attach_by_clsact(&self) {
        self.table().mode = AttachMode::Clsact;
    }

    /// Detaches from all devices; returns which.
    #[cfg(test)]
    pub(super) fn detach_all(&self) -> Vec<u32> {
        self.table()
            .devices
            .drain()
            .map(|(device, _)| device)
            .collect()
    }

    /// From now on has room for so many more flows only.
    #[cfg(test)]
    pub(super) fn keep_slots(&self, count: usize) {
        self.table().slots.keep_free(count);
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        let table = self.table();
        assert_eq!(table.owners.len(), self.tuples.count());
        table.owners.len()
    }

    /// How many bytes of payload were translated, retransmissions included. A slot keeps its counts until
    /// it is used again, which is after all others.
    #[cfg(test)]
    pub(super) fn translated_bytes(&self) -> u64 {
        let flows = (0..self.flows.len()).map(|slot| self.flows.at(slot));
        let sides = flows.flat_map(|flow| &flow.side);
        sides.map(|side| side.payload_bytes.load(Relaxed)).sum()
    }

    #[cfg(test)]
    pub(super) fn tuples(&self) -> Vec<SegmentTuple> {
        self.table().owners.keys().copied().collect()
    }

    /// Runs the program on a packet that never was on a wire.
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

    /// As if that device had computed its checksum (CHECKSUM_COMPLETE); see `run_on`.
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
        let mut table = self.table();
        let now = Instant::now();
        // Two for one, so that there are more than a few again.
        for _ in 0..2 {
            if let Some(old) = table.slots.give_up(now) {
                self.clear(&mut table, old.slot, old.serial, &old.tuples);
            }
        }
        table.slots.take()
    }

    /// The flow is over: from now on its slot may become another's (`Flow::has_slot`).
    pub(super) fn offer_slot(&self, slot: u32, serial: u32, tuples: [SegmentTuple; 2]) -> Instant {
        let mut table = self.table();
        let now = Instant::now();
        let offer = Offer {
            slot,
            serial,
            tuples,
        };
        table.slots.offer(now, offer);
        now
    }

    /// Lets segments with this tuple find the flow.
    pub(super) fn enter(
        &self,
        tuple: &SegmentTuple,
        place: &SegmentPlace,
    ) -> std::result::Result<(), Errno> {
        let mut table = self.table();
        self.tuples.update(tuple, place)?;
        table.owners.insert(*tuple, place.serial);
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
        let mut table = self.table();
        if self.flow(slot).serial.load(Relaxed) == serial {
            self.clear(&mut table, slot, serial, tuples);
            table.slots.give_back(slot, serial, offered_at);
        }
    }

    /// The slot is nobody's, and nothing leads to it. Tuples that belong to a later flow by now stay.
    fn clear(&self, table: &mut Table, slot: u32, serial: u32, tuples: &[SegmentTuple; 2]) {
        let entry = self.flow(slot);
        entry.serial.store(0, Relaxed);
        entry.state.store(state::FREE, Release);
        for tuple in tuples {
            if table.owners.get(tuple) == Some(&serial) {
                table.owners.remove(tuple);
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

impl fmt::Debug for Datapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        f.debug_struct("Datapath")
            .field("tuples", &table.owners.len())
            .field("devices", &table.devices.keys())
            .finish_non_exhaustive()
    }
}
