//! The kernel side in one network namespace: programs, maps, and the devices that they are attached to.

pub(crate) mod absence;
mod attachment;
mod brief_socket;
pub(crate) mod counts;
mod failure;
mod following;
mod forwarded;
mod handle;
mod per_namespace;
mod preceding;
#[cfg(test)]
mod probe;
mod room;
mod watch;
mod watched;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

pub(super) use self::attachment::Attached;
use self::attachment::{AttachState, Attachment};
pub(super) use self::failure::Failure;
use self::following::Following;
pub(crate) use self::handle::DatapathHandle;
use self::per_namespace::PerNamespace;
use self::preceding::Preceding;
use self::watched::Watched;
use super::calls::Calls;
use super::flow_slots::{FlowSlots, Offer};
use super::grace::Grace;
use super::patience::Settings;
use super::returns::Returns;
use crate::firewall::Firewall;
use crate::routing::Routing;
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};
use splice_base::obstacle::Obstacle;
use splice_base::reserve::Reserve;
use splice_base::shortage::is_shortage;
use splice_bpf::types::segment_state as state;
use splice_bpf::types::{
    SegmentChangeOver, SegmentCold, SegmentFlow, SegmentGate, SegmentInspection, SegmentOrigin,
    SegmentPlace, SegmentTuple,
};
use splice_bpf::{
    AttachMode, Claimed, ForeignPrograms, Map, Program, SharedArray, clock, load, objects,
};
use splice_firewall::{Links, Tracking};

/// The datapaths of this process.
static DATAPATHS: PerNamespace<Datapath> = PerNamespace::new();

/// The index of lo in every network namespace (`LOOPBACK_IFINDEX`).
pub(super) const LOOPBACK: u32 = 1;

/// How many pairs have room (`FLOWS` in bpf/segment/maps.h).
const PAIRS: u32 = 16_384;

/// As many connections that are forwarded have room in a datapath that is loaded now: 8 MiB by default.
static FORWARD_SLOTS: AtomicU32 = AtomicU32::new(0);
static ASKED_FOR_ROOM: AtomicBool = AtomicBool::new(false);
const DEFAULT_FORWARD_SLOTS: u32 = 32_768;

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
    counts: Map,
    firewall: Watched<Firewall>,
    routing: Watched<Routing>,
    returns: Returns,
    flows: SharedArray<SegmentFlow>,
    /// At the index of their flow.
    change_overs: SharedArray<SegmentChangeOver>,
    colds: SharedArray<SegmentCold>,
    gate: SharedArray<SegmentGate>,
    listeners: Map,
    routes: Map,
    origins: SharedArray<SegmentOrigin>,
    devices: Map,
    free: SharedArray<AtomicU64>,
    release: Program,
    calls: Arc<Calls>,
    grace: Grace,
    table: Mutex<Table>,
    settings: Settings,
    /// How the program is attached.
    mode: Arc<Mutex<AttachMode>>,
    /// `None` if somebody else has it.
    _claimed: Option<Claimed>,
    foreign: Arc<ForeignPrograms>,
    links: Arc<Mutex<Links>>,
    /// `None` where the kernel has no such socket.
    tracking: Option<Mutex<Tracking>>,
    /// A socket of the namespace, for questions about its devices.
    socket: OwnedFd,
    /// What all these cannot do without a descriptor.
    reserve: Arc<Reserve>,
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
    /// Those, and devices to which the program was attached before.
    known_devices: HashSet<u32>,
    /// Devices where the program could not be attached to another place, and what it is to overtake there.
    displaced: HashMap<u32, Vec<Preceding>>,
    /// Devices that another thread works on, or that refused the program.
    attach_states: HashMap<u32, AttachState>,
}

impl Datapath {
    /// The datapath of this thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] when the kernel does not take the program.
    pub(crate) fn here() -> Result<Arc<Self>> {
        DATAPATHS.here(|| Self::new(FORWARD_SLOTS.load(Relaxed)))
    }

    /// Datapaths that are still to be loaded have room for so many connections that are forwarded.
    pub(super) fn make_room(forward_slots: u32) {
        FORWARD_SLOTS.store(forward_slots, Relaxed);
        ASKED_FOR_ROOM.store(true, Relaxed);
    }

    /// The datapath, with room for connections that are forwarded.
    ///
    /// # Errors
    /// As [`here`](Self::here), and if it was loaded without that room.
    pub(super) fn with_forwards() -> Result<Arc<Self>> {
        if !ASKED_FOR_ROOM.load(Relaxed) {
            FORWARD_SLOTS.store(DEFAULT_FORWARD_SLOTS, Relaxed);
        }
        let datapath = Self::here()?;
        if datapath.forward_slots().is_empty() {
            let why = "no room was made for connections that are forwarded before the programs were loaded";
            return Err(Error::new(ErrorKind::BpfRefused, why));
        }
        Ok(datapath)
    }

    /// The same, with a reason and a remedy where there is none.
    pub(crate) fn found() -> Found {
        if let Some(obstacle) = Obstacle::without_net_admin() {
            // With CAP_SYS_ADMIN the programs can be loaded, and then nothing can be asked by netlink.
            return Err(Obstacle::foreseen().unwrap_or(obstacle));
        }
        Self::watched().map_err(|error| Obstacle::of_bpf(&error))
    }

    /// The datapath of this thread's network namespace, whose packet filters and ways are watched.
    ///
    /// # Errors
    /// As [`here`](Self::here).
    fn watched() -> Result<Arc<Self>> {
        let datapath = Self::here()?;
        // Not only when the first pair asks: its loop would wait. A failure is reported to each pair that does
        // not bypass the filters.
        let failures = [datapath.firewall().err(), datapath.routing().err()];
        match failures.into_iter().flatten().find(Failure::is_short) {
            None => Ok(datapath),
            Some(failure) => Err(failure.into_error()),
        }
    }

