//! Sources that the test itself puts into the map and takes out, which no relay can be made to do.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

mod gate;
mod outcome;
mod unix;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use netlab::{Namespace, Need, PATIENCE, available, connection, present, until};
use rustix::net::sockopt::socket_cookie;
use socket2::{Domain, Protocol, Socket, Type};

use super::redirect_half::kick;
use super::shared::{self, Shared};
use crate::endpoint::redirected_receive_bytes;
use crate::{
    Context, Endpoint, EngineChoice, EngineName, EventLoop, Limits, Options, Outcome, Readiness,
    Reason, Side, Splicer, Step, Task,
};
use splice_base::socket_option;
use splice_bpf::clock;
use splice_bpf::types::{DirectionEntry, Inspection};

pub(super) fn missing() -> bool {
    let why = EngineName::Sockmap.probe().err();
    !present("sockmap", why.map(|error| error.to_string()))
}

/// A task whose waker goes nowhere.
pub(super) struct Nobody;

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
        let shared = shared::found().unwrap();
        let cookie = socket_cookie(source).unwrap();
        let back_cookie = socket_cookie(&target).unwrap();
        let mut event_loop = EventLoop::new().unwrap();
        let index = shared
            .claim(event_loop.spawn(Box::new(Nobody)).into())
            .unwrap();
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
        let target_seq = shared.inspect(cookie).unwrap().write_seq;
        let this = Self {
            shared,
            cookie,
            back_cookie,
            index,
        };
        let entry = this.entry();
        entry.limit.store(u64::MAX, Ordering::Relaxed);
        entry.target_seq.store(target_seq, Ordering::Relaxed);
        entry.base_seq.store(seen.copied_seq, Ordering::Relaxed);
        entry.let_in.store(seen.rcv_nxt.into(), Ordering::Release);
        this.shared.indices.update(&cookie, &index).unwrap();
        socket_option::attach_filter(source, this.shared.gate.as_fd()).unwrap();
        this.open(source, 1);
        this
    }

    fn entry(&self) -> &DirectionEntry {
        self.shared.entry(self.index)
    }

    fn open(&self, source: &TcpStream, number: u32) {
        self.entry().opened.store(number, Ordering::Release);
        self.shared
            .sources
            .insert_socket(&self.cookie, source.as_fd())
            .unwrap();
        kick(source, Side::A).unwrap();
    }

    /// In the target's backlog.
    fn waiting_skbs(&self) -> u32 {
        self.shared.inspect(self.cookie).unwrap().queued_skbs
    }

    fn is_target_there(&self) -> bool {
        self.shared.inspect(self.cookie).is_ok()
    }

    fn redirected(&self) -> u64 {
        self.entry().redirected.load(Ordering::Acquire)
    }

    /// Asks the gate to close, as the program does; it takes the next segment to do so.
    fn ask_to_close(&self) {
        let opened = self.entry().opened.load(Ordering::Relaxed);
        self.entry().full.store(opened, Ordering::Release);
    }

    fn is_closed(&self) -> bool {
        let entry = self.entry();
        entry.closed.load(Ordering::Acquire) == entry.opened.load(Ordering::Relaxed)
    }

    fn let_in(&self) -> u32 {
        self.entry().let_in.load(Ordering::Acquire) as u32
    }

    fn seen(&self) -> Inspection {
        self.shared.inspect(self.back_cookie).unwrap()
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

/// A segment that nobody sent, as if it were from `from`.
pub(super) fn forge(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32, content: &[u8]) {
    const ACK_PUSH: u8 = 0x18;
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else {
        panic!("IPv4 only");
    };
    let addresses = [from.ip().octets(), to.ip().octets()].concat();
    let mut segment = Vec::new();
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(seq.to_be_bytes());
    segment.extend(ack.to_be_bytes());
    segment.extend([5 << 4, ACK_PUSH, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(content);
    // RFC 9293, 3.1, over the pseudo-header, too.
    let mut sum = 6 + segment.len() as u32;
    for pair in addresses.chunks(2).chain(segment.chunks(2)) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
    }
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    // The kernel puts in what is left zero (raw(7)).
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend(addresses);
    packet.extend(segment);
    let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).unwrap();
    raw.send_to(&packet, &SocketAddr::from((*to.ip(), 0)).into())
        .unwrap();
}

/// What waits in a source that is put into the map gets no verdict before the kick.
#[test]
fn what_waited_in_a_source_gets_its_verdict() {
    if missing() {
        return;
    }
    let (mut peer, source) = connection();
    let (target, mut far) = connection();
    peer.write_all(&[7; 1000]).unwrap();
    source.peek(&mut [0]).unwrap();
    let opened = Opened::new(&source, &target);
    far.read_exact(&mut [0; 1000]).unwrap();
    assert_eq!(opened.redirected(), 1000);
}

/// The kernel passes a partly read skb whole.
#[test]
fn what_was_read_before_does_not_come_again() {
    if missing() {
        return;
    }
    let bytes: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
    for read in [1, 4, 9_999] {
        let (mut peer, mut source) = connection();
        let (target, mut far) = connection();
        peer.write_all(&bytes).unwrap();
        source.read_exact(&mut vec![0; read]).unwrap();
        let opened = Opened::new(&source, &target);
        peer.write_all(&bytes).unwrap();
        let mut came = vec![0; 2 * bytes.len() - read];
        far.read_exact(&mut came).unwrap();
        assert!(came[..bytes.len() - read] == bytes[read..], "{read} read");
        assert!(came[bytes.len() - read..] == bytes, "{read} read");
        assert_eq!(opened.redirected(), came.len() as u64);
    }
}

/// The kernel does not trim a retransmission that has other borders.
#[test]
fn what_is_sent_again_with_other_borders_comes_once() {
    if missing() || !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("borders").unwrap();
    let ((mut peer, source), (target, mut far)) =
        namespace.enter(|| (connection(), connection())).unwrap();
    let opened = Opened::new(&source, &target);
    let (from, to) = (peer.local_addr().unwrap(), peer.peer_addr().unwrap());
    let before = opened.seen();
    let bytes: Vec<u8> = (0..100).collect();
    namespace
        .enter(|| forge(from, to, before.rcv_nxt, before.write_seq, &bytes[..10]))
        .unwrap();
    until("the first ten came", || opened.redirected() == 10);
    // The peer does not know that they have.
    peer.write_all(&bytes).unwrap();
    let mut came = vec![0; bytes.len()];
    far.read_exact(&mut came).unwrap();
    assert_eq!(came, bytes);
    assert_eq!(opened.redirected(), 100);
}

/// The program reads the machine's clock; this process may be in another time namespace.
#[test]
fn a_process_with_a_clock_of_its_own_knows_when_bytes_moved() {
    if missing() || !available(Need::Root) {
        return;
    }
    clock::a_day_ahead("kernel::sockmap::tests::moved_just_now");
}

#[test]
#[ignore = "a process that another test starts"]
fn moved_just_now() {
    let (mut peer, source) = connection();
    let (target, mut far) = connection();
    let opened = Opened::new(&source, &target);
    peer.write_all(&[7]).unwrap();
    far.read_exact(&mut [0]).unwrap();
    let moved_ns = opened.entry().last_ns.load(Ordering::Relaxed);
    let since = Duration::from_nanos(clock::coarse_now_ns().abs_diff(moved_ns));
    assert!(since < PATIENCE, "{since:?}");
}

/// The redirect helper answers a miss with `SK_DROP`: the segment is acknowledged and lost.
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
    shared::found().unwrap().targets.remove(&cookie);
    a.write_all(&[2; 1000]).unwrap();
    let Outcome {
        reason, moved: all, ..
    } = handle.wait_timeout(PATIENCE).unwrap();
    assert!(matches!(reason, Reason::Failed { .. }), "{reason}");
    assert_eq!(all.a_to_b, moved);
    // Neither peer may take what it has got for the whole stream.
    for peer in [&mut a, &mut b] {
        let end = netlab::uninterrupted(|| peer.read(&mut byte)).map_err(|error| error.kind());
        assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    }
}

