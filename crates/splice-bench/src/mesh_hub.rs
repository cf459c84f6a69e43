//! A hub of frames in user space, as one would write it: one thread, epoll, a buffer for each direction of each
//! connection. `reproduce mesh` holds `spliced mesh` against it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Length of the body and destination, big-endian numbers of 4 bytes.
pub(crate) const HEADER_BYTES: usize = 8;

/// Of the body of the first frame that a member gets. It begins with the member's id, in 8 bytes.
pub(crate) const WELCOME_BYTES: usize = 24;

/// For one read: as much as TCP hands over in one segment at most.
const READ_BYTES: usize = 64 << 10;

/// What waits for one member; frames beyond are dropped.
const WAITING_MOST_BYTES: usize = 1 << 20;

/// The token of the listener; members have their ids, from 1 on.
const LISTENER: u64 = 0;

const EVENTS: usize = 256;

/// The header of a frame.
pub(crate) fn header(body: usize, destination: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    // A frame is far below 4 GiB.
    header[..4].copy_from_slice(&(body as u32).to_be_bytes());
    header[4..].copy_from_slice(&destination.to_be_bytes());
    header
}

/// The length and destination of the first frame in `bytes`, header included, if all of it is there.
pub(crate) fn first_frame(bytes: &[u8]) -> Option<(usize, u32)> {
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(bytes))
    };
    let length = HEADER_BYTES + number(0)? as usize;
    (length <= bytes.len()).then_some((length, number(4)?))
}

struct Member {
    stream: TcpStream,
    arrived: Vec<u8>,
    waiting: Vec<u8>,
    watches_room: bool,
}

struct Hub {
    epoll: std::os::fd::OwnedFd,
    /// By id less one.
    members: Vec<Option<Member>>,
    /// Those that have something to be sent.
    dirty: Vec<usize>,
}

/// Serves until it is killed.
pub(crate) fn serve(listen: SocketAddr) -> Result<()> {
    let listener =
        TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let mut hub = Hub {
        epoll: epoll::create(CreateFlags::CLOEXEC)?,
        members: Vec::new(),
        dirty: Vec::new(),
    };
    let token = EventData::new_u64(LISTENER);
    epoll::add(&hub.epoll, &listener, token, EventFlags::IN)?;
    let mut events = Vec::with_capacity(EVENTS);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        events.clear();
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&hub.epoll, spare, None)?;
        for event in &events {
            match event.data.u64() {
                LISTENER => hub.welcome(listener.accept()?.0)?,
                id => hub.serve(id as usize - 1, event.flags, &mut buffer),
            }
        }
        hub.flush();
    }
}

impl Hub {
    fn welcome(&mut self, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let index = self.members.len();
        let id = index as u64 + 1;
        let token = EventData::new_u64(id);
        epoll::add(&self.epoll, stream.as_fd(), token, EventFlags::IN)?;
        let mut waiting = header(WELCOME_BYTES, 0).to_vec();
        waiting.extend(id.to_be_bytes());
        waiting.extend([0; WELCOME_BYTES - 8]);
        self.members.push(Some(Member {
            stream,
            arrived: Vec::new(),
            waiting,
            watches_room: false,
        }));
        self.dirty.push(index);
        Ok(())
    }

    fn serve(&mut self, index: usize, flags: EventFlags, buffer: &mut [u8]) {
        if flags.contains(EventFlags::OUT) {
            self.dirty.push(index);
        }
        let Some(member) = self.members.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        match member.stream.read(buffer) {
            Ok(count) if count > 0 => member.arrived.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Ok(_) | Err(_) => {
                self.members[index] = None;
                return;
            }
        }
        let arrived = std::mem::take(&mut member.arrived);
        let mut rest = &arrived[..];
        while let Some((length, destination)) = first_frame(rest) {
            let (frame, behind) = rest.split_at(length);
            self.hand_over(frame, destination as usize);
            rest = behind;
        }
        let rest = arrived.len() - rest.len();
        if let Some(member) = &mut self.members[index] {
            member.arrived = arrived;
            member.arrived.drain(..rest);
        }
    }

    fn hand_over(&mut self, frame: &[u8], destination: usize) {
        let index = destination.wrapping_sub(1);
        let Some(member) = self.members.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        if member.waiting.is_empty() {
            self.dirty.push(index);
        }
        if member.waiting.len() + frame.len() <= WAITING_MOST_BYTES {
            member.waiting.extend_from_slice(frame);
        }
    }

    fn flush(&mut self) {
        while let Some(index) = self.dirty.pop() {
            let Some(member) = &mut self.members[index] else {
                continue;
            };
            let sent = match member.stream.write(&member.waiting) {
                Ok(sent) => sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(_) => {
                    self.members[index] = None;
                    continue;
                }
            };
            member.waiting.drain(..sent);
            let watch = !member.waiting.is_empty();
            if watch != member.watches_room {
                member.watches_room = watch;
                let flags = match watch {
                    true => EventFlags::IN | EventFlags::OUT,
                    false => EventFlags::IN,
                };
                let token = EventData::new_u64(index as u64 + 1);
                // It was added.
                let _ = epoll::modify(&self.epoll, member.stream.as_fd(), token, flags);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{first_frame, header};

    #[test]
    fn a_frame_is_found_once_it_is_complete() {
        let mut bytes = header(3, 7).to_vec();
        bytes.extend(b"abc");
        assert_eq!(first_frame(&bytes), Some((11, 7)));
        assert_eq!(first_frame(&bytes[..10]), None);
        assert_eq!(first_frame(&bytes[..3]), None);
    }
}
