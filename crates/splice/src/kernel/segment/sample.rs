//! A pair that `segment` takes, as the kernel would describe it.

use splice_bpf::types::segment_socket_flag as has;
use splice_bpf::types::{SegmentInspection, SegmentSeen, SegmentSocket};

use crate::kernel::tcp_state::ESTABLISHED;

pub(super) const COOKIES: [u64; 2] = [71, 72];
pub(super) const DEVICES: [u32; 2] = [2, 3];

/// What each socket has received, in bytes.
pub(super) const RECEIVED_BYTES: u32 = 5_000;

/// Two connections over IPv6 on Ethernet, whose SYNs the program saw. Each socket has written what the other
/// one has received, and the peers have acknowledged it.
pub(super) fn pair() -> SegmentInspection {
    let received = [0x1000_0000, 0x2000_0000].map(|first: u32| first + RECEIVED_BYTES);
    // Beyond the end of the sequence space, so that the offset wraps.
    let written = [0xffff_f000, 0x9000_0000_u32].map(|first| first.wrapping_add(RECEIVED_BYTES));
    let socket = |side: usize| {
        SegmentSocket {
            cookie: COOKIES[side],
            flags: has::FOUND | has::SACK,
            state: ESTABLISHED,
            write_seq: written[side],
            snd_una: written[side],
            snd_nxt: written[side],
            copied_seq: received[side],
            rcv_nxt: received[side],
            rcv_wup: received[side],
            snd_wnd: 64 << 10,
            rcv_wnd: 64 << 10,
            largest_window: 64 << 10,
            announced_mss: 1_400,
            peer_mss: 1_440,
            path_mtu: 1_500,
            in_device: DEVICES[side],
            out_device: DEVICES[side],
            // ARPHRD_ETHER
            out_type: 1,
            received_bytes: RECEIVED_BYTES,
            peer_scale: 7,
            own_scale: 7,
            ..SegmentSocket::default()
        }
    };
    let seen = |side: usize| SegmentSeen {
        device: DEVICES[side],
        seq: received[side] - RECEIVED_BYTES - 1,
        mss: 1_440,
        hops: 64,
        ..SegmentSeen::default()
    };
    let mut found = SegmentInspection {
        socket: [socket(0), socket(1)],
        seen: [seen(0), seen(1)],
        ..SegmentInspection::default()
    };
    for (number, tuple) in (1..).zip(&mut found.tuple) {
        tuple.source[15] = number;
        tuple.destination[15] = 10 + number;
        tuple.source_port = [number, 0];
        tuple.destination_port = [10 + number, 0];
    }
    found
}

/// The same where the program saw neither SYN.
pub(super) fn unseen_pair() -> SegmentInspection {
    SegmentInspection {
        seen: Default::default(),
        ..pair()
    }
}