    fn new(forward_slots: u32) -> Result<Self> {
        room::require()?;
        let slots = PAIRS + forward_slots;
        let object = load("segment", objects::SEGMENT, |opened| {
            opened.resize("segment_flows", slots)?;
            opened.resize("segment_colds", slots)?;
            opened.resize("segment_tuples", PAIRS + slots)?;
            opened.resize("segment_free", slots)
        })?;
        clock::prepare();
        let flows: SharedArray<SegmentFlow> = object.map("segment_flows")?.share_values()?;
        let ingress = object.program("segment_ingress")?;
        // Without it other relays that may not ask for names take this program for a filter.
        let claimed = unless_short(ingress.id().and_then(Claimed::program))?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .context("cannot ask for devices")?;
        let reserve = Arc::new(Reserve::filled().context("cannot reserve descriptors")?);
        let foreign = ForeignPrograms::here(Arc::clone(&reserve));
        let links = Links::new().context("cannot ask for tc filters")?;
        let tracking = unless_short(Tracking::new())?;
        Ok(Self {
            ingress,
            mode: Arc::new(Mutex::new(AttachMode::Tcx)),
            _claimed: claimed.flatten(),
            foreign: Arc::new(foreign.context("cannot ask for other programs")?),
            links: Arc::new(Mutex::new(links)),
            tracking: tracking.map(Mutex::new),
            socket,
            reserve,
            egress: object.program("segment_egress")?,
            change_overs: object.map("segment_change_overs")?.share_values()?,
            colds: object.map("segment_colds")?.share_values()?,
            gate: object.map("segment_gates")?.share_values()?,
            listeners: object.map("segment_listeners")?,
            routes: object.map("segment_routes")?,
            origins: object.map("segment_origins")?.share_values()?,
            devices: object.map("segment_devices")?,
            free: object.map("segment_free")?.share_values()?,
            release: object.program("segment_release")?,
            calls: Arc::new(Calls::of(object.map("segment_calls")?)?),
            grace: Grace::default(),
            inspect: object.program("segment_inspect")?,
            forget: object.program("segment_forget")?,
            tracked: object.program("segment_tracked")?,
            asleep: object.program("segment_asleep")?,
            tuples: object.map("segment_tuples")?,
            counts: object.map(counts::MAP)?,
            table: Mutex::new(Table {
                slots: FlowSlots::new(PAIRS),
                owners: HashMap::new(),
                devices: HashMap::new(),
                known_devices: HashSet::new(),
                displaced: HashMap::new(),
                attach_states: HashMap::new(),
            }),
            attaching: Mutex::new(()),
            firewall: Watched::default(),
            routing: Watched::default(),
            returns: Returns::default(),
            settings: Settings::here(),
            flows,
        })
    }

    /// Where pairs are reported that go back for what a peer or its path does.
    pub(super) fn returns(&self) -> &Returns {
        &self.returns
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

    /// The packet filters that segments bypass. The first call, which [`found`](Self::found) makes, loads a program.
    ///
    /// # Errors
    /// Why they cannot be watched.
    pub(super) fn firewall(self: &Arc<Self>) -> std::result::Result<Arc<Firewall>, Failure> {
        self.firewall.get(|| {
            let following = Following {
                own: self
                    .ingress
                    .id()
                    .context("cannot ask for the id of the program")?,
                mode: Arc::clone(&self.mode),
                links: Arc::clone(&self.links),
                foreign: Arc::clone(&self.foreign),
            };
            // The datapath has the firewall, which keeps this.
            let datapath = Arc::downgrade(self);
            let look_around = move || {
                if let Some(datapath) = datapath.upgrade() {
                    datapath.look_at_attachments();
                }
            };
            Firewall::watch(
                Box::new(move |device| following.first(device)),
                Box::new(look_around),
            )
        })
    }

    /// The ways that segments take.
    ///
    /// # Errors
    /// Why they cannot be watched.
    pub(super) fn routing(&self) -> std::result::Result<Arc<Routing>, Failure> {
        self.routing.get(Routing::watch)
    }

    /// Connection tracking.
    pub(super) fn tracking(&self) -> Option<MutexGuard<'_, Tracking>> {
        let tracking = self.tracking.as_ref()?;
        // After a request that failed the next one has another number.
        Some(tracking.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For how long connections of this network namespace retransmit.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whom the program calls.
    pub(super) fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    pub(super) fn grace(&self) -> &Grace {
        &self.grace
    }

    /// The filter of sockets that sleep.
    pub(super) fn asleep(&self) -> &Program {
        &self.asleep
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

    /// What few segments of a flow touch.
    pub(super) fn cold(&self, slot: u32) -> &SegmentCold {
        self.colds.at(slot as usize)
    }

    pub(super) fn change_over(&self, slot: u32) -> &SegmentChangeOver {
        self.change_overs.at(slot as usize)
    }

    pub(super) fn flow(&self, slot: u32) -> &SegmentFlow {
        self.flows.at(slot as usize)
    }
}

/// `None` for what cannot be had on this host.
///
/// # Errors
/// If something is short for the moment.
fn unless_short<T, E: Into<std::io::Error>>(made: std::result::Result<T, E>) -> Result<Option<T>> {
    match made.map_err(Into::into) {
        Ok(made) => Ok(Some(made)),
        Err(error) if Errno::from_io_error(&error).is_some_and(is_shortage) => {
            Err(Error::system("cannot make a socket for the engine", error))
        }
        Err(_) => Ok(None),
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
