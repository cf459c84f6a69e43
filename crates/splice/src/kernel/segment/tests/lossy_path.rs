//! Paths that lose, duplicate and reorder segments.

use super::*;

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
