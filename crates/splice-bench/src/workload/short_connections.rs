//! Connections that live for one byte each way, with a TLS client's hello before or without.
//!
//! The server closes first. Its TIME_WAIT then lies at a fixed port on the server's and on the
//! relay's side, and neither the client's nor the relay's ephemeral ports run out.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use netlab::Lab;
use socket2::{Domain, Socket, Type};

use crate::client_hello::CLIENT_HELLO;
use crate::cpu_time::own_cpu_time;
use crate::cpus::Cost;
use crate::relay::Relay;
use crate::server::{Server, Service};
use crate::site::{PATIENCE, Site};
use crate::statistics::Latencies;

/// The byte that asks for an answer.
const ASK: u8 = b'?';

/// Between a connection's end and the next one. A relay needs a tenth of that to clean up.
const PAUSE: Duration = Duration::from_micros(200);

/// The client's port where all connections have the same. Not among the ephemeral ones.
const SAME_PORT: u16 = 1_000;

/// What one connection does.
#[derive(Clone, Copy)]
struct Script {
    to: SocketAddr,
    service: Service,
    /// The client's port, if it is not any.
    port: Option<u16>,
}

impl Script {
    fn new(to: SocketAddr, service: Service) -> Self {
        Self {
            to,
            service,
            port: None,
        }
    }
}

/// What connections cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    connections: u32,
    cost: Cost,
    /// CPU time of the client and the server, and of what the kernel did on their account.
    ends: Duration,
    /// CPU time of the relay's processes; none where there are no processes.
    relay: Duration,
}

impl Short {
    pub(crate) fn per_second(&self) -> f64 {
        f64::from(self.connections) / self.cost.elapsed.as_secs_f64()
    }

    /// CPU time of client, relay and server for one connection. Others on the machine have no part in it.
    pub(crate) fn cpu_microseconds(&self) -> f64 {
        self.each(self.ends + self.relay)
    }

    /// The share of the relay's own processes in that.
    pub(crate) fn process_microseconds(&self) -> f64 {
        self.each(self.relay)
    }

    /// CPU time of the whole machine for one connection.
    pub(crate) fn machine_microseconds(&self) -> f64 {
        self.each(self.cost.busy)
    }

    fn each(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / f64::from(self.connections)
    }
}

/// Opens, uses and closes connections for `duration`, `in_flight` at a time, each by a blocking
/// thread with a counterpart at the server, a process of its own. Returns connections per second.
pub(crate) fn rate(
    site: &Site,
    address: SocketAddr,
    in_flight: usize,
    duration: Duration,
) -> Result<f64> {
    let script = Script::new(address, Service::Short);
    let short = play(site, script, in_flight, duration, None)?;
    Ok(short.per_second())
}

/// The same, one at a time, from one port of the client: each begins as soon as the one before is closed.
pub(crate) fn rate_from_one_port(
    site: &Site,
    address: SocketAddr,
    duration: Duration,
) -> Result<f64> {
    let script = Script {
        port: Some(SAME_PORT),
        ..Script::new(address, Service::Short)
    };
    let short = play(site, script, 1, duration, None)?;
    Ok(short.per_second())
}

/// The same with a TLS client's hello, answered by a byte, before the byte each way. Such connections
/// can be routed by SNI.
pub(crate) fn tls(
    site: &Site,
    address: SocketAddr,
    in_flight: usize,
    duration: Duration,
    relay: Option<&Relay>,
) -> Result<Short> {
    let script = Script::new(address, Service::ShortTls);
    play(site, script, in_flight, duration, relay)
}

/// The time from a client's hello, sent as soon as its connection is open, to the first byte of the
/// server's answer. One connection at a time, with a pause behind each.
pub(crate) fn first_bytes(
    site: &Site,
    address: SocketAddr,
    duration: Duration,
) -> Result<Latencies> {
    let server = serve(site, Service::ShortTls, 1)?;
    let script = Script::new(address, Service::ShortTls);
    ask_once(script)?;
    let mut latencies = Latencies::new();
    let begin = Instant::now();
    while begin.elapsed() < duration {
        thread::sleep(PAUSE);
        latencies.record(ask_once(script)?);
    }
    drop(server);
    Ok(latencies)
}

fn serve(site: &Site, service: Service, in_flight: usize) -> Result<Server> {
    let listener = site.listener().as_fd().try_clone_to_owned()?;
    Server::start(service, in_flight, listener)
}

fn play(
    site: &Site,
    script: Script,
    in_flight: usize,
    duration: Duration,
    relay: Option<&Relay>,
) -> Result<Short> {
    let server = serve(site, script.service, in_flight)?;
    // Until then the server may not even run.
    ask_once(script)?;
    let relay_time = || relay.map_or(Ok(Duration::ZERO), Relay::cpu_time);
    let ends_time = || anyhow::Ok(own_cpu_time() + server.cpu_time()?);
    let (relay_before, ends_before) = (relay_time()?, ends_time()?);
    let timed = site.cpus.time(|| {
        thread::scope(|scope| {
            let begin = Instant::now();
            let clients: Vec<_> = (0..in_flight)
                .map(|_| scope.spawn(move || ask(script, begin, duration)))
                .collect();
            let mut connections: Result<u32> = Ok(0);
            for client in clients {
                let count = client
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("a client panicked")));
                connections = connections.and_then(|sum| Ok(sum + count?));
            }
            connections
        })
    });
    let (connections, cost) = timed?;
    Ok(Short {
        connections,
        cost,
        ends: ends_time()?.saturating_sub(ends_before),
        relay: relay_time()?.saturating_sub(relay_before),
    })
}

fn ask(script: Script, begin: Instant, duration: Duration) -> Result<u32> {
    let mut count = 0;
    loop {
        let outcome = ask_once(script);
        outcome.with_context(|| format!("short connection {count} through {}", script.to))?;
        count += 1;
        // On a busy machine a thread may get the CPU only when the time is over: one counts always.
        if begin.elapsed() >= duration {
            return Ok(count);
        }
    }
}

/// Returns the time from the first byte sent to the first byte that came back.
fn ask_once(script: Script) -> Result<Duration> {
    let mut stream = match script.port {
        None => TcpStream::connect(script.to)?,
        Some(port) => connect_from(port, script.to)?,
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0];
    let begin = Instant::now();
    if script.service == Service::ShortTls {
        stream.write_all(CLIENT_HELLO)?;
        stream
            .read_exact(&mut answer)
            .context("no answer to the hello")?;
    }
    let first = begin.elapsed();
    stream.write_all(&[ASK])?;
    stream.read_exact(&mut answer).context("no answer")?;
    ensure!(answer == [ASK], "a wrong answer");
    ensure!(
        stream.read(&mut answer).context("no end of stream")? == 0,
        "more than one answer"
    );
    Ok(first)
}

/// Connects from a port of the client as soon as its former connection is gone, whose last acknowledgement may still
/// be under way.
fn connect_from(port: u16, to: SocketAddr) -> Result<TcpStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        let from = SocketAddr::from((Lab::CLIENT_V4, port));
        let connected = socket
            .bind(&from.into())
            .and_then(|()| socket.connect(&to.into()));
        match connected {
            Err(error)
                if Instant::now() < deadline
                    && matches!(
                        error.kind(),
                        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable
                    ) => {}
            outcome => {
                outcome.with_context(|| format!("cannot connect from port {port}"))?;
                return Ok(socket.into());
            }
        }
    }
}
