//! A client of a mesh, and what it says.

use std::io::{Read, Write};
use std::net::TcpStream;

use netlab::PATIENCE;
use splice::mesh::{Code, Framing, Notice};

use crate::relay::{Relay, command};

pub(super) struct Client {
    pub(super) stream: TcpStream,
    pub(super) framing: Framing,
    pub(super) id: u64,
}

impl Client {
    /// One that is a member.
    pub(super) fn new(mesh: &Relay, framing: Framing) -> Self {
        let mut client = Self::stranger(mesh, framing);
        client.welcome();
        client
    }

    /// One that has said nothing, and been told nothing.
    pub(super) fn stranger(mesh: &Relay, framing: Framing) -> Self {
        let stream = TcpStream::connect(&mesh.address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        Self {
            stream,
            framing,
            id: 0,
        }
    }

    /// One that registers under a name.
    pub(super) fn named(mesh: &Relay, name: &str) -> Self {
        let mut client = Self::stranger(mesh, usual());
        client.register(0, name.as_bytes(), b"");
        client.welcome();
        client
    }

    pub(super) fn register(&mut self, number: u64, name: &[u8], token: &[u8]) {
        self.send(0, &registration(number, name, token));
    }

    pub(super) fn welcome(&mut self) {
        let welcome = self.notice();
        assert_eq!(welcome.code, Code::Welcome, "{welcome:?}");
        self.id = welcome.receiver;
    }

    /// Sends a request with a tag.
    pub(super) fn ask(&mut self, code: u32, tag: u32, rest: &[u8]) {
        let body = [&code.to_be_bytes()[..], &tag.to_be_bytes(), rest].concat();
        self.send(0, &body);
    }

    pub(super) fn send(&mut self, destination: u64, body: &[u8]) {
        let frame = self.framing.frame(destination, body).expect("a frame");
        self.stream.write_all(&frame).expect("sent");
    }

    pub(super) fn frame(&mut self) -> Vec<u8> {
        let mut frame = vec![0; self.framing.header_bytes() as usize];
        self.stream.read_exact(&mut frame).expect("a header");
        let whole = loop {
            match self.framing.length_of(&frame).expect("a length") {
                Some(whole) => break whole,
                // Its delimiter has not come.
                None => {
                    frame.push(0);
                    let last = frame.len() - 1;
                    self.stream.read_exact(&mut frame[last..]).expect("a byte");
                }
            }
        };
        let header = frame.len();
        frame.resize(whole, 0);
        self.stream
            .read_exact(&mut frame[header..])
            .expect("a body");
        frame
    }

    pub(super) fn notice(&mut self) -> Notice {
        let frame = self.frame();
        Notice::of_frame(&self.framing, &frame).expect("a notice")
    }

    /// The code, the number and the destination of the next notice.
    pub(super) fn told(&mut self) -> (Code, u32, u64) {
        let notice = self.notice();
        assert_eq!(notice.receiver, self.id);
        (notice.code, notice.frames, notice.destination)
    }

    /// Waits for the end of the stream.
    pub(super) fn is_ended(&mut self) {
        assert_eq!(self.stream.read(&mut [0]).expect("the end"), 0);
    }
}

pub(super) fn framing(length: &str, destination: &str) -> Framing {
    let length = length.parse().expect("a length");
    Framing::new(length, destination.parse().expect("a field"), 60_000).expect("a framing")
}

/// The framing of most tests.
pub(super) fn usual() -> Framing {
    framing("u32be@0", "u32be@4")
}

/// A mesh with these frames.
pub(super) fn mesh(engine: &str, options: &[&str]) -> Relay {
    let always = [
        "mesh",
        "127.0.0.1:0",
        "--frame",
        "u32be@0",
        "--engine",
        engine,
    ];
    let arguments = [&always, options].concat();
    Relay::spawn(&mut command(&arguments))
}

/// The body of a registration.
pub(super) fn registration(number: u64, name: &[u8], token: &[u8]) -> Vec<u8> {
    let bytes = u8::try_from(name.len()).expect("a short name");
    [
        &1u32.to_be_bytes()[..],
        &number.to_be_bytes(),
        &[bytes],
        name,
        token,
    ]
    .concat()
}
