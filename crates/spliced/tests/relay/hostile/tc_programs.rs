//! tc programs that come to the relay's devices while connections of every engine are open, and the relay's own, which
//! somebody detaches. The stack does not mind, and spliced connections go back to their sockets.

use netlab::Lab;
use splice_bpf::{DeviceLink, detach_link, load, objects};

use super::connection::{Connection, Side};
use super::path_mtu::goes_on;
use super::routes::{REST, expect_spliced};
use super::site::Site;
use super::stage::{Family, Stage};
use super::untranslated::expect_return;
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::BINARY;
use crate::segment::hop::Hop;

/// `TC_ACT_OK` plus one, as foreign_tc.bpf.c takes it: up the stack, past all later programs.
const PASS: u32 = 1;
/// `struct foreign_tc`, which begins with it.
const ENTRY_BYTES: usize = 24;

/// How often another relay is started and killed.
const RESTARTS: usize = 4;

/// A program of others that comes before all that are there, and keeps segments from them.
fn come_first(site: &Site<'_>) -> DeviceLink {
    let object = load("foreign_tc", objects::FOREIGN_TC, |_| Ok(())).expect("loaded");
    let mut entry = [0; ENTRY_BYTES];
    entry[..4].copy_from_slice(&PASS.to_ne_bytes());
    let entries = object.map("foreign_tcs").expect("a map");
    entries.update(&0u32, &entry).expect("updated");
    let program = object.program("foreign_tc").expect("a program");
    let index = site.device_index();
    let relay = site.stage.lab().relay();
    let link = relay.enter(|| program.attach_first(index));
    link.expect("entered").expect("attached")
}

/// Detaches the relay's program from the device.
fn detach(site: &Site<'_>) {
    let index = site.device_index().to_string();
    let infos = site.stage.hop().relay.descriptor_infos();
    let value = |info: &str, name: &str| {
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(found, _)| *found == name);
        found.map(|(_, value)| value.trim().to_owned())
    };
    let links = infos.iter().filter(|info| {
        value(info, "link_type").as_deref() == Some("tcx")
            && value(info, "ifindex").as_deref() == Some(&index)
    });
    let mut detached = 0;
    for link in links {
        let id = value(link, "link_id").expect("an id");
        detach_link(id.parse().expect("a number")).expect("detached");
        detached += 1;
    }
    assert_eq!(detached, 2, "{infos:?}");
}

/// Bytes go both ways on a connection that was idle, by its sockets.
fn expect_by_sockets(stage: &Stage, idle: &Connection) {
    stage.until_all_are_back();
    for side in Side::BOTH {
        idle.end(side).write_number(1);
        assert_eq!(idle.end(side.other()).read_number(), 1);
    }
}

fn a_program_comes_first(stage: &Stage, side: Side) {
    // It stays there until all streams have ended.
    let mut program = None;
    goes_on(stage, |connections| {
        program = Some(come_first(&Site { stage, side }));
        expect_by_sockets(stage, &connections[0]);
    });
    drop(program);
    expect_return(stage, "the tc program foreign_tc before the relay's");
}

fn a_program_comes_first_at_the_client(stage: &Stage) {
    a_program_comes_first(stage, Side::Client);
}

fn a_program_comes_first_at_the_server(stage: &Stage) {
    a_program_comes_first(stage, Side::Server);
}

fn the_program_is_detached(stage: &Stage, side: Side) {
    goes_on(stage, |connections| {
        if stage.splices() {
            detach(&Site { stage, side });
        }
        expect_by_sockets(stage, &connections[0]);
    });
    expect_return(stage, "the relay's program was detached from");
}

fn the_program_is_detached_at_the_client(stage: &Stage) {
    the_program_is_detached(stage, Side::Client);
}

fn the_program_is_detached_at_the_server(stage: &Stage) {
    the_program_is_detached(stage, Side::Server);
}

/// Another relay, which has attached its program to both devices behind that of the stage.
fn start_another(stage: &Stage) -> (Hop, Peer, Peer) {
    let listen = match stage.family() {
        Family::V4 => format!("{}:0", Lab::RELAY_V4),
        Family::V6 => format!("[{}]:0", Lab::RELAY_V6),
    };
    let mut command = stage.lab().relay().command(BINARY);
    command.args(["relay", &listen, &stage.target().address]);
    command.args(["--engine", "segment"]);
    let hop = Hop::spawn(&mut command);
    let connect = || Peer::connect(hop.address());
    let client = stage.client().enter(connect).expect("entered");
    let server = stage.target().accept();
    until("it is spliced", || hop.are_spliced(1));
    (hop, client, server)
}

/// What it attaches leaves the connections of others alone, also while the kernel detaches it.
fn another_relay_is_killed(stage: &Stage) {
    goes_on(stage, |connections| {
        for _ in 0..RESTARTS {
            let (another, client, server) = start_another(stage);
            // The relay of the stage looks every second.
            assert!(!connections[0].client.is_readable_within(REST));
            drop((another, client, server));
        }
    });
    expect_spliced(stage);
}

with_each_engine!(a_program_comes_first_at_the_client, routed);
with_each_engine!(a_program_comes_first_at_the_server, routed);
with_each_engine!(the_program_is_detached_at_the_client, routed);
with_each_engine!(the_program_is_detached_at_the_server, routed);
with_each_engine!(another_relay_is_killed, routed);
