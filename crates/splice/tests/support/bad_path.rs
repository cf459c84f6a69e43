//! A path that loses, doubles and reorders, since not every kernel has netem.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use netlab::Namespace;
use splice_bpf::{AttachMode, DeviceLink, Plain, SharedArray, Traffic, load};

/// What happens to a packet on each device that it comes in on, in ten-thousandths of all packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Disorder {
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    pub(crate) late: u32,
}

/// `struct disorder` of disorder.h.
#[derive(Debug)]
#[repr(C)]
struct DisorderEntry {
    lost: AtomicU32,
    doubled: AtomicU32,
    late: AtomicU32,
    reserved: AtomicU32,
    losses: AtomicU64,
    dice: AtomicU64,
}

#[allow(unsafe_code, reason = "atomic integers without padding")]
// SAFETY: repr(C), 4 * 4 + 2 * 8 bytes of atomic integers.
unsafe impl Plain for DisorderEntry {}

/// Attached in front of everything else on devices; detached on drop.
pub(crate) struct BadPath {
    _links: Vec<DeviceLink>,
    entry: SharedArray<DisorderEntry>,
}

impl BadPath {
    /// On all devices of these namespaces but lo. The same seed throws the same dice, in the order of the packets.
    pub(crate) fn through(namespaces: &[&Namespace], disorder: Disorder, seed: u64) -> Self {
        eprintln!("{disorder:?}, seed {seed}");
        let object = load("disorder", splice_bpf::objects::DISORDER, |_| Ok(())).expect("loaded");
        let program = object.program("disorder_ingress").expect("a program");
        let entry: SharedArray<DisorderEntry> = object
            .map("disorders")
            .and_then(|map| map.share_values())
            .expect("a map");
        entry.at(0).dice.store(seed, Relaxed);
        entry.at(0).lost.store(disorder.lost, Relaxed);
        entry.at(0).doubled.store(disorder.doubled, Relaxed);
        entry.at(0).late.store(disorder.late, Relaxed);
        let mut links = Vec::new();
        for namespace in namespaces {
            for device in devices(namespace) {
                let link = namespace
                    .enter(|| program.attach(device, Traffic::In, AttachMode::Tcx))
                    .expect("entered");
                links.push(link.expect("attached"));
            }
        }
        Self {
            _links: links,
            entry,
        }
    }

    /// How many packets it has lost so far.
    pub(crate) fn losses(&self) -> u64 {
        self.entry.at(0).losses.load(Relaxed)
    }
}

/// The indices of all devices but lo.
pub(crate) fn devices(namespace: &Namespace) -> Vec<u32> {
    let listed = namespace
        .command("ip")
        .args(["-o", "link"])
        .output()
        .expect("ip");
    let text = String::from_utf8(listed.stdout).expect("text");
    text.lines()
        .filter_map(|line| line.split(':').next()?.trim().parse().ok())
        .filter(|index| *index != 1)
        .collect()
}
