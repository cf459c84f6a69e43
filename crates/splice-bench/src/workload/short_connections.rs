//! Connections that live for one byte each way.
//!
//! The server closes first. Its TIME_WAIT then lies at a fixed port on the server's and on the
//! relay's side, and neither the client's nor the relay's ephemeral ports run out.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::server::{Server, Service};
use crate::site::{PATIENCE, Site};

/// The byte that asks for an answer.
const ASK: u8 = b'?';

/// Opens, uses and closes connections for `duration`, `in_flight` at a time, each by a blocking
/// thread with a counterpart at the server, a process of its own. Returns connections per second.
pub(crate) fn rate(
    site: &Site,
    address: SocketAddr,
    in_flight: usize,
    duration: Duration,
) -> Result<f64> {
    let listener = site.listener().as_fd().try_clone_to_owned()?;
    let server = Server::start(Service::Short, in_flight, listener)?;
    // Until then the server may not even run.
    ask_once(address)?;
    let rate = thread::scope(|scope| {
        let begin = Instant::now();
        let clients: Vec<_> = (0..in_flight)
            .map(|_| scope.spawn(move || ask(address, begin, duration)))
            .collect();
        let mut connections: Result<u32> = Ok(0);
        for client in clients {
            let count = client
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a client panicked")));
            connections = connections.and_then(|sum| Ok(sum + count?));
        }
        let elapsed = begin.elapsed();
        anyhow::Ok(f64::from(connections?) / elapsed.as_secs_f64())
    });
    drop(server);
    rate
}

fn ask(address: SocketAddr, begin: Instant, duration: Duration) -> Result<u32> {
    let mut count = 0;
    loop {
        let outcome = ask_once(address);
        outcome.with_context(|| format!("short connection {count} through {address}"))?;
        count += 1;
        // On a busy machine a thread may get the CPU only when the time is over: one counts always.
        if begin.elapsed() >= duration {
            return Ok(count);
        }
    }
}

fn ask_once(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0];
    stream.write_all(&[ASK])?;
    stream.read_exact(&mut answer).context("no answer")?;
    ensure!(answer == [ASK], "a wrong answer");
    ensure!(
        stream.read(&mut answer).context("no end of stream")? == 0,
        "more than one answer"
    );
    Ok(())
}
