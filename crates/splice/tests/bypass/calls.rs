//! System calls that have no place in the contract: those that send files and pipes, and urgent data.

use std::io::{Read, Write};

use netlab::{Lab, Need, Scratch, available};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::random::Random;
use crate::stage::{Ends, Running, Stage, bytes};

/// A redirected connection.
fn redirected(stage: &Stage) -> (Running, Ends) {
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    (running, ends)
}

#[test]
fn files_and_pipes_are_sent_in_order() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let (running, mut ends) = redirected(&stage);
    let scratch = Scratch::new("sent").expect("a directory");
    let mut random = Random::of_run(52);
    let (from_pipe, to_pipe) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let before = stage.connection(&ends).expect("it is there");
    for round in 0..200 {
        let length = random.size(3000);
        let message = bytes(&mut random, length);
        match round % 3 {
            0 => {
                let path = scratch.path().join("file");
                std::fs::write(&path, &message).expect("written");
                let file = std::fs::File::open(&path).expect("a file");
                let mut left = length;
                while left > 0 {
                    left -= sendfile(&ends.client, &file, None, left).expect("sent");
                }
            }
            1 => {
                let mut left = &message[..];
                while !left.is_empty() {
                    let count = rustix::io::write(&to_pipe, left).expect("written");
                    left = &left[count..];
                    let mut moved = 0;
                    while moved < count {
                        let flags = SpliceFlags::empty();
                        let most = count - moved;
                        let to = &ends.client;
                        moved += splice(&from_pipe, None, to, None, most, flags).expect("spliced");
                    }
                }
            }
            _ => ends.client.write_all(&message).expect("sent"),
        }
        let mut heard = vec![0; length];
        ends.server.read_exact(&mut heard).expect("received");
        assert!(heard == message, "other bytes in round {round}");
        ends.server.write_all(b"ok").expect("sent");
        ends.client.read_exact(&mut [0; 2]).expect("received");
    }
    let after = stage.connection(&ends).expect("it is there");
    let [before, after] = [before, after].map(|of| of.client.expect("seen").redirected_messages);
    assert!(after - before > 100, "{before} {after}");
    running.stop();
}

/// The limit that docs/bypass.md names.
#[test]
fn an_urgent_byte_arrives_in_the_stream_or_is_refused() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let (running, mut ends) = redirected(&stage);
    match send(&ends.client, b"!", SendFlags::OOB) {
        Ok(1) => {
            let mut heard = [0; 1];
            let urgent = recv(&ends.server, &mut heard, RecvFlags::OOB);
            if urgent.is_err() {
                ends.server.read_exact(&mut heard).expect("received");
            }
            assert_eq!(&heard, b"!");
        }
        refused => assert_eq!(refused, Err(Errno::OPNOTSUPP)),
    }
    ends.client.write_all(b"behind").expect("sent");
    let mut heard = [0; 6];
    ends.server.read_exact(&mut heard).expect("received");
    assert_eq!(&heard, b"behind");
    running.stop();
}
