//! The gate in front of a source: what it lets in, and when it takes the source out.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Namespace, Need, PATIENCE, available, connection, until};
use rustix::net::sockopt;

use super::{Opened, forge, missing};

/// Writes until the socket takes no more; returns how many bytes.
fn write_all_that_goes(peer: &TcpStream, at_most: u64) -> u64 {
    let (mut sent, mut last) = (0, Instant::now());
    peer.set_nonblocking(true).unwrap();
    while last.elapsed() < Duration::from_millis(500) && sent < at_most {
        match (&mut &*peer).write(&[7; 64 << 10]) {
            Ok(count) => {
                sent += count as u64;
                last = Instant::now();
            }
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
    sent
}

/// TCP drops what lies beyond the window. If the gate noted it as let in, everything that follows would look
/// like a retransmission, which the gate lets in however much is under way.
#[test]
fn a_segment_beyond_the_window_does_not_open_the_gate() {
    if missing() || !available(Need::Netns) {
        return;
    }
    /// The most that may be redirected to a target that nobody reads from.
    const BOUND: u64 = 8 << 20;
    let namespace = Namespace::new("forgery").unwrap();
    let ((peer, source), (target, _far)) =
        namespace.enter(|| (connection(), connection())).unwrap();
    sockopt::set_socket_send_buffer_size_force(&target, 2 << 20).unwrap();
    let opened = Opened::new(&source, &target);
    let (from, to) = (peer.local_addr().unwrap(), peer.peer_addr().unwrap());
    let before = opened.seen();
    for ahead in [1 << 24, 1 << 27, (1 << 30) + 5] {
        let seq = before.rcv_nxt.wrapping_add(ahead);
        namespace
            .enter(|| forge(from, to, seq, before.write_seq, &[0; 10]))
            .unwrap();
    }
    until("all three came", || {
        opened.entry().beyond.load(Ordering::Relaxed) == 3
    });
    assert_eq!(opened.let_in(), before.rcv_nxt);
    let sent = write_all_that_goes(&peer, 64 << 20);
    let redirected = opened.redirected();
    eprintln!("{sent} sent, {redirected} redirected");
    assert!(sent < 64 << 20 && redirected < BOUND);
    assert!(opened.is_closed());
}

/// The bound that holds where the gate cannot close: the sender retransmits what it refuses.
#[test]
fn nothing_new_comes_in_beyond_the_hard_bound() {
    if missing() {
        return;
    }
    let (mut peer, source) = connection();
    let (target, mut far) = connection();
    let opened = Opened::new(&source, &target);
    let entry = opened.entry();
    let before = opened.let_in();
    // As the program does.
    entry.over.store(1, Ordering::Release);
    peer.write_all(&[7; 100]).unwrap();
    until("it is refused", || {
        entry.refused.load(Ordering::Relaxed) > 0
    });
    assert_eq!((opened.let_in(), opened.redirected()), (before, 0));
    entry.over.store(0, Ordering::Release);
    far.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(opened.redirected(), 100);
}

/// What is under way gets its verdict before the source leaves the map. A segment that waits for the one
/// before it is under way.
#[test]
fn a_source_stays_in_its_map_while_something_is_under_way() {
    if missing() || !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("gap").unwrap();
    let ((mut peer, mut source), (target, mut far)) =
        namespace.enter(|| (connection(), connection())).unwrap();
    let opened = Opened::new(&source, &target);
    let (from, to) = (peer.local_addr().unwrap(), peer.peer_addr().unwrap());
    let before = opened.seen();
    let ahead = |bytes| before.rcv_nxt.wrapping_add(bytes);
    namespace
        .enter(|| forge(from, to, ahead(1000), before.write_seq, &[7; 10]))
        .unwrap();
    until("it is noted", || opened.let_in() == ahead(1010));
    opened.ask_to_close();
    peer.write_all(&[7; 1000]).unwrap();
    // Had the source left the map beside the segment under way, it would have kept all of them. The peer
    // ignores acknowledgements of bytes that it has not sent. It may have retransmitted its own by now, and
    // that may have closed the gate.
    far.read_exact(&mut [0; 1010]).unwrap();
    assert_eq!(opened.redirected(), 1010);
    // Nothing is under way now: the next segment finds the gate closed, and waits in the source. The peer
    // does not know that its first ten bytes have arrived.
    let mut behind = [0; 90];
    peer.write_all(&[7; 100]).unwrap();
    source.read_exact(&mut behind).unwrap();
    assert!(opened.is_closed());
    assert_eq!((opened.redirected(), behind), (1010, [7; 90]));
}

/// A source that is taken out of its map in mid-stream loses nothing.
#[test]
fn a_live_source_is_taken_out_and_put_in_again_many_times() {
    if missing() {
        return;
    }
    const TIMES: u32 = 1_000;
    const MESSAGE_BYTES: usize = 1024;
    const LOOK_EVERY: Duration = Duration::from_micros(50);
    let (peer, source) = connection();
    let (target, far) = connection();
    sockopt::set_socket_send_buffer_size_force(&target, 4 << 20).unwrap();
    let opened = Opened::new(&source, &target);
    let done = AtomicBool::new(false);
    let missed = || opened.entry().missed.load(Ordering::Relaxed);
    let mut closings = 0;
    let (sent, received) = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0u64;
            while !done.load(Ordering::Relaxed) {
                (&peer).write_all(&[7; MESSAGE_BYTES]).unwrap();
                sent += MESSAGE_BYTES as u64;
            }
            sent
        });
        let receiver = scope.spawn(|| {
            let (mut received, mut block) = (0, vec![0; 256 << 10]);
            loop {
                match netlab::uninterrupted(|| (&far).read(&mut block)).unwrap() {
                    0 => return received,
                    count => received += count as u64,
                }
            }
        });
        // The limit is that of one closing. How long all of them take depends on the machine.
        let mut last = Instant::now();
        while closings < TIMES && missed() == 0 && last.elapsed() < PATIENCE {
            opened.ask_to_close();
            // A target that lags behind would have the gate refuse.
            if opened.is_closed() && opened.waiting_skbs() == 0 {
                closings += 1;
                opened.open(&source, closings + 1);
                last = Instant::now();
            } else {
                // A thread that sleeps gets the CPU before those that compute; one that yields, after them.
                thread::sleep(LOOK_EVERY);
            }
        }
        done.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        // The gate acts on the last request with any segment that is still to come, and the program makes
        // requests of its own. What comes behind that waits in the source until it is opened again.
        let (mut openings, start) = (closings + 1, Instant::now());
        while opened.redirected() < sent && missed() == 0 && start.elapsed() < PATIENCE {
            if opened.is_closed() {
                openings += 1;
                opened.open(&source, openings);
            }
            thread::sleep(LOOK_EVERY);
        }
        until("the target has taken all", || opened.waiting_skbs() == 0);
        target.shutdown(Shutdown::Write).unwrap();
        (sent, receiver.join().unwrap())
    });
    let refused = opened.entry().refused.load(Ordering::Relaxed);
    eprintln!("{closings} closings, {sent} bytes, {refused} segments refused");
    assert_eq!((missed(), received), (0, sent), "missed, received");
    assert_eq!(closings, TIMES);
}
