//! A process that has redirected sockets of others, and is killed.

#[path = "redirections/conversation.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod conversation;
#[path = "../../splice/tests/support/random.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod random;

use std::env;
use std::fs;
use std::io::stdin;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use netlab::{BpfFileSystem, Need, Process, available, built_examples, until};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use splice_sockmap::{Cookie, Lease, Redirect, SockHash, SockMap, SocketKind, handover};

use crate::conversation::{Pair, put, take};

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn channel() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

/// The process that has linked the sockets has nothing to do with them otherwise.
#[test]
fn a_killed_owner_harms_no_socket_of_others() {
    if !available(Need::Root) {
        return;
    }
    let pins = BpfFileSystem::new("lease").expect("a BPF file system");
    let directory = pins.path().join("lease");
    let (channel, theirs) = channel();
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

/// Has this program attach a redirect to a map that it pins at this path.
const OWNER_OF: &str = "SPLICE_TEST_OWNER_OF";

/// Links what it is asked to, until it is killed.
fn own(path: &Path) {
    let mut map = SockHash::<Cookie>::create(4).expect("a map");
    map.pin(path).expect("pinned");
    let attachment = map.attach(Redirect::IngressToEgress).expect("attached");
    while let Some(request) = handover::next(stdin()).expect("a request") {
        let key = Cookie::of(&request.source).expect("a cookie");
        let linked = attachment.link(key, &request.source, &request.target);
        request
            .answer(linked.as_ref().map(|_| ()))
            .expect("answered");
    }
}

/// The test below, which is the owner in another process.
const NAME: &str = "a_map_whose_owner_was_killed_is_kept_by_its_pin_and_loses_what_waits_with_it";

fn killed_owner_of(path: &Path, source: &Pair, target: &Pair) {
    let (channel, theirs) = channel();
    let mut command = Process::command(env::current_exe().expect("this program"));
    command
        .args(["--exact", NAME])
        .env(OWNER_OF, path)
        .stdout(Stdio::null())
        .stdin(Stdio::from(theirs));
    let mut owner = Process::spawn(&mut command).expect("started");
    handover::ask(&channel, &source.member, &target.member).expect("linked");
    owner.child_mut().kill().expect("killed");
    owner.child_mut().wait().expect("waited");
}

/// The kernel keeps the redirect for as long as the map has a pin. Then it takes everything out at once.
#[test]
fn a_map_whose_owner_was_killed_is_kept_by_its_pin_and_loses_what_waits_with_it() {
    /// More than the peer of a UNIX socket queues (`max_dgram_qlen`).
    const MOST: u32 = 1000;
    if let Some(path) = env::var_os(OWNER_OF) {
        return own(Path::new(&path));
    }
    if !available(Need::Root) {
        return;
    }
    let pins = BpfFileSystem::new("owned").expect("a BPF file system");
    let path = pins.path().join("sources");
    let (source, target) = (
        Pair::of(SocketKind::Udp),
        Pair::of(SocketKind::UnixDatagram),
    );
    killed_owner_of(&path, &source, &target);
    put(&source.peer, b"redirected");
    assert_eq!(take(&target.peer), b"redirected");

    let map = SockHash::<Cookie>::open_pinned(&path).expect("opened");
    let key = Cookie::of(&source.member).expect("a cookie");
    assert!(map.iter().eq([(key, key)]));
    for refused in [
        map.remove(key).map(drop),
        map.insert(Cookie(0), &target.peer),
        map.attach(Redirect::SendToLocal).map(drop),
    ] {
        let said = refused.expect_err("a program is attached").to_string();
        assert!(said.contains("is attached to it"), "{said}");
    }
    put(&source.peer, b"still redirected");
    assert_eq!(take(&target.peer), b"still redirected");

    (0..MOST).for_each(|number| put(&source.peer, &number.to_ne_bytes()));
    fs::remove_file(&path).expect("removed");
    let mut bytes = [0; 64];
    until("the source is a plain socket", || {
        put(&source.peer, b"plain");
        recv(&source.member, &mut bytes, RecvFlags::DONTWAIT).is_ok()
    });
    let mut come = 0u32;
    while let Ok((_, 4)) = recv(&target.peer, &mut bytes, RecvFlags::DONTWAIT) {
        assert_eq!(
            bytes[..4],
            come.to_ne_bytes(),
            "in order, from the first on"
        );
        come += 1;
    }
    println!("{come} of {MOST} came to a target that did not read meanwhile");
    assert!(come > 0 && come < MOST, "{come}");
    // Another map takes them.
    let map = SockMap::create(2).expect("a map");
    map.insert(0, &source.member).expect("inserted");
    map.insert(1, &target.member).expect("inserted");
}
