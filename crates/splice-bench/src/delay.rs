//! A relay that keeps every message for a known time, for the bench to check itself with.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Slept no further than up to here, and spun the rest: a thread that sleeps is woken some µs late,
/// and one that spins all the time loses its CPU on a machine that has something else to do.
const SPIN: Duration = Duration::from_micros(20);

/// What the kernel may be late by on purpose, in ns; 50 µs otherwise (PR_SET_TIMERSLACK(2const)).
const TIMER_SLACK_NANOSECONDS: u64 = 1;

/// Larger than any message that is delayed.
const BUFFER_BYTES: usize = 64 << 10;

/// Relays from `listen` to `target`, each way with `delay` between reading and writing. Never
/// returns, except when it cannot listen.
pub(crate) fn run(listen: SocketAddr, target: SocketAddr, delay: Duration) -> Result<()> {
    let listener =
        TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    serve(&listener, target, delay)
}

/// The same for what comes to `listener`.
pub(crate) fn serve(listener: &TcpListener, target: SocketAddr, delay: Duration) -> Result<()> {
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
    // A kernel that refuses makes the delay longer, which the check then shows.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NANOSECONDS));
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let read = Instant::now();
        thread::sleep(delay.saturating_sub(SPIN));
        while read.elapsed() < delay {
            std::hint::spin_loop();
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
