//! One-way splices: what arrives on one socket is moved to another, and can be taken back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{PATIENCE, connection, until};
use rustix::net::sockopt;
use splice::{
    EngineChoice, EngineName, EventLoop, IdleTimer, OneWay, OneWayOptions, Options, Reason, Rules,
    Side, Splicer, merged_task,
};

fn splicer() -> &'static Splicer {
    static SPLICER: OnceLock<Splicer> = OnceLock::new();
    SPLICER.get_or_init(|| Splicer::new(1).expect("a loop"))
}

/// A client's connection and a server's, and a splice from the former to the latter.
struct Relay {
    client: TcpStream,
    source: TcpStream,
    destination: TcpStream,
    server: TcpStream,
    end: mpsc::Receiver<(Reason, u64)>,
}

impl Relay {
    fn new() -> (Self, mpsc::Sender<(Reason, u64)>) {
        let (client, source) = connection();
        let (destination, server) = connection();
        let (sender, end) = mpsc::channel();
        let relay = Self {
            client,
            source,
            destination,
            server,
            end,
        };
        (relay, sender)
    }

    fn spliced(options: &OneWayOptions) -> (Self, OneWay) {
        let (relay, sender) = Self::new();
        let splice = relay.splice(options, sender);
        (relay, splice)
    }

    fn splice(&self, options: &OneWayOptions, sender: mpsc::Sender<(Reason, u64)>) -> OneWay {
        let on_end = move |reason, bytes| {
            let _ = sender.send((reason, bytes));
        };
        let spliced = splicer().one_way(&self.source, &self.destination, options, on_end);
        spliced.expect("two TCP sockets")
    }

    fn end(&self) -> (Reason, u64) {
        self.end.recv_timeout(PATIENCE).expect("an end")
    }
}

fn limit(bytes: u64) -> OneWayOptions {
    OneWayOptions {
        byte_limit: Some(bytes),
        ..OneWayOptions::default()
    }
}

fn idle(after: Duration, restarts: bool) -> OneWayOptions {
    OneWayOptions {
        idle: Some(IdleTimer { after, restarts }),
        ..OneWayOptions::default()
    }
}

/// Byte `at` of the stream that every test sends.
fn byte(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

fn payload(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(byte).collect()
}

#[test]
fn what_has_arrived_before_is_moved_at_once_and_counted_once_seen() {
    let (mut relay, sender) = Relay::new();
    relay.client.write_all(b"early").unwrap();
    until("it has arrived", || {
        relay.source.peek(&mut [0; 5]).is_ok_and(|count| count == 5)
    });
    let splice = relay.splice(&OneWayOptions::default(), sender);
    assert_eq!(splice.moved_bytes(), 5);
    let mut seen = [0; 9];
    relay.server.read_exact(&mut seen[..5]).unwrap();
    relay.client.write_all(b"late").unwrap();
    relay.server.read_exact(&mut seen[5..]).unwrap();
    assert_eq!(&seen, b"earlylate");
    assert_eq!(splice.moved_bytes(), 9);
    assert!(splice.undo() && !splice.undo());
    assert_eq!(relay.end(), (Reason::Undone, 9));
    assert_eq!(splice.moved_bytes(), 9);
}

#[test]
fn a_limit_is_kept_to_the_byte_and_the_rest_stays() {
    for (sent, most) in [(1, 1), (5, 4), (4, 4), (3, 4), (300_000, 299_999)] {
        let (mut relay, splice) = Relay::spliced(&limit(most as u64));
        relay.client.write_all(&payload(0, sent)).unwrap();
        let mut seen = vec![0; sent.min(most)];
        relay.server.read_exact(&mut seen).unwrap();
        assert!(seen == payload(0, seen.len()));
        if sent < most {
            assert!(splice.undo());
        }
        let reason = match sent < most {
            true => Reason::Undone,
            false => Reason::ByteLimit,
        };
        assert_eq!(relay.end(), (reason, seen.len() as u64));
        if sent > most {
            let mut rest = vec![0; sent - most];
            relay.source.read_exact(&mut rest).unwrap();
            assert!(rest == payload(most, rest.len()));
        }
    }
}

#[test]
fn end_of_stream_is_passed_on_only_if_asked_for() {
    for passes_on_end in [true, false] {
        let options = OneWayOptions {
            passes_on_end,
            ..OneWayOptions::default()
        };
        let (mut relay, _splice) = Relay::spliced(&options);
        relay.client.write_all(b"all").unwrap();
        relay.client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(relay.end(), (Reason::EndOfStream, 3));
        let more = relay.destination.write_all(b" more");
        assert_eq!(more.is_err(), passes_on_end);
        drop(relay.destination);
        let mut seen = String::new();
        relay.server.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, if passes_on_end { "all" } else { "all more" });
        // The other direction is the caller's.
        relay.source.write_all(b"back").unwrap();
        let mut back = [0; 4];
        relay.client.read_exact(&mut back).unwrap();
    }
}

