//! A process that has unshared its time namespace and has not forked keeps its own clocks.
//! /proc/self/timens_offsets then describes those of its children.
//!
//! The file describes the process's first thread, on which the usual harness runs no test. A
//! program that is executed takes over its children's clocks (`exec_task_namespaces`, 6.3). So this
//! test is a program of its own.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use netlab::{Namespace, Need, PATIENCE, available};
use rustix::thread::UnshareFlags;
use rustix::time::{ClockId, clock_gettime};
use splice::{Endpoint, EngineChoice, EngineName, Limits, Options, Reason, Splicer};

/// Longer than the test's own pauses are likely to be.
const IDLE: Duration = Duration::from_secs(3);

fn main() {
    if !(available(Need::Root) && available(Need::Netns) && available(Need::Bpf)) {
        return;
    }
    let known = fs::exists("/proc/self/ns/time_for_children").unwrap();
    let missing = (!known).then(|| "the kernel has no time namespaces (CONFIG_TIME_NS)".into());
    if !netlab::present("time", missing) {
        return;
    }
    #[expect(
        deprecated,
        reason = "what is unshared is nobody's memory or descriptors"
    )]
    rustix::thread::unshare(UnshareFlags::NEWTIME).unwrap();
    // A clock that is behind, but not before its epoch.
    let ahead_s = clock_gettime(ClockId::Monotonic).tv_sec / 2;
    fs::write(
        "/proc/self/timens_offsets",
        format!("monotonic {ahead_s} 0\n"),
    )
    .unwrap();
    let namespace = Namespace::new("clock").unwrap();
    namespace.enter(an_idle_pair_is_found).unwrap();
    println!("a spliced pair is idle by the process's own clock ... ok");
}

/// The BPF program records when a byte was last acknowledged. By a clock that is behind, that time
/// lies ahead.
fn an_idle_pair_is_found() {
    let splicer = Splicer::new(1).unwrap();
    let connect = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_read_timeout(Some(PATIENCE)).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let ((mut client, a), (mut server, b)) = (connect(), connect());
    let options = Options {
        limits: Limits {
            idle_timeout: Some(IDLE),
            ..Limits::default()
        },
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    let [a, b] = [a, b].map(|end| Endpoint::new(end).unwrap());
    let handle = splicer.join(a, b, &options).unwrap();
    netlab::until("what is said goes past the sockets", || {
        let before = handle.redirected().a_to_b;
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        handle.redirected().a_to_b > before
    });
    let outcome = handle.wait_timeout(PATIENCE).unwrap();
    assert_eq!(outcome.reason, Reason::Idle, "{outcome:?}");
    assert_eq!(outcome.engine, EngineName::Segment, "{outcome:?}");
}
