//! A pair, or a forwarded connection, about whose segments there are ICMP errors.

use std::ops::Range;

use super::frame::take_frames;
use super::icmp_frame::{IcmpError, Read, SEGMENT_BYTES, header_bytes};
use super::*;
use splice_bpf::clock::now_ns;
use splice_bpf::types::{SegmentFlow, segment_flag as flag, segment_mark as mark};

/// What is said to be on its way, in bytes.
pub(super) const WINDOW: u32 = 100_000;
/// `ERRORS_AT_ONCE` and `ERROR_INTERVAL_TICKS` in `bpf/segment/icmp.h`.
pub(super) const ERRORS_AT_ONCE: usize = 16;
pub(super) const ERROR_INTERVAL_TICKS: usize = 16;
pub(super) const SMALL_MTU: u32 = 1300;

/// ICMP type and code of errors that go on, for IPv4 and IPv6.
pub(super) const SOFT: [&[(u8, u8)]; 2] = [
    &[(3, 0), (3, 1), (3, 4), (3, 5), (3, 11), (3, 12), (11, 0)],
    &[(1, 0), (1, 3), (2, 0), (1, 2), (3, 0)],
];
/// The same of those that may end a connection.
pub(super) const FATAL: [&[(u8, u8)]; 2] = [
    &[
        (3, 2),
        (3, 3),
        (3, 6),
        (3, 7),
        (3, 8),
        (3, 9),
        (3, 10),
        (3, 13),
        (3, 14),
        (3, 15),
        (12, 0),
    ],
    &[(1, 1), (1, 4), (1, 5), (1, 6), (4, 0), (4, 1)],
];
/// Says that a segment was too big.
pub(super) const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];

/// A connection with bytes on their way in both directions, which nobody has sent.
pub(super) struct Scene {
    pub(super) lab: Lab,
    _splicer: Splicer,
    pub(super) joined: Joined,
    pub(super) datapath: Arc<Datapath>,
    devices: Vec<u32>,
    pub(super) is_v4: bool,
}

impl Scene {
    /// Spliced pairs, over IPv4 and IPv6.
    pub(super) fn pairs() -> [Self; 2] {
        [
            Self::new(Connected::across, true),
            Self::new(Connected::across_v6, false),
        ]
    }

    /// The same, which look to the program as if they had been forwarded from the SYN on.
    pub(super) fn forwarded() -> [Self; 2] {
        let scenes = Self::pairs();
        for scene in &scenes {
            for side in &scene.flow().side {
                side.flags.fetch_or(flag::FORWARDED, Relaxed);
                side.add_marks(mark::NOTED);
            }
        }
        scenes
    }

    fn new(connect: fn(&Lab) -> Connected, is_v4: bool) -> Self {
        let lab = Lab::new().expect("a lab");
        take_frames(&lab);
        let splicer = splicer_in(lab.relay());
        let joined = spliced(&lab, &splicer, connect(&lab));
        let scene = Self {
            datapath: datapath_in(&lab),
            devices: devices(lab.relay()),
            lab,
            _splicer: splicer,
            joined,
            is_v4,
        };
        for side in &scene.flow().side {
            side.raise_high_seq(side.high_seq().wrapping_add(WINDOW));
        }
        scene
    }

    pub(super) fn flow(&self) -> &SegmentFlow {
        self.datapath.flow(0)
    }

    /// A peer and the relay's address that it talks to.
    pub(super) fn ends(&self, side: usize) -> [SocketAddr; 2] {
        let stream = [&self.joined.0, &self.joined.1][side];
        [stream.local_addr(), stream.peer_addr()].map(|end| end.expect("an end"))
    }

    /// What of `side`'s peer is on its way, in its own sequence space.
    pub(super) fn on_its_way(&self, side: usize) -> Range<u32> {
        let near = &self.flow().side[side];
        near.acked.load(Relaxed) as u32..near.high_seq()
    }

    /// An error about what `side`'s peer has sent with number `seq`.
    pub(super) fn error(&self, side: usize, kind: (u8, u8), seq: u32) -> IcmpError {
        let [peer, relay] = self.ends(1 - side);
        let delta = self.flow().side[side].seq_delta.load(Relaxed);
        IcmpError {
            mtu: SMALL_MTU as u16,
            ..IcmpError::about([relay, peer], kind, seq.wrapping_add(delta))
        }
    }

    /// Shows the program a frame that has come from the side of `from`'s peer.
    pub(super) fn feed(&self, from: usize, frame: &[u8]) -> (i32, Vec<u8>) {
        let device = self.devices[from];
        let relay = self.lab.relay();
        let fed = relay.enter(|| self.datapath.feed_through(device, frame));
        fed.expect("entered").expect("run")
    }

    /// The length of the packet that an error quotes.
    pub(super) fn quoted_bytes(&self) -> u32 {
        let [peer, _] = self.ends(0);
        (header_bytes(peer.ip()) + SEGMENT_BYTES) as u32
    }

    pub(super) fn verdict(&self, side: usize, error: &IcmpError) -> i32 {
        self.feed(1 - side, &error.bytes()).0
    }

    /// Nobody has got an error yet.
    pub(super) fn forget_errors(&self) {
        for until in &self.datapath.cold(0).until {
            until.store(0, Relaxed);
        }
    }

    /// `side`'s peer got its share just now, or, with some ticks more, at no time that could be.
    pub(super) fn use_up_errors(&self, side: usize, more_ticks: u32) {
        let ticks = (ERRORS_AT_ONCE * ERROR_INTERVAL_TICKS) as u32;
        let until = (now_ns() >> 20) as u32;
        let until = until.wrapping_add(ticks).wrapping_add(more_ticks);
        self.datapath.cold(0).until[side].store(until, Relaxed);
    }

    /// What the sender gets to read.
    pub(super) fn expected(&self, side: usize, error: &IcmpError, seq: u32) -> Read {
        let [peer, relay] = self.ends(side);
        Read {
            outer: [relay.ip(), peer.ip()],
            kind: error.kind,
            mtu: error.mtu,
            quoted: [peer, relay],
            seq,
        }
    }

    pub(super) fn counted(&self, reason: u32) -> u64 {
        self.datapath.own_counts()[reason as usize]
    }
}
