//! A relay that keeps every message for a known time, for the bench to check itself with.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Larger than any message that is delayed.
const BUFFER_BYTES: usize = 64 << 10;

/// Relays from `listen` to `target`, each way with `delay` between reading and writing. Never
/// returns, except when it cannot listen.
pub(crate) fn run(listen: SocketAddr, target: SocketAddr, delay: Duration) -> Result<()> {
    let listener =
        TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    for client in listener.incoming().flatten() {
        let server =
            TcpStream::connect(target).with_context(|| format!("cannot connect to {target}"))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (from, to) = (from.try_clone()?, to.try_clone()?);
            thread::spawn(move || pump(&from, &to, delay));
        }
    }
    Ok(())
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, delay: Duration) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let read = Instant::now();
        // Sleeping would be late by the timer's slack (50 µs) and by the scheduler.
        while read.elapsed() < delay {
            std::hint::spin_loop();
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
