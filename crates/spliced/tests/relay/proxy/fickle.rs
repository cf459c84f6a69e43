//! A server whose behaviour a test changes while it runs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt;

/// It answers `good` with `ok`, echoes what begins with `stay`, and ends in order after `bye`. After `half` it
/// answers, and resets. It resets whoever sends anything else, as servers do that close without having read
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
    pub(super) resets_all: AtomicBool,
    /// It resets every connection as soon as it has accepted it.
    pub(super) resets_at_once: AtomicBool,
    /// It resets every connection that has sent something.
    pub(super) resets_bytes: AtomicBool,
    /// How many connections it has accepted.
    accepted: AtomicUsize,
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

    pub(super) fn accepted(&self) -> usize {
        self.moods.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn asked(&self) -> usize {
        self.moods.asked.load(Ordering::Relaxed)
    }

    pub(super) fn silent(&self) -> usize {
        self.moods.silent.load(Ordering::Relaxed)
    }
}

impl Moods {
    pub(super) fn serve(&self, mut client: TcpStream) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        if self.resets_at_once.load(Ordering::Relaxed) {
            return reset(&client);
        }
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
            b"bye" => "",
            b"half" => {
                let _ = client.write_all(b"ok");
                // The client has it, and the reset does not overtake it.
                let _ = client.read(&mut bytes);
                return reset(&client);
            }
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
pub(super) fn reset(stream: &TcpStream) {
    sockopt::set_socket_linger(stream, Some(Duration::ZERO)).expect("SO_LINGER");
}
