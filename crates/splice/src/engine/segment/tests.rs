//! Change-overs in namespaces of their own.

use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::ground::Ground;
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
fn both_ways(
    joined: Joined,
    splicer: &Splicer,
    place: u64,
    bytes: usize,
    seed: u64,
) -> (Outcome, u64, Duration) {
    let options = Options {
        engine: EngineChoice::Auto,
        promote_after_bytes: place,
        ..Options::default()
    };
    let Joined {
        client,
        server,
        a,
        b,
    } = joined;
    let handle: Handle = splicer.join(a, b, &options).expect("joined");
    let pause = exchange(&client, &server, bytes, seed);
    let outcome = handle
        .wait_timeout(Duration::from_secs(5))
        .expect("it ends");
    (outcome, handle.forwarded_bytes(), pause)
}

/// As many bytes each way at once; the longest pause.
fn exchange(client: &TcpStream, server: &TcpStream, bytes: usize, seed: u64) -> Duration {
    thread::scope(|scope| {
        let up = scope.spawn(|| write_all(client, bytes, seed));
        let down = scope.spawn(|| write_all(server, bytes, seed ^ 0xffff));
        let at_server = scope.spawn(|| read_all(server));
        let at_client = scope.spawn(|| read_all(client));
        let (up, down) = (up.join().expect("up"), down.join().expect("down"));
        let (length, hash, one) = at_server.join().expect("at server");
        assert_eq!((length, hash), (bytes, up), "client to server");
        let (length, hash, other) = at_client.join().expect("at client");
        assert_eq!((length, hash), (bytes, down), "server to client");
        one.max(other)
    })
}

fn counters() -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for file in [
        "/proc/thread-self/net/netstat",
        "/proc/thread-self/net/snmp",
    ] {
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
    "RetransSegs",
    "TCPTimeouts",
    "PAWSEstab",
    "TCPLossProbes",
    "TCPSACKReneging",
    "TCPFastRetrans",
    "TCPSlowStartRetrans",
    "TCPLostRetransmit",
    "TCPChallengeACK",
    "TCPZeroWindowDrop",
    "TCPDSACKRecv",
    "TCPOFOQueue",
    "TCPACKSkippedSeq",
    "TCPSpuriousRTOs",
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
    let here = |ip: &str| {
        if v6 {
            format!("[{ip}]:0")
        } else {
            format!("{ip}:0")
        }
    };
    let (front, front_address) = lab
        .relay()
        .enter(|| listen(&here(&relay_ip)))
        .expect("entered");
    let (back, back_address) = lab
        .server()
        .enter(|| listen(&here(&server_ip)))
        .expect("entered");
    let client = lab
        .client()
        .enter(|| TcpStream::connect(front_address).expect("connect"));
    let a = front.accept().expect("accept").0;
    let b = lab
        .relay()
        .enter(|| TcpStream::connect(back_address).expect("connect"));
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
        let entry: SharedArray<DisorderEntry> = object
            .map("disorders")
            .and_then(|map| map.share_values())
            .expect("a map");
        let mut links = Vec::new();
        for namespace in [lab.client(), lab.relay(), lab.server()] {
            for device in devices(namespace) {
                let link = namespace
                    .enter(|| program.attach_ingress(device))
                    .expect("entered");
                links.push(link.expect("attached"));
            }
        }
        entry.at(0).lost.store(disorder.lost, Relaxed);
        entry.at(0).doubled.store(disorder.doubled, Relaxed);
        entry.at(0).late.store(disorder.late, Relaxed);
        Self {
            _links: links,
            entry,
        }
    }
}

/// All but lo.
fn devices(namespace: &Namespace) -> Vec<u32> {
    let listed = namespace
        .command("ip")
        .args(["-o", "link"])
        .output()
        .expect("ip");
    let text = String::from_utf8(listed.stdout).expect("text");
    text.lines()
        .filter_map(|line| line.split(':').next()?.trim().parse().ok())
        .filter(|index| *index != 1)
        .collect()
}

