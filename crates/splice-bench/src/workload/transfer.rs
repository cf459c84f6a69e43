//! Many bytes on one connection.
//!
//! Two passes, because on one shared CPU whatever the ends do takes time from the relay: a checked
//! pass whose bytes are all different and hashed at both ends, and timed passes that send the same
//! pseudo-random buffer over and over and count what arrives.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::cpu_time::own_cpu_time;
use crate::cpus::Cost;
use crate::payload::{Digest, Payload};
use crate::relay::Relay;
use crate::server::{Server, Service};
use crate::site::{Connection, PATIENCE, Site};

/// Per system call at the ends; fits the L2 cache of any server CPU together with its copy.
const CHUNK_BYTES: usize = 256 << 10;

/// Arrives before the clock starts, so that windows and receive buffers have grown.
const WARM_UP_BYTES: u64 = 16 << 20;

/// How often it is looked whether that much has arrived.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Seeds of the two directions; any two different ones would do.
const SEEDS: [u64; 2] = [0x5eed_0001, 0x5eed_0002];

/// Sends `bytes` of random bytes each way on `connection` and compares hashes. Fails when the transfer does;
/// `Ok(false)` means that all of it went through, but not the same.
pub(crate) fn check(connection: &Connection, bytes: u64) -> Result<bool> {
    let Connection { client, server } = connection;
    let same = thread::scope(|scope| {
        let ways =
            [(client, server, SEEDS[0]), (server, client, SEEDS[1])].map(|(from, to, seed)| {
                let sending = scope.spawn(move || {
                    let (mut payload, mut digest) = (Payload::new(seed), Digest::default());
                    send(from, bytes, |chunk| {
                        payload.fill(chunk);
                        digest.update(chunk);
                    })?;
                    Ok(digest.finish())
                });
                let receiving = scope.spawn(move || {
                    let mut digest = Digest::default();
                    receive(to, bytes, |chunk| digest.update(chunk))?;
                    Ok(digest.finish())
                });
                (sending, receiving)
            });
        let mut same = true;
        for (sending, receiving) in ways {
            same &= finish(sending)? == finish(receiving)?;
        }
        anyhow::Ok(same)
    })?;
    ensure_nothing_follows(connection)?;
    Ok(same)
}

/// Which way bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
    /// Both at once.
    Both,
}

/// What flowed in a window of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// Bytes that arrived, both ways together.
    pub(crate) bytes: u64,
    pub(crate) cost: Cost,
    /// CPU time of the client and the server, and of what the kernel did on their account.
    pub(crate) ends: Duration,
    /// CPU time of the relay's processes; none where there are no processes.
    pub(crate) relay: Duration,
}

impl Flow {
    pub(crate) fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 / self.cost.elapsed.as_secs_f64()
    }

    /// Gigabits that the ends move in a second of their CPU time: the throughput of a CPU that they
    /// have to themselves, whatever else runs on it.
    pub(crate) fn gigabits_per_cpu_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 / self.ends.as_secs_f64()
    }

    pub(crate) fn cpu_seconds_per_gigabyte(&self) -> f64 {
        self.cost.busy.as_secs_f64() / (self.bytes as f64 / 1e9)
    }

    /// The share of the relay's own processes in that.
    pub(crate) fn process_seconds_per_gigabyte(&self) -> f64 {
        self.relay.as_secs_f64() / (self.bytes as f64 / 1e9)
    }
}

/// Lets bytes flow to `address`, where `relay` listens if there is one, and counts what arrives
/// within a `window` of time.
pub(crate) fn flow(
    site: &Site,
    address: SocketAddr,
    ways: Ways,
    window: Duration,
    relay: Option<&Relay>,
) -> Result<Flow> {
    let Connection { client, server } = site.connect(address)?;
    let service = match ways {
        Ways::Up => Service::Receive,
        Ways::Down => Service::Send,
        Ways::Both => Service::Exchange,
    };
    let server = Server::start(service, CHUNK_BYTES, server.into())?;
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (client, received, over) = (&client, &received, &over);
        let mut threads = Vec::new();
        if ways != Ways::Down {
            threads.push(scope.spawn(move || send_until(client, over)));
        }
        if ways != Ways::Up {
            threads.push(scope.spawn(move || receive_until(client, received, over)));
        }
        let counted = || {
            let by_server = match ways {
                Ways::Down => 0,
                Ways::Up | Ways::Both => server.read_bytes()?,
            };
            Ok(Counted {
                bytes: by_server + received.load(Ordering::Relaxed),
                cpu_time: own_cpu_time() + server.cpu_time()?,
            })
        };
        let watched = watch(site, relay, counted, window, || {
            threads.iter().any(ScopedJoinHandle::is_finished)
        });
        over.store(true, Ordering::Release);
        // Ends what stands in a call.
        let _ = client.shutdown(Shutdown::Both);
        drop(server);
        // What a thread has to say explains why the watch ended early.
        threads.into_iter().try_for_each(finish)?;
        watched
    })
}