/// `auto` goes on as if the engine had not been tried: with buffers that the kernel tunes, and by pipe.
#[test]
fn a_pair_that_is_declined_goes_on_as_before() {
    if missing() {
        return;
    }
    const BYTES: usize = 3 << 20;
    let (mut a, near) = connection();
    let (mut b, far) = connection();
    let watched = [near.try_clone().unwrap(), far.try_clone().unwrap()];
    let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
    let options = Options {
        promote_after: Some(Duration::from_millis(1)),
        limits: Limits {
            // Too near for the engine.
            byte_limit: Some(4 << 20),
            ..Limits::default()
        },
        ..Options::default()
    };
    let splicer = Splicer::new(1).unwrap();
    let handle = splicer.join(near, far, &options).unwrap();
    until("it is declined", || {
        handle.engine().1 == "sockmap: its byte limit is near"
    });
    let fixed = || {
        watched
            .each_ref()
            .map(|socket| socket_option::fixed_buffers(socket).unwrap())
    };
    assert_eq!(fixed(), [0, 0]);
    thread::scope(|scope| {
        scope.spawn(|| a.write_all(&vec![7; BYTES]).unwrap());
        b.read_exact(&mut vec![0; BYTES]).unwrap();
    });
    // The loop reports after the turn that moved the bytes.
    until("a pipe has carried some", || {
        handle.engine().0 == EngineName::Pipe
    });
}

/// If a receive buffer became smaller than its content, TCP would copy its queue and charge that without a
/// reserve (`redirected_receive_bytes`). So it gets its size before the first bulk arrives.
#[test]
fn a_pair_that_may_be_redirected_never_shrinks_its_receive_buffer() {
    if missing() {
        return;
    }
    const BYTES: usize = 8 << 20;
    let share = Limits::default().shares().buffer_bytes;
    // One pair gets to `sockmap` in the end; the other moves too much for it.
    for (promote_after_bytes, at_the_end) in
        [(u64::MAX, redirected_receive_bytes(share)), (0, share)]
    {
        let (mut a, near) = connection();
        let (mut b, far) = connection();
        let watched = near.try_clone().unwrap();
        let size = || socket_option::memory(&watched).unwrap().receive_limit_bytes;
        let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
        let options = Options {
            segment_after: None,
            promote_after: Some(Duration::from_millis(100)),
            promote_after_bytes,
            ..Options::default()
        };
        let splicer = Splicer::new(1).unwrap();
        let handle = splicer.join(near, far, &options).unwrap();
        let (mut before, mut shrunk) = (0, None);
        let mut more = || {
            thread::scope(|scope| {
                scope.spawn(|| a.write_all(&vec![7; BYTES]).unwrap());
                let mut block = vec![0; 64 << 10];
                let mut left = BYTES;
                while left > 0 {
                    let at_most = block.len().min(left);
                    left -= netlab::uninterrupted(|| b.read(&mut block[..at_most])).unwrap();
                    let now = size();
                    if now < before {
                        shrunk = Some((before, now));
                    }
                    before = now;
                }
            });
        };
        until("its end is known", || {
            more();
            size() == at_the_end / 2 * 2
                && (promote_after_bytes == 0 || handle.engine().0 == EngineName::Sockmap)
        });
        assert_eq!(shrunk, None);
    }
}
