//! Paths that lose, duplicate and reorder segments.

use super::*;
use crate::kernel::segment::forward::{Forward, ForwardEnd, ForwardEvent, ForwardOptions};

/// A path that loses, doubles and reorders, in ten-thousandths of all packets on each of the two
/// devices that a segment comes in on.
#[derive(Clone, Copy)]
struct Disorder {
    lost: u32,
    doubled: u32,
    late: u32,
}

#[derive(Debug)]
#[repr(C)]
struct DisorderEntry {
    lost: AtomicU32,
    doubled: AtomicU32,
    late: AtomicU32,
    reserved: AtomicU32,
    losses: AtomicU64,
}

#[allow(unsafe_code, reason = "atomic integers without padding")]
// SAFETY: repr(C), 4 * 4 + 8 bytes of atomic integers.
unsafe impl Plain for DisorderEntry {}

static DISORDER: &[u8] = splice_bpf::objects::DISORDER;

/// Attached in front of everything else on all devices of the lab.
struct BadPath {
    _links: Vec<DeviceLink>,
    entry: SharedArray<DisorderEntry>,
}

impl BadPath {
    fn lay(lab: &Lab, disorder: Disorder) -> Self {
        let object = load("disorder", DISORDER, |_| Ok(())).expect("loaded");
        let program = object.program("disorder_ingress").expect("a program");
        let entry: SharedArray<DisorderEntry> = object
            .map("disorders")
            .and_then(|map| map.share_values())
            .expect("a map");
        let mut links = Vec::new();
        for namespace in [lab.client(), lab.relay(), lab.server()] {
            for device in devices(namespace) {
                let link = namespace
                    .enter(|| program.attach(device, Traffic::In, AttachMode::Tcx))
                    .expect("entered");
                links.push(link.expect("attached"));
            }
        }
        entry.at(0).lost.store(disorder.lost, Relaxed);
        entry.at(0).doubled.store(disorder.doubled, Relaxed);
        entry.at(0).late.store(disorder.late, Relaxed);
        Self {
            _links: links,
            entry,
        }
    }
}

fn through_disorder(bytes: usize, disorder: Disorder, place: u64) {
    let lab = Lab::new().expect("a lab");
    let path = BadPath::lay(&lab, disorder);
    let splicer = splicer_in(lab.relay());
    let mut random = Random::seeded(seed());
    let before = counters_across(&lab);
    // A closed socket answers a late or duplicate segment with a reset, with or without a relay. Both streams
    // were complete before.
    let connected = Connected::across(&lab);
    let (outcome, forwarded, pause) =
        both_ways(connected, &splicer, Some(place), bytes, random.next());
    let changes = changes(&before, &counters_across(&lab));
    let losses = path.entry.at(0).losses.load(Relaxed);
    eprintln!("{outcome:?}, forwarded {forwarded}, losses {losses}, pause {pause:?}; {changes}");
    assert!(losses > 0);
}

#[test]
fn bytes_survive_a_path_that_loses_and_reorders() {
    if available(Need::Root) {
        let bytes = rounds(1) * (64 << 20);
        let disorder = Disorder {
            lost: 50,
            doubled: 50,
            late: 50,
        };
        through_disorder(bytes, disorder, 1 << 20);
    }
}

#[test]
fn bytes_survive_a_path_that_loses_a_tenth() {
    if available(Need::Root) {
        let disorder = Disorder {
            lost: 500,
            doubled: 50,
            late: 150,
        };
        through_disorder(32 << 20, disorder, 64 << 10);
    }
}

/// Connections that are forwarded, one after the other: handshakes and ends lose segments as well.
fn forwarded_through_disorder(connections: usize, bytes: usize, disorder: Disorder) {
    let lab = Lab::new().expect("a lab");
    let path = BadPath::lay(&lab, disorder);
    let (_socket, front) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
    let (server, back) = listen_in(lab.server(), (Lab::SERVER_V4, 0));
    let mut options = ForwardOptions::new(vec![front], back);
    // A SYN that is lost time and again is repeated after 1, 3, 7 and 15 s.
    options.connect_timeout = PATIENCE;
    let (sender, ended) = mpsc::channel();
    let tell = move |event| {
        if let ForwardEvent::Ended(one) = event {
            let _ = sender.send(one);
        }
    };
    let start = || Forward::start(options, tell);
    let forward = lab.relay().enter(start).expect("entered").expect("started");
    assert_eq!(forward.obstacle(), None);
    let mut random = Random::seeded(seed());
    for _ in 0..connections {
        let client = connect_in(lab.client(), front);
        let (server, _) = server.accept().expect("accepted");
        thread::scope(|scope| {
            let [up, down] = [random.next(), random.next()];
            let (from, to) = (&client, &server);
            scope.spawn(move || one_way(from, to, bytes, up));
            one_way(&server, &client, bytes, down);
        });
        drop((client, server));
        let ended = ended.recv_timeout(PATIENCE).expect("it has ended");
        assert_eq!(ended.end, ForwardEnd::EndOfStream, "{ended:?}");
        assert_eq!(ended.client_to_server_bytes, bytes as u64, "{ended:?}");
        assert_eq!(ended.server_to_client_bytes, bytes as u64, "{ended:?}");
    }
    let losses = path.entry.at(0).losses.load(Relaxed);
    eprintln!("losses {losses}");
    assert!(losses > 0);
}

#[test]
fn forwarded_bytes_survive_a_path_that_loses() {
    if available(Need::Root) {
        let disorder = Disorder {
            lost: 100,
            doubled: 50,
            late: 50,
        };
        forwarded_through_disorder(1, rounds(1) * (16 << 20), disorder);
        forwarded_through_disorder(rounds(1) * 40, 10 << 10, disorder);
    }
}

#[test]
fn forwarded_bytes_survive_a_path_that_loses_a_tenth() {
    if available(Need::Root) {
        let disorder = Disorder {
            lost: 500,
            doubled: 50,
            late: 150,
        };
        forwarded_through_disorder(1, rounds(1) * (4 << 20), disorder);
        forwarded_through_disorder(rounds(1) * 15, 10 << 10, disorder);
    }
}
