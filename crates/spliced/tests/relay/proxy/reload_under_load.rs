//! A configuration that changes again and again while connections of every engine move bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netlab::{Namespace, Need, Scratch, available};
use rustix::process::Signal;

use super::Proxy;
use crate::load::allow_a_crowd;
use crate::patience::{PATIENCE, until};
use crate::payload::Payload;
use crate::peer::{End, Peer};
use crate::relay::Relay;
use crate::server::free_port;

/// The threads that keep the long conversations going.
const TALKERS: usize = 8;

/// The stack of a conversation's thread in bytes. Its buffer is on the heap.
const STACK_BYTES: usize = 256 << 10;

/// The interval at which a server checks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How much load, and how many changes.
#[derive(Clone, Copy)]
struct Size {
    connections: usize,
    reloads: usize,
}

const SMALL: Size = Size {
    connections: 96,
    reloads: 12,
};

const WHOLE: Size = Size {
    connections: 1000,
    reloads: 50,
};

/// A server with a thread for every conversation.
struct Talking {
    address: String,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u64>>,
}

impl Talking {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let address = listener.local_addr().expect("its address").to_string();
        // The backlog of the standard library is small for a crowd.
        rustix::net::listen(&listener, 4096).expect("it listens");
        listener.set_nonblocking(true).expect("non-blocking");
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut conversations = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(LOOK_EVERY);
                    continue;
                };
                stream.set_nonblocking(false).expect("blocking");
                let peer = Peer::new(stream.into());
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                let conversation = thread.spawn(move || listen_to(&peer)).expect("a thread");
                conversations.push(conversation);
            }
            conversations
                .into_iter()
                .map(|conversation| conversation.join().expect("a conversation went wrong"))
                .collect()
        });
        Self {
            address,
            over,
            thread,
        }
    }

    /// The numbers of the clients that it has talked with.
    fn finish(self) -> Vec<u64> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the server went wrong")
    }
}

/// The server's side: as many bytes back as came, until it is asked for none.
fn listen_to(peer: &Peer) -> u64 {
    let number = peer.read_number();
    let mut position = 0;
    loop {
        let count = peer.read_number();
        if count == 0 {
            peer.expect_end();
            return number;
        }
        peer.expect(Payload::new(number), position, count);
        peer.send(Payload::new(!number), position, count);
        position += count;
    }
}

/// The client's side. Every byte is compared at both ends, by its position in the whole stream.
struct Talk {
    peer: Peer,
    number: u64,
    position: u64,
}

impl Talk {
    fn begin(peer: Peer, number: u64) -> io::Result<Self> {
        peer.try_write_number(number)?;
        Ok(Self {
            peer,
            number,
            position: 0,
        })
    }

    fn say(&mut self, count: u64) {
        self.ask(count);
        self.hear(count);
    }

    fn ask(&self, count: u64) {
        self.peer.write_number(count);
        self.peer
            .send(Payload::new(self.number), self.position, count);
    }

    fn hear(&mut self, count: u64) {
        self.peer
            .expect(Payload::new(!self.number), self.position, count);
        self.position += count;
    }

    fn end(self) {
        self.peer.write_number(0);
        self.peer.end_stream();
        let came = self.peer.read_to_end(Payload::new(0), 0);
        assert_eq!(came, (0, End::OfStream), "conversation {}", self.number);
    }
}

/// Ends the load when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What has been served meanwhile.
#[derive(Debug, Default)]
struct Served {
    numbers: AtomicU64,
    bytes: AtomicU64,
    newcomers: AtomicU64,
    /// Clients of the listener that comes and goes.
    passing: AtomicU64,
    refused: AtomicU64,
    /// Clients of the servers that are killed.
    spared: AtomicU64,
    bereaved: AtomicU64,
}