fn through_disorder(bytes: usize, disorder: Disorder, place: u64) {
    let lab = Lab::new().expect("a lab");
    let path = BadPath::lay(&lab, disorder);
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let mut random = Random(seed());
    let before = counters_across(&lab);
    let joined = connect_across(&lab, false);
    let (outcome, forwarded, pause) = both_ways(joined, &splicer, place, bytes, random.next());
    let changes = changes(&before, &counters_across(&lab));
    let losses = path.entry.at(0).losses.load(Relaxed);
    eprintln!("{outcome:?}, forwarded {forwarded}, losses {losses}, pause {pause:?}; {changes}");
    assert_eq!(outcome.reason, Reason::EndOfStream);
    assert_eq!(
        outcome.engine,
        EngineName::Segment,
        "{}",
        outcome.why_engine
    );
    assert_eq!(
        [outcome.moved.a_to_b, outcome.moved.b_to_a],
        [bytes as u64; 2]
    );
    assert!(losses > 0);
}

#[test]
fn bytes_survive_a_path_that_loses_and_reorders() {
    if available(Need::Root) {
        let bytes = rounds(1) * (64 << 20);
        let disorder = Disorder {
            lost: 50,
            doubled: 50,
            late: 50,
        };
        through_disorder(bytes, disorder, 1 << 20);
    }
}

#[test]
fn bytes_survive_a_path_that_loses_a_tenth() {
    if available(Need::Root) {
        let disorder = Disorder {
            lost: 500,
            doubled: 50,
            late: 150,
        };
        through_disorder(4 << 20, disorder, 64 << 10);
    }
}

fn hunt_across(v6: bool, bytes: usize, rounds: usize, stamps: bool) {
    let lab = Lab::new().expect("a lab");
    for namespace in [lab.client(), lab.relay(), lab.server()] {
        namespace
            .set_sysctl("net.ipv4.tcp_timestamps", if stamps { "1" } else { "0" })
            .expect("sysctl");
    }
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let mut random = Random(seed());
    for round in 0..rounds {
        let base = std::env::var_os("SEGMENT_BASELINE").map_or(0, |_| bytes as u64 * 2);
        let place = base + random.next() % (bytes as u64 * 3 / 4);
        let spaces = [lab.client(), lab.relay(), lab.server()];
        let before = spaces.map(counters_in);
        let (outcome, forwarded, pause) = both_ways(
            connect_across(&lab, v6),
            &splicer,
            place,
            bytes,
            random.next(),
        );
        let after = spaces.map(counters_in);
        let changes = [0, 1, 2].map(|space: usize| changes(&before[space], &after[space]));
        let changes = changes.join(" | ");
        eprintln!(
            "{round}: place {place}, {outcome:?}, forwarded {forwarded}, pause {pause:?}; {changes}"
        );
        assert_eq!(outcome.reason, Reason::EndOfStream);
        if base == 0 {
            assert_eq!(
                outcome.engine,
                EngineName::Segment,
                "{}",
                outcome.why_engine
            );
        }
        assert_eq!(outcome.moved.a_to_b, bytes as u64);
        assert_eq!(outcome.moved.b_to_a, bytes as u64);
    }
}

