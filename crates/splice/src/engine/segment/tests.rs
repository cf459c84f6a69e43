//! Change-overs in namespaces of their own.

use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::bpf_object::{DeviceLink, SharedArray, load};
use crate::bpf_types::Plain;
use netlab::{Lab, Namespace, Need, available};

use crate::{Endpoint, EngineChoice, EngineName, Handle, Options, Outcome, Reason, Splicer};

/// How many change-overs a test does; more in a hunt.
fn rounds(few: usize) -> usize {
    std::env::var("SEGMENT_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(few)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*, Vigna 2014
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn seed() -> u64 {
    let seed = std::env::var("SEGMENT_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    eprintln!("SEGMENT_SEED={seed}");
    seed
}

/// Writes pseudo-random bytes and the end of the stream; gives their hash.
fn write_all(mut stream: &TcpStream, bytes: usize, seed: u64) -> u64 {
    let mut random = Random(seed | 1);
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0u8; 128 << 10];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(buffer.len());
        for chunk in buffer.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next().to_ne_bytes());
        }
        hasher.write(&buffer[..length]);
        stream.write_all(&buffer[..length]).expect("write");
        left -= length;
    }
    stream.shutdown(Shutdown::Write).expect("shutdown");
    hasher.finish()
}

/// Reads to the end of the stream; gives length, hash, and the longest pause between two reads.
fn read_all(mut stream: &TcpStream) -> (usize, u64, Duration) {
    let mut buffer = vec![0u8; 128 << 10];
    let mut hasher = DefaultHasher::new();
    let (mut total, mut filled) = (0, 0);
    let mut pause = Duration::ZERO;
    let mut last = Instant::now();
    loop {
        let count = stream.read(&mut buffer[filled..]).expect("read");
        pause = pause.max(last.elapsed());
        last = Instant::now();
        filled += count;
        total += count;
        if filled == buffer.len() || count == 0 {
            hasher.write(&buffer[..filled]);
            filled = 0;
        }
        if count == 0 {
            return (total, hasher.finish(), pause);
        }
    }
}

fn listen(address: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).expect("bind");
    let address = listener.local_addr().expect("address");
    (listener, address)
}

/// Client, the relay's two ends, server.
struct Joined {
    client: TcpStream,
    server: TcpStream,
    a: Endpoint,
    b: Endpoint,
}

fn connect_here(ip: &str) -> Joined {
    let (front, front_address) = listen(ip);
    let (back, back_address) = listen(ip);
    let client = TcpStream::connect(front_address).expect("connect");
    let a = front.accept().expect("accept").0;
    let b = TcpStream::connect(back_address).expect("connect");
    let server = back.accept().expect("accept").0;
    Joined {
        client,
        server,
        a: Endpoint::new(a).expect("an endpoint"),
        b: Endpoint::new(b).expect("an endpoint"),
    }
}

/// 64 MiB each way at once, the change-over after `place` bytes.
fn both_ways(joined: Joined, splicer: &Splicer, place: u64, bytes: usize, seed: u64) -> (Outcome, u64, Duration) {
    let options = Options {
        engine: EngineChoice::Auto,
        promote_after_bytes: place,
        ..Options::default()
    };
    let Joined { client, server, a, b } = joined;
    let handle: Handle = splicer.join(a, b, &options).expect("joined");
    let pause = thread::scope(|scope| {
        let up = scope.spawn(|| write_all(&client, bytes, seed));
        let down = scope.spawn(|| write_all(&server, bytes, seed ^ 0xffff));
        let at_server = scope.spawn(|| read_all(&server));
        let at_client = scope.spawn(|| read_all(&client));
        let (up, down) = (up.join().expect("up"), down.join().expect("down"));
        let (length, hash, one) = at_server.join().expect("at server");
        assert_eq!((length, hash), (bytes, up), "client to server");
        let (length, hash, other) = at_client.join().expect("at client");
        assert_eq!((length, hash), (bytes, down), "server to client");
        one.max(other)
    });
    let outcome = handle.wait_timeout(Duration::from_secs(5)).expect("it ends");
    (outcome, handle.forwarded_bytes(), pause)
}

fn counters() -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for file in ["/proc/thread-self/net/netstat", "/proc/thread-self/net/snmp"] {
        let text = std::fs::read_to_string(file).expect("counters");
        let lines: Vec<_> = text.lines().collect();
        for pair in lines.chunks(2) {
            let names = pair[0].split_whitespace().skip(1);
            let values = pair[1].split_whitespace().skip(1);
            for (name, value) in names.zip(values) {
                found.push((name.to_owned(), value.parse().unwrap_or(0)));
            }
        }
    }
    found
}

const WATCHED: [&str; 14] = [
    "RetransSegs", "TCPTimeouts", "PAWSEstab", "TCPLossProbes", "TCPSACKReneging",
    "TCPFastRetrans", "TCPSlowStartRetrans", "TCPLostRetransmit", "TCPChallengeACK",
    "TCPZeroWindowDrop", "TCPDSACKRecv", "TCPOFOQueue", "TCPACKSkippedSeq", "TCPSpuriousRTOs",
];

