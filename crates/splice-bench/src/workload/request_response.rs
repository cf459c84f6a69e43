//! Requests on many connections at once, each answered before the next one goes out on the same
//! connection.
//!
//! Two kinds of load. *Closed*: every connection asks again as soon as it has its answer; it says
//! how much goes through. *Open*: requests fall due at a fixed rate, whatever the answers do, and go
//! out on the next connection that is free. Their time counts from when they fell due, not from when
//! they could be sent: a relay that stands still for a moment thereby delays all requests of that
//! moment, as it would those of independent users, and not only the one that was under way
//! (coordinated omission).

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::server::{REQUEST_BYTES, RESPONSE_BYTES, Server, Service};
use crate::site::{PATIENCE, Site};
use crate::statistics::Latencies;

use super::Window;

/// An open load that is too much ends after so many windows. A request without an answer then counts
/// with the time that it has waited.
const OVERDUE_WINDOWS: u32 = 4;

/// Ready sockets that one call returns.
const EVENTS: usize = 256;

/// Per read; a connection has one message under way.
const BUFFER_BYTES: usize = 4 << 10;

/// What stands for something that is not a connection among the events.
const OTHER: u64 = u64::MAX;

/// When requests go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Closed,
    Open { per_second: u32 },
}

/// The outcome.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) per_second: f64,
    pub(crate) latencies: Latencies,
}

/// Asks on `connections` connections for a `window`.
pub(crate) fn play(
    site: &Site,
    address: SocketAddr,
    connections: u32,
    load: Load,
    window: Window,
) -> Result<Answered> {
    let listener = site.listener().as_fd().try_clone_to_owned()?;
    let server = Server::start(Service::Answer, 0, listener)?;
    let connect = |number| {
        let connected = connect(address);
        connected.with_context(|| format!("connection {number} of {connections}"))
    };
    let clients = (0..connections).map(connect).collect::<Result<Vec<_>>>()?;
    let answered = ask(&clients, load, window)?;
    drop(server);
    // The client waits to see that, whether it is told in order or, since requests were under way,
    // by a reset.
    for mut client in clients {
        client.set_nonblocking(false)?;
        while matches!(client.read(&mut [0; BUFFER_BYTES]), Ok(1..)) {}
    }
    Ok(answered)
}

/// A connection that has been answered once: it has come through to the server.
pub(super) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[0; REQUEST_BYTES])?;
    stream
        .read_exact(&mut [0; RESPONSE_BYTES])
        .context("the first request was not answered")?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// An epoll instance for `streams`, and for something `other`.
fn watch(streams: &[TcpStream], other: Option<rustix::fd::BorrowedFd<'_>>) -> Result<OwnedFd> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let tokens = (0..).zip(streams.iter().map(AsFd::as_fd));
    for (token, fd) in tokens.chain(other.map(|fd| (OTHER, fd))) {
        epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)?;
    }
    Ok(epoll)
}

/// The connections of a client and what they wait for.
struct Client<'a> {
    streams: &'a [TcpStream],
    /// Since when each waits for its answer, and how much of it is still to come.
    waiting: Vec<(Instant, usize)>,
    latencies: Latencies,
    load: Load,
    /// What comes before then is warming up.
    counts_from: Instant,
}

impl Client<'_> {
    /// Sends a request that fell `due` then.
    fn send(&mut self, index: usize, due: Instant) -> Result<()> {
        let mut stream = &self.streams[index];
        stream
            .write_all(&[0; REQUEST_BYTES])
            .context("a request did not go out")?;
        self.waiting[index] = (due, RESPONSE_BYTES);
        Ok(())
    }

    /// Reads what has come; whether the answer is whole.
    fn receive(&mut self, index: usize, buffer: &mut [u8]) -> Result<bool> {
        let mut stream = &self.streams[index];
        let count = stream.read(buffer).context("an answer failed")?;
        ensure!(count > 0, "a connection ended while an answer was to come");
        let (due, left) = &mut self.waiting[index];
        *left = left
            .checked_sub(count)
            .context("more was answered than asked")?;
        let (due, whole) = (*due, *left == 0);
        if whole {
            self.count(due, Instant::now());
        }
        Ok(whole)
    }

    /// An answer counts when it comes after the warm-up, an open load's request when it falls due
    /// after it: a standstill that begins in the warm-up has delayed what falls due then.
    fn count(&mut self, due: Instant, now: Instant) {
        let since = match self.load {
            Load::Closed => now,
            Load::Open { .. } => due,
        };
        if since >= self.counts_from {
            self.latencies.record(now - due);
        }
    }
}

fn ask(streams: &[TcpStream], load: Load, window: Window) -> Result<Answered> {
    let begin = Instant::now();
    let client = Client {
        streams,
        waiting: vec![(begin, 0); streams.len()],
        latencies: Latencies::new(),
        load,
        counts_from: begin + window.warm_up,
    };
    let answered = match load {
        Load::Closed => ask_again_and_again(client, window.length),
        Load::Open { per_second } => ask_when_due(client, per_second, begin, window.length),
    }?;
    let any = !answered.latencies.histogram().is_empty();
    ensure!(any, "nothing was answered within {:?}", window.length);
    Ok(answered)
}

