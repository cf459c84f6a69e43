//! What the engine `sockmap` has to show beside the contract of `every_engine.rs`: that the
//! kernel moves the bytes, that the process sleeps meanwhile, and that it stays so under load.
//! Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; without them each test says that it is left out.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

#[path = "support/alone.rs"]
mod alone;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use splice::{
    Endpoint, EngineChoice, EngineName, Handle, Limits, Options, Outcome, Reason, Splicer,
};

/// After this a test fails. It is never the time that a test takes.
const PATIENCE: Duration = Duration::from_secs(60);

const SOCKMAP: EngineChoice = EngineChoice::Only(EngineName::Sockmap);

fn missing() -> bool {
    let Err(error) = EngineName::Sockmap.probe() else {
        return false;
    };
    eprintln!("left out: {error}");
    true
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// An endless stream of which no part looks like another; it repeats after a prime, so that a
/// piece lost or doubled by any buffer's size shifts what follows.
#[derive(Clone, Copy)]
struct Payload(usize);

impl Payload {
    const PERIOD_BYTES: usize = 4_194_319;

    fn new(seed: u64) -> Self {
        Self(Random(seed).below(Self::PERIOD_BYTES as u64) as usize)
    }

    fn piece(self, position: u64, at_most: usize) -> &'static [u8] {
        static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
        let block = BLOCK.get_or_init(|| {
            let mut random = Random(7);
            (0..Self::PERIOD_BYTES / 8 + 1)
                .flat_map(|_| random.next().to_ne_bytes())
                .take(Self::PERIOD_BYTES)
                .collect()
        });
        let from = (self.0 as u64 + position) as usize % Self::PERIOD_BYTES;
        &block[from..(from + at_most).min(Self::PERIOD_BYTES)]
    }

    fn check(self, mut position: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let right = self.piece(position, bytes.len());
            assert!(
                bytes[..right.len()] == *right,
                "wrong bytes behind {position}"
            );
            position += right.len() as u64;
            bytes = &bytes[right.len()..];
        }
    }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nodelay(true).unwrap();
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    near.set_write_timeout(Some(PATIENCE)).unwrap();
    (near, far)
}

struct Joined {
    a: TcpStream,
    b: TcpStream,
    handle: Handle,
}

fn join(splicer: &Splicer, options: &Options) -> Joined {
    let (a, near) = connection();
    let (b, far) = connection();
    let ends = [near, far].map(|end| Endpoint::new(end).unwrap());
    let [near, far] = ends;
    let handle = splicer.join(near, far, options).unwrap();
    Joined { a, b, handle }
}