#[test]
fn an_idle_timer_that_restarts_outlives_traffic() {
    const IDLE: Duration = Duration::from_millis(300);
    // A machine that is too busy to let the client talk proves nothing, and gets another chance.
    until("the machine lets the client talk", || {
        let begun = Instant::now();
        let (mut relay, splice) = Relay::spliced(&idle(IDLE, true));
        let (mut last, mut silence) = (begun, Duration::ZERO);
        while last - begun < 2 * IDLE && splice.reason().is_none() {
            let now = Instant::now();
            relay.client.write_all(b".").unwrap();
            // The byte may have been written as late as now.
            silence = silence.max(last.elapsed());
            last = now;
            thread::sleep(Duration::from_millis(20));
        }
        let lives = splice.reason().is_none();
        if !lives {
            silence = silence.max(last.elapsed());
        }
        assert_eq!(relay.end().0, Reason::Idle);
        let after_the_last = last.elapsed();
        if silence < IDLE {
            assert!(lives, "ended as idle after {silence:?}");
            assert!(after_the_last >= IDLE, "{after_the_last:?}");
        }
        silence < IDLE
    });
}

#[test]
fn an_idle_timer_that_does_not_restart_ends_in_traffic() {
    const IDLE: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let (mut relay, splice) = Relay::spliced(&idle(IDLE, false));
    while begun.elapsed() < PATIENCE && splice.reason().is_none() {
        relay.client.write_all(b".").unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(splice.reason(), Some(Reason::Idle));
    assert_eq!(relay.end().0, Reason::Idle);
    assert!(begun.elapsed() >= IDLE);
}

#[test]
fn an_end_without_reset_of_either_socket_names_its_side_and_error() {
    let (relay, _splice) = Relay::spliced(&OneWayOptions::default());
    sockopt::set_socket_linger(&relay.client, Some(Duration::ZERO)).unwrap();
    drop(relay.client);
    let (reason, _) = relay.end.recv_timeout(PATIENCE).unwrap();
    let (side, errno) = (Side::A, rustix::io::Errno::CONNRESET.raw_os_error());
    assert_eq!(reason, Reason::Failed { side, errno });

    // Without a byte to move, too.
    let (relay, _splice) = Relay::spliced(&OneWayOptions::default());
    sockopt::set_socket_linger(&relay.server, Some(Duration::ZERO)).unwrap();
    drop(relay.server);
    let (reason, _) = relay.end.recv_timeout(PATIENCE).unwrap();
    let side = Side::B;
    assert_eq!(reason, Reason::Failed { side, errno });

    let (relay, _splice) = Relay::spliced(&OneWayOptions::default());
    relay.destination.shutdown(Shutdown::Write).unwrap();
    let (reason, _) = relay.end.recv_timeout(PATIENCE).unwrap();
    let errno = rustix::io::Errno::PIPE.raw_os_error();
    assert_eq!(reason, Reason::Failed { side, errno });
}

#[test]
fn a_dropped_handle_undoes_and_a_detached_one_does_not() {
    for detaches in [true, false] {
        let (mut relay, splice) = Relay::spliced(&OneWayOptions::default());
        if detaches {
            splice.detach();
        }
        drop(splice);
        relay.client.write_all(b"byte").unwrap();
        let mut reader = if detaches { relay.server } else { relay.source };
        reader.read_exact(&mut [0; 4]).unwrap();
    }
}

#[test]
fn datagrams_stay_whole() {
    let pair = || {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        one.connect(other.local_addr().unwrap()).unwrap();
        other.connect(one.local_addr().unwrap()).unwrap();
        (one, other)
    };
    let ((client, source), (destination, server)) = (pair(), pair());
    let (sender, end) = mpsc::channel();
    let on_end = move |reason, bytes| {
        let _ = sender.send((reason, bytes));
    };
    let splice = splicer().one_way(&source, &destination, &limit(6), on_end);
    let _splice = splice.unwrap();
    let sizes = [1, 0, 4, 2];
    for size in sizes {
        client.send(&payload(0, size)).unwrap();
    }
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    for size in &sizes[..3] {
        assert_eq!(server.recv(&mut [0; 9]).unwrap(), *size);
    }
    assert_eq!(end.recv_timeout(PATIENCE), Ok((Reason::ByteLimit, 5)));
    assert_eq!(source.recv(&mut [0; 9]).unwrap(), 2);
}

/// Another process may read the source, so a datagram is read before it is sent.
#[test]
fn a_datagram_that_was_read_is_sent_before_an_undo_returns() {
    let (client, source) = UnixDatagram::pair().unwrap();
    let (destination, server) = UnixDatagram::pair().unwrap();
    let splice = splicer().one_way(&source, &destination, &OneWayOptions::default(), |_, _| ());
    let splice = splice.unwrap();
    splice.share();
    destination.set_nonblocking(true).unwrap();
    let earlier = std::iter::repeat_with(|| destination.send(b"earlier"))
        .take_while(Result::is_ok)
        .count();
    client.send(b"held").unwrap();
    until("it is read", || {
        rustix::io::ioctl_fionread(&source) == Ok(0)
    });
    thread::scope(|scope| {
        let undone = scope.spawn(|| splice.undo());
        let mut received = [0; 7];
        for _ in 0..earlier {
            assert_eq!(server.recv(&mut received).unwrap(), 7);
        }
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let size = server.recv(&mut received).unwrap();
        assert_eq!(&received[..size], b"held");
        assert!(undone.join().unwrap());
    });
    assert_eq!(splice.moved_bytes(), 4);
}

#[test]
fn unix_streams_are_spliced_too_and_mixed() {
    let (mut client, source) = UnixStream::pair().unwrap();
    let (destination, mut server) = connection();
    let splice = splicer().one_way(&source, &destination, &OneWayOptions::default(), |_, _| ());
    let splice = splice.unwrap();
    client.write_all(&payload(0, 100_000)).unwrap();
    let mut seen = vec![0; 100_000];
    server.read_exact(&mut seen).unwrap();
    assert!(seen == payload(0, 100_000));
    assert_eq!(splice.moved_bytes(), 100_000);
}

/// Each read of bytes takes one of the passes.
struct Passes(AtomicU32);

impl Rules for Passes {
    fn reads(&self, source: BorrowedFd<'_>) -> u32 {
        if rustix::io::ioctl_fionread(source).expect("a socket") == 0 {
            return 1;
        }
        let take = |left: u32| left.checked_sub(1);
        let took = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        u32::from(took.is_ok())
    }
}

#[test]
fn a_ring_ends_when_its_passes_are_used_up_and_keeps_its_bytes() {
    let (one, other) = connection();
    let passes = Arc::new(Passes(AtomicU32::new(9)));
    let start = |source: &TcpStream, destination: &TcpStream| {
        let rules = Arc::clone(&passes) as Arc<dyn Rules>;
        let options = OneWayOptions::default();
        let splice = splicer().one_way_by(rules, source, destination, &options, |_, _| ());
        splice.unwrap()
    };
    let (forth, back) = (start(&one, &other), start(&other, &one));
    (&one).write_all(b"round").unwrap();
    until("one has ended", || {
        forth.reason().or_else(|| back.reason()) == Some(Reason::Looped)
    });
    assert_eq!(passes.0.load(Ordering::Relaxed), 0);
    assert_eq!(forth.moved_bytes() + back.moved_bytes(), 9 * 5);
    let mut kept = [0; 5];
    let at = if forth.reason().is_some() {
        &one
    } else {
        &other
    };
    (&mut &*at).read_exact(&mut kept).unwrap();
    assert_eq!(&kept, b"round");
}

/// Undoes a splice in full flow, and counts every byte.
#[test]
fn undoing_in_full_flow_loses_no_byte() {
    const ROUNDS: u64 = 200;
    for round in 0..ROUNDS {
        let (mut relay, sender) = Relay::new();
        let non_blocking = round % 2 == 0;
        for end in [&relay.source, &relay.destination] {
            end.set_nonblocking(non_blocking).unwrap();
        }
        let splice = relay.splice(&OneWayOptions::default(), sender);
        let stops = AtomicBool::new(false);
        let (sent, seen, rest) = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut sent = 0;
                let piece = 1 + (round as usize * 7919) % 100_000;
                while !stops.load(Ordering::Relaxed) {
                    sent += relay.client.write(&payload(sent, piece)).unwrap();
                }
                relay.client.shutdown(Shutdown::Write).unwrap();
                sent
            });
            let reader = scope.spawn(|| {
                let mut seen = Vec::new();
                relay.server.read_to_end(&mut seen).unwrap();
                seen
            });
            // Long enough for some and too short for others to become bulk.
            thread::sleep(Duration::from_micros(round * 97 % 9_000));
            assert!(splice.undo());
            relay.destination.shutdown(Shutdown::Write).unwrap();
            stops.store(true, Ordering::Relaxed);
            relay.source.set_nonblocking(false).unwrap();
            let mut rest = Vec::new();
            relay.source.read_to_end(&mut rest).unwrap();
            (writer.join().unwrap(), reader.join().unwrap(), rest)
        });
        assert_eq!(seen.len() as u64, splice.moved_bytes());
        assert_eq!(sent, seen.len() + rest.len());
        assert!(seen == payload(0, seen.len()), "round {round}");
        assert!(rest == payload(seen.len(), rest.len()), "round {round}");
        assert_eq!(relay.end.recv(), Ok((Reason::Undone, seen.len() as u64)));
    }
}

