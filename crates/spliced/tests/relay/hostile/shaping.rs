//! What queues of the relay's devices make of connections of every engine: a rate that comes later, and classes by what a
//! sender has set.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use netlab::Lab;
use socket2::SockRef;

use super::connection::{Connection, Side};
use super::site::Site;
use super::stage::{IN_ORDER, Stage};
use super::stamps::WITHIN;
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{Over, Peer};

const PIECE_BYTES: u64 = 16 << 10;
/// More than what buffers on the way hold: then they are full, or have been emptied.
const MANY_BYTES: u64 = 16 << 20;

/// Far below what passes otherwise.
const RATE_BYTES: u64 = 1_000_000;
/// How long the rate is measured.
const MEASURED: Duration = Duration::from_secs(2);

/// The class of what has none, and another one.
const DEFAULT_CLASS: &str = "1:2";
const OTHER_CLASS: &str = "1:1";
/// The same as a socket says it (SO_PRIORITY).
const OTHER_PRIORITY: u32 = 0x1_0001;
/// The client's (SO_MARK).
const MARK: u32 = 7;

fn tc(stage: &Stage, arguments: &str) -> String {
    let mut command = stage.lab().relay().command("tc");
    let done = command.args(arguments.split(' ')).output();
    let done = done.expect("tc runs");
    assert!(done.status.success(), "tc {arguments}: {done:?}");
    String::from_utf8(done.stdout).expect("text")
}

/// A stream is full when a shaper comes: from then on no more passes in a second than that lets pass.
fn a_shaper_comes(stage: &Stage) {
    let device = Lab::TO_SERVER;
    let shaper = format!("root tbf rate {RATE_BYTES}bps burst 32kb latency 50ms");
    let connection = stage.connect(1).remove(0);
    let Connection { client, server } = &connection;
    let (is_over, arrived, end) = (
        AtomicBool::new(false),
        AtomicU64::new(0),
        AtomicU64::new(u64::MAX),
    );
    let payload = Payload::new(3);
    thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| {
            let mut sent = 0;
            let mut is_last = false;
            while !is_last {
                is_last = is_over.load(SeqCst);
                if is_last {
                    end.store(sent + PIECE_BYTES, SeqCst);
                }
                client.send(payload, sent, PIECE_BYTES);
                sent += PIECE_BYTES;
            }
        });
        scope.spawn(|| {
            while arrived.load(SeqCst) < end.load(SeqCst) {
                server.expect(payload, arrived.load(SeqCst), PIECE_BYTES);
                arrived.fetch_add(PIECE_BYTES, SeqCst);
            }
        });
        let until_many_pass = || {
            let before = arrived.load(SeqCst);
            until("many bytes pass", || {
                arrived.load(SeqCst) - before > MANY_BYTES
            });
        };
        until_many_pass();
        tc(stage, &format!("qdisc add dev {device} {shaper}"));
        thread::sleep(WITHIN);
        let (before, since) = (arrived.load(SeqCst), Instant::now());
        thread::sleep(MEASURED);
        let passed = arrived.load(SeqCst) - before;
        let allowed = since.elapsed().as_secs_f64() * RATE_BYTES as f64;
        eprintln!("{passed} bytes have passed, {allowed} may");
        assert!(passed > 0);
        // Beside the rate, what waits on the way at the beginning: some hundred packets.
        let most = 1.3 * allowed;
        assert!((passed as f64) < most, "{passed} bytes, {allowed} may");
        tc(stage, &format!("qdisc del dev {device} root"));
        until_many_pass();
        drop(over);
    });
    connection.ends_in_order();
    stage.expect_ended(1, IN_ORDER);
    expect_engine(stage);
}

/// Nothing has sent the connection back to its sockets.
fn expect_engine(stage: &Stage) {
    for entry in stage.hop().entries().iter().filter(|_| stage.splices()) {
        assert_eq!(entry["engine"], "segment", "{entry}");
    }
}

/// How many packets have left by a class of the device towards the server.
fn sent_by_class(stage: &Stage, class: &str) -> u64 {
    let listed = tc(stage, &format!("-s class show dev {}", Lab::TO_SERVER));
    let head = format!("class htb {class} ");
    let mut lines = listed.lines().skip_while(|line| !line.starts_with(&head));
    // " Sent 0 bytes 0 pkt (dropped 0, ...)"
    let counts = lines.nth(1).expect("a class").split_ascii_whitespace();
    counts
        .skip(3)
        .map_while(|word| word.parse::<u64>().ok())
        .sum()
}

/// Over lo, packets keep what their socket has set. With `copy` they end at the relay's, and others leave.
fn a_clients_priority_and_mark_end_at_the_relay(stage: &Stage) {
    let site = Site {
        stage,
        side: Side::Server,
    };
    let device = site.device();
    tc(
        stage,
        &format!("qdisc add dev {device} root handle 1: htb default 2"),
    );
    for class in [DEFAULT_CLASS, OTHER_CLASS] {
        tc(
            stage,
            &format!("class add dev {device} parent 1: classid {class} htb rate 10gbit"),
        );
    }
    site.ip(&format!("rule add fwmark {MARK} pref 5 blackhole"));
    let connect = || Peer::connect(stage.hop().address());
    let client = stage.lab().relay().enter(connect).expect("entered");
    let connection = Connection {
        client,
        server: stage.target().accept(),
    };
    let client = SockRef::from(&connection.client);
    client.set_priority(OTHER_PRIORITY).expect("SO_PRIORITY");
    client.set_mark(MARK).expect("SO_MARK");
    connection.moves_a_byte(Side::Client);
    // Only by name is a client on this host told to send segments that the path takes.
    let is_spliced = stage.engine() == "segment";
    if is_spliced {
        until("it is spliced", || stage.hop().are_spliced(1));
    }
    let before = sent_by_class(stage, DEFAULT_CLASS);
    connection.moves_data();
    assert!(sent_by_class(stage, DEFAULT_CLASS) > before);
    assert_eq!(sent_by_class(stage, OTHER_CLASS), 0);
    connection.ends_in_order();
    stage.expect_ended(1, IN_ORDER);
    if is_spliced {
        expect_engine(stage);
    }
}

with_each_engine!(a_shaper_comes, routed);
with_each_engine!(a_clients_priority_and_mark_end_at_the_relay);
