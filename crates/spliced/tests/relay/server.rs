//! The target of a relay: a socket that listens, by itself or with a thread that answers.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use netlab::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getsockname, listen,
    socket_with, sockopt,
};

use crate::patience::PATIENCE;
use crate::payload::Payload;
use crate::peer::{End, Peer};

const BACKLOG: i32 = 4096;

/// The interval at which the thread checks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The stack of a conversation's thread in bytes. Its buffer is on the heap, and there are hundreds.
const STACK_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Server {
    socket: OwnedFd,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::on("127.0.0.1:0")
    }

    /// Listens on an address as `spliced` writes it.
    pub(crate) fn on(address: &str) -> Self {
        Self::with_backlog(address, BACKLOG)
    }

    pub(crate) fn in_namespace(namespace: &Namespace, address: &str) -> Self {
        namespace.enter(|| Self::on(address)).expect("entered")
    }

    pub(crate) fn with_backlog(address: &str, backlog: i32) -> Self {
        let made = |family| {
            socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket")
        };
        let (socket, address) = if let Some(name) = address.strip_prefix("unix:") {
            let socket = made(AddressFamily::UNIX);
            let place = match name.strip_prefix('@') {
                Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
                None => SocketAddrUnix::new(name),
            };
            bind(&socket, &place.expect("a name")).expect("bind");
            (socket, address.to_owned())
        } else {
            let place: SocketAddr = address.parse().expect("a literal address");
            let socket = made(if place.is_ipv4() {
                AddressFamily::INET
            } else {
                AddressFamily::INET6
            });
            sockopt::set_socket_reuseaddr(&socket, true).expect("SO_REUSEADDR");
            bind(&socket, &place).unwrap_or_else(|errno| panic!("{place}: {errno}"));
            let bound = getsockname(&socket).expect("a name");
            let bound = SocketAddr::try_from(bound).expect("an address");
            (socket, bound.to_string())
        };
        listen(&socket, backlog).expect("listen");
        Self { socket, address }
    }

    /// Whether a client connects within `time`.
    pub(crate) fn is_called_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a short time");
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&time)).expect("poll") > 0
    }

    pub(crate) fn accept(&self) -> Peer {
        assert!(self.is_called_within(PATIENCE), "nobody connects");
        Peer::new(accept_with(&self.socket, SocketFlags::CLOEXEC).expect("accept"))
    }

    /// Starts a thread that holds a conversation with every client.
    pub(crate) fn answering(self) -> Answering {
        let address = self.address.clone();
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut conversations = Vec::new();
            while !until.load(Ordering::Relaxed) {
                if self.is_called_within(LOOK_EVERY) {
                    let peer = self.accept();
                    let thread = thread::Builder::new().stack_size(STACK_BYTES);
                    conversations.push(thread.spawn(move || answer(&peer)).expect("a thread"));
                }
            }
            conversations
                .into_iter()
                .map(|conversation| conversation.join().expect("a conversation went wrong"))
                .collect()
        });
        Answering {
            address,
            over,
            thread: Some(thread),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Answering {
    pub(crate) address: String,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<u64>>>,
}

impl Answering {
    /// Ends the thread. Returns the sorted numbers of the conversations.
    pub(crate) fn finish(mut self) -> Vec<u64> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it runs");
        let mut numbers = thread.join().expect("the server went wrong");
        numbers.sort_unstable();
        numbers
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// A port on which nobody listens. It is below the kernel's ephemeral ports (from 32768 on by default), so
/// that no other connection gets it. A connection attempt to it cannot connect to itself either.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    let offset = (std::process::id() * 97 % u32::from(COUNT)) as u16;
    loop {
        let port = FIRST + (offset + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A client that has sent its number, `there` bytes and an end of stream.
pub(crate) fn call(address: &str, number: u64, bytes: u64) -> Peer {
    let client = Peer::connect(address);
    client.write_number(number);
    client.send(Payload::new(number), 0, bytes);
    client.end_stream();
    client
}

/// Sends `there` bytes and then reads `back` bytes. The smaller of the two should fit into the buffers.
pub(crate) fn ask(peer: &Peer, number: u64, there: u64, back: u64) {
    let held = try_ask(peer, number, there, back);
    held.unwrap_or_else(|error| panic!("conversation {number}: {error}"));
}

/// The same, but a reset instead of an answer is an error, not a failure of the test.
pub(crate) fn try_ask(peer: &Peer, number: u64, there: u64, back: u64) -> io::Result<()> {
    peer.try_write_number(number)?;
    peer.try_write_number(there)?;
    peer.try_write_number(back)?;
    peer.try_send(Payload::new(number), 0, there)?;
    peer.try_end_stream()?;
    match peer.read_to_end(Payload::new(!number), 0) {
        (0, End::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
        came => {
            assert_eq!(came, (back, End::OfStream), "conversation {number}");
            Ok(())
        }
    }
}

/// The server's side of [`ask`]. Returns the number of the client.
pub(crate) fn answer(peer: &Peer) -> u64 {
    let number = peer.read_number();
    let there = peer.read_number();
    let back = peer.read_number();
    let came = peer.read_to_end(Payload::new(number), 0);
    assert_eq!(came, (there, End::OfStream), "conversation {number}");
    peer.send(Payload::new(!number), 0, back);
    number
}
