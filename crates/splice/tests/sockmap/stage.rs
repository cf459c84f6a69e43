//! Two peers, the pair between them, and what they send.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::thread;
use std::time::Duration;

use netlab::{Lab, Namespace, PATIENCE, connection, uninterrupted, until};
use splice::{Endpoint, EngineChoice, EngineName, Handle, Options, Outcome, Splicer};

use crate::support::payload::Payload;
use crate::support::random::Random;

pub(crate) const SOCKMAP: EngineChoice = EngineChoice::Only(EngineName::Sockmap);

pub(crate) fn missing() -> bool {
    let why = EngineName::Sockmap.probe().err();
    !netlab::present("sockmap", why.map(|error| error.to_string()))
}

pub(crate) struct Joined {
    pub(crate) a: TcpStream,
    pub(crate) b: TcpStream,
    pub(crate) handle: Handle,
}

pub(crate) fn join(splicer: &Splicer, options: &Options) -> Joined {
    let (a, near) = connection();
    let (b, far) = connection();
    let handle = join_ends(splicer, [near, far], options);
    Joined { a, b, handle }
}

/// The same between a client and a server in other namespaces.
pub(crate) fn join_across(lab: &Lab, splicer: &Splicer, options: &Options) -> Joined {
    let [a, near] = connected(lab.client(), lab.relay(), Lab::RELAY_V4);
    let [far, b] = connected(lab.relay(), lab.server(), Lab::SERVER_V4);
    let handle = join_ends(splicer, [near, far], options);
    Joined { a, b, handle }
}

pub(crate) fn join_ends(splicer: &Splicer, ends: [TcpStream; 2], options: &Options) -> Handle {
    let [near, far] = ends.map(|end| Endpoint::new(end).unwrap());
    splicer.join(near, far, options).unwrap()
}

pub(crate) fn options(engine: EngineChoice) -> Options {
    Options {
        engine,
        ..Options::default()
    }
}

/// Sends bytes in both directions until the kernel has moved one each way. Returns how many.
pub(crate) fn until_redirected(Joined { a, b, handle }: &mut Joined) -> u64 {
    let mut count = 0;
    let mut byte = [0; 1];
    let start = handle.redirected();
    until("a byte is redirected both ways", || {
        a.write_all(&[1]).unwrap();
        b.read_exact(&mut byte).unwrap();
        b.write_all(&[1]).unwrap();
        a.read_exact(&mut byte).unwrap();
        count += 1;
        let now = handle.redirected();
        now.a_to_b > start.a_to_b && now.b_to_a > start.b_to_a
    });
    count
}

pub(crate) fn outcome(handle: &Handle) -> Outcome {
    handle
        .wait_timeout(PATIENCE)
        .unwrap_or_else(|| panic!("the pair has not ended: {handle:?}"))
}

/// Sends the payload in random pieces, then EOF.
pub(crate) fn send_all(mut stream: &TcpStream, bytes: u64, salt: u64) {
    let payload = Payload::new(salt);
    let mut random = Random::of_run(salt);
    let mut sent = 0;
    while sent < bytes {
        let size = (1 + random.below(64 << 10)).min(bytes - sent) as usize;
        let piece = payload.piece(sent, size);
        stream.write_all(piece).unwrap();
        sent += piece.len() as u64;
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Reads to EOF, with random pauses, and checks every byte. Returns how many came.
pub(crate) fn receive_all(mut stream: &TcpStream, salt: u64, pauses: bool) -> u64 {
    let payload = Payload::new(salt);
    let mut random = Random::of_run(salt);
    let mut count = 0;
    let mut block = vec![0u8; 256 << 10];
    loop {
        if pauses && random.below(16) == 0 {
            thread::sleep(Duration::from_millis(random.below(30)));
        }
        let size = 1 + random.below(block.len() as u64) as usize;
        match uninterrupted(|| stream.read(&mut block[..size])).unwrap() {
            0 => return count,
            read => {
                payload.check(count, &block[..read]);
                count += read as u64;
            }
        }
    }
}

/// Connections between the two namespaces, both ends.
pub(crate) fn connected(from: &Namespace, to: &Namespace, address: Ipv4Addr) -> [TcpStream; 2] {
    let listener = to.enter(|| TcpListener::bind((address, 0))).unwrap();
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    let near = from.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    let far = listener.accept().unwrap().0;
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    [near, far]
}

/// Sends and checks a part of a payload at full speed.
pub(crate) fn send_through(a: &TcpStream, b: &TcpStream, range: Range<u64>) {
    /// Per write and read.
    const BLOCK_BYTES: usize = 256 << 10;
    let payload = Payload::new(5);
    let at_most = |position: u64| (range.end - position).min(BLOCK_BYTES as u64) as usize;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = range.start;
            while sent < range.end {
                let piece = payload.piece(sent, at_most(sent));
                sent += uninterrupted(|| (&mut &*a).write(piece)).unwrap() as u64;
            }
        });
        let mut block = vec![0; BLOCK_BYTES];
        let mut position = range.start;
        while position < range.end {
            let at_most = at_most(position);
            let count = uninterrupted(|| (&mut &*b).read(&mut block[..at_most])).unwrap();
            assert!(count > 0, "an end of stream");
            payload.check(position, &block[..count]);
            position += count as u64;
        }
    });
}
