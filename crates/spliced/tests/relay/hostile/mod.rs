//! Forged TCP segments: an established connection survives them with every engine as it does with `copy`.
//!
//! `copy` is the reference. With it, the relay's own sockets decide which segments are acceptable. A spliced
//! connection has only the sockets of its two ends, and the BPF program in between must not believe what these
//! would discard.

/// A test of a case for each engine and IP version, on a stage of this kind.
macro_rules! with_each_engine {
    ($case:ident) => {
        with_each_engine!($case, with);
    };
    ($case:ident, $stage:ident) => {
        mod $case {
            use super::super::stage::{Family, Stage};

            #[test]
            fn copy_v4() {
                Stage::$stage("copy", Family::V4, super::$case);
            }

            #[test]
            fn copy_v6() {
                Stage::$stage("copy", Family::V6, super::$case);
            }

            #[test]
            fn auto_v4() {
                Stage::$stage("auto", Family::V4, super::$case);
            }

            #[test]
            fn auto_v6() {
                Stage::$stage("auto", Family::V6, super::$case);
            }

            #[test]
            fn segment_v4() {
                Stage::$stage("segment", Family::V4, super::$case);
            }

            #[test]
            fn segment_v6() {
                Stage::$stage("segment", Family::V6, super::$case);
            }
        }
    };
}

/// A test that compares the times of a case, for each IP version.
macro_rules! compare_times {
    ($case:ident) => {
        mod $case {
            use super::super::stage::Family;

            #[test]
            #[ignore = "soak: compares times"]
            fn v4() {
                super::$case(Family::V4);
            }

            #[test]
            #[ignore = "soak: compares times"]
            fn v6() {
                super::$case(Family::V6);
            }
        }
    };
}

mod another_device;
mod at_once;
mod bad_network;
mod bad_network_time;
mod big_packets;
mod bit_error;
mod carried;
mod clock;
mod connection;
mod crowd;
mod damage;
mod destroyed;
mod forger;
mod gigabytes;
mod gone_devices;
mod group_programs;
#[allow(dead_code, reason = "the tests of forwarding ask for more")]
#[path = "../../../../splice/tests/forward/hops.rs"]
mod hops;
mod icmp;
mod icmp_forgery;
#[allow(dead_code, reason = "the tests of the engine ask for more")]
#[path = "../../../../splice/tests/support/ip_forms.rs"]
mod ip_forms;
mod ipsec;
mod malformed;
mod no_room;
mod one_end;
mod path_mtu;
mod path_mtu_time;
mod patience;
mod pause;
mod port_reuse;
mod relay_group;
mod reset;
mod route_mtu;
mod routes;
mod segment;
mod shaping;
mod shortage;
mod shown;
mod site;
mod spray;
mod stage;
mod stamps;
mod suspended;
mod syn;
mod tc_programs;
mod times;
mod timestamp;
mod turmoil;
mod unread;
mod untranslatable;
mod untranslated;
mod untranslated_time;
mod vanish;
mod wire;
mod within_a_second;
