//! Tests of the engine, in network namespaces of their own.

mod acceptance;
mod anew;
mod back_from_overlap;
#[path = "../../../../tests/support/bad_path.rs"]
mod bad_path;
mod bypass;
mod change_over;
mod checksum_complete;
mod coexistence;
mod congestion;
mod connected;
mod cost;
mod counters;
mod counts;
mod crash;
mod damaged_segments;
mod device;
mod dropped_route;
mod forged_segments;
mod forwarded_icmp;
mod frame;
mod full_table;
mod give_back;
pub(super) mod halt;
mod icmp_errors;
mod icmp_frame;
mod icmp_scene;
#[allow(dead_code, reason = "the tests of the relay ask for more")]
#[path = "../../../../tests/support/ip_forms.rs"]
mod ip_forms;
mod later_programs;
mod lifetime;
mod lossy_path;
mod malformed;
mod memory_barriers;
mod pair_ends;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../../tests/support/random.rs"]
mod random;
mod refused_pairs;
mod reset_after_return;
mod reset_while_held;
mod return_scene;
mod room;
mod same_host;
mod segment_size;
mod sequence_wrap;
mod silence;
mod simultaneous;
mod socket_segments;
mod steady;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../../tests/support/system_calls.rs"]
mod system_calls;
mod window_scale;
mod zero_window;

use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use connected::{
    Connected, Joined, by_name, by_volume, connect_in, datapath_in, ended, expect_kept, listen,
    listen_in, moved, sockets_across, spliced, spliced_across, spliced_lab, splicer_in, tuple,
    wait_for_sleep, why_refused,
};
use counters::{changes, count, counters_across, counters_in};
// Long enough for a last acknowledgement that a lossy path loses four times (6 s), and for the look at a
// sleeping pair (`SLEEPING_PAUSE`, 20 s).
use bad_path::devices;
use bypass::{Proof, Witness};
use halt::{Halt, watch};
use netlab::PATIENCE;
use netlab::{Lab, Namespace, Need, available};
use random::Random;

use super::datapath::Datapath;
use crate::{
    Endpoint, EngineChoice, EngineName, EventLoop, Handle, Options, Outcome, Reason, Side, Splicer,
};
use splice_bpf::Plain;
use splice_bpf::{AttachMode, DeviceLink, Traffic};
use splice_bpf::{SharedArray, load};

/// How many change-overs a test does; SEGMENT_ROUNDS asks for more.
fn rounds(few: usize) -> usize {
    std::env::var("SEGMENT_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(few)
}

fn seed() -> u64 {
    let seed = std::env::var("SEGMENT_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    eprintln!("SEGMENT_SEED={seed}");
    seed
}

/// Writes pseudo-random bytes and the end of the stream; returns their hash.
fn write_all(stream: &TcpStream, bytes: usize, seed: u64) -> u64 {
    let hash = write_some(stream, bytes, seed);
    stream.shutdown(Shutdown::Write).expect("shutdown");
    hash
}

/// Writes pseudo-random bytes; returns their hash.
fn write_some(stream: &TcpStream, bytes: usize, seed: u64) -> u64 {
    write_while(stream, seed, |written| bytes - written).1
}

/// Writes pseudo-random bytes while `left` says, for the number that is written, that some are left; returns
/// how many, and their hash.
fn write_while(
    mut stream: &TcpStream,
    seed: u64,
    mut left: impl FnMut(usize) -> usize,
) -> (usize, u64) {
    let mut random = Random::seeded(seed);
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0u8; 128 << 10];
    let mut written = 0;
    loop {
        let length = left(written).min(buffer.len());
        if length == 0 {
            return (written, hasher.finish());
        }
        for chunk in buffer.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next().to_ne_bytes());
        }
        hasher.write(&buffer[..length]);
        stream.write_all(&buffer[..length]).expect("write");
        written += length;
    }
}

/// Reads what [`write_some`] has written; returns the hash.
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