fn hunt(ip: &str, bytes: usize, rounds: usize, stamps: bool) {
    let namespace = Namespace::new("seg").expect("a namespace");
    namespace
        .set_sysctl("net.ipv4.tcp_timestamps", if stamps { "1" } else { "0" })
        .expect("sysctl");
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

/// Joins by name, where `set_up` has prepared the namespaces, and gives the outcome.
fn refused_across(set_up: impl Fn(&Lab)) -> Outcome {
    let lab = Lab::new().expect("a lab");
    set_up(&lab);
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let Joined {
        client,
        server,
        a,
        b,
    } = connect_across(&lab, false);
    let options = Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    let outcome = handle.wait_timeout(Duration::from_secs(5));
    drop((client, server));
    outcome.expect("it ends")
}

fn run(namespace: &Namespace, program: &str, arguments: &str) {
    let done = namespace
        .command(program)
        .args(arguments.split(' '))
        .output()
        .expect(program);
    assert!(done.status.success(), "{program} {arguments}: {done:?}");
}

#[test]
fn a_translated_address_is_found_and_refused() {
    if !available(Need::Root) || netlab::program("nft").is_none() {
        return;
    }
    // The server sees another address of the relay's than the relay's own socket has.
    let outcome = refused_across(|lab| {
        run(lab.relay(), "ip", "addr add 198.18.2.77/32 dev lo");
        run(
            lab.server(),
            "ip",
            "route add 198.18.2.77/32 via 198.18.2.1",
        );
        run(lab.relay(), "nft", "add table ip t");
        run(
            lab.relay(),
            "nft",
            "add chain ip t post { type nat hook postrouting priority 100 ; }",
        );
        run(
            lab.relay(),
            "nft",
            "add rule ip t post ip daddr 198.18.2.2 snat to 198.18.2.77",
        );
    });
    assert_eq!(outcome.reason, Reason::Refused, "{outcome:?}");
    assert!(outcome.why_engine.contains("NAT"), "{}", outcome.why_engine);
}

#[test]
fn a_redirected_port_is_found_and_refused() {
    if !available(Need::Root) || netlab::program("nft").is_none() {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (front, front_address) = lab
        .relay()
        .enter(|| listen(&format!("{}:0", Lab::RELAY_V4)))
        .expect("entered");
    let (back, back_address) = lab
        .server()
        .enter(|| listen(&format!("{}:0", Lab::SERVER_V4)))
        .expect("entered");
    run(lab.relay(), "nft", "add table ip t");
    run(
        lab.relay(),
        "nft",
        "add chain ip t pre { type nat hook prerouting priority -100 ; }",
    );
    let to = format!(
        "add rule ip t pre tcp dport 81 redirect to :{}",
        front_address.port()
    );
    run(lab.relay(), "nft", &to);
    let client = lab
        .client()
        .enter(|| TcpStream::connect((Lab::RELAY_V4, 81)))
        .expect("entered");
    let client = client.expect("connect");
    let a = front.accept().expect("accept").0;
    let b = lab
        .relay()
        .enter(|| TcpStream::connect(back_address))
        .expect("entered");
    let server = back.accept().expect("accept").0;
    let [a, b] = [a, b.expect("connect")].map(|end| Endpoint::new(end).expect("an end"));
    // Not by name: the pair goes on by another engine, and no byte is lost.
    let options = Options {
        promote_after_bytes: 1,
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    ping(&client, &server);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !handle.engine().1.contains("NAT") && handle.engine().0 != EngineName::Sockmap {
        assert!(Instant::now() < deadline, "{:?}", handle.engine());
        ping(&client, &server);
    }
    assert_ne!(handle.engine().0, EngineName::Segment);
    ping(&client, &server);
}

#[test]
fn a_larger_mtu_is_refused_in_words() {
    if !available(Need::Root) {
        return;
    }
    let outcome = refused_across(|lab| {
        for namespace in [lab.client(), lab.relay()] {
            let index = devices(namespace)[0];
            let listed = namespace
                .command("ip")
                .args(["-o", "link"])
                .output()
                .expect("ip");
            let text = String::from_utf8(listed.stdout).expect("text");
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("{index}:")));
            let name = line
                .and_then(|line| line.split([':', '@']).nth(1))
                .expect("a name");
            run(
                namespace,
                "ip",
                &format!("link set {} mtu 9000", name.trim()),
            );
        }
    });
    assert_eq!(outcome.reason, Reason::Refused, "{outcome:?}");
    assert!(
        outcome.why_engine.contains("TCP_MAXSEG"),
        "{}",
        outcome.why_engine
    );
}

/// A pair that is spliced, with one request and response behind it.
fn spliced_across(lab: &Lab, splicer: &Splicer) -> (TcpStream, TcpStream, Handle) {
    let Joined {
        client,
        server,
        a,
        b,
    } = connect_across(lab, false);
    let options = Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    for stream in [&client, &server] {
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout");
    }
    ping(&client, &server);
    assert_eq!(
        handle.engine().0,
        EngineName::Segment,
        "{}",
        handle.engine().1
    );
    (client, server, handle)
}

fn ping(mut one: &TcpStream, mut other: &TcpStream) {
    let mut buffer = [0; 5];
    one.write_all(b"hello").expect("write");
    other.read_exact(&mut buffer).expect("read");
    other.write_all(b"world").expect("write");
    one.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"world");
}