fn changes(before: &[(String, u64)], after: &[(String, u64)]) -> String {
    before
        .iter()
        .zip(after)
        .filter(|((name, _), _)| WATCHED.contains(&name.as_str()))
        .filter(|(one, other)| one.1 != other.1)
        .map(|(one, other)| format!("{} {}", one.0, other.1 - one.1))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The same over veths: client, relay and server in namespaces of their own.
fn connect_across(lab: &Lab, v6: bool) -> Joined {
    let (relay_ip, server_ip) = if v6 {
        (Lab::RELAY_V6.to_string(), Lab::SERVER_V6.to_string())
    } else {
        (Lab::RELAY_V4.to_string(), Lab::SERVER_V4.to_string())
    };
    let here = |ip: &str| if v6 { format!("[{ip}]:0") } else { format!("{ip}:0") };
    let (front, front_address) = lab.relay().enter(|| listen(&here(&relay_ip))).expect("entered");
    let (back, back_address) = lab.server().enter(|| listen(&here(&server_ip))).expect("entered");
    let client = lab.client().enter(|| TcpStream::connect(front_address).expect("connect"));
    let a = front.accept().expect("accept").0;
    let b = lab.relay().enter(|| TcpStream::connect(back_address).expect("connect"));
    let server = back.accept().expect("accept").0;
    Joined {
        client: client.expect("entered"),
        server,
        a: Endpoint::new(a).expect("an endpoint"),
        b: Endpoint::new(b.expect("entered")).expect("an endpoint"),
    }
}

fn counters_across(lab: &Lab) -> Vec<(String, u64)> {
    let mut sum = counters_in(lab.client());
    for other in [lab.relay(), lab.server()] {
        for (one, other) in sum.iter_mut().zip(counters_in(other)) {
            one.1 += other.1;
        }
    }
    sum
}

fn counters_in(namespace: &Namespace) -> Vec<(String, u64)> {
    namespace.enter(counters).expect("entered")
}

/// A path that loses, doubles and reorders, in ten-thousandths of all packets on each of the two
/// devices that a segment comes in on.
#[derive(Clone, Copy)]
struct Disorder {
    lost: u32,
    doubled: u32,
    late: u32,
}

#[derive(Debug)]
#[repr(C)]
struct DisorderEntry {
    lost: AtomicU32,
    doubled: AtomicU32,
    late: AtomicU32,
    reserved: AtomicU32,
    losses: AtomicU64,
}

#[allow(unsafe_code, reason = "atomic integers without padding")]
// SAFETY: repr(C), 4 * 4 + 8 bytes of atomic integers.
unsafe impl Plain for DisorderEntry {}

static DISORDER: &[u8] = include_bytes!("../../../bpf/prebuilt/disorder.bpf.o");

/// Attached in front of everything else on all devices of the lab.
struct BadPath {
    _links: Vec<DeviceLink>,
    entry: SharedArray<DisorderEntry>,
}

impl BadPath {
    fn lay(lab: &Lab, disorder: Disorder) -> Self {
        let object = load("disorder", DISORDER, |_| Ok(())).expect("loaded");
        let program = object.program("disorder_ingress").expect("a program");
        let entry: SharedArray<DisorderEntry> =
            object.map("disorders").and_then(|map| map.share_values()).expect("a map");
        let mut links = Vec::new();
        for namespace in [lab.client(), lab.relay(), lab.server()] {
            for device in devices(namespace) {
                let link = namespace.enter(|| program.attach_ingress(device)).expect("entered");
                links.push(link.expect("attached"));
            }
        }
        entry.at(0).lost.store(disorder.lost, Relaxed);
        entry.at(0).doubled.store(disorder.doubled, Relaxed);
        entry.at(0).late.store(disorder.late, Relaxed);
        Self { _links: links, entry }
    }
}

/// All but lo.
fn devices(namespace: &Namespace) -> Vec<u32> {
    let listed = namespace.command("ip").args(["-o", "link"]).output().expect("ip");
    let text = String::from_utf8(listed.stdout).expect("text");
    text.lines()
        .filter_map(|line| line.split(':').next()?.trim().parse().ok())
        .filter(|index| *index != 1)
        .collect()
}

fn through_disorder(bytes: usize, disorder: Disorder, place: u64) {
    let lab = Lab::new().expect("a lab");
    let path = BadPath::lay(&lab, disorder);
    let splicer = lab.relay().enter(|| Splicer::new(1).expect("a splicer")).expect("entered");
    let mut random = Random(seed());
    let before = counters_across(&lab);
    let joined = connect_across(&lab, false);
    let (outcome, forwarded, pause) = both_ways(joined, &splicer, place, bytes, random.next());
    let changes = changes(&before, &counters_across(&lab));
    let losses = path.entry.at(0).losses.load(Relaxed);
    eprintln!("{outcome:?}, forwarded {forwarded}, losses {losses}, pause {pause:?}; {changes}");
    assert_eq!(outcome.reason, Reason::EndOfStream);
    assert_eq!(outcome.engine, EngineName::Segment, "{}", outcome.why_engine);
    assert_eq!([outcome.moved.a_to_b, outcome.moved.b_to_a], [bytes as u64; 2]);
    assert!(losses > 0);
}

#[test]
fn bytes_survive_a_path_that_loses_and_reorders() {
    if available(Need::Root) {
        let bytes = rounds(1) * (64 << 20);
        let disorder = Disorder { lost: 50, doubled: 50, late: 50 };
        through_disorder(bytes, disorder, 1 << 20);
    }
}

#[test]
fn bytes_survive_a_path_that_loses_a_tenth() {
    if available(Need::Root) {
        let disorder = Disorder { lost: 500, doubled: 50, late: 150 };
        through_disorder(4 << 20, disorder, 64 << 10);
    }
}

fn hunt_across(v6: bool, bytes: usize, rounds: usize, stamps: bool) {
    let lab = Lab::new().expect("a lab");
    for namespace in [lab.client(), lab.relay(), lab.server()] {
        namespace.set_sysctl("net.ipv4.tcp_timestamps", if stamps { "1" } else { "0" }).expect("sysctl");
    }
    let splicer = lab.relay().enter(|| Splicer::new(1).expect("a splicer")).expect("entered");
    let mut random = Random(seed());
    for round in 0..rounds {
        let base = std::env::var_os("SEGMENT_BASELINE").map_or(0, |_| bytes as u64 * 2);
        let place = base + random.next() % (bytes as u64 * 3 / 4);
        let before = counters_across(&lab);
        let (outcome, forwarded, pause) =
            both_ways(connect_across(&lab, v6), &splicer, place, bytes, random.next());
        let changes = changes(&before, &counters_across(&lab));
        eprintln!("{round}: place {place}, {outcome:?}, forwarded {forwarded}, pause {pause:?}; {changes}");
        assert_eq!(outcome.reason, Reason::EndOfStream);
        if base == 0 {
            assert_eq!(outcome.engine, EngineName::Segment, "{}", outcome.why_engine);
        }
        assert_eq!(outcome.moved.a_to_b, bytes as u64);
        assert_eq!(outcome.moved.b_to_a, bytes as u64);
    }
}

fn hunt(ip: &str, bytes: usize, rounds: usize, stamps: bool) {
    let namespace = Namespace::new("seg").expect("a namespace");
    namespace.set_sysctl("net.ipv4.tcp_timestamps", if stamps { "1" } else { "0" }).expect("sysctl");
    namespace
        .enter(|| {
            let splicer = Splicer::new(1).expect("a splicer");
            let mut random = Random(seed());
            for round in 0..rounds {
                let most = std::env::var("SEGMENT_PLACE").ok().and_then(|text| text.parse().ok());
                let base = std::env::var_os("SEGMENT_BASELINE").map_or(0, |_| bytes as u64 * 2);
                let place = base + random.next() % most.unwrap_or(bytes as u64 * 3 / 4);
                let before = counters();
                let (outcome, forwarded, pause) =
                    both_ways(connect_here(ip), &splicer, place, bytes, random.next());
                let changes = changes(&before, &counters());
                eprintln!("{round}: place {place}, {outcome:?}, forwarded {forwarded}, pause {pause:?}; {changes}");
                assert_eq!(outcome.reason, Reason::EndOfStream);
                if std::env::var_os("SEGMENT_BASELINE").is_none() {
                    assert_eq!(outcome.engine, EngineName::Segment, "{}", outcome.why_engine);
                }
                assert_eq!(outcome.moved.a_to_b, bytes as u64);
                assert_eq!(outcome.moved.b_to_a, bytes as u64);
            }
        })
        .expect("entered");
}

#[test]
fn change_overs_at_random_places_over_lo() {
    if available(Need::Root) {
        hunt("127.0.0.1:0", 64 << 20, rounds(3), true);
    }
}

#[test]
fn change_overs_at_random_places_over_lo_without_stamps() {
    if available(Need::Root) {
        hunt("127.0.0.1:0", 64 << 20, rounds(3), false);
    }
}

#[test]
fn change_overs_at_random_places_over_lo_v6() {
    if available(Need::Root) {
        hunt("[::1]:0", 64 << 20, rounds(3), true);
    }
}

#[test]
fn change_overs_at_random_places_over_veths() {
    if available(Need::Root) {
        hunt_across(false, 64 << 20, rounds(3), true);
    }
}

#[test]
fn change_overs_at_random_places_over_veths_without_stamps() {
    if available(Need::Root) {
        hunt_across(false, 64 << 20, rounds(3), false);
    }
}

#[test]
fn change_overs_at_random_places_over_veths_v6() {
    if available(Need::Root) {
        hunt_across(true, 64 << 20, rounds(3), true);
    }
}
