//! What counts for and against a server: the rows of the table in docs/proxy.md.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::Proxy;
use crate::patience::{PATIENCE, until};

/// A server whose behaviour the test changes while it runs. It answers `good` with `ok`, echoes what begins
/// with `stay`, and resets whoever sends anything else, as servers do that close without having read
/// everything.
pub(super) struct Fickle {
    address: String,
    moods: Arc<Moods>,
}

#[derive(Default)]
pub(super) struct Moods {
    /// Checks for `/health` are answered with status 503.
    pub(super) sick: AtomicBool,
    /// It resets every connection soon after it has accepted it, but not before the client is joined.
    resets_all: AtomicBool,
    /// It resets every connection that has sent something.
    resets_bytes: AtomicBool,
    /// How many connections have sent something.
    asked: AtomicUsize,
    /// How many connections have ended without having sent anything.
    silent: AtomicUsize,
}

impl Fickle {
    pub(super) fn new() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("it listens"))
    }

    pub(super) fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("its address").to_string();
        let moods = Arc::<Moods>::default();
        let shared = Arc::clone(&moods);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let moods = Arc::clone(&shared);
                thread::spawn(move || moods.serve(client));
            }
        });
        Self { address, moods }
    }

    /// Its address as a configuration has it.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.address)
    }

    pub(super) fn set(&self, mood: impl Fn(&Moods) -> &AtomicBool) {
        mood(&self.moods).store(true, Ordering::Relaxed);
    }

    pub(super) fn unset(&self, mood: impl Fn(&Moods) -> &AtomicBool) {
        mood(&self.moods).store(false, Ordering::Relaxed);
    }

    pub(super) fn asked(&self) -> usize {
        self.moods.asked.load(Ordering::Relaxed)
    }

    fn silent(&self) -> usize {
        self.moods.silent.load(Ordering::Relaxed)
    }
}

impl Moods {
    fn serve(&self, mut client: TcpStream) {
        if self.resets_all.load(Ordering::Relaxed) {
            let soon = Some(Duration::from_millis(20));
            client.set_read_timeout(soon).expect("a timeout");
            let _ = client.peek(&mut [0]);
            return reset(&client);
        }
        let mut bytes = [0; 1024];
        let Ok(count @ 1..) = client.read(&mut bytes) else {
            self.silent.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.asked.fetch_add(1, Ordering::Relaxed);
        let answer = match &bytes[..count] {
            _ if self.resets_bytes.load(Ordering::Relaxed) => return reset(&client),
            b"good" => "ok",
            first if first.starts_with(b"stay") => return echo(client, first),
            request if request.starts_with(b"GET /health ") => {
                match self.sick.load(Ordering::Relaxed) {
                    true => "HTTP/1.1 503 Sick\r\nContent-Length: 0\r\n\r\n",
                    false => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                }
            }
            _ => return reset(&client),
        };
        let _ = client.write_all(answer.as_bytes());
    }
}

fn echo(mut client: TcpStream, first: &[u8]) {
    let _ = client.write_all(first);
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        let _ = client.write_all(&bytes[..count]);
    }
}

/// The close that follows is a reset.
fn reset(stream: &TcpStream) {
    sockopt::set_socket_linger(stream, Some(Duration::ZERO)).expect("SO_LINGER");
}

/// A listener `l` before `servers`.
pub(super) fn before(servers: &[&Fickle], more: &str) -> Proxy {
    let addresses: Vec<_> = servers.iter().map(|server| server.quoted()).collect();
    Proxy::run(&configuration(&addresses.join(", "), more))
}

pub(super) fn configuration(servers: &str, more: &str) -> String {
    format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [{servers}]\n{more}\n"
    )
}

/// A connection of the client 127.0.0.`client` that has sent `text`.
fn send(address: &str, client: u8, text: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, client), 0));
    socket.bind(&from.into()).expect("bound");
    let to: SocketAddr = address.parse().expect("an address");
    socket.connect(&to.into()).expect("connected");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // It may have been reset already.
    let _ = stream.write_all(text.as_bytes());
    stream
}

/// Whether the client 127.0.0.`client` is served, after its connection has ended.
fn is_served(address: &str, client: u8, text: &str) -> bool {
    let mut answer = Vec::new();
    let _ = send(address, client, text).read_to_end(&mut answer);
    answer == b"ok"
}

pub(super) fn server_of(proxy: &Proxy, index: usize) -> Value {
    proxy.of("backends", "b")["servers"][index].take()
}

pub(super) fn is_up(proxy: &Proxy, index: usize) -> bool {
    server_of(proxy, index)["up"] == true
}

/// Connections end, and are counted, some time after their clients.
fn wait_counted(proxy: &Proxy, index: usize, count: &str, least: u64) {
    until(&format!("{least} {count}"), || {
        server_of(proxy, index)[count].as_u64() >= Some(least)
    });
}

/// Clients connect between any two checks.
#[test]
fn failed_checks_take_a_server_out_while_clients_come() {
    let (sick, well) = (Fickle::new(), Fickle::new());
    let proxy = before(
        &[&sick, &well],
        "health = { http = \"/health\", every = \"300ms\", fall = 3 }",
    );
    let address = proxy.address("l");
    sick.set(|it| &it.sick);
    until("it is down", || {
        for client in 2..6 {
            assert!(is_served(&address, client, "good"));
        }
        !is_up(&proxy, 0)
    });
    // The checks bring it back, and nothing else does.
    for client in 2..6 {
        assert!(is_served(&address, client, "good"));
    }
    assert!(!is_up(&proxy, 0) && is_up(&proxy, 1));
    sick.unset(|it| &it.sick);
    until("it is up", || is_up(&proxy, 0));
}

