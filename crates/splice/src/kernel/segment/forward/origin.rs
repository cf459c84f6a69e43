//! A server as one address of this host reaches it: the ports that are the relay's there, and their connections.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use splice_bpf::clock::now_ns;
use splice_bpf::types::{SegmentCold, SegmentFlow, SegmentOrigin, SegmentReleased, SegmentRoute};
use splice_bpf::types::{segment_mark as mark, segment_state as state};

use super::super::datapath::Datapath;
use super::super::flow::TIME_WAIT;
use super::super::liveness::{Liveness, Patience, Silence, Step};
use super::ended::{ForwardEnd, ForwardTimes, Forwarded, Told, acknowledged};
use super::owner::Owner;
use super::raw_socket::RawSocket;

/// How long a connection that is over still translates if ports are short. By then a peer has retransmitted once what
/// it saw no acknowledgement for (`TIME_WAIT_LEAST` says why).
const TIME_WAIT_LEAST: Duration = super::super::flow_slots::TIME_WAIT_LEAST;

/// How long a port rests after a connection without timestamps: as long as the server's TIME_WAIT
/// (`TCP_TIMEWAIT_LEN`), in which it would take the next SYN for an old duplicate.
const REST_WITHOUT_TIMESTAMPS: Duration = Duration::from_secs(60);

/// Ports are short if fewer than one in so many is free.
const SHORT: u64 = 4;

pub(super) struct Origin {
    pub(super) owner: Arc<Owner>,
    pub(super) index: u32,
    pub(super) server: SocketAddr,
    pub(super) source: IpAddr,
    pub(super) device: u32,
    pub(super) base: u32,
    pub(super) ports: u32,
    /// At the index of their port.
    told: Vec<Told>,
    /// How many connections had begun at the last look.
    begun: u64,
    /// Why user space has ended a connection, by its slot.
    causes: HashMap<u32, ForwardEnd>,
    /// Of connections one of whose peers is silent for long, by their slots.
    silent: HashMap<u32, [Liveness; 2]>,
    /// How many connections were open or opening at the last look.
    pub(super) live: usize,
    /// What was acknowledged on live connections between the last look and the one before.
    pub(super) moved_bytes: [u64; 2],
    /// What the last look has found out about the server's times.
    pub(super) times: Vec<ForwardTimes>,
    _claim: UnixDatagram,
}

/// Why the packet filters would stop a connection, if they would.
type Filter<'a> = dyn Fn(&SegmentFlow) -> Option<String> + 'a;

/// What the owner of a connection wants.
pub(super) struct Terms<'a> {
    pub(super) connect_timeout: Duration,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) half_close_timeout: Option<Duration>,
    pub(super) patience: Patience,
    /// Why it is to end at once.
    pub(super) end: Option<ForwardEnd>,
    /// Why the packet filters would stop a connection now; set where they have changed.
    pub(super) filter: Option<&'a Filter<'a>>,
}

impl Terms<'_> {
    /// Why a connection is to end at once.
    fn end_of(&self, flow: &SegmentFlow) -> Option<ForwardEnd> {
        if self.end.is_some() {
            return self.end;
        }
        let why = self.filter?(flow)?;
        tracing::debug!("a forwarded connection is reset: packet filters: {why}");
        Some(ForwardEnd::Filtered)
    }
}

impl Origin {
    /// Takes the slots from `base` on, which nobody else has now. Free ports stand in a random order, so that the next one
    /// cannot be guessed from the last one.
    ///
    /// # Errors
    /// If another process of this host forwards to the same server: its program and this one would take each other's
    /// segments.
    pub(super) fn new(
        datapath: &Datapath,
        index: u32,
        (server, source, device): (SocketAddr, IpAddr, u32),
        (first_port, ports): (u16, u32),
        base: u32,
        owner: Arc<Owner>,
    ) -> Result<Self, String> {
        let claim = claim(server, source)?;
        let entry = datapath.origin(index);
        let mut this = Self {
            owner,
            index,
            server,
            source,
            device,
            base,
            ports,
            told: vec![Told::default(); ports as usize],
            begun: entry.opened.load(Relaxed),
            causes: HashMap::new(),
            silent: HashMap::new(),
            live: 0,
            moved_bytes: [0; 2],
            times: Vec::new(),
            _claim: claim,
        };
        // What a former owner has left.
        let left = this.slots();
        let left = left.filter(|slot| datapath.flow(*slot).state.load(Acquire) != state::FREE);
        this.release(datapath, entry, &left.collect::<Vec<_>>());
        write(&entry.server, server.ip());
        write(&entry.source, source);
        entry.port.store(server.port().to_be(), Relaxed);
        entry.first_port.store(first_port, Relaxed);
        entry.ports.store(ports, Relaxed);
        entry.base.store(base, Relaxed);
        entry.device.store(device, Relaxed);
        entry.half_open.store(0, Relaxed);
        entry.head.store(0, Relaxed);
        for (at, slot) in shuffled(base, ports).into_iter().enumerate() {
            datapath
                .free_slot(base + at as u32)
                .store(slot.into(), Release);
        }
        entry.tail.store(u64::from(ports), Release);
        Ok(this)
    }