#[test]
fn idle_pairs_are_reset_at_both_ends() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (mut client, mut server, handle) = spliced_across(&lab, &splicer);
    drop(handle);
    for stream in [&mut client, &mut server] {
        let error = stream.read(&mut [0; 1]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_sleeping_pair_is_silent_and_lives_on() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let sent = || {
        let counters = counters_in(lab.relay());
        counters
            .iter()
            .filter(|(name, _)| name == "OutSegs")
            .map(|(_, value)| value)
            .sum::<u64>()
    };
    ping(&client, &server);
    let before = sent();
    for _ in 0..100 {
        ping(&client, &server);
    }
    assert_eq!(sent(), before, "the relay's own sockets sent segments");
    // Half-close, then the rest of the other direction.
    client.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!((&server).read(&mut [0; 8]).expect("the end"), 0);
    (&server).write_all(b"late").expect("write");
    drop(server);
    let mut rest = Vec::new();
    (&client).read_to_end(&mut rest).expect("the rest");
    assert_eq!(rest, b"late");
    let outcome = handle
        .wait_timeout(Duration::from_secs(5))
        .expect("it ends");
    assert_eq!(outcome.reason, Reason::EndOfStream);
    assert_eq!(
        [outcome.moved.a_to_b, outcome.moved.b_to_a],
        [5 * 102, 5 * 102 + 4]
    );
}

#[test]
fn many_short_connections_over_few_ports() {
    if !available(Need::Root) {
        return;
    }
    let connections = rounds(1) * 1000;
    let lab = Lab::new().expect("a lab");
    lab.client()
        .set_sysctl("net.ipv4.ip_local_port_range", "20000 20199")
        .expect("sysctl");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (front, front_address) = lab
        .relay()
        .enter(|| listen(&format!("{}:0", Lab::RELAY_V4)))
        .expect("entered");
    let (back, back_address) = lab
        .server()
        .enter(|| listen(&format!("{}:0", Lab::SERVER_V4)))
        .expect("entered");
    let options = Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    // The first pair makes the program stand where the others are seen from the start.
    let _first = spliced_across(&lab, &splicer);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..connections {
                let (mut stream, _) = back.accept().expect("accept");
                let mut buffer = [0; 8];
                stream.read_exact(&mut buffer).expect("read");
                stream.write_all(&buffer).expect("write");
                // It closes first.
            }
        });
        let client = scope.spawn(|| {
            lab.client().enter(|| {
                for number in 0..connections as u64 {
                    let mut stream = TcpStream::connect(front_address).expect("connect");
                    stream.write_all(&number.to_le_bytes()).expect("write");
                    let mut answer = Vec::new();
                    stream.read_to_end(&mut answer).expect("read");
                    assert_eq!(answer, number.to_le_bytes());
                }
            })
        });
        let mut handles = Vec::new();
        for _ in 0..connections {
            let a = front.accept().expect("accept").0;
            let b = lab
                .relay()
                .enter(|| TcpStream::connect(back_address))
                .expect("entered");
            let [a, b] = [a, b.expect("connect")].map(|end| Endpoint::new(end).expect("an end"));
            handles.push(splicer.join(a, b, &options).expect("joined"));
        }
        client.join().expect("client").expect("entered");
        for (number, handle) in handles.into_iter().enumerate() {
            let outcome = handle.wait_timeout(Duration::from_secs(5));
            let outcome = outcome.unwrap_or_else(|| panic!("connection {number} did not end"));
            assert_eq!(outcome.reason, Reason::EndOfStream, "{number}: {outcome:?}");
            assert_eq!(outcome.engine, EngineName::Segment);
            assert_eq!(
                [outcome.moved.a_to_b, outcome.moved.b_to_a],
                [8, 8],
                "{number}"
            );
        }
    });
}

