//! The server's end, in a process of its own.
//!
//! Two ends that are threads of one process switch without changing the address space, and a round
//! trip between them takes a tenth less than between two programs (sockperf is held against it by
//! `splice-bench check`). Clients and servers are two programs wherever a relay is used.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use netlab::Process;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::client_hello::CLIENT_HELLO;
use crate::payload::Payload;
use crate::site::PATIENCE;

/// A request of a small RPC.
pub(crate) const REQUEST_BYTES: usize = 128;
/// Its answer; fits one segment of a veth's 1500 bytes.
pub(crate) const RESPONSE_BYTES: usize = 1024;

/// Ready sockets that one call returns.
const EVENTS: usize = 256;

/// Per read; a connection has one request under way.
const BUFFER_BYTES: usize = 4 << 10;

/// What stands for the listener among the events.
const LISTENER: u64 = u64::MAX;

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Sends messages of so many bytes back, on the connection that it was given.
    Echo,
    /// Answers every request, on all connections that come to the listener that it was given.
    Answer,
    /// Sends, so many bytes per call, on the connection that it was given.
    Send,
    /// Receives what comes, at most so many bytes per call.
    Receive,
    /// Both at once.
    Exchange,
    /// Answers one byte on each connection and closes it, with so many threads.
    Short,
    /// The same where a client's hello comes first, which is answered, too.
    ShortTls,
    /// Answers one byte on each connection, and keeps so many open: the youngest.
    Keep,
}

/// A running server, killed on drop; its connections then close before the client's do, so that the
/// TIME_WAIT, if there is one, lies at the server's fixed port.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
}

impl Server {
    /// Starts one on a connection or a listener.
    pub(crate) fn start(service: Service, number: usize, socket: OwnedFd) -> Result<Self> {
        let program = std::env::current_exe().context("this program does not know where it is")?;
        let mut command = Process::command(program);
        let service = service.to_possible_value().expect("no service is skipped");
        command.args(["serve", service.get_name(), &number.to_string()]);
        command.stdin(Stdio::from(socket)).stdout(Stdio::null());
        Ok(Self {
            process: Process::spawn(&mut command)?,
        })
    }

    /// CPU time that it has had so far.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        self.process.cpu_time()
    }

    /// Bytes that it has read so far, as the kernel counts them for read(2); those that the start of
    /// a program takes are among them.
    pub(crate) fn read_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/io", self.process.id());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        text.lines()
            .find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
            .with_context(|| format!("{path} does not say how much was read"))
    }
}

/// The server's part, with its socket as standard input. Returns when the connection has ended, and
/// otherwise never, except when it fails.
pub(crate) fn run(service: Service, number: usize) -> Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    match service {
        Service::Echo => echo(&socket.into(), number),
        Service::Answer => answer(&socket.into()),
        Service::Send => {
            send(&socket.into(), number);
            Ok(())
        }
        Service::Receive => {
            receive(&socket.into(), number);
            Ok(())
        }
        Service::Exchange => {
            let socket = File::from(socket);
            thread::scope(|scope| {
                scope.spawn(|| send(&socket, number));
                receive(&socket, number);
            });
            Ok(())
        }
        Service::Keep => keep(&socket.into(), number),
        Service::Short | Service::ShortTls => {
            let first_bytes = if service == Service::ShortTls {
                CLIENT_HELLO.len()
            } else {
                0
            };
            let listener = &TcpListener::from(socket);
            thread::scope(|scope| {
                let threads: Vec<_> = (0..number)
                    .map(|_| scope.spawn(move || answer_short(listener, first_bytes)))
                    .collect();
                let mut ended = threads.into_iter().filter_map(|thread| thread.join().ok());
                ended.try_for_each(|outcome| outcome)
            })
        }
    }
}

fn echo(mut stream: &TcpStream, bytes: usize) -> Result<()> {
    let mut message = vec![0; bytes];
    // How the connection ends is the client's to report.
    while let Ok(begun @ 1..) = stream.read(&mut message) {
        if stream.read_exact(&mut message[begun..]).is_err() || stream.write_all(&message).is_err()
        {
            break;
        }
    }
    Ok(())
}

/// Sends until the connection ends, which is the client's to report.
fn send(mut socket: &File, bytes: usize) {
    let mut chunk = vec![0; bytes];
    Payload::new(1).fill(&mut chunk);
    while socket.write_all(&chunk).is_ok() {}
}

/// Receives until then. It is a `File` because of [`Server::read_bytes`]: recv(2) is not counted.
fn receive(mut socket: &File, bytes: usize) {
    let mut chunk = vec![0; bytes];
    while let Ok(1..) = socket.read(&mut chunk) {}
}

fn answer(listener: &TcpListener) -> Result<()> {
    // It stays blocking: the flag is the socket's, which the next server shares.
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        listener,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    let mut connections: Vec<Option<(TcpStream, usize)>> = Vec::new();
    let mut buffer = [0; BUFFER_BYTES];
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in events.drain(..) {
            let token = event.data.u64();
            if token == LISTENER {
                // It may be gone again.
                let Ok((stream, _)) = listener.accept() else {
                    continue;
                };
                stream.set_nodelay(true)?;
                let token = EventData::new_u64(connections.len() as u64);
                epoll::add(&epoll, &stream, token, EventFlags::IN)?;
                connections.push(Some((stream, 0)));
            } else if let Some(connection) = &mut connections[token as usize]
                && answer_one(connection, &mut buffer).is_err()
            {
                // Its end is the client's to report.
                connections[token as usize] = None;
            }
        }
    }
}

fn answer_one((stream, pending): &mut (TcpStream, usize), buffer: &mut [u8]) -> Result<()> {
    // It was ready, so this does not wait.
    let count = stream.read(buffer)?;
    ensure!(count > 0, "the client has ended");
    *pending += count;
    while *pending >= REQUEST_BYTES {
        *pending -= REQUEST_BYTES;
        stream.write_all(&[0; RESPONSE_BYTES])?;
    }
    Ok(())
}

/// Answers a byte on one connection after the other, and closes all but the last `number`.
fn keep(listener: &TcpListener, number: usize) -> Result<()> {
    let mut open = VecDeque::with_capacity(number + 1);
    loop {
        let (mut stream, _) = listener.accept().context("the server cannot accept")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut byte = [0];
        // A connection that ended early is the client's to report.
        let _: io::Result<()> = stream
            .read_exact(&mut byte)
            .and_then(|()| stream.write_all(&byte));
        open.push_back(stream);
        if open.len() > number {
            open.pop_front();
        }
    }
}

/// Answers so many `first_bytes`, if any, and then one byte, on one connection after the other, and
/// closes each.
fn answer_short(listener: &TcpListener, first_bytes: usize) -> Result<()> {
    let mut first = vec![0; first_bytes];
    loop {
        let (mut stream, _) = listener.accept().context("the server cannot accept")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut byte = [0];
        let mut answer = || {
            if !first.is_empty() {
                stream.read_exact(&mut first)?;
                stream.write_all(&byte)?;
            }
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)
        };
        // A connection that ended early is the client's to report.
        let _: io::Result<()> = answer();
    }
}