impl Served {
    fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// The addresses of the servers and listeners.
struct Cast {
    engine: &'static str,
    servers: [String; 3],
    socket: Option<String>,
    passing_port: u16,
}

impl Cast {
    /// The configuration after so many reloads. `mortal` are the servers that may be killed.
    fn configuration(&self, reload: usize, mortal: &[String]) -> String {
        let engine = self.engine;
        let [first, second, third] = &self.servers;
        let weight = 1 + reload % 5;
        let listener = |name: &str, address: &str, backend: &str| {
            format!(
                "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\nengine = \"{engine}\"\n\
                 max_connections = {}\n[[listener.route]]\nbackend = \"{backend}\"\n",
                20_000 + reload
            )
        };
        let mut text = "threads = 2\n".to_owned();
        text += &listener("stays", "127.0.0.1:0", "steady");
        text += &listener("mortal", "127.0.0.2:0", "mortal");
        if let Some(socket) = &self.socket {
            text += &listener("socket", socket, "steady");
        }
        if reload % 2 == 1 {
            let address = format!("127.0.0.3:{}", self.passing_port);
            text += &listener("passing", &address, "steady");
        }
        let mut servers = vec![format!("{{ address = \"{first}\", weight = {weight} }}")];
        // One is there in two of three configurations, another in every second.
        if reload % 3 != 1 {
            servers.push(format!("{{ address = \"{second}\", weight = 2 }}"));
        }
        if reload % 2 == 1 {
            servers.push(format!("\"{third}\""));
        }
        let balance = ["round-robin", "least-connections"][reload / 2 % 2];
        text += &format!(
            "[backend.steady]\nbalance = \"{balance}\"\nservers = [{}]\non_remove = \"drain\"\n\
             drain_timeout = \"1h\"\n",
            servers.join(", ")
        );
        let mortal: Vec<_> = mortal.iter().map(|name| format!("\"{name}\"")).collect();
        text += &format!("[backend.mortal]\nservers = [{}]\n", mortal.join(", "));
        text
    }
}

/// New clients, one after the other, for as long as the load lasts. None of them may fail.
fn newcomers(address: &str, served: &Served, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let number = served.number();
        let peer = Peer::connect(address);
        let mut talk = Talk::begin(peer, number).expect("a conversation");
        talk.say(1 + number * 7919 % 30_000);
        // Some have much to say.
        if number.is_multiple_of(16) {
            (0..20).for_each(|_| talk.say(50_000));
        }
        Served::add(&served.bytes, talk.position);
        talk.end();
        Served::add(&served.newcomers, 1);
    }
}

/// Clients of a listener that comes and goes. Whoever it has accepted is served.
fn passing(address: &str, served: &Served, over: &AtomicBool) -> Vec<u64> {
    let mut lost = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let Ok(peer) = Peer::try_connect(address) else {
            Served::add(&served.refused, 1);
            thread::sleep(LOOK_EVERY);
            continue;
        };
        let number = served.number();
        // The handshake may have ended between the last accept and the end of the socket, when nobody
        // has accepted the connection. Nothing ever comes back from it then.
        let begun = Talk::begin(peer, number).and_then(|talk| {
            talk.peer.try_write_number(1000)?;
            talk.peer.try_send(Payload::new(number), 0, 1000)?;
            let readable = talk.peer.is_readable_within(PATIENCE);
            assert!(readable, "conversation {number}: no answer");
            let mut first = [0];
            rustix::net::recv(&talk.peer, &mut first, rustix::net::RecvFlags::PEEK)?;
            Ok(talk)
        });
        let Ok(mut talk) = begun else {
            lost.push(number);
            continue;
        };
        talk.peer.expect(Payload::new(!number), 0, 1000);
        talk.position = 1000;
        talk.say(5000);
        talk.end();
        Served::add(&served.passing, 1);
    }
    lost
}

/// Clients of servers that are killed: they may be cut, but get no wrong byte, and are never refused.
fn mortals(address: &str, served: &Served, over: &AtomicBool) {
    const BYTES: usize = 100_000;
    let mut salt = 0;
    while !over.load(Ordering::Relaxed) {
        salt += 1;
        let payload = Payload::new(salt);
        let mut stream = TcpStream::connect(address).expect("the listener stays");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut writer = stream.try_clone().expect("a clone");
        let mut came = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let sent = writer.write_all(&payload.bytes(BYTES));
                let _ = sent.and_then(|()| writer.shutdown(Shutdown::Write));
            });
            let _ = stream.read_to_end(&mut came);
        });
        payload.check(0, &came);
        let count = match came.len() {
            BYTES => &served.spared,
            _ => &served.bereaved,
        };
        Served::add(count, 1);
    }
}

fn reload(proxy: &Proxy, configuration: &str) {
    let output = proxy.reload(configuration);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
}

