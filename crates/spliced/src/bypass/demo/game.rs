//! Messages that go to and fro.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::MESSAGE_BYTES;

/// Longer than a message takes on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Has this process, and threads that it starts from now on, run on the first of its CPUs.
///
/// # Errors
/// Of sched_setaffinity(2).
pub(super) fn pin_to_one_cpu() -> Result<usize> {
    let allowed = sched_getaffinity(None).context("cannot see the CPUs of this process")?;
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let cpu = cpu.context("this process has no CPU")?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).context("cannot choose a CPU")?;
    Ok(cpu)
}

/// The sockets of those that talk.
pub(super) struct Players {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
    /// The proxy's, to the client and to the server.
    pub(super) proxy: Option<[TcpStream; 2]>,
}

/// A client that asks, and a server that answers; perhaps a proxy that copies.
pub(super) struct Game {
    client: TcpStream,
    /// Open until the end: a member leaves a map when it is closed.
    sockets: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
    next: u64,
}

impl Game {
    /// With `copies`, the proxy copies, if there is one.
    pub(super) fn begin(players: Players, copies: bool) -> Result<Self> {
        let Players {
            client,
            server,
            proxy,
        } = players;
        client.set_read_timeout(Some(PATIENCE))?;
        let mut game = Self {
            client,
            sockets: vec![server.try_clone()?],
            threads: Vec::new(),
            next: 0,
        };
        game.start("server", move || answer(server))?;
        if let Some([near, far]) = proxy {
            game.sockets.extend([near.try_clone()?, far.try_clone()?]);
            if copies {
                game.start("proxy", move || copy(near, far))?;
            }
        }
        Ok(game)
    }

    fn start(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name(name.into()).spawn(work);
        self.threads.push(thread.context("cannot start a thread")?);
        Ok(())
    }

    /// Plays for a time, and notes half of each round trip.
    pub(super) fn play(&mut self, time: Duration, into: &mut Vec<u64>) -> Result<()> {
        let end = Instant::now() + time;
        let mut message = [0; MESSAGE_BYTES];
        let mut answer = [0; MESSAGE_BYTES];
        loop {
            self.next += 1;
            message[..8].copy_from_slice(&self.next.to_ne_bytes());
            let begin = Instant::now();
            self.client.write_all(&message)?;
            self.client.read_exact(&mut answer)?;
            let now = Instant::now();
            if answer != message {
                return Err(anyhow!("the server has answered with other bytes"));
            }
            into.push((now - begin).as_nanos() as u64 / 2);
            if now >= end {
                return Ok(());
            }
        }
    }

    /// Ends all threads.
    pub(super) fn end(mut self) -> Result<()> {
        self.shut();
        Ok(())
    }

    fn shut(&mut self) {
        for socket in self.sockets.iter().chain([&self.client]) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Game {
    fn drop(&mut self) {
        self.shut();
    }
}

fn answer(mut server: TcpStream) {
    let mut message = [0; MESSAGE_BYTES];
    while read(&mut server, &mut message) && server.write_all(&message).is_ok() {}
}

fn copy(mut near: TcpStream, mut far: TcpStream) {
    let mut message = [0; MESSAGE_BYTES];
    while read(&mut near, &mut message)
        && far.write_all(&message).is_ok()
        && read(&mut far, &mut message)
        && near.write_all(&message).is_ok()
    {}
}

fn read(from: &mut TcpStream, message: &mut [u8]) -> bool {
    loop {
        match from.read_exact(message) {
            // A member's read may return without a reason (tcp_msg_wait_data).
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read.is_ok(),
        }
    }
}