    /// Lets SYNs get ports until then.
    pub(super) fn keep_alive(&self, datapath: &Datapath, until_ns: u64) {
        let (entry, options) = (datapath.origin(self.index), self.owner.options());
        let within = options.connect_timeout.as_millis();
        let within = within.min(u128::from(u32::MAX)) as u32;
        entry.open_within_ms.store(within, Relaxed);
        entry.half_open_most.store(options.half_open, Relaxed);
        entry.alive_until_ns.store(until_ns, Release);
    }

    /// What its server's segments carry.
    pub(super) fn route(&self) -> SegmentRoute {
        SegmentRoute {
            server: mapped(self.server.ip()),
            source: mapped(self.source),
            port: self.server.port().to_be_bytes(),
            ..SegmentRoute::default()
        }
    }

    /// How many connections have begun since the last look.
    pub(super) fn begun(&mut self, datapath: &Datapath) -> u64 {
        let opened = datapath.origin(self.index).opened.load(Relaxed);
        opened - std::mem::replace(&mut self.begun, opened)
    }

    /// No port is in use.
    pub(super) fn is_empty(&self, datapath: &Datapath) -> bool {
        let entry = datapath.origin(self.index);
        self.free(entry) == u64::from(self.ports)
    }

    fn free(&self, entry: &SegmentOrigin) -> u64 {
        let head = entry.head.load(Acquire);
        entry.tail.load(Relaxed) - head
    }

    /// Where packets to the server go on its device: to the server itself, or to a gateway.
    pub(super) fn lead_by(&self, datapath: &Datapath, next_hop: IpAddr) {
        write(&datapath.origin(self.index).next_hop, next_hop);
    }

    /// The server is reached by another device now.
    pub(super) fn move_to(&mut self, datapath: &Datapath, device: u32) {
        self.device = device;
        datapath.origin(self.index).device.store(device, Release);
        for slot in self.slots() {
            datapath.flow(slot).side[0]
                .out_device
                .store(device, Release);
        }
    }

    fn slots(&self) -> std::ops::Range<u32> {
        self.base..self.base + self.ports
    }

