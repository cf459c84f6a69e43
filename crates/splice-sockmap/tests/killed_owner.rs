//! A process that has redirected sockets of others with a lease, and is killed.

#[path = "redirections/conversation.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod conversation;
#[path = "../../splice/tests/support/random.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod random;

use std::process::Stdio;
use std::time::Duration;

use netlab::{BpfFileSystem, Need, Process, available, built_examples, until};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use splice_sockmap::{Lease, SocketKind, handover};

use crate::conversation::{Pair, put, take};

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process that has linked the sockets has nothing to do with them otherwise.
#[test]
fn a_killed_owner_harms_no_socket_of_others() {
    if !available(Need::Root) {
        return;
    }
    let pins = BpfFileSystem::new("lease").expect("a BPF file system");
    let directory = pins.path().join("lease");
    let (channel, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a pair");
    let mut command = Process::command(built_examples("splice-sockmap").join("lease"));
    command
        .arg(&directory)
        .arg("owner")
        .stdin(Stdio::from(theirs));
    let mut owner = Process::spawn(&mut command).expect("started");
    let (app, sidecar) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    handover::ask(&channel, &app.member, &sidecar.member).expect("linked");
    put(&app.member, b"to the server");
    assert_eq!(take(&sidecar.peer), b"to the server");

    owner.child_mut().kill().expect("killed");
    owner.child_mut().wait().expect("waited");
    let mut bytes = [0; 64];
    until("the lease lapses", || {
        put(&app.member, b"to the sidecar");
        recv(&app.peer, &mut bytes, RecvFlags::DONTWAIT).is_ok()
    });
    // Whatever was redirected until then has to be read.
    while recv(&sidecar.peer, &mut bytes, RecvFlags::DONTWAIT).is_ok() {}
    let heir = Lease::take(&directory, PATIENCE).expect("taken");
    assert_eq!(heir.left_behind(), 0);
    heir.release(PATIENCE).expect("released");
    assert!(!directory.exists());
}
