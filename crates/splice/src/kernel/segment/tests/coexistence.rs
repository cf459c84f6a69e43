//! Foreign tc programs on the same device.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as unix;

use super::*;
use splice_base::error::Result;
use splice_bpf::Object;

/// `struct foreign_tc` in bpf/foreign_tc.h.
#[derive(Debug)]
#[repr(C)]
struct ForeignTcEntry {
    verdict: AtomicU32,
    /// `outer_port` and `inner_port`.
    ports: AtomicU32,
    packets: AtomicU64,
    rewritten: AtomicU64,
}

#[allow(unsafe_code, reason = "atomic integers without padding")]
// SAFETY: repr(C), 2 * 4 + 2 * 8 bytes of atomic integers.
unsafe impl Plain for ForeignTcEntry {}

pub(super) static FOREIGN_TC: &[u8] = splice_bpf::objects::FOREIGN_TC;

/// What the program returns, plus one.
pub(super) const NEXT: u32 = 0;
/// Up the stack, past all later programs (`TC_ACT_OK`).
pub(super) const OK: u32 = 1;
const SHOT: u32 = 3;

/// A foreign program.
pub(super) struct ForeignTc {
    object: Object,
    entry: SharedArray<ForeignTcEntry>,
    _links: Vec<DeviceLink>,
}

impl ForeignTc {
    pub(super) fn new(verdict: u32) -> Self {
        let object = load("foreign_tc", FOREIGN_TC, |_| Ok(())).expect("loaded");
        let entry: SharedArray<ForeignTcEntry> = object
            .map("foreign_tcs")
            .and_then(|map| map.share_values())
            .expect("a map");
        entry.at(0).verdict.store(verdict, Relaxed);
        Self {
            object,
            entry,
            _links: Vec::new(),
        }
    }

    /// Rewrites port `inner` to `outer` for everybody else.
    fn renaming(self, outer: u16, inner: u16) -> Self {
        let ports = [outer.to_be_bytes(), inner.to_be_bytes()].concat();
        let ports = u32::from_ne_bytes(ports.try_into().expect("four bytes"));
        self.entry.at(0).ports.store(ports, Relaxed);
        self
    }

    pub(super) fn standing(mut self, lab: &Lab, device: &str, traffic: &[Traffic]) -> Self {
        for traffic in traffic {
            let link = self.attach(lab, device, *traffic, AttachMode::Tcx);
            self._links.push(link.expect("attached"));
        }
        self
    }

    /// Before the programs that are there.
    pub(super) fn standing_first(mut self, lab: &Lab, device: &str) -> Self {
        let program = self.object.program("foreign_tc").expect("a program");
        let index = index_of(lab.relay(), device);
        let link = lab.relay().enter(|| program.attach_first(index));
        self._links.push(link.expect("entered").expect("attached"));
        self
    }

    fn attach(
        &self,
        lab: &Lab,
        device: &str,
        traffic: Traffic,
        way: AttachMode,
    ) -> Result<DeviceLink> {
        let program = self.object.program("foreign_tc").expect("a program");
        let index = index_of(lab.relay(), device);
        let attached = lab.relay().enter(|| program.attach(index, traffic, way));
        attached.expect("entered")
    }

    fn packets(&self) -> u64 {
        self.entry.at(0).packets.load(Relaxed)
    }
}

pub(super) fn index_of(namespace: &Namespace, device: &str) -> u32 {
    let listed = namespace
        .command("ip")
        .args(["-o", "link", "show", device])
        .output()
        .expect("ip");
    let text = String::from_utf8(listed.stdout).expect("text");
    let index = text.split(':').next().and_then(|text| text.parse().ok());
    index.unwrap_or_else(|| panic!("no {device}: {text}"))
}