/// A request and its response, over and over, while the pair changes over.
#[test]
fn a_conversation_hardly_notices() {
    const ROUND_TRIPS: usize = 2000;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    // The first pair has the program attached.
    let _first = spliced_across(&lab, &splicer);
    let mut random = Random(seed());
    let mut worst = Duration::ZERO;
    for _ in 0..rounds(5) {
        let before = counters_across(&lab);
        let joined = connect_across(&lab, false);
        let options = Options {
            promote_after_bytes: random.next() % (ROUND_TRIPS as u64 * 10),
            ..Options::default()
        };
        let Joined {
            client,
            server,
            a,
            b,
        } = joined;
        let handle = splicer.join(a, b, &options).expect("joined");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("TCP_NODELAY");
        }
        let mut longest = Duration::ZERO;
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            ping(&client, &server);
            longest = longest.max(start.elapsed());
        }
        assert_eq!(
            handle.engine().0,
            EngineName::Segment,
            "{}",
            handle.engine().1
        );
        let changes = changes(&before, &counters_across(&lab));
        eprintln!("longest round trip {longest:?}; {changes}");
        worst = worst.max(longest);
    }
    eprintln!("worst {worst:?}");
}

/// The program is gone for a while: the flow stalls, and goes on when it is back.
#[test]
fn a_flow_outlives_a_detached_program() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    let bytes = 32 << 20;
    let seed = seed();
    thread::scope(|scope| {
        let up = scope.spawn(|| write_all(&client, bytes, seed));
        let down = scope.spawn(|| write_all(&server, bytes, seed ^ 1));
        let at_server = scope.spawn(|| read_all(&server));
        let at_client = scope.spawn(|| read_all(&client));
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20));
            lab.relay()
                .enter(|| {
                    let devices = ground.step_off();
                    thread::sleep(Duration::from_millis(50));
                    for device in devices {
                        ground.stand_on(device).expect("attached again");
                    }
                })
                .expect("entered");
        }
        assert_eq!(
            at_server.join().expect("joined").1,
            up.join().expect("joined")
        );
        assert_eq!(
            at_client.join().expect("joined").1,
            down.join().expect("joined")
        );
    });
    let outcome = handle
        .wait_timeout(Duration::from_secs(5))
        .expect("it ends");
    assert_eq!(outcome.reason, Reason::EndOfStream);
    let moved = bytes as u64 + 5;
    assert_eq!([outcome.moved.a_to_b, outcome.moved.b_to_a], [moved; 2]);
}

/// Nothing stays: neither entries nor the program.
#[test]
fn what_lingers_goes() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    assert_eq!(ground.entries(), 2);
    drop((client, server));
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
    let deadline = Instant::now() + Duration::from_secs(10);
    while ground.entries() > 0 {
        assert!(Instant::now() < deadline, "{ground:?}");
        thread::sleep(Duration::from_millis(50));
    }
    drop(ground);
    drop(splicer);
    let attached = lab.relay().command("bpftool").args(["net"]).output();
    if let Ok(attached) = attached {
        let text = String::from_utf8_lossy(&attached.stdout).into_owned();
        assert!(!text.contains("segment"), "{text}");
    }
}

/// Packets of every kind, through the program: it neither fails nor touches what is not its own.
#[test]
fn the_parser_survives_anything() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, _handle) = spliced_across(&lab, &splicer);
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    let tuple = ground.tuples().first().copied().expect("a tuple");
    let mut random = Random(seed());
    lab.relay()
        .enter(|| {
            for _ in 0..rounds(1) * 20_000 {
                let mut packet = Packet([0; 128]);
                let bytes = &mut packet.0;
                for chunk in bytes.chunks_exact_mut(8) {
                    chunk.copy_from_slice(&random.next().to_ne_bytes());
                }
                let mut length = 34 + (random.next() % 94) as usize;
                if random.next() % 8 != 0 {
                    // Ethernet and IPv4, mostly right.
                    bytes[12..14].copy_from_slice(&[8, 0]);
                    bytes[14] = if random.next() % 16 == 0 {
                        bytes[14]
                    } else {
                        0x45
                    };
                    bytes[20..22].copy_from_slice(&[0, 0]);
                    bytes[23] = 6;
                    let total = (length - 14) as u16;
                    if random.next() % 8 != 0 {
                        bytes[16..18].copy_from_slice(&total.to_be_bytes());
                    }
                    if random.next() % 4 != 0 {
                        bytes[26..30].copy_from_slice(&tuple.source[12..]);
                        bytes[30..34].copy_from_slice(&tuple.destination[12..]);
                        bytes[34..36].copy_from_slice(&tuple.source_port);
                        bytes[36..38].copy_from_slice(&tuple.destination_port);
                    }
                    // Neither SYN, FIN nor RST at the right place can be made by chance.
                }
                if random.next() % 4 == 0 {
                    length = 14 + (random.next() % 60) as usize;
                }
                // A refusal of the kernel to run so short a packet is as good.
                let _ = ground.feed(&packet.0[..length]);
            }
        })
        .expect("entered");
    for _ in 0..100 {
        ping(&client, &server);
    }
}