#[test]
fn many_at_once_from_many_threads_keep_no_socket_open() {
    const THREADS: usize = 8;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..50 {
                    let (mut relay, splice) = Relay::spliced(&OneWayOptions::default());
                    relay.client.write_all(b"through").unwrap();
                    let mut seen = Vec::new();
                    let mut through = (&relay.server).take(7);
                    through.read_to_end(&mut seen).unwrap();
                    assert!(splice.undo());
                    // The splice's duplicates would keep the connection open.
                    drop(relay.destination);
                    relay.server.read_to_end(&mut seen).unwrap();
                    assert_eq!(seen, b"through");
                }
            });
        }
    });
}

/// The kernel may have what nobody can take back.
#[test]
fn two_that_are_each_others_reverse_become_a_pair() {
    let (mut relay, sender) = Relay::new();
    let options = OneWayOptions {
        passes_on_end: true,
        ..OneWayOptions::default()
    };
    let back_sender = sender.clone();
    let forth = Arc::new(relay.splice(&options, sender));
    let on_end = move |reason, bytes| {
        let _ = back_sender.send((reason, bytes));
    };
    let back = splicer().one_way(&relay.destination, &relay.source, &options, on_end);
    let back = Arc::new(back.unwrap());
    let pair = Options {
        engine: EngineChoice::Only(EngineName::Uring),
        ..Options::default()
    };

    relay.client.write_all(b"before").unwrap();
    let mut seen = [0; 6];
    relay.server.read_exact(&mut seen).unwrap();
    drop((relay.source, relay.destination));
    assert!(!forth.is_merged());
    let ways = [Arc::clone(&forth), Arc::clone(&back)];
    let merge = move |event_loop: &mut EventLoop| {
        let [forth, back] = &ways;
        let merged = merged_task(forth, back, &pair).unwrap();
        drop(event_loop.spawn(merged.expect("both run")));
        assert!(merged_task(forth, back, &pair).unwrap().is_none());
    };
    splicer().remote().run(merge).unwrap();
    until("the sockets are a pair's", || forth.is_merged());
    // The pair begins a moment after it has the sockets.
    until("its engine has it", || back.engine().0 == EngineName::Uring);
    assert!(!forth.undo());

    relay.client.write_all(b"after!").unwrap();
    relay.server.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"after!");
    until("it is counted", || forth.moved_bytes() == 12);
    relay.server.write_all(b"back").unwrap();
    drop(relay.server);
    let mut text = String::new();
    relay.client.shutdown(Shutdown::Write).unwrap();
    relay.client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "back");
    let mut ends = [(); 2].map(|()| relay.end.recv_timeout(PATIENCE).unwrap());
    ends.sort_by_key(|(_, bytes)| *bytes);
    let reason = Reason::EndOfStream;
    assert_eq!(ends, [(reason, 4), (reason, 12)]);
    until("the handle knows it", || forth.reason() == Some(reason));
}