/// A connection between the client and the relay's namespace that no relay splices.
fn talk_beside(lab: &Lab, round_trips: usize) {
    let (listener, address) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
    let client = connect_in(lab.client(), address);
    let here = listener.accept().expect("accept").0;
    for _ in 0..round_trips {
        ping(&client, &here);
    }
}

#[test]
fn tc_programs_before_and_after_this_one_still_run() {
    const ROUND_TRIPS: usize = 500;
    const REST: Duration = Duration::from_millis(50);
    if !available(Need::Root) {
        return;
    }
    let both = [Traffic::In, Traffic::Out];
    let lab = Lab::new().expect("a lab");
    let before = ForeignTc::new(NEXT).standing(&lab, Lab::TO_CLIENT, &both);
    let splicer = splicer_in(lab.relay());
    // Programs after ours keep other pairs in the stack.
    let bypassing = Options {
        bypass_firewall: true,
        ..by_name()
    };
    let spliced_across = || {
        let joined = Connected::across(&lab).join(&splicer, &bypassing);
        netlab::until("it is taken", || joined.2.is_taken());
        wait_for_sleep(&lab);
        joined
    };
    // This pair attaches our program there.
    let first = spliced_across();
    let behind = ForeignTc::new(NEXT).standing(&lab, Lab::TO_CLIENT, &both);
    // The last packets of a closed connection may still be under way.
    let counts = || netlab::until_at_rest(REST, || [before.packets(), behind.packets()]);

    // A translated segment passes the first program and ends with ours. On its way out it passes both.
    let start = counts();
    let (client, server, handle) = spliced_across();
    for _ in 0..ROUND_TRIPS {
        ping(&client, &server);
    }
    let now = counts();
    let seen = [now[0] - start[0], now[1] - start[1]];
    assert!(seen[0] >= 2 * ROUND_TRIPS as u64, "{seen:?}");
    assert!(
        (ROUND_TRIPS as u64..seen[0] * 6 / 10).contains(&seen[1]),
        "{seen:?}"
    );

    // Other segments pass both.
    let start = counts();
    talk_beside(&lab, ROUND_TRIPS);
    let now = counts();
    let seen = [now[0] - start[0], now[1] - start[1]];
    assert!(seen[0] >= seen[1], "{seen:?}");
    assert!(seen[1] >= 2 * ROUND_TRIPS as u64, "{seen:?}");

    drop((client, server, first.0, first.1));
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
    assert_eq!(first.2.wait().reason, Reason::EndOfStream);
    drop(splicer);
    let start = counts();
    talk_beside(&lab, ROUND_TRIPS);
    let now = counts();
    assert!(now[0] - start[0] >= 2 * ROUND_TRIPS as u64);
    assert_eq!(now[0] - start[0], now[1] - start[1]);
}

/// Joins the pair by name, whatever comes after our program.
fn assert_found(splicer: &Splicer, connected: Connected) {
    let bypassing = Options {
        bypass_firewall: true,
        ..by_name()
    };
    let (_client, _server, handle) = connected.join(splicer, &bypassing);
    let why = why_refused(&handle);
    assert!(why.contains("another tc program is in between"), "{why}");
}

#[test]
fn a_program_that_keeps_segments_to_itself_is_found() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let thief = ForeignTc::new(OK).standing(&lab, Lab::TO_SERVER, &[Traffic::In]);
    assert_found(&splicer_in(lab.relay()), Connected::across(&lab));
    assert!(thief.packets() > 0);
}

/// It restores the port only after our program.
#[test]
fn a_program_that_rewrites_segments_is_found() {
    const OUTER: u16 = 81;
    if !available(Need::Root) {
        return;
    }
    let both = [Traffic::In, Traffic::Out];
    let (lab, splicer, _first) = spliced_lab();
    let (front, address) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
    let balancer = ForeignTc::new(NEXT)
        .renaming(OUTER, address.port())
        .standing(&lab, Lab::TO_CLIENT, &both);
    let client = connect_in(lab.client(), (Lab::RELAY_V4, OUTER));
    let a = front.accept().expect("accept").0;
    let connected = Connected {
        client,
        a: Endpoint::new(a).expect("an end"),
        ..Connected::across(&lab)
    };
    assert_found(&splicer, connected);
    assert!(balancer.entry.at(0).rewritten.load(Relaxed) > 0);
}