    /// Looks at every connection once, and tells of those that have ended.
    pub(super) fn sweep(
        &mut self,
        datapath: &Datapath,
        raw: Option<&RawSocket>,
        terms: &Terms<'_>,
        mut ended: impl FnMut(Forwarded),
    ) {
        let entry = datapath.origin(self.index);
        let free = self.free(entry);
        self.moved_bytes = [0; 2];
        self.times.clear();
        if free == u64::from(self.ports) {
            self.live = 0;
            return;
        }
        let is_short = free * SHORT < u64::from(self.ports);
        let now_ns = now_ns();
        let since =
            |at_ns: &AtomicU64| Duration::from_nanos(now_ns.saturating_sub(at_ns.load(Relaxed)));
        let mut live = 0;
        let mut released = Vec::new();
        for slot in self.slots() {
            let flow = datapath.flow(slot);
            match flow.state.load(Acquire) {
                state::OPENING => {
                    live += 1;
                    let is_late = since(&flow.opened_ns) > terms.connect_timeout;
                    if let Some(why) = terms
                        .end_of(flow)
                        .or_else(|| is_late.then_some(ForwardEnd::TimedOut))
                    {
                        self.give_up(entry, flow, slot, why, raw);
                    }
                }
                state::SPLICED => {
                    live += 1;
                    self.tell(flow, datapath.cold(slot), slot);
                    let idle = terms
                        .idle_timeout
                        .filter(|most| since(&flow.moved_ns) > *most);
                    // The acknowledgement of an end counts as a byte that moves.
                    let half_closed = terms
                        .half_close_timeout
                        .filter(|most| has_ended_stream(flow) && since(&flow.moved_ns) > *most);
                    let silent = raw.is_some_and(|raw| {
                        self.is_given_up(raw, flow, slot, now_ns, &terms.patience)
                    });
                    if has_ended(flow) {
                        // The program was not sure.
                        end_in_order(flow, now_ns);
                    } else if let Some(why) = terms
                        .end_of(flow)
                        .or_else(|| idle.map(|_| ForwardEnd::Idle))
                        .or_else(|| half_closed.map(|_| ForwardEnd::HalfClosed))
                        .or_else(|| silent.then_some(ForwardEnd::Silent))
                    {
                        self.cut(flow, slot, why, raw);
                    }
                }
                state::TIME_WAIT => {
                    // Without a time of opening, no SYN was let through.
                    let is_void = flow.opened_ns.load(Relaxed) == 0;
                    let told = &mut self.told[(slot - self.base) as usize];
                    if !is_void && !std::mem::replace(&mut told.end, true) {
                        self.silent.remove(&slot);
                        let cause = self.causes.remove(&slot);
                        ended(Forwarded::of(flow, datapath.cold(slot), told, cause));
                    }
                    if is_void || is_rested(flow, now_ns, is_short) {
                        released.push(slot);
                    }
                }
                _ => {}
            }
        }
        self.release(datapath, entry, &released);
        self.live = live;
    }

    /// Keeps what was acknowledged on a live connection since the last look, and the times that have become known.
    fn tell(&mut self, flow: &SegmentFlow, cold: &SegmentCold, slot: u32) {
        let told = &mut self.told[(slot - self.base) as usize];
        for (side, (moved, told)) in self.moved_bytes.iter_mut().zip(&mut told.bytes).enumerate() {
            let bytes = acknowledged(flow, side).max(*told);
            *moved += bytes - *told;
            *told = bytes;
        }
        let times = ForwardTimes::of(flow, cold);
        let untold = times.beyond(told.times);
        if !untold.is_empty() {
            told.times = times;
            self.times.push(untold);
        }
    }

    /// Asks peers that have been silent for long, and says whether one of them is given up.
    fn is_given_up(
        &mut self,
        raw: &RawSocket,
        flow: &SegmentFlow,
        slot: u32,
        now_ns: u64,
        patience: &Patience,
    ) -> bool {
        let silences = [0, 1].map(|peer| Silence::of(flow, peer, now_ns));
        if silences.iter().all(|silence| patience.bears(silence)) {
            if !self.silent.is_empty() {
                self.silent.remove(&slot);
            }
            return false;
        }
        let mut is_given_up = false;
        let known = self.silent.entry(slot).or_default();
        for (peer, (liveness, silence)) in known.iter_mut().zip(silences).enumerate() {
            match liveness.look(silence, patience) {
                Step::Wait(_) => {}
                Step::Ask(_) => raw.ask(flow, peer),
                Step::GiveUp => is_given_up = true,
            }
        }
        is_given_up
    }

    /// No answer, or nobody to wait for one.
    fn give_up(
        &mut self,
        entry: &SegmentOrigin,
        flow: &SegmentFlow,
        slot: u32,
        why: ForwardEnd,
        raw: Option<&RawSocket>,
    ) {
        if !leave(flow, state::OPENING) {
            return;
        }
        entry.half_open.fetch_sub(1, AcqRel);
        let is_answered = flow.side[1].marks() & mark::NOTED != 0;
        let why = match why {
            ForwardEnd::TimedOut if is_answered => ForwardEnd::Abandoned,
            why => why,
        };
        self.causes.insert(slot, why);
        match raw {
            Some(raw) if is_answered => raw.reset(flow),
            Some(raw) => raw.refuse(flow),
            None => {}
        }
    }

    /// Ends an established connection by resets.
    fn cut(&mut self, flow: &SegmentFlow, slot: u32, why: ForwardEnd, raw: Option<&RawSocket>) {
        if !leave(flow, state::SPLICED) {
            return;
        }
        self.causes.insert(slot, why);
        if let Some(raw) = raw {
            raw.reset(flow);
        }
    }