struct Packet([u8; 128]);

/// A segment with only a TCP header, as bytes on the wire of Ethernet.
fn forged(from: SocketAddr, to: SocketAddr, seq: u32, flags: u8) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else {
        panic!("IPv4 only");
    };
    let mut packet = vec![0u8; 54];
    packet[12..14].copy_from_slice(&[8, 0]);
    packet[14] = 0x45;
    packet[16..18].copy_from_slice(&40u16.to_be_bytes());
    packet[22..24].copy_from_slice(&[64, 6]);
    packet[26..30].copy_from_slice(&from.ip().octets());
    packet[30..34].copy_from_slice(&to.ip().octets());
    packet[34..36].copy_from_slice(&from.port().to_be_bytes());
    packet[36..38].copy_from_slice(&to.port().to_be_bytes());
    packet[38..42].copy_from_slice(&seq.to_be_bytes());
    packet[46] = 5 << 4;
    packet[47] = flags;
    packet
}

#[test]
fn forged_resets_and_handshakes_end_nothing() {
    const NEXT: i32 = -1;
    const REDIRECT: i32 = 7;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    let mut random = Random(seed());
    let ends = [
        (
            client.local_addr(),
            client.peer_addr(),
            devices(lab.relay())[0],
        ),
        (
            server.local_addr(),
            server.peer_addr(),
            devices(lab.relay())[1],
        ),
    ];
    lab.relay()
        .enter(|| {
            for round in 0..rounds(1) * 5000 {
                for (from, to, device) in &ends {
                    let (from, to) = (*from.as_ref().expect("a"), *to.as_ref().expect("b"));
                    let flags = [RST, RST | ACK, SYN, SYN | ACK][round % 4];
                    let packet = forged(from, to, random.next() as u32, flags);
                    // On the device that it would come in on, and on another one.
                    assert_eq!(ground.feed_on(*device, &packet), Ok(REDIRECT));
                    assert_eq!(ground.feed_on(1, &packet), Ok(NEXT));
                }
            }
        })
        .expect("entered");
    for _ in 0..100 {
        ping(&client, &server);
    }
    assert!(handle.outcome().is_none());
    // A real one does end it.
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("SO_LINGER");
    drop(client);
    let error = (&server).read(&mut [0; 1]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let outcome = handle
        .wait_timeout(Duration::from_secs(5))
        .expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(crate::Side::A));
}

#[test]
fn connection_tracking_forgets_spliced_connections() {
    if !available(Need::Root) || netlab::program("nft").is_none() {
        return;
    }
    let lab = Lab::new().expect("a lab");
    run(lab.relay(), "nft", "add table ip t");
    run(
        lab.relay(),
        "nft",
        "add chain ip t in { type filter hook input priority 0 ; }",
    );
    run(
        lab.relay(),
        "nft",
        "add rule ip t in ct state established accept",
    );
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let tuples = ground.tuples();
    let tracked = || {
        let tuples = [tuples[0], tuples[1]];
        lab.relay()
            .enter(|| ground.forget(&tuples))
            .expect("entered")
            .expect("run")
    };
    assert_eq!(tracked(), 2);
    // A look makes it forget; the next segment of a connection that is not spliced would bring
    // it back, and these are.
    ping(&client, &server);
    assert_eq!(tracked(), 0);
    drop((client, server));
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
    assert_eq!(tracked(), 0);
}