pub(super) fn filters(lab: &Lab, device: &str, place: &str) -> String {
    let listed = lab
        .relay()
        .command("tc")
        .args(["-s", "filter", "show", "dev", device, place])
        .output()
        .expect("tc");
    String::from_utf8(listed.stdout).expect("text")
}

/// As on a kernel without tcx: filters on a clsact qdisc that also has a foreign one.
#[test]
fn clsact_filters_serve_a_kernel_without_tcx() {
    const BYTES: usize = 16 << 20;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    run(
        lab.relay(),
        "tc",
        &format!("qdisc add dev {} clsact", Lab::TO_CLIENT),
    );
    run(
        lab.relay(),
        "tc",
        &format!(
            "filter add dev {} ingress prio 7 bpf direct-action object-file {}/../splice-bpf/bpf/prebuilt/foreign_tc.bpf.o section tc",
            Lab::TO_CLIENT,
            env!("CARGO_MANIFEST_DIR")
        ),
    );
    let places = [Lab::TO_CLIENT, Lab::TO_SERVER]
        .map(|device| [(device, "ingress"), (device, "egress")])
        .concat();
    let ours = || {
        let standing = places
            .iter()
            .map(|(device, place)| filters(&lab, device, place).matches("name caller").count());
        standing.sum::<usize>()
    };
    let splicer = splicer_in(lab.relay());
    let datapath = datapath_in(&lab);
    datapath.attach_by_clsact();
    let first = spliced_across(&lab, &splicer);
    assert_eq!(ours(), places.len());
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let proof = Proof::begin(&lab, &splicer, &handle);
    exchange(&client, &server, BYTES, seed());
    proof.end(2 * BYTES as u64);
    drop((client, server, first.0, first.1));
    for handle in [handle, first.2] {
        assert_eq!(handle.wait().reason, Reason::EndOfStream);
    }

    drop(splicer);
    lab.relay().enter(|| drop(datapath)).expect("entered");
    assert_eq!(ours(), 0);
    let other = filters(&lab, Lab::TO_CLIENT, "ingress");
    assert!(other.contains("foreign_tc"), "{other}");
    talk_beside(&lab, 10);
}

/// A filter that a killed process leaves on a clsact qdisc lets everything pass, and the next one replaces
/// it.
#[test]
fn a_filter_that_was_left_behind_is_idle_and_replaced() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let thief = ForeignTc::new(SHOT);
    let attach = || thief.attach(&lab, Lab::TO_CLIENT, Traffic::In, AttachMode::Clsact);
    let link = attach().expect("attached");
    // In this thread's namespace there is nothing to detach.
    drop(link);
    let left = filters(&lab, Lab::TO_CLIENT, "ingress");
    assert!(left.contains("caller"), "{left}");
    // The kernel empties the table in a worker of its own (`prog_array_map_clear`).
    netlab::until("the filter lets all go by", || {
        let seen = thief.packets();
        talk_beside(&lab, 10);
        thief.packets() == seen
    });

    let link = attach().expect("attached");
    let both = filters(&lab, Lab::TO_CLIENT, "ingress");
    assert_eq!(both.matches("name caller").count(), 1, "{both}");
    lab.relay().enter(|| drop(link)).expect("entered");
    let none = filters(&lab, Lab::TO_CLIENT, "ingress");
    assert!(!none.contains("caller"), "{none}");
}

