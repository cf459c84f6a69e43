//! Segments that are too large for the other side.

use super::*;
use crate::SegmentSize;

/// MTUs between client and relay, and between relay and server.
pub(super) fn lab_with_mtu(near: u32, far: u32) -> Lab {
    let lab = Lab::new().expect("a lab");
    for (namespace, device, mtu) in [
        (lab.client(), Lab::TO_RELAY, near),
        (lab.relay(), Lab::TO_CLIENT, near),
        (lab.relay(), Lab::TO_SERVER, far),
        (lab.server(), Lab::TO_RELAY, far),
    ] {
        run(namespace, "ip", &format!("link set {device} mtu {mtu}"));
    }
    lab
}

#[test]
fn larger_frames_are_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    // The second pair of MTUs differs by less than the timestamp option's length.
    for (near, far) in [(9000, 1500), (1500, 1490)] {
        let lab = lab_with_mtu(near, far);
        let splicer = splicer_in(lab.relay());
        let (_client, _server, handle) = Connected::across(&lab).join(&splicer, &by_name());
        let why = why_refused(&handle);
        let sent = format!("{} bytes", near - 40);
        let taken = format!("takes {}", far - 40);
        for words in [&sent, &taken, "SegmentSize"] {
            assert!(why.contains(words), "{why}");
        }
    }
}

#[test]
fn a_listener_that_announces_what_fits_gets_its_pairs_spliced() {
    const BYTES: usize = 16 << 20;
    if !available(Need::Root) {
        return;
    }
    let lab = lab_with_mtu(9000, 1500);
    let splicer = splicer_in(lab.relay());
    let connected = Connected::announced(&lab, |listener, target| {
        let fits = SegmentSize::on_the_way_to(target).expect("a route");
        fits.announce_on(listener).expect("TCP_MAXSEG");
    });
    let (client, server, handle) = connected.join(&splicer, &by_name());
    let proof = Proof::begin(&lab, &splicer, &handle);
    exchange(&client, &server, BYTES, seed());
    let outcome = ended(&handle);
    assert_eq!(outcome.engine, EngineName::Segment);
    assert_eq!(moved(&outcome), [BYTES as u64; 2]);
    proof.end(2 * BYTES as u64);
}

/// Its sockets have sent nothing since, and do not know of it.
#[test]
fn a_pair_whose_route_has_become_narrow_stays_with_its_sockets() {
    const BYTES: usize = 1 << 20;
    if !available(Need::Root) {
        return;
    }
    for (change, connect) in [
        (
            "route change 198.18.2.0/24",
            Connected::across as fn(&Lab) -> Connected,
        ),
        (
            "-6 route change 2001:2:0:2::/64 metric 256",
            Connected::across_v6,
        ),
    ] {
        let lab = Lab::new().expect("a lab");
        let splicer = splicer_in(lab.relay());
        let connected = connect(&lab);
        let change = format!("{change} dev {} mtu 1300", Lab::TO_SERVER);
        run(lab.relay(), "ip", &change);
        let (client, server, handle) = connected.join(&splicer, &by_name());
        exchange(&client, &server, BYTES, seed());
        let outcome = ended(&handle);
        assert_eq!(moved(&outcome), [BYTES as u64; 2]);
        let (engine, why) = handle.engine();
        assert_ne!(engine, EngineName::Segment);
        assert!(why.contains("B is reached by a route whose MTU"), "{why}");
    }
}
