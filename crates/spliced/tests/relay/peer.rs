//! One end of a connection: the client, or the connection that the target has accepted.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::Duration;

use netlab::uninterrupted;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
    sockopt,
};

use crate::patience::PATIENCE;
use crate::payload::Payload;

const BLOCK_BYTES: usize = 64 << 10;

/// A connected stream. It may be a UNIX stream as well, since `TcpStream` only reads, writes and shuts down
/// here.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
}

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    OfStream,
    Reset,
}

impl Peer {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let stream = TcpStream::from(fd);
        // Without a timeout a lost byte would block the read forever.
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream }
    }

    /// Connects to an address in the notation of `spliced`.
    pub(crate) fn connect(address: &str) -> Self {
        Self::try_connect(address).unwrap_or_else(|error| panic!("{address}: {error}"))
    }

    pub(crate) fn try_connect(address: &str) -> io::Result<Self> {
        let fd: OwnedFd = match address.strip_prefix("unix:") {
            None => {
                let address: SocketAddr = address.parse().expect("a literal address");
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.into()
            }
            Some(name) => match name.strip_prefix('@') {
                None => UnixStream::connect(name)?.into(),
                Some(name) => {
                    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
                    // Otherwise a relay that another test starts would inherit it and keep it open.
                    let fd = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
                    connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
                    fd
                }
            },
        };
        Ok(Self::new(fd))
    }

    /// Sends `count` bytes of `payload` from `position` on.
    pub(crate) fn send(&self, payload: Payload, position: u64, count: u64) {
        self.try_send(payload, position, count)
            .unwrap_or_else(|error| panic!("sending from {position} on: {error}"));
    }

    pub(crate) fn try_send(&self, payload: Payload, position: u64, count: u64) -> io::Result<()> {
        let mut done = 0;
        while done < count {
            let piece = payload.piece(position + done, BLOCK_BYTES.min((count - done) as usize));
            (&self.stream).write_all(piece)?;
            done += piece.len() as u64;
        }
        Ok(())
    }

    pub(crate) fn send_urgent(&self, byte: u8) {
        let sent = send(&self.stream, &[byte], SendFlags::OOB | SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(1));
    }

    /// Sends as much as fits without blocking. Returns the number of bytes.
    pub(crate) fn send_what_fits(&self, payload: Payload, position: u64) -> u64 {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut done = 0;
        loop {
            match send(
                &self.stream,
                payload.piece(position + done, BLOCK_BYTES),
                flags,
            ) {
                Ok(count) => done += count as u64,
                Err(Errno::AGAIN) => return done,
                Err(errno) => panic!("sending: {errno}"),
            }
        }
    }

    /// Reads exactly `count` bytes and compares them with `payload` from `position` on.
    pub(crate) fn expect(&self, payload: Payload, position: u64, count: u64) {
        let mut buffer = vec![0; BLOCK_BYTES.min(count as usize)];
        let mut done = 0;
        while done < count {
            let wanted = buffer.len().min((count - done) as usize);
            match uninterrupted(|| (&self.stream).read(&mut buffer[..wanted])) {
                Ok(0) => panic!("the stream ended {done} bytes after {position}, not {count}"),
                Ok(read) => {
                    payload.check(position + done, &buffer[..read]);
                    done += read as u64;
                }
                Err(error) => panic!("{done} of {count} bytes after {position}: {error}"),
            }
        }
    }

    /// Reads some bytes and compares them with `payload` from `position` on. Returns their number: 0 at the end of the stream.
    pub(crate) fn read_some(&self, payload: Payload, position: u64) -> io::Result<u64> {
        let mut buffer = vec![0; BLOCK_BYTES];
        let read = uninterrupted(|| (&self.stream).read(&mut buffer))?;
        payload.check(position, &buffer[..read]);
        Ok(read as u64)
    }

    /// Reads to the end of any kind and compares the bytes with `payload`. Returns their number and the end.
    pub(crate) fn read_to_end(&self, payload: Payload, position: u64) -> (u64, End) {
        let mut buffer = vec![0; BLOCK_BYTES];
        let mut done = 0;
        loop {
            match uninterrupted(|| (&self.stream).read(&mut buffer)) {
                Ok(0) => return (done, End::OfStream),
                Ok(read) => {
                    payload.check(position + done, &buffer[..read]);
                    done += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return (done, End::Reset);
                }
                Err(error) => panic!("{done} bytes after {position}: {error}"),
            }
        }
    }

    /// Expects an end of stream, and no byte before it.
    pub(crate) fn expect_end(&self) {
        assert_eq!(self.read_to_end(Payload::new(0), 0), (0, End::OfStream));
    }

    /// Expects a reset, and no byte before it.
    pub(crate) fn expect_reset(&self) {
        assert_eq!(self.read_to_end(Payload::new(0), 0), (0, End::Reset));
    }

    /// Connects, sends some bytes, and expects a reset at any time.
    pub(crate) fn is_reset_by(address: &str) {
        let end = Self::try_connect(address).and_then(|peer| {
            peer.try_send(Payload::new(0), 0, BLOCK_BYTES as u64)?;
            Ok(peer.read_to_end(Payload::new(0), 0))
        });
        match end {
            Ok(end) => assert_eq!(end, (0, End::Reset)),
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    // A write after the reset was reported.
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                ),
                "{error}"
            ),
        }
    }

    pub(crate) fn end_stream(&self) {
        self.try_end_stream().expect("shutdown");
    }

    pub(crate) fn try_end_stream(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Closes with a reset (a UNIX stream has one only when it leaves bytes unread).
    pub(crate) fn reset(self) {
        sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).expect("SO_LINGER");
        // As close(2) does it then, but at once: a process that another test starts may have the descriptor for a moment
        // more. Only TCP knows it.
        let _ = rustix::net::connect_unspec(&self.stream);
    }

    /// Whether it becomes readable within `time`, by bytes, an end of stream or an error.
    pub(crate) fn is_readable_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a short time");
        poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&time)).expect("poll") > 0
    }

    pub(crate) fn read_line(&self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while line.last() != Some(&b'\n') {
            (&self.stream).read_exact(&mut byte).expect("a line");
            line.push(byte[0]);
        }
        String::from_utf8(line).expect("text")
    }

    pub(crate) fn write_text(&self, text: &str) {
        (&self.stream).write_all(text.as_bytes()).expect("a write");
    }

    pub(crate) fn read_number(&self) -> u64 {
        let mut bytes = [0; size_of::<u64>()];
        (&self.stream).read_exact(&mut bytes).expect("a number");
        u64::from_le_bytes(bytes)
    }

    /// The number; `None` after a reset. Panics on an end of stream.
    pub(crate) fn try_read_number(&self) -> Option<u64> {
        let mut bytes = [0; size_of::<u64>()];
        match (&self.stream).read_exact(&mut bytes) {
            Ok(()) => Some(u64::from_le_bytes(bytes)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no number: {error}"),
        }
    }

    /// Whether the connection was reset, also if another call has reported the reset: it has no peer any
    /// more.
    pub(crate) fn was_reset(&self) -> bool {
        self.stream.peer_addr().is_err()
    }

    pub(crate) fn write_number(&self, number: u64) {
        self.try_write_number(number).expect("a number");
    }

    pub(crate) fn try_write_number(&self, number: u64) -> io::Result<()> {
        (&self.stream).write_all(&number.to_le_bytes())
    }

    pub(crate) fn local_address(&self) -> String {
        self.stream.local_addr().expect("an address").to_string()
    }

    pub(crate) fn peer_address(&self) -> String {
        self.stream.peer_addr().expect("an address").to_string()
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Moves `there` bytes from `near` to `far` and at the same time `back` bytes in the other direction, each
/// followed by an end of stream, and compares both.
pub(crate) fn exchange(near: &Peer, far: &Peer, number: u64, there: u64, back: u64) {
    let (forth, answer) = (Payload::new(number), Payload::new(!number));
    thread::scope(|scope| {
        for (from, to, payload, count) in [(near, far, forth, there), (far, near, answer, back)] {
            scope.spawn(move || {
                from.send(payload, 0, count);
                from.end_stream();
            });
            scope.spawn(move || {
                assert_eq!(to.read_to_end(payload, 0), (count, End::OfStream));
            });
        }
    });
}

/// Says that something is over when it is dropped, also by a failure: otherwise what waits for that would go on for ever.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}

/// Moves bytes in both directions until something is over and one more block has arrived, and then ends both streams.
pub(crate) fn exchange_until(is_over: &AtomicBool, near: &Peer, far: &Peer, number: u64) {
    const BYTES: u64 = 2 << 20;
    let (forth, answer) = (Payload::new(number), Payload::new(!number));
    thread::scope(|scope| {
        for (from, to, payload) in [(near, far, forth), (far, near, answer)] {
            let sent = scope.spawn(move || {
                let mut sent = 0;
                let mut is_last = false;
                while !is_last {
                    is_last = is_over.load(Acquire);
                    from.send(payload, sent, BYTES);
                    sent += BYTES;
                }
                from.end_stream();
                sent
            });
            scope.spawn(move || {
                let received = to.read_to_end(payload, 0);
                assert_eq!(received, (sent.join().expect("it goes on"), End::OfStream));
            });
        }
    });
}
