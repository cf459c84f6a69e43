//! Two connected sockets, and what is on its way between them.
//!
//! ```text
//!             connected                EOF of both sides
//! opening ─────────────▶ flowing ─────────────────────────▶ over
//!     │ an error             │ an error
//!     ▼                      ▼
//!   failed                 failed
//! ```
//!
//! A direction holds at most one message, or one part of a stream, that its destination had no room for. It
//! reads no more until that is sent, so the sender's buffer fills and the sender waits.

use std::os::fd::OwnedFd;
use std::task::Waker;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use splice::EngineName;

use super::opening::{Opened, Opening};
use super::socket::{Buffer, Received, name_of_peer, report_sender, send_now};
use crate::access_log::{AccessLog, Entry, Moved, ONLY_COPY};
use crate::sessions::{End, Own, Phase, Units};

/// How many messages a direction moves before others have their turn.
const MESSAGES_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    client: OwnedFd,
    client_name: String,
    server: Server,
    messages: bool,
    /// The sockets report who sent a message.
    client_tells: bool,
    server_tells: bool,
    up: Direction,
    down: Direction,
    began: Instant,
    pub(super) used: Instant,
}

#[derive(Debug)]
enum Server {
    Opening(Box<Opening>),
    Connected(OwnedFd),
}

/// What goes one way.
#[derive(Debug, Default)]
struct Direction {
    /// Read and not yet sent; `None` if there is nothing, which is not the same as an empty message.
    waiting: Option<Vec<u8>>,
    ended: bool,
    bytes: u64,
    messages: u64,
}

/// What a connection waits for after a turn.
#[derive(Debug)]
pub(super) enum State {
    Waiting,
    /// There was more than a turn allows.
    Unfinished,
    Over,
    Failed(String),
}

impl Connection {
    pub(super) fn new(id: u64, client: OwnedFd, opening: Opening, messages: bool) -> Self {
        let now = Instant::now();
        Self {
            messages,
            client_tells: messages && report_sender(&client),
            server_tells: false,
            id,
            // A VSOCK socket forgets it with its connection.
            client_name: name_of_peer(&client),
            client,
            server: Server::Opening(Box::new(opening)),
            up: Direction::default(),
            down: Direction::default(),
            began: now,
            used: now,
        }
    }

    pub(super) fn client(&self) -> &OwnedFd {
        &self.client
    }

