//! Cables of which only one end gets a smaller MTU, while they carry super-packets (GSO, TSO) or none. A veth loses single
//! packets that are longer than the MTU of the end at which they come in, and tells nobody; super-packets pass, however
//! long their segments are. With every engine the senders have to find out (`tcp_mtu_probing`).

use super::connection::Side;
use super::path_mtu::{
    SMALL_MTU, cable_of_the_relay, goes_on, has_ethtool, probe_for_mtus, send_no_super_packets,
    set_mtu,
};
use super::stage::Stage;

#[derive(Clone, Copy)]
enum Packets {
    Super,
    Single,
}

/// What the device does not take any more takes a pair back to its sockets.
fn the_relays_end(stage: &Stage, side: Side, packets: Packets) {
    if !has_ethtool() {
        return;
    }
    probe_for_mtus(stage);
    let [relay, peer] = cable_of_the_relay(stage, side);
    if let Packets::Single = packets {
        [relay, peer].into_iter().for_each(send_no_super_packets);
    }
    goes_on(stage, |_| set_mtu(relay.0, relay.1, SMALL_MTU));
    for entry in stage.hop().entries().iter().filter(|_| stage.splices()) {
        let why = entry["why_engine"].as_str().expect("a reason");
        assert!(why.contains("are too long for the path"), "{entry}");
    }
}

fn the_relays_end_towards_the_client_takes_less(stage: &Stage) {
    the_relays_end(stage, Side::Client, Packets::Super);
}

fn the_relays_end_towards_the_server_takes_less(stage: &Stage) {
    the_relays_end(stage, Side::Server, Packets::Super);
}

fn the_relays_end_towards_the_client_takes_less_of_single_packets(stage: &Stage) {
    the_relays_end(stage, Side::Client, Packets::Single);
}

fn the_relays_end_towards_the_server_takes_less_of_single_packets(stage: &Stage) {
    the_relays_end(stage, Side::Server, Packets::Single);
}

with_each_engine!(the_relays_end_towards_the_client_takes_less, routed);
with_each_engine!(the_relays_end_towards_the_server_takes_less, routed);
with_each_engine!(
    the_relays_end_towards_the_client_takes_less_of_single_packets,
    routed
);
with_each_engine!(
    the_relays_end_towards_the_server_takes_less_of_single_packets,
    routed
);

/// The relay hears nothing of it, and its pairs stay spliced. What does without super-packets: `a_link_loses_what_is_too_long`.
fn the_routers_end(stage: &Stage, side: Side) {
    probe_for_mtus(stage);
    let [_, (namespace, device)] = cable_of_the_relay(stage, side);
    goes_on(stage, |_| set_mtu(namespace, device, SMALL_MTU));
    for entry in stage.hop().entries() {
        assert_eq!(entry["engine"], "segment", "{entry}");
    }
}

fn the_end_towards_the_client_takes_less(stage: &Stage) {
    the_routers_end(stage, Side::Client);
}

fn the_end_towards_the_server_takes_less(stage: &Stage) {
    the_routers_end(stage, Side::Server);
}

/// Not with `copy`: its own socket hears that the device has dropped the last packet of a burst, holds that for a shortage,
/// and tries the same packet every half second (`TCP_RESOURCE_PROBE_INTERVAL`).
macro_rules! with_each_engine_that_splices {
    ($case:ident) => {
        mod $case {
            use super::super::stage::{Family, Stage};

            #[test]
            fn auto_v4() {
                Stage::routed("auto", Family::V4, super::$case);
            }

            #[test]
            fn auto_v6() {
                Stage::routed("auto", Family::V6, super::$case);
            }

            #[test]
            fn segment_v4() {
                Stage::routed("segment", Family::V4, super::$case);
            }

            #[test]
            fn segment_v6() {
                Stage::routed("segment", Family::V6, super::$case);
            }
        }
    };
}

with_each_engine_that_splices!(the_end_towards_the_client_takes_less);
with_each_engine_that_splices!(the_end_towards_the_server_takes_less);