/// A client elsewhere, and a server in the relay's own namespace on `ip`.
#[test]
fn a_server_on_this_host() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let mut random = Random(seed());
    for (front_ip, back_ip) in [
        (Lab::RELAY_V4.to_string(), "127.0.0.1".to_owned()),
        (Lab::RELAY_V4.to_string(), Lab::RELAY_FAR_V4.to_string()),
        (format!("[{}]", Lab::RELAY_V6), "[::1]".to_owned()),
    ] {
        let (front, front_address) = lab
            .relay()
            .enter(|| listen(&format!("{front_ip}:0")))
            .expect("entered");
        let (back, back_address) = lab
            .relay()
            .enter(|| listen(&format!("{back_ip}:0")))
            .expect("entered");
        for round in 0..rounds(4) {
            let client = lab.client().enter(|| TcpStream::connect(front_address));
            let client = client.expect("entered").expect("connect");
            let a = front.accept().expect("accept").0;
            let b = lab.relay().enter(|| {
                let domain = socket2::Domain::for_address(back_address);
                let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
                // What lo's MTU would allow does not fit the way to the client.
                socket.set_tcp_mss(if back_address.is_ipv4() { 1460 } else { 1440 })?;
                socket.connect(&back_address.into())?;
                Ok::<_, std::io::Error>(TcpStream::from(socket))
            });
            let server = back.accept().expect("accept").0;
            let [a, b] = [a, b.expect("entered").expect("connect")]
                .map(|end| Endpoint::new(end).expect("an end"));
            let joined = Joined {
                client,
                server,
                a,
                b,
            };
            let bytes = 16 << 20;
            let place = random.next() % (bytes as u64 / 2);
            let (outcome, forwarded, pause) =
                both_ways(joined, &splicer, place, bytes, random.next());
            eprintln!("{back_ip} {round}: {outcome:?}, forwarded {forwarded}, pause {pause:?}");
            assert_eq!(outcome.reason, Reason::EndOfStream);
            assert_eq!(
                outcome.engine,
                EngineName::Segment,
                "{}",
                outcome.why_engine
            );
            assert_eq!(
                [outcome.moved.a_to_b, outcome.moved.b_to_a],
                [bytes as u64; 2]
            );
        }
    }
}

/// The target of a relay is another relay on the same host.
#[test]
fn relays_in_a_row() {
    if !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("row").expect("a namespace");
    namespace
        .enter(|| {
            let splicer = Splicer::new(1).expect("a splicer");
            let mut random = Random(seed());
            let mut spliced = 0;
            for round in 0..rounds(6) {
                let listeners = [0, 1, 2].map(|_| listen("127.0.0.1:0"));
                let ends = listeners.map(|(listener, address)| {
                    let near = TcpStream::connect(address).expect("connect");
                    (near, listener.accept().expect("accept").0)
                });
                let [(client, a), (b, c), (d, server)] = ends;
                let bytes = 16 << 20;
                let mut join = |one: TcpStream, other: TcpStream| {
                    let [one, other] = [one, other].map(|end| Endpoint::new(end).expect("an end"));
                    let options = Options {
                        promote_after_bytes: random.next() % (bytes as u64 / 2),
                        ..Options::default()
                    };
                    splicer.join(one, other, &options).expect("joined")
                };
                let handles = [join(a, b), join(c, d)];
                let pause = exchange(&client, &server, bytes, random.next());
                for handle in handles {
                    let outcome = handle
                        .wait_timeout(Duration::from_secs(5))
                        .expect("it ends");
                    eprintln!("{round}: {outcome:?}, pause {pause:?}");
                    assert_eq!(outcome.reason, Reason::EndOfStream);
                    // One that is quick may be over before the other has come far enough.
                    spliced += usize::from(outcome.engine == EngineName::Segment);
                    assert_eq!(
                        [outcome.moved.a_to_b, outcome.moved.b_to_a],
                        [bytes as u64; 2]
                    );
                }
            }
            assert!(spliced * 10 >= rounds(6) * 2 * 9, "{spliced} were spliced");
        })
        .expect("entered");
}
