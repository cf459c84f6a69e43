//! Change-overs in namespaces of their own.

mod bad_path;
mod change_over;
mod coexistence;
mod cost;
pub(super) mod crash;
mod ends;
mod forgery;
mod life;
mod on_this_host;
mod proof;
mod refusal;
mod size;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../../tests/support/system_calls.rs"]
mod system_calls;
mod window_scale;
mod wrap;
mod zero_window;

use std::hash::{DefaultHasher, Hasher};

use std::io::{Read, Write};

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use std::thread;

use std::time::{Duration, Instant};

use std::sync::atomic::Ordering::Relaxed;

use std::sync::{Arc, mpsc};

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use proof::Proof;

use super::ground::Ground;

use crate::bpf_object::device::{DeviceLink, Traffic, Way};

use crate::bpf_object::{SharedArray, load};

use crate::bpf_types::Plain;

use netlab::{Lab, Namespace, Need, available};

use crate::{
    Endpoint, EngineChoice, EngineName, EventLoop, Handle, Options, Outcome, Reason, Side, Splicer,
};

/// After this a test fails. A busy machine may need seconds to load the program.
const PATIENCE: Duration = Duration::from_secs(40);

/// Longer than any test: a pair is to change over by what it has moved.
const NOT_BY_TIME: Duration = Duration::from_secs(3600);

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

    fn one_in(&mut self, times: u64) -> bool {
        self.next().is_multiple_of(times)
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
fn write_all(stream: &TcpStream, bytes: usize, seed: u64) -> u64 {
    let hash = write_some(stream, bytes, seed);
    stream.shutdown(Shutdown::Write).expect("shutdown");
    hash
}

/// Writes pseudo-random bytes; gives their hash.
fn write_some(mut stream: &TcpStream, bytes: usize, seed: u64) -> u64 {
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
    hasher.finish()
}

/// Reads what [`write_some`] has written; gives the hash.
fn read_some(mut stream: &TcpStream, bytes: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0u8; 128 << 10];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(buffer.len());
        stream.read_exact(&mut buffer[..length]).expect("read");
        hasher.write(&buffer[..length]);
        left -= length;
    }
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

/// As many bytes each way at once; with a `place` the pair changes over once so many have passed.
fn both_ways(
    joined: Joined,
    splicer: &Splicer,
    place: Option<u64>,
    bytes: usize,
    seed: u64,
) -> (Outcome, u64, Duration) {
    let options = Options {
        engine: EngineChoice::Auto,
        segment_after: place.map(|_| NOT_BY_TIME),
        promote_after_bytes: place.unwrap_or(u64::MAX),
        ..Options::default()
    };
    let Joined {
        client,
        server,
        a,
        b,
    } = joined;
    prepare(splicer);
    let handle: Handle = splicer.join(a, b, &options).expect("joined");
    let pause = exchange(&client, &server, bytes, seed);
    let outcome = handle.wait_timeout(Duration::from_secs(5));
    if outcome.is_none() && std::env::var_os("SEGMENT_HOLD").is_some() {
        thread::sleep(Duration::from_secs(60));
    }
    let outcome = outcome.expect("it ends");
    (outcome, handle.forwarded_bytes(), pause)
}

/// Has the program loaded and attached to every device, which `auto` does not wait for.
fn prepare(splicer: &Splicer) {
    let (sender, receiver) = mpsc::channel();
    let prepare = move |event_loop: &mut EventLoop| {
        event_loop.prepare(EngineChoice::Auto).expect("loaded");
        let ground = Ground::here().expect("the loop's");
        for device in devices_here() {
            ground.stand_on(device).expect("attached");
        }
        sender.send(()).expect("awaited");
    };
    splicer.remote().run(prepare).expect("a loop");
    receiver.recv().expect("attached");
}

/// The indices of this thread's devices.
fn devices_here() -> Vec<u32> {
    let listed = std::fs::read_to_string("/proc/thread-self/net/igmp").expect("devices");
    let indices = listed
        .lines()
        .skip(1)
        .filter(|line| !line.starts_with('\t'));
    indices
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect()
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

const WATCHED: [&str; 24] = [
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
    "BeyondWindow",
    "TCPRcvQDrop",
    "TCPBacklogDrop",
    "RcvPruned",
    "OfoPruned",
    "PruneCalled",
    "TCPSACKDiscard",
    "TCPSackFailures",
    "TCPWantZeroWindowAdv",
    "PAWSOldAck",
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

fn run(namespace: &Namespace, program: &str, arguments: &str) {
    let done = namespace
        .command(program)
        .args(arguments.split(' '))
        .output()
        .expect(program);
    assert!(done.status.success(), "{program} {arguments}: {done:?}");
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
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    ping(&client, &server);
    assert_eq!(
        handle.engine().0,
        EngineName::Segment,
        "{}",
        handle.engine().1
    );
    wait_for_sleep(lab);
    (client, server, handle)
}

/// Until no socket of the relay has a word left to say.
fn wait_for_sleep(lab: &Lab) {
    let ground = lab.relay().enter(Ground::here).expect("entered");
    let ground = ground.expect("a ground");
    let deadline = Instant::now() + Duration::from_secs(20);
    while ground.awake().load(Relaxed) > 0 {
        assert!(Instant::now() < deadline, "{ground:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn ping(mut one: &TcpStream, mut other: &TcpStream) {
    let mut buffer = [0; 5];
    one.write_all(b"hello").expect("write");
    other.read_exact(&mut buffer).expect("read");
    other.write_all(b"world").expect("write");
    one.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"world");
}
