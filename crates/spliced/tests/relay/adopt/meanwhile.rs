//! Owners that do something with their sockets while these are adopted: nothing is lost, and spliced says what happened.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;

use netlab::{Process, Scratch};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::flow::in_full_flow;
use super::owner::{Owner, both_ways};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::End;
use crate::programs::installed;
use crate::usage::failure;

/// A relay that obeys.
const RELAY: &str = include_str!("relay.py");

/// As many as go through all buffers several times.
const BYTES: u64 = 3_000_000;

fn obedient() -> Option<Owner> {
    let python = installed("python3", "python3")?;
    let owner = Owner::start_with(Stdio::piped(), |listen, target, _| {
        let mut command = Process::command(&python);
        let port = listen.to_string();
        command.args(["-c", RELAY, &port, target]);
        command.stdout(Stdio::piped());
        command
    });
    owner.expect_both_ways();
    Some(owner)
}

/// Has the owner do something, and returns when it is done, if it says so.
fn say(owner: &mut Owner, line: &str) {
    let child = owner.process.child_mut();
    let input = child.stdin.as_mut().expect("its standard input");
    writeln!(input, "{line}").expect("it listens");
    // A program that ends says nothing.
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let _ = output.read_line(&mut String::new());
        child.stdout = Some(output.into_inner());
    }
}

/// Sends bytes each way that the owner does not see.
fn pass(owner: &Owner) {
    both_ways(&owner.client, &owner.server, 21, BYTES);
}

#[test]
fn it_closes_a_socket() {
    let Some(mut owner) = obedient() else {
        return;
    };
    let [number, _] = owner.numbers();
    let mut adopt = owner.adopt();
    pass(&owner);
    say(&mut owner, "close");
    assert!(adopt.wait_end().success());
    adopt.wait_logged(&format!("which has closed {number}"));
    assert_eq!(
        owner.client.read_to_end(Payload::new(1), 0),
        (0, End::OfStream)
    );
    assert!(owner.number_to(&owner.server).is_some());
    assert!(owner.number_to(&owner.client).is_none());
}

#[test]
fn it_ends_a_stream() {
    let Some(mut owner) = obedient() else {
        return;
    };
    let [number, _] = owner.numbers();
    let mut adopt = owner.adopt();
    pass(&owner);
    say(&mut owner, "shutdown");
    assert!(adopt.wait_end().success());
    adopt.wait_logged(&format!("which has ended its stream to {number}"));
    assert_eq!(
        owner.client.read_to_end(Payload::new(1), 0),
        (0, End::OfStream)
    );
    assert!(owner.has_its_sockets());
    // The other direction lives on, in the hands of the owner.
    let payload = Payload::new(2);
    owner.client.send(payload, 0, BYTES);
    owner.server.expect(payload, 0, BYTES);
}

#[test]
fn it_duplicates_a_socket_and_uses_the_duplicate() {
    let Some(mut owner) = obedient() else {
        return;
    };
    let mut adopt = owner.adopt();
    pass(&owner);
    say(&mut owner, "duplicate");
    pass(&owner);
    adopt.terminate();
    let also = format!(" of the process {} (", owner.process.id());
    let line = adopt.wait_logged("given back, also as ");
    assert!(line.contains(&also), "{line}");
    assert!(owner.has_its_sockets());
    owner.expect_both_ways();
    owner.client.end_stream();
    owner.server.expect_end();
}

/// The child goes on with the connections; the parent only has them.
#[test]
fn it_forks() {
    let Some(mut owner) = obedient() else {
        return;
    };
    let mut adopt = owner.adopt();
    pass(&owner);
    say(&mut owner, "fork");
    pass(&owner);
    adopt.terminate();
    let line = adopt.wait_logged("given back, also as ");
    // Both sockets of the child.
    assert_eq!(line.matches(" of the process ").count(), 2, "{line}");
    assert!(owner.has_its_sockets());
    owner.expect_both_ways();
    owner.client.end_stream();
    owner.server.expect_end();
    owner.server.end_stream();
}

