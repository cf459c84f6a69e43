//! The proxies in `examples/`: each is built as its user would build it, and has to carry connections.

mod staged;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use netlab::{PATIENCE, Process};
use rustix::process::Signal;

use crate::staged::{ROOT, Staged, is_there, said};

const CONNECTIONS: u8 = 9;
const PAYLOAD_BYTES: usize = 1 << 20;

fn example(path: &str) -> PathBuf {
    Path::new(ROOT).join("examples").join(path)
}

/// Builds an example in C, in a directory of the test.
fn built_in_c(staged: &Staged, name: &str) -> PathBuf {
    let makefile = example("c/Makefile");
    let mut make = Command::new("make");
    make.current_dir(staged.path("."))
        .arg(format!("VPATH={}", example("c").display()))
        .arg("-f")
        .arg(makefile)
        .args(["-s", "CFLAGS=-O2 -Werror", name]);
    said(staged.with_pkg_config(&mut make));
    staged.path(name)
}

#[test]
fn in_c_with_poll_and_the_socket_option() {
    let Some(staged) = Staged::new() else {
        return;
    };
    let program = built_in_c(&staged, "proxy_poll");
    let source = std::fs::read_to_string(example("c/proxy_poll.c")).expect("its source");
    assert!(source.lines().count() <= 100);
    for personality in ["freebsd", "openbsd"] {
        let mut proxy = preloaded(&staged);
        proxy.arg(format!("SO_SPLICE_PERSONALITY={personality}"));
        carries(proxy.arg(&program));
    }
}

#[test]
fn in_c_with_epoll_and_the_library() {
    let Some(staged) = Staged::new() else {
        return;
    };
    let program = built_in_c(&staged, "proxy_epoll");
    carries(linked(&staged).arg(program));
}

#[test]
fn in_go() {
    let Some(staged) = Staged::new() else {
        return;
    };
    if !is_there("go", "golang-go") {
        return;
    }
    let program = staged.path("proxy");
    let mut go = Command::new("go");
    go.args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(example("go"))
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("GOPROXY", "off")
        .env("GOTOOLCHAIN", "local")
        .env("GOPATH", staged.path("go"))
        // Kept for the next run: it has the compiled standard library.
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"))
        // The cache takes a program for the same whatever pkg-config has said, but not if this differs.
        .env("CGO_LDFLAGS", format!("-L{}", staged.lib().display()))
        .env_remove("GOROOT");
    said(staged.with_pkg_config(&mut go));
    carries(linked(&staged).arg(program));
}

#[test]
fn in_python() {
    let Some(staged) = Staged::new() else {
        return;
    };
    if is_there("python3", "python3") {
        carries(
            linked(&staged)
                .arg("python3")
                .arg(example("python/proxy.py")),
        );
    }
}

#[test]
fn in_perl() {
    let Some(staged) = Staged::new() else {
        return;
    };
    if !is_there("perl", "perl") {
        return;
    }
    for personality in ["freebsd", "openbsd"] {
        let mut proxy = preloaded(&staged);
        proxy.arg(format!("SO_SPLICE_PERSONALITY={personality}"));
        carries(proxy.arg("perl").arg(example("perl/proxy.pl")));
    }
}

/// A program that finds `libsplice.so.1`.
fn linked(staged: &Staged) -> Command {
    let mut command = Process::command("env");
    command.arg(format!("LD_LIBRARY_PATH={}", staged.lib().display()));
    command
}

/// A program with `SO_SPLICE`.
fn preloaded(staged: &Staged) -> Command {
    let mut command = Process::command("env");
    let library = staged.lib().join("libso_splice.so");
    command.arg(format!("LD_PRELOAD={}", library.display()));
    command
}

/// When a side sends, and ends its stream.
#[derive(Clone, Copy)]
enum Turn {
    /// The other side sends into a half-closed connection.
    First,
    Last,
    WithTheOther,
}

/// What goes through one connection.
#[derive(Clone, Copy)]
struct Load {
    number: u8,
}

