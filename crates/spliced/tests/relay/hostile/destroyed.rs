//! An administrator destroys a socket of the relay (`ss -K`): both peers are reset, as with `copy`.

use super::connection::Side;
use super::stage::Stage;

const CONNECTIONS: usize = 2;
const ENDED: &[&str] = &[
    "end of stream",
    "client failed: Software caused connection abort (os error 103)",
    "target failed: Software caused connection abort (os error 103)",
];

fn destroyed(stage: &Stage, side: Side) {
    let connections = stage.connect(CONNECTIONS);
    let [one, other] = &connections[..] else {
        unreachable!("two were asked for");
    };
    // The socket has seen nothing of that, if it sleeps.
    one.moves_data();
    let peer = one.end(side);
    let done = stage
        .lab()
        .relay()
        .command("ss")
        .args(["-tKH", "src", &peer.peer_address()])
        .args(["dst", &peer.local_address()])
        .output();
    let done = done.expect("ss runs");
    assert!(done.status.success(), "{done:?}");
    let told = String::from_utf8(done.stdout).expect("text");
    // Nothing else says so where the kernel cannot (CONFIG_INET_DIAG_DESTROY).
    assert!(told.contains("ESTAB"), "{told}");
    for end in Side::BOTH.map(|side| one.end(side)) {
        end.expect_reset();
    }
    other.moves_data();
    other.ends_in_order();
    drop(connections);
    stage.expect_ended(CONNECTIONS, ENDED);
}

fn the_clients(stage: &Stage) {
    destroyed(stage, Side::Client);
}

fn the_servers(stage: &Stage) {
    destroyed(stage, Side::Server);
}

with_each_engine!(the_clients);
with_each_engine!(the_servers);