fn options(engine: EngineChoice) -> Options {
    Options {
        engine,
        ..Options::default()
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends bytes there and back until the kernel has moved one each way; tells how many.
fn until_redirected(Joined { a, b, handle }: &mut Joined) -> u64 {
    let mut count = 0;
    let mut byte = [0; 1];
    let start = handle.redirected();
    until("a byte is redirected both ways", || {
        a.write_all(&[1]).unwrap();
        b.read_exact(&mut byte).unwrap();
        b.write_all(&[1]).unwrap();
        a.read_exact(&mut byte).unwrap();
        count += 1;
        let now = handle.redirected();
        now.a_to_b > start.a_to_b && now.b_to_a > start.b_to_a
    });
    count
}

fn outcome(handle: &Handle) -> Outcome {
    handle
        .wait_timeout(PATIENCE)
        .unwrap_or_else(|| panic!("the pair has not ended: {handle:?}"))
}

/// Sends the payload in random pieces, then the end of the stream.
fn send_all(mut stream: &TcpStream, bytes: u64, seed: u64) {
    let payload = Payload::new(seed);
    let mut random = Random(seed);
    let mut sent = 0;
    while sent < bytes {
        let size = (1 + random.below(64 << 10)).min(bytes - sent) as usize;
        let piece = payload.piece(sent, size);
        stream.write_all(piece).unwrap();
        sent += piece.len() as u64;
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Reads to the end, with random pauses, and checks every byte; returns how many came.
fn receive_all(mut stream: &TcpStream, seed: u64, pauses: bool) -> u64 {
    let payload = Payload::new(seed);
    let mut random = Random(seed);
    let mut count = 0;
    let mut block = vec![0u8; 256 << 10];
    loop {
        if pauses && random.below(16) == 0 {
            thread::sleep(Duration::from_millis(random.below(30)));
        }
        let size = 1 + random.below(block.len() as u64) as usize;
        match stream.read(&mut block[..size]).unwrap() {
            0 => return count,
            read => {
                payload.check(count, &block[..read]);
                count += read as u64;
            }
        }
    }
}

/// How often the threads of the splicer were given a CPU because something woke them.
fn wake_ups() -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let Ok(name) = std::fs::read_to_string(path.join("comm")) else {
            continue;
        };
        if name.starts_with("splice-") {
            let status = std::fs::read_to_string(path.join("status")).unwrap();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
                .unwrap();
            sum += line.trim().parse::<u64>().unwrap();
        }
    }
    sum
}

#[test]
fn the_process_sleeps_while_messages_pass() {
    if missing() {
        return;
    }
    alone::alone(the_process_sleeps_while_messages_pass_alone);
}

fn the_process_sleeps_while_messages_pass_alone() {
    let splicer = Splicer::new(1).unwrap();
    let mut joined = join(&splicer, &options(SOCKMAP));
    let before = until_redirected(&mut joined);
    let Joined {
        mut a,
        mut b,
        handle,
    } = joined;
    let mut byte = [0u8; 64];
    let mut round_trip = |a: &mut TcpStream, b: &mut TcpStream| {
        a.write_all(&[7; 64]).unwrap();
        b.read_exact(&mut byte).unwrap();
        b.write_all(&[9; 64]).unwrap();
        a.read_exact(&mut byte).unwrap();
    };
    round_trip(&mut a, &mut b);
    // The turn in which the kernel got the pair is over.
    thread::sleep(Duration::from_millis(50));
    let woken = wake_ups();
    for _ in 0..2000 {
        round_trip(&mut a, &mut b);
    }
    assert_eq!(wake_ups() - woken, 0, "wake-ups over 2000 round trips");
    assert_eq!(handle.counters().total(), 2001 * 128 + 2 * before);
}

/// 200 pairs, promoted wherever they are, readers that pause, and the CPUs busy with other work.
#[test]
fn two_hundred_pairs_promoted_at_random_places_under_load() {
    if missing() {
        return;
    }
    const PAIRS: u64 = 200;
    const BYTES: u64 = 8 << 20;
    let splicer = Splicer::new(2).unwrap();
    let done = AtomicBool::new(false);
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    eprintln!("seed {seed}");
    let mut engines = std::collections::BTreeMap::new();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let pairs: Vec<_> = (0..PAIRS)
            .map(|number| {
                let mut random = Random(seed + number);
                let options = Options {
                    // Time decides: never by volume.
                    promote_after_bytes: u64::MAX,
                    promote_after: Some(Duration::from_millis(random.below(1500))),
                    ..options(EngineChoice::Auto)
                };
                let Joined { a, b, handle } = join(&splicer, &options);
                let (a, b) = (std::sync::Arc::new(a), std::sync::Arc::new(b));
                let run =
                    |from: &std::sync::Arc<TcpStream>, to: &std::sync::Arc<TcpStream>, salt| {
                        let (from, to) = (from.clone(), to.clone());
                        let sent = scope.spawn(move || send_all(&from, BYTES, salt));
                        let received = scope.spawn(move || receive_all(&to, salt, true));
                        (sent, received)
                    };
                let forth = run(&a, &b, seed ^ (number << 8));
                let back = run(&b, &a, seed ^ (number << 8) ^ 77);
                (forth, back, handle)
            })
            .collect();
        for (forth, back, handle) in pairs {
            for (sent, received) in [forth, back] {
                sent.join().unwrap();
                assert_eq!(received.join().unwrap(), BYTES);
            }
            let outcome = outcome(&handle);
            assert_eq!(outcome.reason, Reason::EndOfStream);
            assert_eq!([outcome.moved.a_to_b, outcome.moved.b_to_a], [BYTES; 2]);
            *engines.entry(outcome.engine.as_str()).or_insert(0) += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    eprintln!("engines at the end: {engines:?}");
    // A pair whose source is never found empty is not taken.
    assert!(engines.get("sockmap") > Some(&10), "{engines:?}");
}

/// The kernel hands a partly read skb over whole.
#[test]
fn what_was_read_before_the_join_does_not_come_again() {
    if missing() {
        return;
    }
    let splicer = Splicer::new(1).unwrap();
    for read in [1, 4, 9_999] {
        let (mut a, mut near) = connection();
        let (mut b, far) = connection();
        let bytes = Payload::new(3).piece(0, 10_000);
        a.write_all(bytes).unwrap();
        let mut taken = vec![0; read];
        near.read_exact(&mut taken).unwrap();
        let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
        let handle = splicer.join(near, far, &options(SOCKMAP)).unwrap();
        a.write_all(bytes).unwrap();
        let mut rest = vec![0; 20_000 - read];
        b.read_exact(&mut rest).unwrap();
        assert!(rest[..10_000 - read] == bytes[read..] && rest[10_000 - read..] == *bytes);
        drop(handle);
    }
}

#[test]
fn ten_thousand_pairs_leave_nothing() {
    if missing() {
        return;
    }
    alone::alone(ten_thousand_pairs_leave_nothing_alone);
}

fn ten_thousand_pairs_leave_nothing_alone() {
    const PAIRS_AT_ONCE: usize = 100;
    let splicer = Splicer::new(1).unwrap();
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..10_000 / PAIRS_AT_ONCE {
        let pairs: Vec<_> = (0..PAIRS_AT_ONCE)
            .map(|_| join(&splicer, &options(SOCKMAP)))
            .collect();
        for mut pair in pairs {
            until_redirected(&mut pair);
            let Joined { a, b, handle } = pair;
            drop((a, b));
            assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
        }
    }
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The object's own descriptors come with the first pair.
    assert!(after <= before + 8, "{before} descriptors became {after}");
    assert_eq!(splice::doctor::sockmap_entries().unwrap(), [0, 0, 0]);
    drop(splicer);
    until("the programs are gone", || {
        std::fs::read_dir("/proc/self/fd").unwrap().count() <= before
    });
}

/// A receiver that reads, and messages of a size that the kernel's worker keeps up with.
#[test]
fn a_reading_receiver_gets_its_bytes_from_the_kernel() {
    if missing() {
        return;
    }
    const MESSAGE_BYTES: u64 = 1 << 20;
    const BYTES: u64 = 256 * MESSAGE_BYTES;
    let splicer = Splicer::new(1).unwrap();
    let mut joined = join(&splicer, &options(SOCKMAP));
    until_redirected(&mut joined);
    let Joined { a, b, handle } = joined;
    let payload = Payload::new(5);
    let mut block = vec![0; 256 << 10];
    thread::scope(|scope| {
        for start in (0..BYTES).step_by(MESSAGE_BYTES as usize) {
            let a = &a;
            let sender = scope.spawn(move || {
                let mut sent = start;
                while sent < start + MESSAGE_BYTES {
                    let piece = payload.piece(sent, (start + MESSAGE_BYTES - sent) as usize);
                    sent += (&mut &*a).write(piece).unwrap() as u64;
                }
            });
            let mut position = start;
            while position < start + MESSAGE_BYTES {
                let at_most = block.len().min((start + MESSAGE_BYTES - position) as usize);
                let count = (&mut &b).read(&mut block[..at_most]).unwrap();
                assert!(count > 0, "an end of stream");
                payload.check(position, &block[..count]);
                position += count as u64;
            }
            sender.join().unwrap();
        }
    });
    let share = handle.redirected().a_to_b as f64 / BYTES as f64;
    eprintln!("{share:.3} redirected");
    assert!(
        share >= 0.95,
        "only {share:.3} of the bytes were redirected"
    );
    drop((a, b));
    assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
}

/// One that outruns the kernel's worker goes by hand, and into the kernel again afterwards.
#[test]
fn a_spell_of_bulk_is_not_for_good() {
    if missing() {
        return;
    }
    const BYTES: u64 = 128 << 20;
    let splicer = Splicer::new(1).unwrap();
    let mut joined = join(&splicer, &options(SOCKMAP));
    until_redirected(&mut joined);
    let Joined { a, b, .. } = &joined;
    let payload = Payload::new(5);
    thread::scope(|scope| {
        let (near, far) = (a, b);
        scope.spawn(move || {
            let mut sent = 0;
            while sent < BYTES {
                sent += (&mut &*near)
                    .write(payload.piece(sent, (BYTES - sent).min(1 << 20) as usize))
                    .unwrap() as u64;
            }
        });
        let mut block = vec![0; 256 << 10];
        let mut position = 0;
        while position < BYTES {
            let at_most = block.len().min((BYTES - position) as usize);
            let count = (&mut &*far).read(&mut block[..at_most]).unwrap();
            assert!(count > 0, "an end of stream");
            payload.check(position, &block[..count]);
            position += count as u64;
        }
    });
    until_redirected(&mut joined);
}

#[test]
fn peers_that_send_without_ever_reading_are_held_back() {
    if missing() {
        return;
    }
    let limits = Limits::default();
    let splicer = Splicer::new(1).unwrap();
    let (a, near) = connection();
    let (b, far) = connection();
    let watched = [&near, &far].map(|end| Endpoint::new(end.try_clone().unwrap()).unwrap());
    let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
    let handle = splicer.join(near, far, &options(SOCKMAP)).unwrap();
    let mut joined = Joined { a, b, handle };
    until_redirected(&mut joined);
    let Joined { a, b, handle } = joined;
    let free = || available_bytes();
    let before = free();
    let mut sent = [0u64; 2];
    let mut most_held = 0;
    thread::scope(|scope| {
        let senders = [&a, &b].map(|peer| {
            scope.spawn(move || {
                peer.set_nonblocking(true).unwrap();
                let payload = Payload::new(1);
                let mut sent = 0u64;
                let mut last = Instant::now();
                while last.elapsed() < Duration::from_secs(1) {
                    match (&mut &*peer).write(payload.piece(sent, 64 << 10)) {
                        Ok(count) => {
                            sent += count as u64;
                            last = Instant::now();
                        }
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                    assert!(sent < 512 << 20, "nobody holds the sender back");
                }
                sent
            })
        });
        while !senders.iter().all(|sender| sender.is_finished()) {
            let held = watched
                .iter()
                .map(|end| end.memory().unwrap().held_bytes())
                .sum();
            most_held = most_held.max(held);
            thread::sleep(Duration::from_millis(5));
        }
        for (sent, sender) in sent.iter_mut().zip(senders) {
            *sent = sender.join().unwrap();
        }
    });
    eprintln!(
        "sent {sent:?}, at most {most_held} in the relay's sockets, {} less memory, {:?}",
        before.saturating_sub(free()),
        handle.counters()
    );
    // The backlogs are in no socket's account: they show in what has left the peers.
    let with_peers: usize = [&a, &b]
        .map(|peer| Endpoint::new(peer.try_clone().unwrap()).unwrap())
        .iter()
        .map(|end| end.memory().unwrap().held_bytes())
        .sum();
    let in_relay = (sent[0] + sent[1]).saturating_sub(with_peers as u64);
    eprintln!("{in_relay} in the relay with its backlogs");
    assert!(in_relay < limits.memory_bytes as u64);
    assert!(most_held < limits.memory_bytes);
    // A duplicate would keep the relay's sockets open.
    drop(watched);
    // Nothing is lost, and it goes on.
    for peer in [&a, &b] {
        peer.set_nonblocking(false).unwrap();
    }
    thread::scope(|scope| {
        for (from, to, sent) in [(&a, &b, sent[0]), (&b, &a, sent[1])] {
            scope.spawn(move || from.shutdown(Shutdown::Write).unwrap());
            scope.spawn(move || assert_eq!(receive_all(to, 1, false), sent));
        }
    });
    assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
}

fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
