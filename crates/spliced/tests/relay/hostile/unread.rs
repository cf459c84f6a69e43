//! Segments that the program cannot translate, of a pair that is kept in its change-over: the server reads nothing, so
//! the relay's sockets hold a part of the stream to it. The other stream goes past them.

use std::thread;

use splice_bpf::types::segment_state;

use super::connection::{Connection, Side};
use super::path_mtu::{cable_of_the_relay, narrow};
use super::stage::{Family, IN_ORDER, Stage};
use super::untranslated::{expect_return, fragment};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{End, Peer};

const BYTES: u64 = 2 << 20;

/// The client gets all of the other stream before the server reads its first byte.
pub(super) fn goes_on(stage: &Stage, change: impl FnOnce(&[Connection])) {
    let connect = || Peer::connect(stage.hop().address());
    let connection = Connection {
        client: stage.client().enter(connect).expect("entered"),
        server: stage.target().accept(),
    };
    let Connection { client, server } = &connection;
    let [there, back] = [Payload::new(8), Payload::new(9)];
    let (mut sent, mut received) = (0, 0);
    until("the client's stream fills what is on its way", || {
        sent += client.send_what_fits(there, sent);
        !stage.splices() || stage.hop().states() == [segment_state::OVERLAP]
    });
    until("the other stream goes past the sockets", || {
        server.send(back, received, 1);
        client.expect(back, received, 1);
        received += 1;
        !stage.splices() || stage.hop().translated_bytes() > 0
    });
    assert!(!stage.splices() || stage.hop().states() == [segment_state::OVERLAP]);
    change(std::slice::from_ref(&connection));
    thread::scope(|scope| {
        scope.spawn(|| server.send(back, received, BYTES));
        client.expect(back, received, BYTES);
    });
    client.end_stream();
    assert_eq!(server.read_to_end(there, 0), (sent, End::OfStream));
    server.end_stream();
    client.expect_end();
    stage.expect_ended(1, IN_ORDER);
}

fn a_path_becomes_narrow(stage: &Stage) {
    goes_on(stage, |_| narrow(cable_of_the_relay(stage, Side::Client)));
    expect_return(stage, "are too long for the path");
}

fn a_router_fragments(stage: &Stage) {
    goes_on(stage, |connections| {
        fragment(stage, Side::Server, connections);
    });
    expect_return(stage, "come in fragments");
}

/// Not by name: such a pair begins to change over before the first byte, and may be spliced by then.
macro_rules! with_each_engine_over {
    ($case:ident, $($name:ident: $engine:literal, $family:ident;)*) => {
        mod $case {
            use super::{Family, Stage};

            $(
                #[test]
                fn $name() {
                    Stage::routed($engine, Family::$family, super::$case);
                }
            )*
        }
    };
}

with_each_engine_over!(
    a_path_becomes_narrow,
    copy_v4: "copy", V4;
    copy_v6: "copy", V6;
    auto_v4: "auto", V4;
    auto_v6: "auto", V6;
);
with_each_engine_over!(
    a_router_fragments,
    copy_v4: "copy", V4;
    auto_v4: "auto", V4;
);