/// Each connection is made, and clears nothing of what follows it.
#[test]
fn a_server_that_resets_everything_is_taken_out_with_and_without_checks() {
    for health in ["", "health = { tcp = true }"] {
        let (bad, good) = (Fickle::new(), Fickle::new());
        let proxy = before(&[&bad, &good], health);
        let address = proxy.address("l");
        bad.set(|it| &it.resets_all);
        until("it is out", || {
            is_served(&address, 2, "good");
            !is_up(&proxy, 0)
        });
        for _ in 0..4 {
            assert!(is_served(&address, 2, "good"), "{health}");
        }
        assert!(is_up(&proxy, 1));
    }
}

/// The server refuses what the client sends, and not the client.
#[test]
fn one_client_takes_no_server_out() {
    for health in ["", "health = { tcp = true }"] {
        let servers = [Fickle::new(), Fickle::new()];
        let proxy = before(&[&servers[0], &servers[1]], health);
        let address = proxy.address("l");
        for _ in 0..4 {
            // Each server resets enough in a row to be suspect.
            for _ in 0..6 {
                assert!(!is_served(&address, 2, "evil"));
            }
            for _ in 0..2 {
                assert!(is_served(&address, 2, "good"));
            }
        }
        for index in [0, 1] {
            wait_counted(&proxy, index, "early_resets", 10);
        }
        // The relay has found out that the servers do not reset connections by themselves.
        until("a probe has ended", || {
            servers.iter().all(|server| server.silent() > 0)
        });
        assert!([0, 1].iter().all(|index| is_up(&proxy, *index)), "{health}");
        assert_eq!(proxy.relay.lines_logged("is taken out"), 0);
    }
}

#[test]
fn no_client_takes_the_last_server_out() {
    let server = Fickle::new();
    let proxy = before(&[&server], "health = { tcp = true }");
    let address = proxy.address("l");
    for client in 2..20 {
        assert!(!is_served(&address, client, "evil"));
    }
    wait_counted(&proxy, 0, "early_resets", 18);
    assert!(is_up(&proxy, 0) && is_served(&address, 30, "good"));
    // Nor do resets that no client causes.
    server.set(|it| &it.resets_all);
    for client in 2..20 {
        assert!(!is_served(&address, client, "good"));
    }
    assert!(is_up(&proxy, 0));
}

#[test]
fn several_clients_that_others_answer_take_a_server_out() {
    let (bad, good) = (Fickle::new(), Fickle::new());
    let proxy = before(&[&bad, &good], "");
    let address = proxy.address("l");
    bad.set(|it| &it.resets_bytes);
    until("it is out", || {
        for client in 2..5 {
            is_served(&address, client, "good");
        }
        server_of(&proxy, 0)["state"] == "out"
    });
    assert!(server_of(&proxy, 0)["out_seconds"].as_u64() > Some(0));
    proxy
        .relay
        .wait_logged("is taken out for 10s: it resets connections of 3 clients");
    for client in 2..8 {
        assert!(is_served(&address, client, "good"));
    }
    // The last one stays, whatever it does.
    good.set(|it| &it.resets_bytes);
    for client in (2..8).chain(2..8) {
        assert!(!is_served(&address, client, "good"));
    }
    wait_counted(&proxy, 1, "early_resets", 12);
    assert!(is_up(&proxy, 1));
}

/// Clients that no server answers are as many as they like.
#[test]
fn clients_that_nobody_answers_take_no_server_out() {
    let servers = [Fickle::new(), Fickle::new(), Fickle::new()];
    let proxy = before(&[&servers[0], &servers[1], &servers[2]], "");
    let address = proxy.address("l");
    for client in 2..102 {
        assert!(!is_served(&address, client, "evil"));
    }
    for index in 0..3 {
        wait_counted(&proxy, index, "early_resets", 33);
        assert!(is_up(&proxy, index));
    }
    assert_eq!(proxy.relay.lines_logged("is taken out"), 0);
}

#[test]
fn half_of_the_servers_stay() {
    let servers: Vec<_> = (0..4).map(|_| Fickle::new()).collect();
    let all: Vec<_> = servers.iter().collect();
    let proxy = before(&all, "");
    let address = proxy.address("l");
    for server in &servers[..3] {
        server.set(|it| &it.resets_all);
    }
    let states = || -> Vec<_> { (0..4).map(|index| is_up(&proxy, index)).collect() };
    until("two are out", || {
        is_served(&address, 2, "good");
        states().iter().filter(|up| !**up).count() == 2
    });
    let before = states();
    let count = || {
        let counts = (0..3).map(|index| server_of(&proxy, index)["early_resets"].as_u64());
        counts.map(|count| count.expect("a count")).sum::<u64>()
    };
    // The third one goes on to reset, and stays.
    let reset = count();
    until("it has reset more", || {
        is_served(&address, 2, "good");
        count() > reset + 10
    });
    assert_eq!(states(), before);
    assert!(is_up(&proxy, 3));
}