/// What has been counted since a transfer began, or earlier.
#[derive(Clone, Copy, Debug)]
struct Counted {
    bytes: u64,
    cpu_time: Duration,
}

/// Counts for `window`, once enough has arrived to warm up.
fn watch(
    site: &Site,
    relay: Option<&Relay>,
    counted: impl Fn() -> Result<Counted>,
    window: Duration,
    ended: impl Fn() -> bool,
) -> Result<Flow> {
    let begin = Instant::now();
    // A relay that is too slow to warm up within one window has had its time.
    while counted()?.bytes < WARM_UP_BYTES && begin.elapsed() < window {
        ensure!(!ended(), "the transfer ended by itself");
        thread::sleep(LOOK_EVERY);
    }
    let relay_time = || relay.map_or(Ok(Duration::ZERO), Relay::cpu_time);
    let relay_before = relay_time()?;
    let before = counted()?;
    let begin = Instant::now();
    let (after, cost) = site.cpus.time(|| {
        thread::sleep(window);
        loop {
            let now = counted()?;
            // On a busy machine nobody may have got the CPU in a short window.
            if now.bytes > before.bytes {
                return Ok(now);
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "nothing arrived for {PATIENCE:?}"
            );
            thread::sleep(LOOK_EVERY);
        }
    })?;
    let relay = relay_time()?.saturating_sub(relay_before);
    ensure!(!ended(), "the transfer ended by itself");
    Ok(Flow {
        bytes: after.bytes - before.bytes,
        cost,
        ends: after.cpu_time.saturating_sub(before.cpu_time),
        relay,
    })
}

fn send_until(mut stream: &TcpStream, over: &AtomicBool) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    Payload::new(SEEDS[0]).fill(&mut buffer);
    while !over.load(Ordering::Acquire) {
        if let Err(error) = stream.write_all(&buffer) {
            // A relay may end the whole connection as soon as one way has ended.
            ensure!(over.load(Ordering::Acquire), "sending failed: {error}");
        }
    }
    Ok(())
}

fn receive_until(mut stream: &TcpStream, received: &AtomicU64, over: &AtomicBool) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => {
                received.fetch_add(count as u64, Ordering::Relaxed);
            }
            ended => {
                // As above; and what a read that failed meant is told if it was too early.
                let early = !over.load(Ordering::Acquire);
                ensure!(!early, "receiving ended early: {ended:?}");
                return Ok(());
            }
        }
    }
}

fn finish<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow!("an end of the transfer panicked")))
}

/// Sends `bytes`; `prepare` may change each chunk before it goes.
fn send(mut stream: &TcpStream, bytes: u64, mut prepare: impl FnMut(&mut [u8])) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    Payload::new(bytes).fill(&mut buffer);
    let mut left = bytes;
    while left > 0 {
        let chunk = &mut buffer[..left.min(CHUNK_BYTES as u64) as usize];
        prepare(chunk);
        stream
            .write_all(chunk)
            .with_context(|| format!("sending stopped {left} bytes before the end of {bytes}"))?;
        left -= chunk.len() as u64;
    }
    Ok(())
}

/// Receives exactly `bytes` and shows each chunk to `look`.
fn receive(mut stream: &TcpStream, bytes: u64, mut look: impl FnMut(&[u8])) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let room = left.min(CHUNK_BYTES as u64) as usize;
        let count = stream
            .read(&mut buffer[..room])
            .with_context(|| format!("receiving stopped {left} bytes before the end of {bytes}"))?;
        ensure!(
            count > 0,
            "the stream ended {left} bytes before the end of {bytes}"
        );
        look(&buffer[..count]);
        left -= count as u64;
    }
    Ok(())
}

/// A relay that doubled bytes would deliver more than was sent.
fn ensure_nothing_follows(connection: &Connection) -> Result<()> {
    for (from, mut to) in [
        (&connection.client, &connection.server),
        (&connection.server, &connection.client),
    ] {
        // The other way may have been closed together with the first, as nginx does.
        let _ = from.shutdown(Shutdown::Write);
        let count = to
            .read(&mut [0])
            .context("no end of stream after the last byte")?;
        ensure!(count == 0, "more bytes arrived than were sent");
    }
    Ok(())
}