/// Reads to the end of the stream; returns length, hash, and the longest pause between two reads.
fn read_all(mut stream: &TcpStream) -> (usize, u64, Duration) {
    let mut buffer = vec![0u8; 128 << 10];
    let mut hasher = DefaultHasher::new();
    let (mut total, mut filled) = (0, 0);
    let mut pause = Duration::ZERO;
    let mut last = Instant::now();
    loop {
        let count = netlab::uninterrupted(|| stream.read(&mut buffer[filled..])).expect("read");
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

/// Sends as many bytes each way at once, and the ends. With a `place` the pair changes over once that many
/// have passed, and from then on bytes bypass the relay. How many pass meanwhile depends on the machine, so
/// more are sent if need be, until half of `bytes` have passed after it.
fn both_ways(
    connected: Connected,
    splicer: &Splicer,
    place: Option<u64>,
    bytes: usize,
    seed: u64,
) -> (Outcome, u64, Duration) {
    let never = Options {
        segment_after: None,
        ..by_volume(u64::MAX)
    };
    // Not before the witness exists.
    let options = place.map_or(never, |place| by_volume(place.max(1)));
    prepare(splicer);
    let (client, server, handle) = connected.join(splicer, &options);
    let witness = place.map(|_| Witness::of(splicer, &[&handle]));
    let has_changed = || witness.as_ref().is_none_or(Witness::has_seen_sleep);
    let (sent, pause) = exchange_past(&client, &server, bytes, seed, &has_changed);
    let outcome = ended(&handle);
    assert_eq!(moved(&outcome), sent);
    let forwarded = handle.forwarded_bytes();
    if let Some(witness) = witness {
        assert_eq!(outcome.engine, EngineName::Segment, "{outcome:?}");
        witness.end(&[(&outcome, forwarded)]);
    }
    (outcome, forwarded, pause)
}

/// Has the program loaded and attached to every device, which `auto` does not wait for.
fn prepare(splicer: &Splicer) {
    on_loop(splicer, |event_loop| {
        event_loop.prepare(EngineChoice::Auto).expect("loaded");
        let datapath = Datapath::here().expect("the loop's");
        for device in devices_here() {
            datapath.ensure_attached(device).expect("attached");
        }
    });
}

/// Runs `work` on the splicer's only loop; returns its result.
fn on_loop<T: Send + 'static>(
    splicer: &Splicer,
    work: impl FnOnce(&mut EventLoop) -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let work = move |event_loop: &mut EventLoop| sender.send(work(event_loop)).expect("awaited");
    splicer.remote().run(work).expect("a loop");
    receiver.recv().expect("done")
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

/// Sends as many bytes each way at once; returns the longest pause.
fn exchange(client: &TcpStream, server: &TcpStream, bytes: usize, seed: u64) -> Duration {
    exchange_past(client, server, bytes, seed, &|| true).1
}

/// Sends as many bytes each way at once, and more until half as many have been sent after `condition` held;
/// returns how many, and the longest pause.
fn exchange_past(
    client: &TcpStream,
    server: &TcpStream,
    bytes: usize,
    seed: u64,
    condition: &(dyn Fn() -> bool + Sync),
) -> ([u64; 2], Duration) {
    thread::scope(|scope| {
        let up = scope.spawn(|| one_way_past(client, server, bytes, seed, condition));
        let down = one_way_past(server, client, bytes, seed ^ 0xffff, condition);
        let up = up.join().expect("up");
        ([up.0, down.0], up.1.max(down.1))
    })
}

/// Sends bytes and the end of the stream; returns the longest pause.
fn one_way(sender: &TcpStream, receiver: &TcpStream, bytes: usize, seed: u64) -> Duration {
    one_way_past(sender, receiver, bytes, seed, &|| true).1
}

/// As [`exchange_past`], one way.
fn one_way_past(
    sender: &TcpStream,
    receiver: &TcpStream,
    bytes: usize,
    seed: u64,
    condition: &(dyn Fn() -> bool + Sync),
) -> (u64, Duration) {
    let (start, mut held_from) = (Instant::now(), None);
    let left = move |written: usize| {
        if held_from.is_none() && condition() {
            held_from = Some(written);
        }
        if held_from.is_none() {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {written} sent");
        }
        // Until it holds, half is always left.
        let past = held_from.unwrap_or(written) + bytes / 2;
        bytes.max(past) - written
    };
    thread::scope(|scope| {
        let sent = scope.spawn(|| {
            let sent = write_while(sender, seed, left);
            sender.shutdown(Shutdown::Write).expect("shutdown");
            sent
        });
        let (length, hash, pause) = read_all(receiver);
        let sent = sent.join().expect("sent");
        assert_eq!((length, hash), sent, "{sender:?} to {receiver:?}");
        (length as u64, pause)
    })
}

fn run(namespace: &Namespace, program: &str, arguments: &str) {
    let done = namespace
        .command(program)
        .args(arguments.split(' '))
        .output()
        .expect(program);
    assert!(done.status.success(), "{program} {arguments}: {done:?}");
}

fn ping(mut one: &TcpStream, mut other: &TcpStream) {
    let mut buffer = [0; 5];
    one.write_all(b"hello").expect("write");
    other.read_exact(&mut buffer).expect("read");
    other.write_all(b"world").expect("write");
    one.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"world");
}