    /// Whether the target never took it.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.server, Server::Opening(_))
    }

    /// When to go on with its opening, whatever happens until then.
    pub(super) fn next_at(&self) -> Option<Instant> {
        match &self.server {
            Server::Opening(opening) => Some(opening.next_at()),
            Server::Connected(_) => None,
        }
    }

    /// Goes on with its opening. `waker` and `watch` are as those of [`Opening::go_on`].
    ///
    /// # Errors
    /// Why it fails.
    pub(super) fn open(
        &mut self,
        waker: &Waker,
        watch: impl Fn(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(), String> {
        if let Server::Opening(opening) = &mut self.server {
            match opening.go_on(Instant::now(), waker, watch) {
                Opened::Waiting => {}
                Opened::Connected(socket) => self.connected(socket),
                Opened::Failed(why) => return Err(format!("the target cannot be reached: {why}")),
            }
        }
        Ok(())
    }

    fn connected(&mut self, server: OwnedFd) {
        self.server_tells = self.messages && report_sender(&server);
        self.server = Server::Connected(server);
    }

    /// Moves what can be moved now.
    pub(super) fn go_on(&mut self, buffer: &mut Buffer) -> State {
        let Server::Connected(server) = &self.server else {
            return State::Waiting;
        };
        let before = self.up.messages + self.down.messages;
        let up = self
            .up
            .go_on(&self.client, server, self.client_tells, buffer);
        // A side that has closed takes nothing more, and its last words may still be there to be passed on.
        let down = self
            .down
            .go_on(server, &self.client, self.server_tells, buffer);
        let (up, down) = match (up, down) {
            (Ok(up), Ok(down)) => (up, down),
            (Err(errno), _) => {
                return State::Failed(format!("client to target: {}", words(errno)));
            }
            (_, Err(errno)) => {
                return State::Failed(format!("target to client: {}", words(errno)));
            }
        };
        if self.up.messages + self.down.messages > before {
            self.used = Instant::now();
        }
        if self.up.is_over() && self.down.is_over() {
            return State::Over;
        }
        match up || down {
            true => State::Unfinished,
            false => State::Waiting,
        }
    }

    /// What is known of it now.
    pub(super) fn told(&self, listener: String, target: String) -> Own {
        let ends = [&self.up, &self.down].map(Direction::end);
        Own {
            id: self.id,
            listener,
            route: 1,
            backend: target.clone(),
            server: target.clone(),
            client: self.client_name.clone(),
            target,
            phase: match &self.server {
                Server::Opening(_) => Phase::Connecting,
                Server::Connected(_) => Phase::of(ends),
            },
            streams: ends,
            began: self.began,
            used: self.used,
            bytes: [self.up.bytes, self.down.bytes],
            units: Units {
                client_to_target_messages: self.messages.then_some(self.up.messages),
                target_to_client_messages: self.messages.then_some(self.down.messages),
                ..Units::default()
            },
        }
    }

    /// Its line in the access log: that of its end, if it has an outcome.
    pub(super) fn log(&self, log: &AccessLog, listener: &str, target: &str, outcome: Option<&str>) {
        let moved = |direction: &Direction| Moved {
            messages: self.messages.then_some(direction.messages),
            ..Moved::bytes(direction.bytes)
        };
        let no_pair = outcome.map(|outcome| format!("no pair: {outcome}"));
        let (engine, why_engine) = match &no_pair {
            Some(no_pair) if self.is_refused() => (None, &**no_pair),
            _ => (Some(EngineName::Copy.as_str()), ONLY_COPY),
        };
        log.write(&Entry {
            client: &self.client_name,
            target: &target,
            engine,
            why_engine,
            moved: outcome.map(|_| [&self.up, &self.down].map(moved)),
            lasted: outcome.map(|_| self.began.elapsed()),
            ..Entry::copied(self.id, listener, target, outcome)
        });
    }
}

impl Direction {
    /// How far its stream has come.
    fn end(&self) -> End {
        match (self.ended, &self.waiting) {
            (false, _) => End::Open,
            (true, Some(_)) => End::Draining,
            (true, None) => End::Ended,
        }
    }

    fn is_over(&self) -> bool {
        self.ended && self.waiting.is_none()
    }

    /// Returns whether there may be more to move now.
    fn go_on(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        tells: bool,
        buffer: &mut Buffer,
    ) -> Result<bool, Errno> {
        if self.is_over() {
            return Ok(false);
        }
        if let Some(waiting) = self.waiting.take() {
            self.send(to, &waiting)?;
        }
        for _ in 0..MESSAGES_AT_ONCE {
            if self.waiting.is_some() || self.ended {
                break;
            }
            let bytes = match buffer.receive(from, tells) {
                Ok(Received::Bytes(bytes)) => bytes,
                Ok(Received::EndOfStream) => {
                    self.ended = true;
                    break;
                }
                // It cannot be passed on whole, and a part would pass for all of it.
                Ok(Received::TooLong) => return Err(Errno::MSGSIZE),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            self.messages += 1;
            self.bytes += bytes as u64;
            self.send(to, buffer.bytes(bytes))?;
        }
        if self.is_over() {
            // It fails only if the other side is gone, which its own direction notices.
            let _ = shutdown(to, Shutdown::Write);
        }
        Ok(self.waiting.is_none() && !self.ended)
    }

    /// Sends what there is room for, and keeps the rest.
    fn send(&mut self, to: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
        let mut rest = bytes;
        loop {
            match send_now(to, rest) {
                Ok(sent) if sent >= rest.len() => return Ok(()),
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.waiting = Some(rest.to_vec());
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}

fn words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::super::place::Place;
    use super::*;

    fn joined(client: OwnedFd, server: OwnedFd) -> Connection {
        let place = Arc::new(Place::at(Vec::new()));
        let opening = Opening::new(place, Instant::now(), Duration::ZERO);
        let mut connection = Connection::new(1, client, opening, false);
        connection.connected(server);
        connection
    }

    #[test]
    fn the_last_words_of_a_target_arrive_although_the_client_still_sends() {
        let (mut client, near) = UnixStream::pair().expect("a pair");
        let (far, mut server) = UnixStream::pair().expect("a pair");
        for socket in [&near, &far] {
            socket.set_nonblocking(true).expect("non-blocking");
        }
        let mut connection = joined(near.into(), far.into());
        server.write_all(b"no more than that").expect("it is sent");
        drop(server);
        client.write_all(b"more").expect("it is sent");
        let state = connection.go_on(&mut Buffer::for_messages(false));
        assert!(matches!(state, State::Failed(_)), "{state:?}");
        drop(connection);
        let mut received = Vec::new();
        // The client's socket was closed with its bytes unread.
        let _ = client.read_to_end(&mut received);
        assert_eq!(received, b"no more than that");
    }

    /// VSOCK streams go this way, and few machines have them; any stream behaves the same.
    #[test]
    fn a_stream_arrives_whole_however_little_room_its_receiver_has() {
        const BYTES: usize = 3 << 20;
        let sent: Vec<u8> = (0..BYTES).map(|at| (at * at / 7) as u8).collect();
        let (mut client, near) = UnixStream::pair().expect("a pair");
        let (far, mut server) = UnixStream::pair().expect("a pair");
        for socket in [&near, &far] {
            socket.set_nonblocking(true).expect("non-blocking");
        }
        let mut connection = joined(near.into(), far.into());
        let mut buffer = Buffer::for_messages(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&sent).expect("it is sent");
                client.shutdown(std::net::Shutdown::Write).expect("the end");
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).expect("an answer");
                assert!(answer == b"thanks");
            });
            scope.spawn(|| {
                let mut received = Vec::new();
                server.read_to_end(&mut received).expect("all of it");
                assert!(received == sent, "{} bytes differ", received.len());
                server.write_all(b"thanks").expect("it is answered");
                server.shutdown(std::net::Shutdown::Write).expect("the end");
            });
            loop {
                match connection.go_on(&mut buffer) {
                    State::Over => break,
                    State::Failed(why) => panic!("{why}"),
                    State::Waiting | State::Unfinished => thread::yield_now(),
                }
            }
            // Only with it the client sees the end of what it is answered.
            drop(connection);
        });
    }
}