impl Load {
    /// The first byte tells the server which connection it is.
    fn up(self) -> Vec<u8> {
        let mut bytes = random_bytes(
            1 + u64::from(self.number),
            PAYLOAD_BYTES + self.difference(),
        );
        bytes[0] = self.number;
        bytes
    }

    fn down(self) -> Vec<u8> {
        random_bytes(
            101 + u64::from(self.number),
            PAYLOAD_BYTES - self.difference(),
        )
    }

    /// Gives each direction of each connection another count.
    fn difference(self) -> usize {
        1 + usize::from(self.number)
    }

    /// The turns of the client and of the server.
    fn turns(self) -> [Turn; 2] {
        match self.number % 3 {
            0 => [Turn::First, Turn::Last],
            1 => [Turn::Last, Turn::First],
            _ => [Turn::WithTheOther, Turn::WithTheOther],
        }
    }
}

/// Starts a proxy and checks every byte that passes, what it counts, and that it ends.
fn carries(command: &mut Command) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let target = listener.local_addr().expect("its address");
    command
        .args(["0", "127.0.0.1", &target.port().to_string()])
        .stdout(Stdio::piped());
    let mut proxy = Process::spawn(command).expect("the proxy");
    let lines = lines(&mut proxy);
    let next = || lines.recv_timeout(PATIENCE).expect("a line of the proxy");
    let port = next();
    let port = port.strip_prefix("listening on ").expect("the port");
    let port: u16 = port.parse().expect("a number");

    thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            scope.spawn(move || client(port, Load { number }));
            scope.spawn(|| server(listener.accept().expect("a connection").0));
        }
    });

    let loads = (0..CONNECTIONS).map(|number| Load { number });
    let mut expected: Vec<_> = loads
        .map(|load| {
            let (up, down) = (load.up().len(), load.down().len());
            format!("{up} bytes up, {down} bytes down")
        })
        .collect();
    let mut counted: Vec<_> = expected.iter().map(|_| next()).collect();
    expected.sort();
    counted.sort();
    assert_eq!(counted, expected, "{command:?}");

    proxy.signal(Signal::TERM).expect("SIGTERM");
    let ended = proxy.wait_at_most(PATIENCE).expect("a child");
    assert!(ended.is_some(), "{command:?} goes on after SIGTERM");
}

fn client(port: u16, load: Load) {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the proxy");
    let [turn, _] = load.turns();
    let up = load.up();
    connection.write_all(&up[..1]).expect("the number is sent");
    exchange(&connection, turn, &up[1..], &load.down());
}

fn server(mut connection: TcpStream) {
    let mut number = [0];
    connection
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout");
    connection.read_exact(&mut number).expect("the number");
    let [number] = number;
    let load = Load { number };
    let [_, turn] = load.turns();
    exchange(&connection, turn, &load.down(), &load.up()[1..]);
}

fn exchange(connection: &TcpStream, turn: Turn, sent: &[u8], expected: &[u8]) {
    connection
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout");
    connection
        .set_write_timeout(Some(PATIENCE))
        .expect("a timeout");
    let send = || {
        let mut connection = connection;
        connection.write_all(sent).expect("everything is sent");
        connection.shutdown(Shutdown::Write).expect("a half-close");
    };
    let receive = || {
        let mut connection = connection;
        let mut received = Vec::with_capacity(expected.len());
        connection.read_to_end(&mut received).expect("EOF");
        assert_eq!(received.len(), expected.len());
        let wrong = received
            .iter()
            .zip(expected)
            .position(|(one, other)| one != other);
        assert_eq!(wrong, None, "the position of the first wrong byte");
    };
    match turn {
        Turn::First => {
            send();
            receive();
        }
        Turn::Last => {
            receive();
            send();
        }
        Turn::WithTheOther => thread::scope(|scope| {
            scope.spawn(send);
            receive();
        }),
    }
}

/// The lines that a program writes, as they come.
fn lines(process: &mut Process) -> mpsc::Receiver<String> {
    let output = process.child_mut().stdout.take().expect("a pipe");
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            // Nobody listens after the test.
            if sender.send(line.expect("a line")).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Bytes of which no part repeats (xorshift64).
fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    });
    words.flatten().take(count).collect()
}
