//! Clients that are not members yet: each has to send a registration as its first frame.
//!
//! ```text
//!            the frame is whole, and its token right
//! reading ────────────────────────────────────────────▶ to become a member
//!    │  └─ EOF, reset ─▶ closed                              │
//!    │ too late, too many, no registration, wrong token      │ the id or the name is taken or impossible
//!    ▼                                                       ▼
//! refused: has the notice ◀──────────────────────────────────┘
//!    └─ EOF, reset, LINGER is over, too many ─▶ closed
//! ```
//!
//! Not a byte behind the first frame is read here: the kernel's parser begins with it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use splice::mesh::{Code, Framing, Notice};

use super::request::{MOST_NAME_BYTES, Request, name_of};
use super::tokens::{MOST_TOKEN_BYTES, Tokens};
use crate::mesh_args::Register;

/// How many clients may be about to register at a time; the same number may have been refused. The oldest goes
/// when there are more, so that silent clients keep nobody out.
pub(super) const MOST: usize = 256;

/// How long a client that was refused may take to close its side. To close it with something unread would reset the
/// connection, and the notice with it.
const LINGER: Duration = Duration::from_secs(5);

/// The most bytes of a registration behind the header.
const MOST_BODY_BYTES: usize = 4 + 8 + 1 + MOST_NAME_BYTES + MOST_TOKEN_BYTES;

#[derive(Debug)]
pub(super) struct Newcomers {
    framing: Framing,
    by: Register,
    timeout: Duration,
    pub(super) tokens: Option<Tokens>,
    reading: VecDeque<Newcomer>,
    refused: VecDeque<Refused>,
    /// How many were refused so far.
    pub(super) refusals: u64,
}

#[derive(Debug)]
struct Newcomer {
    socket: OwnedFd,
    from: Option<SocketAddr>,
    since: Instant,
    frame: Vec<u8>,
    /// Whether there may be something to read.
    is_ready: bool,
}

#[derive(Debug)]
struct Refused {
    socket: OwnedFd,
    since: Instant,
    is_ready: bool,
}

/// A client that may become a member as far as its registration says.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) socket: OwnedFd,
    pub(super) from: Option<SocketAddr>,
    pub(super) wish: Wish,
}

/// What it wants to be known by.
#[derive(Debug)]
pub(super) enum Wish {
    Number(u64),
    Name(String),
}

enum Reading {
    Goes,
    Gone,
    Over(Result<Wish, Code>),
}

impl Newcomers {
    pub(super) fn new(
        framing: Framing,
        by: Register,
        timeout: Duration,
        tokens: Option<Tokens>,
    ) -> Self {
        Self {
            framing,
            by,
            timeout,
            tokens,
            reading: VecDeque::new(),
            refused: VecDeque::new(),
            refusals: 0,
        }
    }

    /// A client has come.
    pub(super) fn add(&mut self, socket: OwnedFd, from: Option<SocketAddr>) {
        if self.reading.len() >= MOST
            && let Some(oldest) = self.reading.pop_front()
        {
            self.refuse(oldest.socket, oldest.from, Code::TooLate);
        }
        self.reading.push_back(Newcomer {
            socket,
            from,
            since: Instant::now(),
            frame: Vec::new(),
            is_ready: true,
        });
    }

    /// Closes the connections of all of them.
    pub(super) fn end(&mut self) {
        self.reading.clear();
        self.refused.clear();
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        let reading = self.reading.iter().map(|newcomer| &newcomer.socket);
        let refused = self.refused.iter().map(|refused| &refused.socket);
        reading
            .chain(refused)
            .map(|socket| PollFd::new(socket, PollFlags::IN))
    }

    /// Which of [`watched`](Self::watched) are ready. The others are left alone: each look is a system call.
    pub(super) fn set_ready(&mut self, ready: &[bool]) {
        let reading = self.reading.iter_mut().map(|it| &mut it.is_ready);
        let refused = self.refused.iter_mut().map(|it| &mut it.is_ready);
        for (mine, ready) in reading.chain(refused).zip(ready) {
            *mine = *ready;
        }
    }

    /// Has the one that has waited longest go at once, for want of descriptors. Returns whether there was one.
    pub(super) fn give_way(&mut self) -> bool {
        let Some(oldest) = self.reading.pop_front() else {
            return false;
        };
        self.refusals += 1;
        refuse(&oldest.socket, &self.framing, Code::TooLate);
        true
    }

