//! The time to the first byte of a server, whoever moves that byte.

use std::thread;
use std::time::{Duration, Instant};

use netlab::{Namespace, Need, Scratch, available, present};
use splice::EngineName;

use super::reading::{Reading, wait_for};
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay};
use crate::server::Server;

const COUNT: &str = "spliced_first_byte_duration_seconds_count";
const SUM: &str = "spliced_first_byte_duration_seconds_sum";
/// How long the server thinks: longer than any engine waits before it takes a pair.
const THINKS: Duration = Duration::from_millis(300);

fn tells_how_long_a_server_has_thought(engine: EngineName) {
    let namespace = Namespace::new("first").expect("a namespace");
    let scratch = Scratch::new("first").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let server = Server::in_namespace(&namespace, "127.0.0.1:0");
    let mut command = namespace.command(BINARY);
    let relay = ["relay", "127.0.0.1:0", &server.address];
    let options = ["--engine", engine.as_str(), "--control", socket];
    let command = command.args(relay).args(options).env_remove("SPLICED_LOG");
    let relay = Relay::spawn(command);
    wait_for(socket);
    let connect = || {
        let client = namespace.enter(|| Peer::connect(&relay.address));
        (client.expect("entered"), server.accept())
    };
    let labels = [("listener", "127.0.0.1:0"), ("backend", &*server.address)];
    let with = |label, value| [labels[0], labels[1], (label, value)];
    let is_taken = || {
        let active = with("engine", engine.as_str());
        Reading::at(socket).sum("spliced_sessions_active", &active) == 1
    };

    let before = Instant::now();
    let (client, far) = connect();
    until("the engine has it", is_taken);
    let reading = Reading::at(socket);
    assert_eq!(reading.sum(COUNT, &labels), 0);
    client.write_number(1);
    assert_eq!(far.read_number(), 1);
    // What the client sends is no answer.
    assert_eq!(Reading::at(socket).sum(COUNT, &labels), 0);
    thread::sleep(THINKS);
    far.write_number(2);
    assert_eq!(client.read_number(), 2);
    let most = before.elapsed();
    until("it is counted", || {
        Reading::at(socket).sum(COUNT, &labels) == 1
    });
    let tells = |reading: &Reading| {
        let seconds = reading.total(SUM, &labels);
        assert_eq!(reading.sum(COUNT, &labels), 1);
        let told = Duration::from_secs_f64(seconds);
        assert!(THINKS <= told && told <= most, "{told:?} of {most:?}");
        seconds
    };
    let told = tells(&Reading::at(socket));
    // Only the first byte counts.
    far.write_number(3);
    assert_eq!(client.read_number(), 3);
    client.end_stream();
    far.expect_end();
    far.end_stream();
    client.expect_end();
    let ended = |how| [labels[0], labels[1], ("engine", engine.as_str()), how];
    until("it has ended", || {
        let in_order = ended(("outcome", "end_of_stream"));
        Reading::at(socket).sum("spliced_sessions_ended_total", &in_order) == 1
    });
    assert_eq!(tells(&Reading::at(socket)), told);

    // One that nobody has looked at between its first byte and its end.
    let before = Instant::now();
    let (client, far) = connect();
    until("the engine has the next one", is_taken);
    thread::sleep(THINKS);
    far.write_number(4);
    assert_eq!(client.read_number(), 4);
    let most = before.elapsed();
    client.end_stream();
    far.expect_end();
    far.end_stream();
    client.expect_end();
    until("it has ended as well", || {
        let in_order = ended(("outcome", "end_of_stream"));
        Reading::at(socket).sum("spliced_sessions_ended_total", &in_order) == 2
    });
    let reading = Reading::at(socket);
    assert_eq!(reading.sum(COUNT, &labels), 2);
    let last = Duration::from_secs_f64(reading.total(SUM, &labels) - told);
    let rounding = Duration::from_micros(1);
    assert!(
        THINKS <= last + rounding && last <= most + rounding,
        "{last:?} of {most:?}"
    );

    // One whose server says nothing.
    let (client, far) = connect();
    until("the engine has the last one", is_taken);
    client.write_number(5);
    assert_eq!(far.read_number(), 5);
    client.reset();
    until("it is reset", || {
        let reset = [labels[0], labels[1], ("outcome", "reset_by_client")];
        Reading::at(socket).sum("spliced_sessions_ended_total", &reset) == 1
    });
    assert_eq!(Reading::at(socket).sum(COUNT, &labels), 2);
}

macro_rules! with_each_engine {
    ($($name:ident $engine:ident)*) => {$(
        #[test]
        fn $name() {
            let engine = EngineName::$engine;
            let why = engine.probe().err().map(|error| error.to_string());
            if available(Need::Root) && present(engine.as_str(), why) {
                tells_how_long_a_server_has_thought(engine);
            }
        }
    )*};
}

with_each_engine! {
    copy_tells_when_the_first_byte_came Copy
    sockmap_tells_when_the_first_byte_came Sockmap
    segment_tells_when_the_first_byte_came Segment
}
