//! Bytes: what was sent is what is counted, whoever moves it, while a session lives and after its end.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

use netlab::{Namespace, Need, Scratch, available, present};
use splice::EngineName;

use super::reading::{Reading, wait_for};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay};
use crate::server::Server;

/// The bytes to the target, and to the client.
fn moved(reading: &Reading) -> [u64; 2] {
    ["client_to_target", "target_to_client"].map(|direction| {
        let labels = [("direction", direction)];
        reading.sum("spliced_moved_bytes_total", &labels)
    })
}

/// Reads again and again until `is_over`. No counter ever falls, and none is ahead of what was sent.
fn watch(socket: &str, sent: [u64; 2], is_over: &AtomicBool) {
    let mut before = Reading::at(socket);
    loop {
        let was_over = is_over.load(Acquire);
        let reading = Reading::at(socket);
        reading.expect_no_less(&before);
        let moved = moved(&reading);
        assert!(moved[0] <= sent[0] && moved[1] <= sent[1], "{moved:?}");
        before = reading;
        if was_over {
            return;
        }
    }
}

fn counts_what_has_moved(engine: EngineName) {
    const PARTS: u64 = 3;
    const THERE: u64 = 300_007;
    const BACK: u64 = 70_001;
    const SENT: [u64; 2] = [PARTS * THERE, PARTS * BACK];
    let namespace = Namespace::new("metrics").expect("a namespace");
    let scratch = Scratch::new("metrics").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let server = Server::in_namespace(&namespace, "127.0.0.1:0");
    let mut command = namespace.command(BINARY);
    let relay = ["relay", "127.0.0.1:0", &server.address];
    let options = ["--engine", engine.as_str(), "--control", socket];
    let command = command.args(relay).args(options).env_remove("SPLICED_LOG");
    let relay = Relay::spawn(command);
    wait_for(socket);
    let client = namespace.enter(|| Peer::connect(&relay.address));
    let client = client.expect("entered");
    let far = server.accept();
    let (forth, back) = (Payload::new(1), Payload::new(2));
    let is_over = AtomicBool::new(false);
    let active = |engine: &str| {
        let reading = Reading::at(socket);
        reading.sum("spliced_sessions_active", &[("engine", engine)])
    };
    thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(socket, SENT, &is_over));
        for part in 0..PARTS {
            thread::scope(|scope| {
                scope.spawn(|| client.send(forth, part * THERE, THERE));
                scope.spawn(|| far.send(back, part * BACK, BACK));
                scope.spawn(|| client.expect(back, part * BACK, BACK));
                far.expect(forth, part * THERE, THERE);
            });
            let sent = [(part + 1) * THERE, (part + 1) * BACK];
            until("what has passed is counted", || {
                moved(&Reading::at(socket)) == sent
            });
            until("the engine has it", || active(engine.as_str()) == 1);
        }
        client.end_stream();
        far.expect_end();
        far.end_stream();
        client.expect_end();
        let labels = [
            ("listener", "127.0.0.1:0"),
            ("backend", &*server.address),
            ("engine", engine.as_str()),
            ("outcome", "end_of_stream"),
        ];
        until("its end is counted", || {
            Reading::at(socket).sum("spliced_sessions_ended_total", &labels) == 1
        });
        until("it is gone", || active(engine.as_str()) == 0);
        is_over.store(true, Release);
        watcher.join().expect("no counter has fallen");
    });
    let reading = Reading::at(socket);
    let taken = [("backend", &*server.address), ("result", "taken")];
    let in_kernel = matches!(engine, EngineName::Sockmap | EngineName::Segment);
    let promotions = reading.sum("spliced_promotions_total", &taken);
    assert_eq!(promotions, u64::from(in_kernel));
    for times in ["decide", "connect"] {
        let count = format!("spliced_{times}_duration_seconds_count");
        assert_eq!(reading.sum(&count, &taken[..1]), 1, "{times}");
    }
    assert_eq!(moved(&reading), SENT);
    let translated = [("result", "translated")];
    let has_translated = reading.sum("spliced_segments_total", &translated) > 0;
    assert_eq!(has_translated, engine == EngineName::Segment);
    assert_eq!(reading.sum("spliced_sessions_ended_total", &[]), 1);
    assert_eq!(reading.sum("spliced_sessions_opened_total", &[]), 1);
    assert_eq!(reading.sum("spliced_server_connections_total", &[]), 1);
    assert_eq!(reading.sum("spliced_server_open_connections", &[]), 0);
}

macro_rules! with_each_engine {
    ($($name:ident $engine:ident)*) => {$(
        #[test]
        fn $name() {
            let engine = EngineName::$engine;
            let why = engine.probe().err().map(|error| error.to_string());
            if available(Need::Root) && present(engine.as_str(), why) {
                counts_what_has_moved(engine);
            }
        }
    )*};
}

with_each_engine! {
    what_copy_moves_is_counted Copy
    what_pipe_moves_is_counted Pipe
    what_aio_moves_is_counted Aio
    what_uring_moves_is_counted Uring
    what_sockmap_moves_is_counted Sockmap
    what_segment_moves_is_counted Segment
}

/// Many sessions that end while somebody reads: each byte is counted once, by the reader or by the end.
#[test]
fn no_byte_is_counted_twice_or_missing_when_sessions_end_during_a_reading() {
    const AT_ONCE: usize = 4;
    const EACH: u64 = 50;
    const BYTES: u64 = 1000;
    const SENT: u64 = AT_ONCE as u64 * EACH * BYTES;
    let scratch = Scratch::new("metrics").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let relay = Relay::echo("127.0.0.1:0", &["--engine", "copy", "--control", socket]);
    wait_for(socket);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watchers = [(); 2].map(|()| scope.spawn(|| watch(socket, [SENT, 0], &is_over)));
        let clients = [(); AT_ONCE].map(|()| {
            scope.spawn(|| {
                for number in 0..EACH {
                    let client = Peer::connect(&relay.address);
                    let payload = Payload::new(number);
                    client.send(payload, 0, BYTES);
                    client.expect(payload, 0, BYTES);
                    client.end_stream();
                    client.expect_end();
                }
            })
        });
        for client in clients {
            client.join().expect("echoed");
        }
        until("all have ended", || {
            let reading = Reading::at(socket);
            reading.sum("spliced_sessions_ended_total", &[]) == AT_ONCE as u64 * EACH
        });
        is_over.store(true, Release);
        for watcher in watchers {
            watcher.join().expect("no counter has fallen");
        }
    });
    assert_eq!(moved(&Reading::at(socket)), [SENT, 0]);
}