    /// When it has to be looked after at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        let late = self.reading.front().map(|it| it.since + self.timeout);
        let over = self.refused.front().map(|it| it.since + LINGER);
        late.into_iter().chain(over).min()
    }

    /// Reads what has come, and returns who may become a member.
    pub(super) fn turn(&mut self) -> Vec<Registered> {
        let now = Instant::now();
        self.refused.retain(|refused| {
            now.saturating_duration_since(refused.since) < LINGER
                && (!refused.is_ready || is_open(&refused.socket))
        });
        let mut registered = Vec::new();
        for mut newcomer in std::mem::take(&mut self.reading) {
            let reading = match self.read(&mut newcomer) {
                Reading::Goes if now.saturating_duration_since(newcomer.since) >= self.timeout => {
                    Reading::Over(Err(Code::TooLate))
                }
                reading => reading,
            };
            let Newcomer { socket, from, .. } = match reading {
                Reading::Goes => {
                    self.reading.push_back(newcomer);
                    continue;
                }
                Reading::Gone => continue,
                Reading::Over(_) => newcomer,
            };
            match reading {
                Reading::Over(Ok(wish)) => registered.push(Registered { socket, from, wish }),
                Reading::Over(Err(code)) => self.refuse(socket, from, code),
                _ => {}
            }
        }
        registered
    }

    /// Tells a client why it cannot be a member.
    pub(super) fn refuse(&mut self, socket: OwnedFd, from: Option<SocketAddr>, code: Code) {
        self.refusals += 1;
        let from = from.map_or_else(|| "somewhere".into(), |from| from.to_string());
        tracing::info!("a client from {from} was refused: {}", in_words(code));
        refuse(&socket, &self.framing, code);
        if self.refused.len() >= MOST {
            self.refused.pop_front();
        }
        self.refused.push_back(Refused {
            socket,
            since: Instant::now(),
            is_ready: false,
        });
    }

    fn read(&self, newcomer: &mut Newcomer) -> Reading {
        if !newcomer.is_ready {
            return Reading::Goes;
        }
        let frame = &mut newcomer.frame;
        let header = self.framing.header_bytes() as usize;
        loop {
            let read = frame.len();
            let whole = match self.framing.length_of(frame) {
                Ok(None) => header,
                Ok(Some(whole)) if whole <= header + MOST_BODY_BYTES => whole,
                _ => return Reading::Over(Err(Code::NotRegistered)),
            };
            if read >= header && read == whole {
                return Reading::Over(self.judge(frame));
            }
            frame.resize(whole, 0);
            let got = recv(&newcomer.socket, &mut frame[read..], RecvFlags::DONTWAIT);
            frame.truncate(read + got.map_or(0, |(got, _)| got));
            match got {
                Ok((0, _)) => return Reading::Gone,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Reading::Goes,
                Err(_) => return Reading::Gone,
            }
        }
    }

    fn judge(&self, frame: &[u8]) -> Result<Wish, Code> {
        if self.framing.destination_of(frame) != Some(0) {
            return Err(Code::NotRegistered);
        }
        let body = &frame[self.framing.header_bytes() as usize..];
        let Ok(Request::Register {
            number,
            name,
            token,
        }) = Request::parse(body)
        else {
            return Err(Code::NotRegistered);
        };
        // First, so that who has no token learns nothing about names.
        let is_right = match &self.tokens {
            Some(tokens) => tokens.has(token),
            None => true,
        };
        if !is_right {
            return Err(Code::WrongToken);
        }
        match self.by {
            Register::Number if name.is_empty() => Ok(Wish::Number(number)),
            Register::Name if number == 0 => match name_of(name) {
                Some(name) => Ok(Wish::Name(name.into())),
                None => Err(Code::BadName),
            },
            _ => Err(Code::BadName),
        }
    }
}

/// Reads what nobody wants any more.
fn is_open(socket: &OwnedFd) -> bool {
    let mut unwanted = [0u8; 4096];
    !matches!(
        recv(socket, &mut unwanted, RecvFlags::DONTWAIT),
        Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE)
    )
}

/// Tells a client that is no member why, as the last thing.
pub(super) fn refuse(socket: &OwnedFd, framing: &Framing, code: Code) {
    let notice = Notice {
        receiver: 0,
        code,
        frames: 0,
        destination: 0,
    };
    // Nothing was sent before, so it fits.
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = send(socket, &notice.to_frame(framing), flags);
    let _ = shutdown(socket, Shutdown::Write);
}

fn in_words(code: Code) -> &'static str {
    match code {
        Code::Taken => "another member has its id or name",
        Code::BadName => "no member can have its id or name",
        Code::WrongToken => "its token is wrong",
        Code::NoRoom => "the mesh has as many members as it may",
        Code::TooLate => "it did not register in time",
        _ => "its first frame is no registration",
    }
}
