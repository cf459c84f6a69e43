use super::*;
use crate::kernel::segment::eligibility::device;
use crate::kernel::segment::sample::{DEVICES, pair};

#[test]
fn each_byte_keeps_the_place_that_the_relay_would_write_it_to() {
    for in_flight_bytes in [[0, 0], [700, 1]] {
        let found = pair();
        let translation = Translation::between(&found, in_flight_bytes);
        for (from, side) in translation.sides.iter().enumerate() {
            let (near, far) = (&found.socket[from], &found.socket[1 - from]);
            // The next byte to be read comes after those that are in flight.
            let place = near.copied_seq.wrapping_add(side.seq_delta);
            let expected = far.write_seq.wrapping_add(in_flight_bytes[from] as u32);
            assert_eq!(place, expected);
            let first_in_flight = side.next_byte.wrapping_add(side.seq_delta);
            assert_eq!(first_in_flight, far.write_seq);
        }
    }
}

#[test]
fn acknowledgements_are_translated_back() {
    let translation = Translation::between(&pair(), [700, 1]);
    let [a, b] = translation.sides;
    assert_eq!(a.ack_delta, b.seq_delta.wrapping_neg());
    assert_eq!(b.ack_delta, a.seq_delta.wrapping_neg());
}

#[test]
fn segments_leave_as_those_of_the_other_connection() {
    let mut found = pair();
    found.socket[1].own_scale = 9;
    let [a, _] = Translation::between(&found, [0, 0]).sides;
    let other = found.tuple[1];
    assert_eq!(a.out.source, other.destination);
    assert_eq!(a.out.destination, other.source);
    assert_eq!(a.out.source_port, other.destination_port);
    assert_eq!(a.out.destination_port, other.source_port);
    assert_eq!(a.out_device, DEVICES[1]);
    assert_eq!(a.out_device, device(&found.socket[1]));
    // The window is read in the peer's scale and written in the relay's.
    assert_eq!((a.window_left, a.window_right), (7, 9));
}

#[test]
fn only_options_that_the_other_connection_has_are_kept() {
    let flags = |near: u32, far: u32, device: u32| {
        let mut found = pair();
        found.socket[0].flags = has::FOUND | near;
        found.socket[1].flags = has::FOUND | far;
        found.socket[1].out_type = device;
        Translation::between(&found, [0, 0]).sides[0].flags
    };
    let ethernet = 1;
    let without_ecn = flag::CLEAR_ECN;
    assert_eq!(
        flags(has::SACK | has::ECN, has::SACK | has::ECN, ethernet),
        0
    );
    assert_eq!(
        flags(has::SACK, 0, ethernet),
        without_ecn | flag::STRIP_SACK
    );
    assert_eq!(
        flags(has::ECN, has::SACK, ethernet),
        without_ecn | flag::ECHO_ECN
    );
    assert_eq!(flags(0, has::SACK | has::ECN, ethernet), without_ecn);
    assert_eq!(
        flags(0, has::SACK | has::MICROSECONDS, ARPHRD_LOOPBACK),
        without_ecn | flag::MICROSECONDS | flag::LOCAL
    );
}