    /// Gives ports back.
    fn release(&mut self, datapath: &Datapath, entry: &SegmentOrigin, slots: &[u32]) {
        let most = SegmentReleased::default().flow.len();
        for slots in slots.chunks(most) {
            let mut released = SegmentReleased {
                count: slots.len() as u16,
                ..SegmentReleased::default()
            };
            for (at, slot) in slots.iter().enumerate() {
                released.flow[at] = *slot;
                released.serial[at] = datapath.flow(*slot).serial.load(Relaxed);
            }
            if datapath.release(&released).is_err() {
                // Memory is short: the next look tries again.
                return;
            }
            for slot in slots {
                self.told[(slot - self.base) as usize] = Told::default();
                datapath.flow(*slot).state.store(state::FREE, Release);
                let tail = entry.tail.load(Relaxed);
                let at = self.base + (tail % u64::from(self.ports)) as u32;
                datapath.free_slot(at).store((*slot).into(), Release);
                entry.tail.store(tail + 1, Release);
            }
        }
    }
}

/// Whoever changes the state is the one who ends the connection. Should a reset not be accepted, what comes next goes
/// to the stack, which answers with one.
fn leave(flow: &SegmentFlow, from: u32) -> bool {
    let left = flow
        .state
        .compare_exchange(from, state::TIME_WAIT, AcqRel, Relaxed);
    if left.is_ok() {
        flow.deadline_ns.store(0, Release);
        flow.last_ns.store(now_ns(), Release);
    }
    left.is_ok()
}

/// Both streams have ended, and both ends were acknowledged.
fn has_ended(flow: &SegmentFlow) -> bool {
    let mut sides = flow.side.iter();
    sides.all(|side| side.marks() & mark::FIN_ACKED != 0)
}

/// As the program ends a connection.
fn end_in_order(flow: &SegmentFlow, now_ns: u64) {
    flow.last_ns.store(now_ns, Relaxed);
    let until_ns = now_ns + TIME_WAIT.as_nanos() as u64;
    flow.deadline_ns.store(until_ns, Release);
    // Otherwise the program has ended it meanwhile.
    let _ = flow
        .state
        .compare_exchange(state::SPLICED, state::TIME_WAIT, AcqRel, Relaxed);
}

/// One of the streams has ended, and its end was acknowledged.
fn has_ended_stream(flow: &SegmentFlow) -> bool {
    let mut sides = flow.side.iter();
    sides.any(|side| side.marks() & mark::FIN_ACKED != 0)
}

/// Whether the port of a connection that is over can be another's.
fn is_rested(flow: &SegmentFlow, now_ns: u64, is_short: bool) -> bool {
    let since_last = Duration::from_nanos(now_ns.saturating_sub(flow.last_ns.load(Relaxed)));
    let has_timestamps = flow.side[0].timestamp_delta.load(Relaxed) != 0;
    if has_ended(flow) && !has_timestamps {
        return since_last > REST_WITHOUT_TIMESTAMPS;
    }
    now_ns > flow.deadline_ns.load(Relaxed) || is_short && since_last > TIME_WAIT_LEAST
}

/// Says to other processes of this network namespace that this one forwards to a server, by a socket whose name they
/// cannot have.
fn claim(server: SocketAddr, source: IpAddr) -> Result<UnixDatagram, String> {
    let name = format!("spliced forwards from {source} to {server}");
    let claimed =
        UnixAddress::from_abstract_name(name).and_then(|address| UnixDatagram::bind_addr(&address));
    claimed.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another process forwards to {server} from {source} already")
        }
        _ => format!("no abstract UNIX socket can be bound: {error}"),
    })
}

fn write(words: &[AtomicU32; 4], address: IpAddr) {
    let octets = mapped(address);
    for (word, bytes) in words.iter().zip(octets.as_chunks::<4>().0) {
        word.store(u32::from_ne_bytes(*bytes), Relaxed);
    }
}

/// As the programs have addresses: IPv4 mapped into IPv6.
pub(super) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The slots from `base` on, by Fisher and Yates.
fn shuffled(base: u32, count: u32) -> Vec<u32> {
    use std::hash::{BuildHasher as _, RandomState};
    // Its keys are random, and hashes of consecutive numbers under them are as good as random.
    let random = RandomState::new();
    let mut slots: Vec<_> = (base..base + count).collect();
    for at in (1..slots.len()).rev() {
        let other = random.hash_one(at) % (at as u64 + 1);
        slots.swap(at, other as usize);
    }
    slots
}
