//! What stands in for spliced.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;

use netlab::Scratch;

/// Tells the copy of a test program that plays spliced what spliced was told.
const TOLD: &str = "STAND_IN_TOLD";
/// Tells it to spoil what it moves.
pub(crate) const SPOIL: &str = "STAND_IN_SPOIL";

/// The offset in each direction of the byte that a spoiling stand-in changes: past all that is sent
/// before the transfer whose hashes are compared has come to its middle.
const SPOILED_OFFSET: usize = 1 << 20;

/// A script in place of spliced.
pub(crate) fn script(scratch: &Scratch, text: &str) -> PathBuf {
    let path = scratch
        .write("spliced", &format!("#!/bin/sh\n{text}\n"))
        .expect("it is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

/// A script that runs [`play`] in another process, by the ignored test `play_spliced` of this program.
pub(crate) fn sound(scratch: &Scratch, environment: &str) -> PathBuf {
    let this = std::env::current_exe().expect("a running program has a path");
    let text = format!(
        "{TOLD}=\"$1 $2 $3\" {environment} exec {} --exact play_spliced --ignored --nocapture",
        this.display()
    );
    script(scratch, &text)
}

/// Plays `spliced relay LISTEN TARGET` or `spliced echo LISTEN` by copying; comes back at once in a
/// program that was started for its tests.
pub(crate) fn play() {
    let Ok(told) = std::env::var(TOLD) else {
        return;
    };
    let words: Vec<&str> = told.split(' ').collect();
    let spoil = std::env::var(SPOIL).is_ok();
    let listener = TcpListener::bind(words[1]).expect("a free address");
    for client in listener.incoming().flatten() {
        client.set_nodelay(true).expect("it is TCP");
        let copy = || client.try_clone().expect("files are left");
        let ends = if words[0] == "relay" {
            let server = TcpStream::connect(words[2]).expect("the server listens");
            server.set_nodelay(true).expect("it is TCP");
            let again = server.try_clone().expect("files are left");
            vec![[copy(), server], [again, copy()]]
        } else {
            vec![[copy(), copy()]]
        };
        for ends in ends {
            thread::spawn(move || pump(&ends, spoil));
        }
    }
}

fn pump([from, to]: &[TcpStream; 2], spoil: bool) {
    let (mut from, mut to, mut offset, mut buffer) = (from, to, 0, vec![0; 64 << 10]);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if spoil && (offset..offset + count).contains(&SPOILED_OFFSET) {
            buffer[SPOILED_OFFSET - offset] ^= 1;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        offset += count;
    }
    let _ = to.shutdown(Shutdown::Write);
}
