//! What the engine `sockmap` has to show beside the contract of `every_engine.rs`: that the
//! kernel moves the bytes, that the process sleeps meanwhile, and that it stays so under load.
//! Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; without them each test says that it is left out.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

mod bulk;
mod kernel_log;
mod rate;
mod second;
mod stage;

#[path = "../support"]
mod support {
    pub(crate) mod alone;
    pub(crate) mod payload;
    #[allow(dead_code, reason = "the rules of every engine ask for more")]
    pub(crate) mod random;
}

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Namespace, Need, PATIENCE, available, connection, until, until_at_rest, until_found};
use socket2::{Domain, Socket, Type};
use splice::{Endpoint, EngineChoice, ErrorKind, Limits, Options, Reason, Splicer};

use crate::kernel_log::KernelLog;
use crate::stage::{
    Joined, SOCKMAP, join, join_ends, missing, options, outcome, receive_all, send_all,
    send_through, until_redirected,
};
use crate::support::alone;
use crate::support::payload::Payload;
use crate::support::random::{Random, run_seed};

/// How often the splicer's threads were given a CPU because something woke them; `None` while one is awake.
fn wake_ups() -> Option<u64> {
    let mut counts = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let Ok(name) = std::fs::read_to_string(path.join("comm")) else {
            continue;
        };
        if name.starts_with("splice-") {
            let status = std::fs::read_to_string(path.join("status")).unwrap();
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            if !field("State:").unwrap().trim().starts_with('S') {
                return None;
            }
            let count = field("voluntary_ctxt_switches:").unwrap();
            counts.push(count.trim().parse::<u64>().unwrap());
        }
    }
    assert!(!counts.is_empty(), "no thread has the splicer's name");
    Some(counts.iter().sum())
}

/// A UNIX socket loses its backlog when its peer half-closes (`engine/sockmap/tests/unix.rs` shows it).
#[test]
fn a_unix_end_is_refused_in_words() {
    if missing() {
        return;
    }
    let splicer = Splicer::new(1).unwrap();
    for unix in [[true, true], [true, false], [false, true]] {
        let mut peers = Vec::new();
        let [a, b] = unix.map(|unix| {
            let (peer, end): (OwnedFd, OwnedFd) = if unix {
                let (peer, end) = UnixStream::pair().unwrap();
                (peer.into(), end.into())
            } else {
                let (peer, end) = connection();
                (peer.into(), end.into())
            };
            peers.push(peer);
            Endpoint::new(end).unwrap()
        });
        let error = splicer.join(a, b, &options(SOCKMAP)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EngineRefused);
        let text = error.to_string();
        for part in ["engine sockmap", "UNIX", "half-closes", "use copy or pipe"] {
            assert!(text.contains(part), "no {part:?} in {text:?}");
        }
        // A peer must not take it for an empty answer.
        for (peer, unix) in peers.into_iter().zip(unix) {
            let came = TcpStream::from(peer).read(&mut [0]);
            let is_reset =
                came.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
            assert!(is_reset || unix);
        }
    }
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
    // The turn in which the kernel got the pair is over, and the looks that it asked for.
    let rest = Duration::from_millis(50);
    let woken = until_found("its threads sleep", || until_at_rest(rest, wake_ups));
    for _ in 0..2000 {
        round_trip(&mut a, &mut b);
    }
    assert_eq!(wake_ups(), Some(woken), "woken by 2000 round trips");
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
    let log = KernelLog::from_here();
    let splicer = Splicer::new(2).unwrap();
    let done = AtomicBool::new(false);
    eprintln!("SPLICED_SEED={}", run_seed());
    let mut engines = std::collections::BTreeMap::new();
    /// Also after a failure.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _done = Done(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let pairs: Vec<_> = (0..PAIRS)
            .map(|number| {
                let mut random = Random::of_run(number);
                let options = Options {
                    // Time decides: never by volume.
                    promote_after_bytes: u64::MAX,
                    segment_after: None,
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
                let forth = run(&a, &b, 2 * number);
                let back = run(&b, &a, 2 * number + 1);
                (forth, back, handle)
            })
            .collect();
        for (forth, back, handle) in pairs {
            for (sent, received) in [forth, back] {
                let (sent, received) = (sent.join(), received.join());
                assert!(
                    sent.is_ok() && received.is_ok(),
                    "{:?}",
                    handle.wait_timeout(Duration::from_secs(5))
                );
                assert_eq!(received.unwrap(), BYTES);
            }
            let outcome = outcome(&handle);
            assert_eq!(outcome.reason, Reason::EndOfStream);
            assert_eq!([outcome.moved.a_to_b, outcome.moved.b_to_a], [BYTES; 2]);
            *engines.entry(outcome.engine.as_str()).or_insert(0) += 1;
        }
    });
    eprintln!("engines at the end: {engines:?}");
    assert_eq!(log.warnings(), [""; 0]);
    // A pair whose source is never found empty is not taken.
    assert!(engines.get("sockmap") > Some(&10), "{engines:?}");
}

