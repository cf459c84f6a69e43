//! What cannot be brought about from outside: a source that is put in and taken out by hand.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use netlab::present;
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use rustix::net::{RecvFlags, recv};

use super::shared::{self, Shared};
use crate::bpf_types::DirectionEntry;
use crate::socket_option;
use crate::{
    Context, Endpoint, EngineChoice, EngineName, EventLoop, Options, Outcome, Readiness, Reason,
    Splicer, Step, Task,
};

/// After this a test fails.
const PATIENCE: Duration = Duration::from_secs(40);

fn missing() -> bool {
    let why = EngineName::Sockmap.probe().err();
    !present("sockmap", why.map(|error| error.to_string()))
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    peer.set_nodelay(true).unwrap();
    for socket in [&peer, &socket] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (peer, socket)
}

/// A task whose waker goes nowhere.
struct Nobody;

impl Task for Nobody {
    fn start(&mut self, _: &mut Context<'_>) -> Step {
        Step::Wait
    }

    fn ready(&mut self, _: &mut Context<'_>, _: u8, _: Readiness) -> Step {
        Step::Wait
    }
}

/// A direction without a pair: everything goes to the program, and nobody answers its calls.
struct Opened {
    shared: Arc<Shared>,
    cookie: u64,
    back_cookie: u64,
    index: u32,
}

impl Opened {
    fn new(source: &TcpStream, target: impl AsFd) -> Self {
        let shared = shared::probe().unwrap();
        let cookie = socket_cookie(source).unwrap();
        let back_cookie = socket_cookie(&target).unwrap();
        let mut event_loop = EventLoop::new().unwrap();
        let index = shared.claim(event_loop.spawn(Box::new(Nobody))).unwrap();
        shared
            .targets
            .insert_socket(&cookie, target.as_fd())
            .unwrap();
        // So that it can be inspected.
        shared
            .targets
            .insert_socket(&back_cookie, source.as_fd())
            .unwrap();
        let seen = shared.inspect(back_cookie).unwrap();
        let this = Self {
            shared,
            cookie,
            back_cookie,
            index,
        };
        let entry = this.entry();
        entry.limit.store(u64::MAX, Ordering::Relaxed);
        entry.base_seq.store(seen.copied_seq, Ordering::Relaxed);
        entry.accepted.store(seen.rcv_nxt, Ordering::Release);
        this.shared.indices.update(&cookie, &index).unwrap();
        socket_option::attach_filter(source, this.shared.gate.as_fd()).unwrap();
        this.open(source);
        this
    }

    fn entry(&self) -> &DirectionEntry {
        self.shared.entry(self.index)
    }

    fn open(&self, source: &TcpStream) {
        self.entry().opened.store(1, Ordering::Release);
        self.shared
            .sources
            .insert_socket(&self.cookie, source.as_fd())
            .unwrap();
        let looked = recv(source, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        assert!(matches!(looked, Err(Errno::AGAIN)), "{looked:?}");
    }

    fn is_target_there(&self) -> bool {
        self.shared.inspect(self.cookie).is_ok()
    }

    fn redirected(&self) -> u64 {
        self.entry().redirected.load(Ordering::Acquire)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.shared.sources.remove(&self.cookie);
        self.shared.indices.remove(&self.cookie);
        self.shared.targets.remove(&self.cookie);
        self.shared.targets.remove(&self.back_cookie);
        self.shared.give_back(self.index);
    }
}

/// Why a UNIX end is refused: `unix_shutdown` calls `sock_map_unhash` for the other end.
#[test]
fn a_unix_target_loses_its_backlog_when_its_peer_half_closes() {
    if missing() {
        return;
    }
    /// More than a UNIX stream holds (`net.core.wmem_default`).
    const BYTES: usize = 4 << 20;
    for half_closes in [false, true] {
        let (mut peer, source) = connection();
        let (target, mut far) = UnixStream::pair().unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        let opened = Opened::new(&source, &target);
        peer.write_all(&vec![7; BYTES]).unwrap();
        until("all of it is redirected", || {
            opened.redirected() == BYTES as u64
        });
        assert!(opened.is_target_there());
        if !half_closes {
            far.read_exact(&mut vec![0; BYTES]).unwrap();
            assert!(opened.is_target_there());
            continue;
        }
        // It says that it will write nothing more; it reads on.
        far.shutdown(Shutdown::Write).unwrap();
        assert!(!opened.is_target_there());
        target.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        eprintln!("{} of {BYTES} bytes arrived", received.len());
        assert!(received.len() < BYTES);
    }
}

/// Rule 4: the redirect helper's answer to a miss is `SK_DROP`, which is acknowledged and lost.
#[test]
fn a_target_that_is_not_there_ends_the_pair_as_an_error() {
    if missing() {
        return;
    }
    let (mut a, near) = connection();
    let (mut b, far) = connection();
    let cookie = socket_cookie(&near).unwrap();
    let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
    let splicer = Splicer::new(1).unwrap();
    let options = Options {
        engine: EngineChoice::Only(EngineName::Sockmap),
        ..Options::default()
    };
    let handle = splicer.join(near, far, &options).unwrap();
    let mut byte = [0];
    until("a byte is redirected", || {
        a.write_all(&[1]).unwrap();
        b.read_exact(&mut byte).unwrap();
        handle.redirected().a_to_b > 0
    });
    let moved = handle.counters().a_to_b;
    shared::probe().unwrap().targets.remove(&cookie);
    a.write_all(&[2; 1000]).unwrap();
    let Outcome {
        reason, moved: all, ..
    } = handle.wait_timeout(PATIENCE).unwrap();
    assert!(matches!(reason, Reason::Failed { .. }), "{reason}");
    assert_eq!(all.a_to_b, moved);
    // Neither may take what it has got for all.
    for peer in [&mut a, &mut b] {
        let end = peer.read(&mut byte).map_err(|error| error.kind());
        assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    }
}