fn under_load(engine: &'static str, size: Size) {
    allow_a_crowd();
    let directory = Scratch::new("reload").expect("a directory");
    let servers: Vec<_> = (0..3).map(|_| Talking::new()).collect();
    let mut mortal: Vec<_> = (0..2).map(|_| Relay::echo("127.0.0.1:0", &[])).collect();
    let names = |mortal: &[Relay]| -> Vec<String> {
        mortal.iter().map(|server| server.address.clone()).collect()
    };
    let takes_unix = !["sockmap", "segment"].contains(&engine);
    let cast = Cast {
        engine,
        servers: [0, 1, 2].map(|index| servers[index].address.clone()),
        socket: takes_unix.then(|| socket_in(directory.path())),
        passing_port: free_port(),
    };
    let passing_address = format!("127.0.0.3:{}", cast.passing_port);
    let mut proxy = Proxy::run(&cast.configuration(0, &names(&mortal)));
    // Threads that start with the first change would look like a leak.
    reload(&proxy, &cast.configuration(1, &names(&mortal)));
    reload(&proxy, &cast.configuration(0, &names(&mortal)));
    let [stays, at_mortal] = ["stays", "mortal"].map(|name| proxy.address(name));
    let before = proxy.relay.descriptors();

    let served = Served::default();
    let over = AtomicBool::new(false);
    let all_there = Barrier::new(TALKERS + 1);
    let started = Instant::now();
    let lost = thread::scope(|scope| {
        let ended = Over(&over);
        for _ in 0..TALKERS {
            scope.spawn(|| {
                let mut talks: Vec<_> = (0..size.connections / TALKERS)
                    .map(|_| {
                        let peer = Peer::connect(&stays);
                        Talk::begin(peer, served.number()).expect("a conversation")
                    })
                    .collect();
                talks.iter_mut().for_each(|talk| talk.say(1000));
                all_there.wait();
                while !over.load(Ordering::Relaxed) {
                    // All of them have bytes on their way at once.
                    let count = |talk: &Talk| 1 + talk.number * 4099 % 60_000;
                    talks.iter().for_each(|talk| talk.ask(count(talk)));
                    for talk in &mut talks {
                        talk.hear(count(talk));
                    }
                }
                for talk in talks {
                    Served::add(&served.bytes, talk.position);
                    talk.end();
                }
            });
        }
        all_there.wait();
        for _ in 0..2 {
            scope.spawn(|| newcomers(&stays, &served, &over));
        }
        if let Some(socket) = &cast.socket {
            scope.spawn(|| newcomers(socket, &served, &over));
        }
        scope.spawn(|| mortals(&at_mortal, &served, &over));
        let passing = scope.spawn(|| passing(&passing_address, &served, &over));
        for reload_number in 1..=size.reloads {
            if reload_number % 4 == 0 {
                mortal[reload_number / 4 % 2].signal(Signal::KILL);
                mortal[reload_number / 4 % 2] = Relay::echo("127.0.0.1:0", &[]);
            }
            let so_far = served.newcomers.load(Ordering::Relaxed);
            reload(&proxy, &cast.configuration(reload_number, &names(&mortal)));
            until("new clients have come", || {
                served.newcomers.load(Ordering::Relaxed) > so_far
            });
        }
        drop(ended);
        passing.join().expect("the passing went wrong")
    });
    let took = started.elapsed();
    let mut numbers: Vec<_> = servers.into_iter().flat_map(Talking::finish).collect();
    numbers.sort_unstable();
    let expected: Vec<_> = (0..served.numbers.load(Ordering::Relaxed))
        .filter(|number| !lost.contains(number))
        .collect();
    assert_eq!(numbers, expected, "everybody is served once");
    eprintln!(
        "{engine}: {took:?}, {served:?}, {} not accepted",
        lost.len()
    );
    assert!(served.passing.load(Ordering::Relaxed) > 0, "{served:?}");
    let listener = proxy.of("listeners", "stays");
    for count in [
        "without_route",
        "without_server",
        "queue_full",
        "queue_timeout",
    ] {
        assert_eq!(listener["counts"][count], 0, "{count}");
    }
    assert_eq!(listener["counts"]["joined"], listener["counts"]["accepted"]);
    reload(&proxy, &cast.configuration(0, &names(&mortal)));
    proxy.relay.wait_descriptors(before);
    proxy.relay.terminate();
}

fn socket_in(directory: &Path) -> String {
    format!("unix:{}/socket", directory.display())
}

/// In a namespace of its own, so that what the kernel engines attach to devices concerns no other test.
fn apart(engine: &'static str, size: Size) {
    let needs_bpf = ["sockmap", "segment"].contains(&engine);
    if needs_bpf && !(available(Need::Bpf) && available(Need::Netns)) {
        return;
    }
    if !available(Need::Netns) {
        return under_load(engine, size);
    }
    let namespace = Namespace::new("reload").expect("a namespace");
    namespace
        .enter(|| under_load(engine, size))
        .expect("entered");
}

macro_rules! on_every_engine {
    ($($engine:ident)*) => {$(
        mod $engine {
            #[test]
            fn reloads_disturb_nobody() {
                super::apart(stringify!($engine), super::SMALL);
            }

            #[test]
            #[ignore = "soak: 1000 connections and 50 reloads, a minute"]
            fn fifty_reloads_disturb_none_of_a_thousand() {
                super::apart(stringify!($engine), super::WHOLE);
            }
        }
    )*};
}

on_every_engine!(auto copy pipe uring sockmap segment);