fn ask_again_and_again(mut client: Client<'_>, window: Duration) -> Result<Answered> {
    let epoll = watch(client.streams, None)?;
    let end = client.counts_from + window;
    let mut buffer = [0; BUFFER_BYTES];
    let mut events = Vec::with_capacity(EVENTS);
    for index in 0..client.streams.len() {
        client.send(index, Instant::now())?;
    }
    loop {
        wait(&epoll, &mut events)?;
        for event in events.drain(..) {
            let index = event.data.u64() as usize;
            if client.receive(index, &mut buffer)? {
                client.send(index, Instant::now())?;
            }
        }
        if Instant::now() >= end {
            return Ok(client.answered(end));
        }
    }
}

fn ask_when_due(
    mut client: Client<'_>,
    per_second: u32,
    begin: Instant,
    window: Duration,
) -> Result<Answered> {
    let period = Duration::from_secs(1) / per_second;
    let timer = tick_every(period)?;
    let epoll = watch(client.streams, Some(timer.as_fd()))?;
    let end = client.counts_from + window;
    // However late this thread is, what would have been due by then is.
    let mut next_due = begin;
    let mut free: Vec<usize> = (0..client.streams.len()).collect();
    let mut due: VecDeque<Instant> = VecDeque::new();
    let mut buffer = [0; BUFFER_BYTES];
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        wait(&epoll, &mut events)?;
        for event in events.drain(..) {
            let token = event.data.u64();
            if token == OTHER {
                rustix::io::read(&timer, &mut buffer[..size_of::<u64>()])?;
            } else if client.receive(token as usize, &mut buffer)? {
                free.push(token as usize);
            }
        }
        let now = Instant::now();
        while next_due <= now && next_due < end {
            due.push_back(next_due);
            next_due += period;
        }
        while let (Some(&index), Some(&since)) = (free.last(), due.front()) {
            client.send(index, since)?;
            free.pop();
            due.pop_front();
        }
        let all_answered = next_due >= end && free.len() == client.streams.len();
        if all_answered || now >= end + OVERDUE_WINDOWS * window {
            let asked = client.waiting.iter().filter(|(_, left)| *left > 0);
            due.extend(asked.map(|&(since, _)| since).collect::<Vec<_>>());
            due.into_iter().for_each(|since| client.count(since, now));
            return Ok(client.answered(now));
        }
    }
}

impl Client<'_> {
    fn answered(self, end: Instant) -> Answered {
        let seconds = (end - self.counts_from).as_secs_f64();
        Answered {
            per_second: self.latencies.histogram().len() as f64 / seconds,
            latencies: self.latencies,
        }
    }
}

fn wait(epoll: &OwnedFd, events: &mut Vec<Event>) -> Result<()> {
    let patience = Timespec::try_from(PATIENCE).context("a wait that long has no timespec")?;
    let room = rustix::buffer::spare_capacity(events);
    let ready = epoll::wait(epoll, room, Some(&patience))?;
    ensure!(ready > 0, "no answer came for {PATIENCE:?}");
    Ok(())
}

fn tick_every(period: Duration) -> Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let period = Timespec::try_from(period).context("a period that long has no timespec")?;
    let periodic = Itimerspec {
        it_interval: period,
        it_value: period,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &periodic)?;
    Ok(timer)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::Window;
    use super::{Load, ask};
    use crate::server::{REQUEST_BYTES, RESPONSE_BYTES};
    use crate::statistics::Latencies;

    /// How long the server stands still, once.
    const STALL: Duration = Duration::from_millis(200);
    const WINDOW: Duration = Duration::from_millis(800);

    /// A connection to a server that stands still once, in the middle of the window.
    fn stalling() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        thread::spawn(move || {
            let (mut server, _) = listener.accept().expect("a client");
            server.set_nodelay(true).expect("it is TCP");
            let (mut request, mut stalled) = ([0; REQUEST_BYTES], false);
            let begin = Instant::now();
            while server.read_exact(&mut request).is_ok() {
                if !stalled && begin.elapsed() > WINDOW / 2 {
                    stalled = true;
                    thread::sleep(STALL);
                }
                if server.write_all(&[0; RESPONSE_BYTES]).is_err() {
                    break;
                }
            }
        });
        client.set_nodelay(true).expect("it is TCP");
        client.set_nonblocking(true).expect("a socket can");
        client
    }

    /// How many requests took longer than half of the stall.
    fn slow(latencies: &Latencies) -> u64 {
        let half = STALL.as_nanos() as u64 / 2;
        latencies.histogram().count_between(half, u64::MAX)
    }

    #[test]
    fn an_open_load_counts_what_a_stall_did_to_all_that_fell_due() {
        /// A machine that stands still itself makes more of them slow, and another attempt.
        const ATTEMPTS: usize = 10;
        let load = Load::Open { per_second: 1_000 };
        let slow = (0..ATTEMPTS).map(|_| {
            let open = ask(&[stalling()], load, Window::of(WINDOW)).expect("all is answered");
            let due = open.latencies.histogram().len();
            assert!((795..=805).contains(&due), "{due} requests");
            slow(&open.latencies)
        });
        // In 800 ms those of 100 waited for more than 100.
        let mut other = Vec::new();
        let found = slow
            .inspect(|slow| other.push(*slow))
            .any(|slow| (80..400).contains(&slow));
        assert!(found, "{other:?} slow requests");
    }

    #[test]
    fn a_closed_load_sees_a_stall_once() {
        let closed = ask(&[stalling()], Load::Closed, Window::of(WINDOW)).expect("all is answered");
        // So many there are at most, one after the other, where the machine stands still all the time.
        let most = WINDOW.div_duration_f64(STALL / 2) as u64 + 1;
        let slow = slow(&closed.latencies);
        assert!((1..=most).contains(&slow), "{slow} slow requests");
    }
}