#[test]
fn it_executes_another_program() {
    let Some(mut owner) = obedient() else {
        return;
    };
    let mut adopt = owner.adopt();
    pass(&owner);
    let link = format!("/proc/{}/cmdline", owner.process.id());
    let child = owner.process.child_mut();
    let input = child.stdin.as_mut().expect("its standard input");
    writeln!(input, "execute").expect("it listens");
    until("it is the other program", || {
        std::fs::read_to_string(&link).is_ok_and(|line| line.contains("\0again\0"))
    });
    pass(&owner);
    adopt.terminate();
    assert!(owner.has_its_sockets());
    owner.expect_both_ways();
    owner.client.end_stream();
    owner.server.expect_end();
}

#[test]
fn it_exits() {
    let Some(mut owner) = obedient() else {
        return;
    };
    let mut adopt = owner.adopt();
    pass(&owner);
    say(&mut owner, "exit");
    let ended = owner.process.wait_at_most(crate::patience::PATIENCE);
    assert!(ended.expect("waited").is_some());
    assert!(adopt.wait_end().success());
    adopt.wait_logged("given back because of the process ");
    for peer in [&owner.client, &owner.server] {
        assert_eq!(peer.read_to_end(Payload::new(1), 0), (0, End::OfStream));
    }
}

/// A FIFO that is opened in the end, so that whoever waits for that goes on also after a failure.
struct Opened<'path>(&'path Path);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // For both, so that it waits for nobody.
        let options = File::options().read(true).write(true).open(self.0);
        drop(options.expect("a FIFO"));
    }
}

/// A thread that waits in the kernel cannot stop: the others go on at once, and so does this one in the end.
#[test]
fn it_waits_in_the_kernel() {
    let Some(mut owner) = obedient() else {
        return;
    };
    let scratch = Scratch::new("adopt").expect("a directory");
    let path = scratch.path().join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
    let opened = Opened(&path);
    let mut adopting = owner.adopting();
    let pid = owner.process.id();
    let child = owner.process.child_mut();
    let input = child.stdin.as_mut().expect("its standard input");
    writeln!(input, "spawn {}", path.display()).expect("it listens");
    let stat = format!("/proc/{pid}/stat");
    until("it waits", || {
        std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") D "))
    });
    assert_eq!(
        failure(&mut adopting, 2),
        format!(
            "cannot adopt these sockets: the process {pid} (python3) does not stop within 100 ms: its thread {pid} waits in \
             the kernel; try again"
        )
    );
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    assert!(status.contains("\nTracerPid:\t0\n"), "{status}");
    drop(opened);
    assert!(owner.has_its_sockets());
    pass(&owner);
    let mut adopt = owner.adopt();
    pass(&owner);
    adopt.terminate();
}

/// nginx sees no traffic while its connections are adopted.
#[test]
fn its_idle_timer_ends_the_connections() {
    let Some(owner) = Owner::nginx_with("proxy_timeout 1s;") else {
        return;
    };
    let pid = owner.process.id();
    let mut adopt = owner.adopt();
    pass(&owner);
    for peer in [&owner.client, &owner.server] {
        assert_eq!(peer.read_to_end(Payload::new(1), 0), (0, End::OfStream));
    }
    assert!(adopt.wait_end().success());
    adopt.wait_logged(&format!(
        "given back because of the process {pid} (nginx), which has closed "
    ));
}

/// splice(2) does not pass it, and the owner has not read it.
#[test]
fn a_peer_sends_an_urgent_byte() {
    let Some(owner) = obedient() else {
        return;
    };
    let [number, _] = owner.numbers();
    let mut adopt = owner.adopt();
    pass(&owner);
    owner.client.send_urgent(b'!');
    assert!(adopt.wait_end().success());
    adopt.wait_logged(&format!("an urgent byte from the peer of {number}"));
    assert!(owner.has_its_sockets());
    owner.expect_both_ways();
}

/// Two threads, each of which waits in recv(2) when its socket is exchanged: the call goes on with the other one.
#[test]
fn it_reads() {
    if let Some(owner) = Owner::python() {
        in_full_flow(&owner, |wait_further| {
            wait_further();
        });
        // Both threads wait for bytes now.
        for _ in 0..3 {
            let mut adopt = owner.adopt();
            pass(&owner);
            adopt.terminate();
            owner.expect_both_ways();
        }
        owner.client.end_stream();
        owner.server.expect_end();
    }
}
