//! Streams that have gone past the relay's sockets for so long that the sequence numbers which these know seem to lie ahead:
//! two gigabytes and more, but less than four.

use std::thread;

use super::connection::{Connection, Side};
use super::path_mtu::{cable_of_the_relay, move_some, narrow};
use super::stage::{IN_ORDER, Stage};
use super::unread::goes_on;
use super::untranslated::expect_return;
use crate::payload::Payload;
use crate::peer::Peer;

const MUCH: u64 = 5 << 29;

const SOME: u64 = 1 << 20;

fn move_much(from: &Peer, to: &Peer) {
    let payload = Payload::new(6);
    thread::scope(|scope| {
        scope.spawn(|| from.send(payload, 0, MUCH));
        to.expect(payload, 0, MUCH);
    });
}

fn narrow_path(stage: &Stage) {
    narrow(cable_of_the_relay(stage, Side::Client));
}

fn a_spliced_connection_goes_back(stage: &Stage) {
    let connection = stage.connect(1).remove(0);
    let Connection { client, server } = &connection;
    move_much(server, client);
    narrow_path(stage);
    move_some(&connection, SOME);
    stage.expect_ended(1, IN_ORDER);
    expect_return(stage, "are too long for the path");
}

/// The server reads nothing meanwhile, so the relay's sockets hold a part of the other stream.
fn one_stream_goes_on(stage: &Stage) {
    goes_on(stage, |connections| {
        let Connection { client, server } = &connections[0];
        move_much(server, client);
    });
}

fn one_stream_goes_back(stage: &Stage) {
    goes_on(stage, |connections| {
        let Connection { client, server } = &connections[0];
        move_much(server, client);
        narrow_path(stage);
    });
    expect_return(stage, "are too long for the path");
}

with_each_engine!(a_spliced_connection_goes_back, routed);

/// Not by name: see `unread.rs`.
mod of_auto {
    use super::super::stage::Family;
    use super::*;

    fn with_both(case: fn(&Stage)) {
        for family in [Family::V4, Family::V6] {
            Stage::routed("auto", family, case);
        }
    }

    #[test]
    fn goes_on() {
        with_both(one_stream_goes_on);
    }

    #[test]
    fn goes_back() {
        with_both(one_stream_goes_back);
    }
}
