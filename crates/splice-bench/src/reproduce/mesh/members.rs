//! Members of a mesh or of a hub: they send frames to one another and compare what comes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::mesh_hub::{HEADER_BYTES, WELCOME_BYTES, first_frame, header};
use crate::site::PATIENCE;
use crate::statistics::Latencies;

/// What may be on the way to a member: within what the mesh takes (`--member-bytes`, bookkeeping included), so
/// that no frame is refused.
const ON_THE_WAY_BYTES: usize = 256 << 10;
const ON_THE_WAY_FRAMES: u64 = 400;

/// A frame carries its number behind the header.
const NUMBER_BYTES: usize = 8;

const READ_BYTES: usize = 256 << 10;

/// How long to wait for anything before looking again.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Members in a ring: each sends to the next one.
pub(super) struct Members {
    all: Vec<Member>,
    body: usize,
}

struct Member {
    stream: TcpStream,
    id: u32,
    sent: u64,
    received: u64,
    /// Not yet taken by the socket, or not yet complete.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Members {
    /// From this thread's namespace, connects so many to `address`, which send frames of `bytes`, header included.
    pub(super) fn join(address: SocketAddr, count: usize, bytes: usize) -> Result<Self> {
        Ok(Self {
            all: (0..count)
                .map(|_| Member::join(address))
                .collect::<Result<_>>()?,
            body: bytes - HEADER_BYTES,
        })
    }

    /// One frame after another from the first member to the second: how long each takes from write(2) to the
    /// end of read(2).
    pub(super) fn ping(&mut self, window: Duration) -> Result<Latencies> {
        let mut latencies = Latencies::new();
        let mut read = vec![0; HEADER_BYTES + self.body];
        let [first, second, ..] = &mut self.all[..] else {
            bail!("a frame needs two members");
        };
        for member in [&first, &second] {
            member.stream.set_nonblocking(false)?;
        }
        let began = Instant::now();
        while began.elapsed() < window {
            let frame = frame(self.body, second.id, first.sent);
            let sent = Instant::now();
            first.stream.write_all(&frame)?;
            second.stream.read_exact(&mut read)?;
            latencies.record(sent.elapsed());
            ensure!(read == frame, "a frame arrived changed");
            first.sent += 1;
            second.received += 1;
        }
        Ok(latencies)
    }

    /// Every member sends to the next as fast as it goes. Returns frames a second that arrived, and how many arrived in all.
    pub(super) fn flood(&mut self, window: Duration) -> Result<(f64, u64)> {
        for member in &self.all {
            member.stream.set_nonblocking(true)?;
        }
        let mut buffer = vec![0; READ_BYTES];
        let count = self.all.len();
        let began = Instant::now();
        let mut arrived: u64 = 0;
        let mut took = None;
        loop {
            let elapsed = began.elapsed();
            if took.is_none() && elapsed >= window {
                took = Some((arrived, elapsed));
            }
            let mut progress = false;
            for from in 0..count {
                let to = (from + 1) % count;
                if took.is_none() {
                    let (id, received) = (self.all[to].id, self.all[to].received);
                    self.all[from].fill(self.body, id, received);
                }
                progress |= self.all[from].send()?;
                let news = self.all[to].receive(self.body, &mut buffer)?;
                arrived += news;
                progress |= news > 0;
            }
            if let Some((in_window, elapsed)) = took {
                // What is on the way comes as well, so that the next measurement begins with nothing.
                let is_done = |at: usize| self.all[at].sent == self.all[(at + 1) % count].received;
                if (0..count).all(is_done) {
                    return Ok((in_window as f64 / elapsed.as_secs_f64(), arrived));
                }
                ensure!(elapsed + PATIENCE > began.elapsed(), "frames were lost");
            }
            if !progress {
                let streams = self.all.iter().map(|member| &member.stream);
                let mut ready: Vec<_> = streams
                    .map(|stream| PollFd::new(stream, PollFlags::IN))
                    .collect();
                poll(&mut ready, Some(&LOOK_AGAIN)).context("cannot poll")?;
            }
        }
    }
}

impl Member {
    fn join(address: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut welcome = [0; HEADER_BYTES + WELCOME_BYTES];
        stream.read_exact(&mut welcome).context("no welcome")?;
        let id = welcome[HEADER_BYTES..HEADER_BYTES + 8].try_into()?;
        Ok(Self {
            stream,
            id: u64::from_be_bytes(id).try_into()?,
            sent: 0,
            received: 0,
            outgoing: Vec::new(),
            incoming: Vec::new(),
        })
    }

    /// As many frames as may be on the way to `destination`, which has received so many.
    fn fill(&mut self, body: usize, destination: u32, received: u64) {
        if !self.outgoing.is_empty() {
            return;
        }
        let most = (ON_THE_WAY_BYTES / (HEADER_BYTES + body)) as u64;
        let end = received + most.min(ON_THE_WAY_FRAMES);
        for number in self.sent..end {
            self.outgoing.extend(frame(body, destination, number));
        }
        self.sent = self.sent.max(end);
    }

    fn send(&mut self) -> Result<bool> {
        if self.outgoing.is_empty() {
            return Ok(false);
        }
        match self.stream.write(&self.outgoing) {
            Ok(sent) => {
                self.outgoing.drain(..sent);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error).context("a member cannot send"),
        }
    }

    /// Returns how many frames have come.
    fn receive(&mut self, body: usize, buffer: &mut [u8]) -> Result<u64> {
        match self.stream.read(buffer) {
            Ok(0) => bail!("a member's connection was closed"),
            Ok(count) => self.incoming.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error).context("a member cannot receive"),
        }
        let before = self.received;
        let mut at = 0;
        while let Some((length, destination)) = first_frame(&self.incoming[at..]) {
            ensure!(destination == self.id, "a frame was refused");
            let expected = frame(body, self.id, self.received);
            ensure!(
                self.incoming[at..at + length] == expected,
                "a frame arrived changed or out of order"
            );
            self.received += 1;
            at += length;
        }
        self.incoming.drain(..at);
        Ok(self.received - before)
    }
}

fn frame(body: usize, destination: u32, number: u64) -> Vec<u8> {
    let mut frame = header(body, destination).to_vec();
    frame.extend(number.to_be_bytes());
    frame.resize(HEADER_BYTES + body.max(NUMBER_BYTES), number as u8);
    frame
}
