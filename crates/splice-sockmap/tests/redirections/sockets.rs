//! Ways in: sockets of other processes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;

use netlab::{Need, Process, available, until_found};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use splice_sockmap::{
    ErrorKind, MapType, Redirect, Redirections, SocketKind, handover, of_process,
};

use crate::conversation::{Pair, put, take};

pub(crate) fn channel() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

#[test]
fn sockets_that_are_handed_over_are_linked() {
    if !available(Need::Root) {
        return;
    }
    let (asks, links) = channel();
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::UnixStream));
    let linker = thread::spawn(move || {
        let redirections = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8);
        let redirections = redirections.expect("loaded");
        let mut served = 0;
        while let Some(request) = handover::next(&links).expect("received") {
            let linked = redirections.link(&request.source, &request.target);
            request
                .answer(linked.as_ref().map(|_| ()))
                .expect("answered");
            served += 1;
        }
        served
    });
    handover::ask(&asks, &source.member, &target.member).expect("linked");
    put(&source.peer, b"hello");
    assert_eq!(take(&target.peer), b"hello");
    // The reason of a refusal arrives.
    let refused = handover::ask(&asks, &source.member, &target.member).expect_err("it is linked");
    assert_eq!(refused.kind(), ErrorKind::EngineRefused);
    assert!(
        refused.to_string().contains("has a link already"),
        "{refused}"
    );
    drop(asks);
    assert_eq!(linker.join().expect("the linker"), 2);
}

#[test]
fn a_malformed_request_is_refused_and_the_channel_goes_on() {
    let (asks, links) = channel();
    for bytes in [&b"nonsense"[..], b"splice01L", b"splice01L and more"] {
        send(&asks, bytes, SendFlags::NOSIGNAL).expect("sent");
        let error = handover::next(&links).expect_err("malformed");
        assert_eq!(error.kind(), ErrorKind::UnsupportedSocket);
        let mut answer = [0; 200];
        let (_, length) = recv(&asks, &mut answer, RecvFlags::DONTWAIT).expect("answered");
        assert_eq!(answer[0], 1);
        let said = String::from_utf8_lossy(&answer[1..length]);
        assert!(said.contains("two descriptors"), "{said}");
    }
    let pair = Pair::of(SocketKind::Tcp);
    thread::scope(|scope| {
        let asked = scope.spawn(|| handover::ask(&asks, &pair.member, &pair.peer));
        drop(
            handover::next(&links)
                .expect("received")
                .expect("a request"),
        );
        let error = asked.join().expect("asked").expect_err("it was dropped");
        assert!(error.to_string().contains("was dropped"), "{error}");
    });
    drop(links);
    let error = handover::ask(&asks, &pair.member, &pair.peer).expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::System);
}

#[test]
fn whoever_asks_and_does_not_read_keeps_nobody_waiting() {
    let (asks, links) = channel();
    let refuse = || {
        send(
            &asks,
            b"nonsense",
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )
        .expect("sent");
        handover::next(&links).expect_err("malformed")
    };
    let error = until_found("there is no room for an answer", || {
        let error = refuse();
        (error.kind() == ErrorKind::System).then_some(error)
    });
    assert!(error.to_string().contains("cannot answer"), "{error}");
    let mut answer = [0; 200];
    while recv(&asks, &mut answer, RecvFlags::DONTWAIT).is_ok() {}
    assert_eq!(refuse().kind(), ErrorKind::UnsupportedSocket);
}

/// A process that has `socket` as its standard input and does nothing.
fn owner(socket: impl AsFd) -> Process {
    let socket = socket.as_fd().try_clone_to_owned().expect("a duplicate");
    let mut command = Process::command("sleep");
    command.arg("600").stdin(Stdio::from(socket));
    Process::spawn(&mut command).expect("started")
}

#[test]
fn a_socket_of_another_process_is_linked_by_its_number() {
    if !available(Need::Root) {
        return;
    }
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let process = owner(&source.member);
    drop(source.member);
    let redirections =
        Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8).expect("loaded");
    let taken = of_process(process.id(), 0).expect("taken");
    let _link = redirections.link(&taken, &target.member).expect("linked");
    drop(taken);
    put(&source.peer, b"hello");
    assert_eq!(take(&target.peer), b"hello");
}

#[test]
fn what_cannot_be_taken_is_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    let (one, _peer) = UnixStream::pair().expect("a pair");
    let process = owner(&one);
    let id = process.id();
    let said = |pid, fd| {
        of_process(pid, fd)
            .expect_err("it cannot be taken")
            .to_string()
    };
    assert!(
        said(id, 999).contains("has no descriptor 999"),
        "{}",
        said(id, 999)
    );
    assert!(said(0, 0).contains("there is no process 0"));
    // Larger than the largest number of a process (PID_MAX_LIMIT is 4 Mi).
    assert!(said(1 << 30, 0).contains("there is no process"));
    let null = std::fs::File::open("/dev/null").expect("a file");
    let no_socket = owner(&null);
    assert!(said(no_socket.id(), 0).contains("that is no socket"));
    assert!(one.as_raw_fd() > 0);

    let refused = thread::spawn(move || {
        // Of this thread only: system calls below libc's.
        set_thread_groups(&[]).expect("no groups");
        set_thread_gid(Gid::from_raw(65534)).expect("another group");
        set_thread_uid(Uid::from_raw(65534)).expect("another user");
        of_process(id, 0).expect_err("no right to it")
    });
    let refused = refused.join().expect("the thread");
    assert_eq!(
        refused.os_error().and_then(Errno::from_io_error),
        Some(Errno::PERM)
    );
    assert!(refused.to_string().contains("CAP_SYS_PTRACE"), "{refused}");
}
