//! A mesh with a thread that turns it, and clients of it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use netlab::PATIENCE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use splice::mesh::{Bounds, Code, Event, Framing, Mesh, Notice};
use splice::{EngineChoice, EngineName};

/// How long the thread of a mesh waits before it looks whether it is over.
const MOST_WAIT: Duration = Duration::from_millis(2);

/// The framing of most tests.
pub(crate) fn framing() -> Framing {
    of("u32be@0", "u32be@4")
}

pub(crate) fn of(length: &str, destination: &str) -> Framing {
    let [length, destination] = [length, destination].map(str::to_owned);
    let length = length.parse().expect("a length");
    Framing::new(length, destination.parse().expect("a field"), 60_000).expect("a framing")
}

/// A mesh that a thread turns until this is dropped.
pub(crate) struct Stage {
    pub(crate) framing: Framing,
    pub(crate) mesh: Arc<Mutex<Mesh>>,
    events: Mutex<Receiver<Event>>,
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Locked until the connection that was made is the one that is accepted.
    listener: Mutex<TcpListener>,
}

impl Stage {
    pub(crate) fn new(engine: EngineName, framing: Framing, bounds: Bounds) -> Self {
        let mesh = Mesh::create_by(EngineChoice::Only(engine), framing, bounds).expect("a mesh");
        assert_eq!(mesh.engine(), engine);
        let mesh = Arc::new(Mutex::new(mesh));
        let turned = Arc::clone(&mesh);
        let watched = mesh.lock().expect("whole").as_fd().try_clone_to_owned();
        let watched = watched.expect("a duplicate");
        let (tell, events) = channel();
        let (over, until) = channel::<()>();
        let thread = thread::spawn(move || {
            while until.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                let happened = turned
                    .lock()
                    .expect("whole")
                    .turn(Duration::ZERO)
                    .expect("a turn");
                for event in happened {
                    let _ = tell.send(event);
                }
                // Others get at the mesh meanwhile.
                let pace = turned.lock().expect("whole").pace().min(MOST_WAIT);
                let pace = Timespec::try_from(pace).expect("a short time");
                let mut watched = [PollFd::new(&watched, PollFlags::IN)];
                let _ = poll(&mut watched, Some(&pace));
                thread::yield_now();
            }
        });
        Self {
            framing,
            mesh,
            events: Mutex::new(events),
            over: Some(over),
            thread: Some(thread),
            listener: Mutex::new(TcpListener::bind("127.0.0.1:0").expect("a listener")),
        }
    }

    /// A client that is a member and has read its welcome.
    pub(crate) fn member(&self) -> Client {
        let (mut client, id) = self.stranger();
        let welcome = client.notice();
        assert_eq!((welcome.code, welcome.receiver), (Code::Welcome, id));
        client
    }

    /// The same, and a duplicate of its socket in the mesh.
    pub(crate) fn member_with_duplicate(&self) -> (Client, OwnedFd) {
        let (mut client, duplicate) = self.connected();
        assert_eq!(client.notice().code, Code::Welcome);
        (client, duplicate)
    }

    /// A client that has not read anything, and its id.
    pub(crate) fn stranger(&self) -> (Client, u64) {
        let (client, _) = self.connected();
        let id = client.id;
        (client, id)
    }

    fn connected(&self) -> (Client, OwnedFd) {
        let listener = self.listener.lock().expect("whole");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let (server, _) = listener.accept().expect("accepted");
        drop(listener);
        let duplicate = OwnedFd::from(server.try_clone().expect("a duplicate"));
        let mut mesh = self.mesh.lock().expect("whole");
        let client = Client {
            id: mesh.join(server).expect("joined"),
            framing: self.framing,
            stream,
        };
        (client, duplicate)
    }

    /// The next event, and it must come.
    pub(crate) fn event(&self) -> Event {
        let events = self.events.lock().expect("whole");
        events.recv_timeout(PATIENCE).expect("an event")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) framing: Framing,
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) fn send(&mut self, destination: u64, body: &[u8]) {
        let frame = self.framing.frame(destination, body).expect("a frame");
        self.stream.write_all(&frame).expect("sent");
    }

    /// The next frame as destination and body.
    pub(crate) fn receive(&mut self) -> (u64, Vec<u8>) {
        let frame = self.frame().expect("a frame");
        let destination = self.framing.destination_of(&frame).expect("a destination");
        let body = self.framing.body_of(&frame).expect("a body");
        (destination, body.to_vec())
    }

    pub(crate) fn notice(&mut self) -> Notice {
        let frame = self.frame().expect("a frame");
        Notice::of_frame(&self.framing, &frame).expect("a notice")
    }

    /// The next frame; `None` at the end of the stream.
    pub(crate) fn frame(&mut self) -> Option<Vec<u8>> {
        let mut frame = vec![0; self.framing.header_bytes() as usize];
        match self.stream.read(&mut frame[..1]).expect("read") {
            0 => return None,
            _ => self.stream.read_exact(&mut frame[1..]).expect("a header"),
        }
        loop {
            let come = frame.len();
            match self.framing.length_of(&frame).expect("a length") {
                Some(whole) => frame.resize(whole, 0),
                // Up to the delimiter.
                None => frame.push(0),
            }
            if frame.len() == come {
                break;
            }
            self.stream.read_exact(&mut frame[come..]).expect("a body");
        }
        Some(frame)
    }
}