/// Where all priorities are taken, one more filter is refused and leaves the others alone.
#[test]
fn a_filter_that_finds_no_place_takes_none_away() {
    /// Priorities that `attach/clsact.rs` of `splice-bpf` has.
    const PLACES: usize = 64;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let other = ForeignTc::new(NEXT);
    let attach = || other.attach(&lab, Lab::TO_CLIENT, Traffic::In, AttachMode::Clsact);
    let standing = || {
        filters(&lab, Lab::TO_CLIENT, "ingress")
            .matches("name caller")
            .count()
    };
    let links: Vec<_> = (0..PLACES).map(|_| attach().expect("attached")).collect();
    assert_eq!(standing(), PLACES);
    let why = attach().map(drop).expect_err("no place").to_string();
    assert!(why.contains("cannot be attached"), "{why}");
    assert_eq!(standing(), PLACES);
    // A filter whose priority somebody else has taken leaves it to them.
    let last = format!(
        "filter replace dev {} ingress prio 50063 handle 0x73706c63 bpf direct-action object-file {}/../splice-bpf/bpf/prebuilt/foreign_tc.bpf.o section tc",
        Lab::TO_CLIENT,
        env!("CARGO_MANIFEST_DIR")
    );
    run(lab.relay(), "tc", &last);
    lab.relay().enter(|| drop(links)).expect("entered");
    let left = filters(&lab, Lab::TO_CLIENT, "ingress");
    assert!(!left.contains("name caller"), "{left}");
    assert!(left.contains("name foreign_tc"), "{left}");
}

/// A priority that a foreign filter has, or a filter of another kind, stays theirs.
#[test]
fn a_filter_takes_the_next_place_where_others_are() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let device = Lab::TO_CLIENT;
    run(lab.relay(), "tc", &format!("qdisc add dev {device} clsact"));
    let other = ForeignTc::new(NEXT);
    let attach = || other.attach(&lab, device, Traffic::In, AttachMode::Clsact);
    // The filter of a dead relay at the first priority stays, since nobody can tell that it is dead.
    drop(attach().expect("attached"));
    let name = format!("spliced filter {} in 50000", index_of(lab.relay(), device));
    let stranger = lab.relay().enter(|| {
        let name = unix::SocketAddr::from_abstract_name(name)?;
        unix::UnixDatagram::bind_addr(&name)
    });
    let stranger = stranger.expect("entered").expect("bound");
    let kind = "ingress prio 50001 protocol all u32 match u32 0 0 classid 1:1";
    let add = format!("filter add dev {device} {kind}");
    run(lab.relay(), "tc", &add);
    let link = attach().expect("attached");
    let listed = filters(&lab, device, "ingress");
    for (priority, kind) in [(50000, "bpf"), (50001, "u32"), (50002, "bpf")] {
        let line = format!("pref {priority} {kind}");
        assert!(listed.contains(&line), "no {line} in {listed}");
    }
    drop(stranger);
    lab.relay().enter(|| drop(link)).expect("entered");
}

/// A device that makes lists of segments (`rx-gro-list`) would forward all but the first of a list
/// untranslated. It makes none for a connection that has a socket here (`tcp4_check_fraglist_gro`, kernel
/// 6.10), and the sleeping socket counts.
#[test]
fn a_device_makes_no_lists_of_what_is_translated() {
    const BYTES: usize = 16 << 20;
    let missing = netlab::program("ethtool").is_none();
    let missing = missing.then(|| "no ethtool (apt install ethtool)".into());
    if !available(Need::Root) || !netlab::present("ethtool", missing) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    for device in [Lab::TO_CLIENT, Lab::TO_SERVER] {
        let on = format!("-K {device} gro on rx-gro-list on");
        run(lab.relay(), "ethtool", &on);
    }
    let splicer = splicer_in(lab.relay());
    let _first = spliced_across(&lab, &splicer);
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let proof = Proof::begin(&lab, &splicer, &handle);
    exchange(&client, &server, BYTES, seed());
    ended(&handle);
    proof.end(2 * BYTES as u64);
}
