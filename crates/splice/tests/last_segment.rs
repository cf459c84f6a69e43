//! A message and the EOF after it leave as one segment.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;

use netlab::{Need, PATIENCE, available, connection};
use rustix::event::{PollFd, PollFlags, poll};
use splice::{Endpoint, EngineChoice, EngineName, Options};

fn endpoint(stream: TcpStream) -> Endpoint {
    Endpoint::new(OwnedFd::from(stream)).unwrap()
}

/// How many segments a socket has received, according to `ss`. Another connection may have its port, too.
fn segments_in(socket: &TcpStream) -> u32 {
    let (own, peer) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
    let filter = format!("sport = :{} and dport = :{}", own.port(), peer.port());
    let output = Command::new(netlab::program("ss").unwrap())
        .args([
            "--tcp",
            "--info",
            "--numeric",
            "--no-header",
            "state",
            "connected",
            &filter,
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let counts: Vec<u32> = text
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("segs_in:")?.parse().ok())
        .collect();
    assert_eq!(counts.len(), 1, "not one socket: {text}");
    counts[0]
}

/// Joins a connection on which `message` and EOF already wait. Returns how many segments the
/// receiver gets for them.
fn segments_of(message: &[u8], engine: EngineChoice) -> u32 {
    let (mut sender, source) = connection();
    let (mut receiver, destination) = connection();
    let before = segments_in(&receiver);
    sender.write_all(message).unwrap();
    sender.shutdown(Shutdown::Write).unwrap();
    let mut end = [PollFd::new(&source, PollFlags::RDHUP)];
    assert_eq!(
        poll(&mut end, Some(&PATIENCE.try_into().unwrap())).unwrap(),
        1
    );

    let options = Options {
        engine,
        ..Options::default()
    };
    let pair = splice::join(endpoint(source), endpoint(destination), &options).unwrap();
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).unwrap();
    assert_eq!(received, message);
    let segments = segments_in(&receiver) - before;

    // The other direction is still open.
    receiver.write_all(b"back").unwrap();
    drop(receiver);
    let mut back = Vec::new();
    sender.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"back");
    drop(pair);
    segments
}

#[test]
fn a_message_and_eof_leave_in_one_segment() {
    if !available(Need::Ss) {
        return;
    }
    for engine in [EngineChoice::Auto, EngineChoice::Only(EngineName::Copy)] {
        assert_eq!(segments_of(b"answer", engine), 1, "{engine}");
    }
}