/// Addresses tell connections apart in one namespace only; a program of a process that has
/// sockets of several cannot ask in which it is.
#[test]
fn pairs_with_the_same_addresses_in_two_namespaces_are_told_apart() {
    if missing() || !available(Need::Netns) {
        return;
    }
    let bound = |port| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        socket.bind(&address.into()).unwrap();
        (socket, address)
    };
    let connected = |port| {
        let ((listener, address), (peer, _)) = (bound(port), bound(port + 1));
        listener.listen(1).unwrap();
        peer.connect(&address.into()).unwrap();
        let (end, _) = listener.accept().unwrap();
        peer.set_tcp_nodelay(true).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        (TcpStream::from(peer), Endpoint::new(end).unwrap())
    };
    let splicer = Splicer::new(1).unwrap();
    let namespaces = ["one", "other"].map(|role| Namespace::new(role).unwrap());
    let mut pairs = namespaces.each_ref().map(|namespace| {
        let sockets = namespace.enter(|| [connected(7001), connected(7003)]);
        let [(a, near), (b, far)] = sockets.unwrap();
        let handle = splicer.join(near, far, &options(SOCKMAP)).unwrap();
        Joined { a, b, handle }
    });
    pairs.iter_mut().for_each(|pair| {
        until_redirected(pair);
    });
    for (seed, Joined { a, b, .. }) in (0..).zip(&mut pairs) {
        let payload = Payload::new(seed);
        a.write_all(payload.piece(0, 1000)).unwrap();
        let mut received = [0; 1000];
        b.read_exact(&mut received).unwrap();
        payload.check(0, &received);
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
    for start in (0..BYTES).step_by(MESSAGE_BYTES as usize) {
        send_through(&a, &b, start..start + MESSAGE_BYTES);
    }
    let share = handle.redirected().a_to_b as f64 / BYTES as f64;
    eprintln!("{share:.3} redirected");
    assert!(
        share >= 0.95,
        "only {share:.3} of the bytes were redirected"
    );
    drop((a, b));
    assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
}

/// User space moves bulk that is faster than the kernel's worker; afterwards the kernel moves the bytes again.
#[test]
fn a_pair_returns_to_the_kernel_after_bulk() {
    if missing() {
        return;
    }
    const BYTES: u64 = 128 << 20;
    let splicer = Splicer::new(1).unwrap();
    let mut joined = join(&splicer, &options(SOCKMAP));
    until_redirected(&mut joined);
    send_through(&joined.a, &joined.b, 0..BYTES);
    until_redirected(&mut joined);
}

#[test]
fn peers_that_send_without_ever_reading_are_held_back() {
    if missing() {
        return;
    }
    for sends in [[true, false], [false, true], [true, true]] {
        hold_back(sends);
    }
}

fn hold_back(sends: [bool; 2]) {
    let limits = Limits::default();
    let splicer = Splicer::new(1).unwrap();
    let (a, near) = connection();
    let (b, far) = connection();
    let watched = [&near, &far].map(|end| Endpoint::new(end.try_clone().unwrap()).unwrap());
    let handle = join_ends(&splicer, [near, far], &options(SOCKMAP));
    let mut joined = Joined { a, b, handle };
    until_redirected(&mut joined);
    let Joined { a, b, handle } = joined;
    let free = || available_bytes();
    let before = free();
    let mut sent = [0u64; 2];
    let mut most_held = 0;
    thread::scope(|scope| {
        let senders = [(&a, sends[0]), (&b, sends[1])].map(|(peer, sends)| {
            scope.spawn(move || {
                if !sends {
                    return 0;
                }
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
