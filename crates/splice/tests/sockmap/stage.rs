//! Two peers, the pair between them, and what they send.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use splice::{Endpoint, EngineChoice, EngineName, Handle, Options, Outcome, Splicer};

/// After this a test fails. It is never the time that a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const SOCKMAP: EngineChoice = EngineChoice::Only(EngineName::Sockmap);

pub(crate) fn missing() -> bool {
    let why = EngineName::Sockmap.probe().err();
    !netlab::present("sockmap", why.map(|error| error.to_string()))
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// An endless stream of which no part looks like another; it repeats after a prime, so that a
/// piece lost or doubled by any buffer's size shifts what follows.
#[derive(Clone, Copy)]
pub(crate) struct Payload(usize);

impl Payload {
    pub(crate) const PERIOD_BYTES: usize = 4_194_319;

    pub(crate) fn new(seed: u64) -> Self {
        Self(Random(seed).below(Self::PERIOD_BYTES as u64) as usize)
    }

    pub(crate) fn piece(self, position: u64, at_most: usize) -> &'static [u8] {
        static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
        let block = BLOCK.get_or_init(|| {
            let mut random = Random(7);
            (0..Self::PERIOD_BYTES / 8 + 1)
                .flat_map(|_| random.next().to_ne_bytes())
                .take(Self::PERIOD_BYTES)
                .collect()
        });
        let from = (self.0 as u64 + position) as usize % Self::PERIOD_BYTES;
        &block[from..(from + at_most).min(Self::PERIOD_BYTES)]
    }

    pub(crate) fn check(self, mut position: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let right = self.piece(position, bytes.len());
            assert!(
                bytes[..right.len()] == *right,
                "wrong bytes behind {position}"
            );
            position += right.len() as u64;
            bytes = &bytes[right.len()..];
        }
    }
}

pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nodelay(true).unwrap();
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    near.set_write_timeout(Some(PATIENCE)).unwrap();
    (near, far)
}

pub(crate) struct Joined {
    pub(crate) a: TcpStream,
    pub(crate) b: TcpStream,
    pub(crate) handle: Handle,
}

pub(crate) fn join(splicer: &Splicer, options: &Options) -> Joined {
    let (a, near) = connection();
    let (b, far) = connection();
    let ends = [near, far].map(|end| Endpoint::new(end).unwrap());
    let [near, far] = ends;
    let handle = splicer.join(near, far, options).unwrap();
    Joined { a, b, handle }
}

pub(crate) fn options(engine: EngineChoice) -> Options {
    Options {
        engine,
        ..Options::default()
    }
}

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends bytes there and back until the kernel has moved one each way; tells how many.
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

/// Sends the payload in random pieces, then the end of the stream.
pub(crate) fn send_all(mut stream: &TcpStream, bytes: u64, seed: u64) {
    let payload = Payload::new(seed);
    let mut random = Random(seed);
    let mut sent = 0;
    while sent < bytes {
        let size = (1 + random.below(64 << 10)).min(bytes - sent) as usize;
        let piece = payload.piece(sent, size);
        stream.write_all(piece).unwrap();
        sent += piece.len() as u64;
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Reads to the end, with random pauses, and checks every byte; returns how many came.
pub(crate) fn receive_all(mut stream: &TcpStream, seed: u64, pauses: bool) -> u64 {
    let payload = Payload::new(seed);
    let mut random = Random(seed);
    let mut count = 0;
    let mut block = vec![0u8; 256 << 10];
    loop {
        if pauses && random.below(16) == 0 {
            thread::sleep(Duration::from_millis(random.below(30)));
        }
        let size = 1 + random.below(block.len() as u64) as usize;
        match stream.read(&mut block[..size]).unwrap() {
            0 => return count,
            read => {
                payload.check(count, &block[..read]);
                count += read as u64;
            }
        }
    }
}
