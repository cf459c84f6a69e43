//! A process whose descriptors run out at any step. Alone in its process, since the limit is the process's.

#[path = "redirections/conversation.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod conversation;
#[path = "../../splice/tests/support/random.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod random;

use std::fs;
use std::time::Duration;

use netlab::{BpfFileSystem, Need, available};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use splice_sockmap::{Error, Lease, MapType, Redirect, Redirections, SockMap, SocketKind};

use crate::conversation::{Pair, put, take};

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// More than everything here has open at a time.
const MOST: u64 = 120;

fn open() -> usize {
    fs::read_dir("/proc/self/fd").expect("a directory").count()
}

fn limited<T>(to: u64, work: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    let current = Some(to);
    setrlimit(Resource::Nofile, Rlimit { current, ..before }).expect("lowered");
    let done = work();
    setrlimit(Resource::Nofile, before).expect("raised");
    done
}

/// Everything that a program does with one link of a UNIX source, which has maps of its own.
fn link(redirections: &Redirections, source: &Pair, target: &Pair) -> Result<(), Error> {
    let mut link = redirections.link(&source.member, &target.member)?;
    put(&source.peer, b"redirected");
    assert_eq!(take(&target.peer), b"redirected");
    assert_eq!(link.counters().messages, 1);
    link.leave(&source.member, PATIENCE)
}

fn everything(directory: &std::path::Path, source: &Pair, target: &Pair) -> Result<(), Error> {
    let mut map = SockMap::create(1)?;
    let pin = directory.with_file_name("map");
    map.pin(&pin)?;
    let opened = SockMap::open_pinned(&pin);
    fs::remove_file(&pin).expect("removed");
    let opened = opened?;
    opened.insert(0, &target.member)?;
    assert!(opened.remove(0)?);
    let attachment = map.attach(Redirect::IngressToEgress)?;
    let mut linked = attachment.link(0, &source.member, &target.member)?;
    opened.remove(0).expect_err("a program is attached");
    let detached = attachment.detach([(&mut linked, &source.member)], PATIENCE);
    let map = detached.map_err(|failed| failed.1)?;
    assert!(map.remove(0)?);
    drop((map, opened, linked));
    let redirections = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 4)?;
    link(&redirections, source, target)?;
    drop(redirections);
    let lease = Lease::take(directory, PATIENCE)?;
    let leased = Redirections::leased(&lease, Redirect::IngressToEgress, MapType::Map, 4)?;
    link(&leased, source, target)?;
    drop(leased);
    lease.release(PATIENCE)
}

#[test]
fn whatever_step_has_no_descriptor_fails_with_a_sentence_and_leaves_none() {
    if !available(Need::Root) {
        return;
    }
    let pins = BpfFileSystem::new("few").expect("a BPF file system");
    let directory = pins.path().join("lease");
    let (source, target) = (
        Pair::of(SocketKind::UnixDatagram),
        Pair::of(SocketKind::UnixDatagram),
    );
    // What is opened once stays open.
    everything(&directory, &source, &target).expect("there are enough");
    let before = open();
    let (mut refused, mut done) = (0, 0);
    for limit in (before as u64..MOST).step_by(4) {
        match limited(limit, || everything(&directory, &source, &target)) {
            Ok(()) => done += 1,
            Err(error) => {
                let said = error.to_string();
                assert_eq!(said.lines().count(), 1, "{limit}: {said}");
                let names_it = ["no file descriptors left", "Too many open files"];
                assert!(
                    names_it.iter().any(|name| said.contains(name)),
                    "{limit}: {said}"
                );
                refused += 1;
            }
        }
        // What was left pinned is cleared, and the sockets are as they were.
        everything(&directory, &source, &target).expect("there are enough again");
        assert_eq!(open(), before, "{limit}");
    }
    assert!(refused > 6 && done > 1, "{refused} and {done}");
}
