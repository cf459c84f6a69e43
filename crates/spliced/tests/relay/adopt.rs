//! `spliced adopt`: the sockets of running programs, spliced and given back.

mod killed;
mod refusals;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use netlab::{Process, Scratch};
use rustix::net::getpeername;
use rustix::process::Signal;

use crate::patience::{until, until_found};
use crate::payload::Payload;
use crate::peer::{End, Over, Peer};
use crate::programs::installed;
use crate::relay::{CUT_SHORT, Relay, SAME_REQUEST, command};
use crate::server::{Server, free_port};

/// What a sender sends at a time, in bytes.
const CHUNK_BYTES: u64 = 40_000;

/// nginx then holds more than a socket's buffer that is nearly full has room for.
const READS_FAR_AHEAD: &str = "proxy_buffer_size 8m;";

/// A program that relays between a client and a server of ours.
struct Owner {
    process: Process,
    client: Peer,
    server: Peer,
    _scratch: Scratch,
}

impl Owner {
    fn socat() -> Option<Self> {
        Self::socat_by(&[])
    }

    /// socat, executed by another program with arguments.
    fn socat_by(other: &[&str]) -> Option<Self> {
        let socat = installed("socat", "socat")?;
        let mut words = other.iter().map(OsStr::new).chain([socat.as_os_str()]);
        let mut command = Process::command(Path::new(words.next()?));
        command.args(words);
        Some(Self::start(|listen, target, _| {
            command
                .args(["-t", "30"])
                .arg(format!("TCP-LISTEN:{listen},bind=127.0.0.1,reuseaddr"))
                .arg(format!("TCP:{target}"));
            command
        }))
    }

    fn nginx() -> Option<Self> {
        Self::nginx_with("")
    }

    /// nginx with another directive for its server.
    fn nginx_with(directive: &str) -> Option<Self> {
        let nginx = installed("nginx", "nginx-light")?;
        let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
        let missing = !fs::exists(module).unwrap_or(false);
        let why = missing.then(|| "no nginx stream (apt install libnginx-mod-stream)".into());
        netlab::present("nginx-stream", why).then(|| {
            Self::start(|listen, target, scratch| {
                let root = scratch.path().display();
                let configuration = format!(
                    "load_module {module}; daemon off; master_process off; pid {root}/pid;
                     error_log {root}/error.log; events {{ worker_connections 64; }}
                     stream {{ server {{ listen 127.0.0.1:{listen}; proxy_pass {target}; {directive} }} }}"
                );
                let path = scratch.write("nginx.conf", &configuration).expect("a file");
                let mut command = Process::command(&nginx);
                command.arg("-e").arg(scratch.path().join("error.log")).arg("-c").arg(path);
                command
            })
        })
    }

    /// haproxy, which has several threads, an epoll instance for each, and moves bulk through pipes.
    fn haproxy() -> Option<Self> {
        let haproxy = installed("haproxy", "haproxy")?;
        Some(Self::start(|listen, target, scratch| {
            let configuration = format!(
                "global\n nbthread 4\ndefaults\n mode tcp\n timeout connect 10s\n timeout client 1m\n timeout server 1m\n \
                 option splice-auto\nlisten relay\n bind 127.0.0.1:{listen}\n server one {target}\n"
            );
            let path = scratch
                .write("haproxy.cfg", &configuration)
                .expect("a file");
            let mut command = Process::command(&haproxy);
            command.arg("-db").arg("-f").arg(path);
            command
        }))
    }

    fn start(command: impl FnOnce(u16, &str, &Scratch) -> Command) -> Self {
        let scratch = Scratch::new("adopt").expect("a directory");
        let server = Server::new();
        let port = free_port();
        let mut command = command(port, &server.address, &scratch);
        let process = Process::spawn(command.stdin(Stdio::null())).expect("it starts");
        let address = format!("127.0.0.1:{port}");
        // socat serves the first connection and no other.
        let client = until_found("the program listens", || {
            let client = Peer::try_connect(&address).ok();
            // Before it listens, a socket that gets the same port connects to itself.
            client.filter(|client| client.local_address() != address)
        });
        Self {
            client,
            server: server.accept(),
            process,
            _scratch: scratch,
        }
    }

    /// The numbers of its sockets to the client and to the server.
    fn numbers(&self) -> [u32; 2] {
        [&self.client, &self.server].map(|peer| until_found("the socket", || self.number_to(peer)))
    }

    fn number_to(&self, peer: &Peer) -> Option<u32> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.process.id())).ok()?;
        let mut numbers =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.find(|number| self.peer_of(*number) == Some(peer.local_address()))
    }

    fn peer_of(&self, number: u32) -> Option<String> {
        let socket: OwnedFd = splice_sockmap::of_process(self.process.id(), number).ok()?;
        let peer = getpeername(&socket).ok()??;
        Some(SocketAddr::try_from(peer).ok()?.to_string())
    }

    /// A command that adopts both sockets.
    fn adopting(&self) -> Command {
        adopting([&self.process, &self.process], self.numbers())
    }

    fn adopt(&self) -> Relay {
        adopt_by(|| {
            let mut command = self.adopting();
            command.stdout(Stdio::null());
            command
        })
    }

    /// Adopts both sockets with options, and a report that can be read.
    fn adopt_reporting(&self, options: &[&str]) -> Relay {
        adopt_by(|| {
            let mut command = self.adopting();
            command.args(options).stdout(Stdio::piped());
            command
        })
    }

    /// Whether the program itself has the two connections.
    fn has_its_sockets(&self) -> bool {
        [&self.client, &self.server]
            .iter()
            .all(|peer| self.number_to(peer).is_some())
    }

    fn expect_both_ways(&self) {
        both_ways(&self.client, &self.server, 7, 100_000);
    }

    /// Sends to the server until all buffers on the way are full, those of the program included. Returns how many bytes.
    fn fill_towards_the_server(&self, payload: Payload) -> u64 {
        let mut sent = 0;
        netlab::until_at_rest(Duration::from_millis(300), || {
            sent += self.client.send_what_fits(payload, sent);
            sent
        })
    }
}

/// Sends bytes each way, and ends no stream.
fn both_ways(near: &Peer, far: &Peer, salt: u64, bytes: u64) {
    let payload = Payload::new(salt);
    for (from, to) in [(near, far), (far, near)] {
        thread::scope(|scope| {
            scope.spawn(|| from.send(payload, 0, bytes));
            to.expect(payload, 0, bytes);
        });
    }
}

/// A command that adopts one socket of each process.
fn adopting(processes: [&Process; 2], numbers: [u32; 2]) -> Command {
    let [one, other] = processes.map(|process| process.id().to_string());
    let [first, second] = numbers.map(|number| number.to_string());
    command(&[
        "adopt", "--pid", &one, "--fd", &first, "--pid", &other, "--fd", &second,
    ])
}

/// What spliced says on a machine so busy that it cannot stop the owner for a short time.
const IS_LATE: [&str; 2] = [" ms are the most", "does not stop within"];

/// Adopts by a command, again if the machine is too busy.
fn adopt_by(command: impl Fn() -> Command) -> Relay {
    until_found("the sockets are adopted", || {
        let adopt = Relay::spawn_silent(&mut command());
        let [late, stuck] = IS_LATE;
        let line = adopt.wait_logged_any(&["adopted ", late, stuck]);
        line.contains("adopted ").then_some(adopt)
    })
}

/// Bytes on their way from one peer to another, compared with what was sent.
struct Flow<'peers> {
    from: &'peers Peer,
    to: &'peers Peer,
    payload: Payload,
    announced: AtomicU64,
    received: AtomicU64,
}

impl<'peers> Flow<'peers> {
    fn new(from: &'peers Peer, to: &'peers Peer, salt: u64) -> Self {
        Self {
            from,
            to,
            payload: Payload::new(salt),
            announced: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    fn send(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let position = self.announced.fetch_add(CHUNK_BYTES, Ordering::AcqRel);
            self.from.send(self.payload, position, CHUNK_BYTES);
        }
    }

    fn receive(&self, stop: &AtomicBool) {
        loop {
            // In this order: what was announced before the end is read.
            let is_last = stop.load(Ordering::Acquire);
            let position = self.received.load(Ordering::Acquire);
            if position < self.announced.load(Ordering::Acquire) {
                self.to.expect(self.payload, position, CHUNK_BYTES);
                self.received.fetch_add(CHUNK_BYTES, Ordering::AcqRel);
            } else if is_last {
                return;
            } else {
                thread::yield_now();
            }
        }
    }

    fn wait_further(&self) {
        let before = self.received.load(Ordering::Acquire);
        until("bytes arrive", || {
            self.received.load(Ordering::Acquire) > before + 10 * CHUNK_BYTES
        });
    }
}

/// Both directions in full flow while `work` runs; then everything that was sent has arrived.
fn in_full_flow(owner: &Owner, work: impl FnOnce(&dyn Fn())) {
    let there = Flow::new(&owner.client, &owner.server, 1);
    let back = Flow::new(&owner.server, &owner.client, 2);
    let [stopped, ended] = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        let all_is_sent = Over(&ended);
        let stop = Over(&stopped);
        let senders = [&there, &back].map(|flow| scope.spawn(|| flow.send(&stopped)));
        for flow in [&there, &back] {
            scope.spawn(|| flow.receive(&ended));
        }
        work(&|| [&there, &back].iter().for_each(|flow| flow.wait_further()));
        drop(stop);
        for sender in senders {
            sender.join().expect("everything is sent");
        }
        drop(all_is_sent);
    });
    for Flow {
        received,
        announced,
        ..
    } in [there, back]
    {
        assert_eq!(received.into_inner(), announced.into_inner());
    }
}

fn adopt_in_full_flow(owner: &Owner, times: usize) {
    in_full_flow(owner, |wait_further| {
        for _ in 0..times {
            wait_further();
            let mut adopt = owner.adopt();
            assert!(!owner.has_its_sockets());
            wait_further();
            adopt.terminate();
            let line = adopt.wait_logged("given back because of a signal");
            assert!(!line.contains(" 0 bytes"), "{line}");
            assert!(owner.has_its_sockets());
        }
        wait_further();
    });
}

#[test]
fn socat_in_full_flow_loses_no_byte() {
    if let Some(owner) = Owner::socat() {
        adopt_in_full_flow(&owner, 5);
        owner.client.end_stream();
        owner.server.expect_end();
    }
}

#[test]
fn nginx_in_full_flow_loses_no_byte() {
    if let Some(owner) = Owner::nginx() {
        adopt_in_full_flow(&owner, 5);
        owner.client.end_stream();
        owner.server.expect_end();
    }
}

#[test]
fn haproxy_in_full_flow_loses_no_byte() {
    if let Some(owner) = Owner::haproxy() {
        adopt_in_full_flow(&owner, 5);
        owner.client.end_stream();
        owner.server.expect_end();
    }
}

#[test]
fn sockets_of_two_processes_are_adopted() {
    // A chain: what the first socat has read and the second one has not written is in between.
    let (Some(first), Some(second)) = (Owner::socat(), Owner::socat()) else {
        return;
    };
    // The server of the first one passes on to the second one.
    both_ways(&first.client, &first.server, 3, 5000);
    both_ways(&second.client, &second.server, 3, 5000);
    let numbers = [
        first.number_to(&first.client),
        second.number_to(&second.server),
    ];
    let numbers = numbers.map(|number| number.expect("it is connected"));
    let processes = [&first.process, &second.process];
    let mut adopt = adopt_by(|| {
        let mut command = adopting(processes, numbers);
        command.stdout(Stdio::null());
        command
    });
    both_ways(&first.client, &second.server, 4, 300_000);
    adopt.terminate();
    adopt.wait_logged("300000 bytes moved from");
    for owner in [&first, &second] {
        assert!(owner.has_its_sockets());
        owner.expect_both_ways();
    }
}

/// What the owner had read and could not write is delivered before anything that came later.
#[test]
fn a_server_that_does_not_read_is_waited_for() {
    let Some(owner) = Owner::nginx_with(READS_FAR_AHEAD) else {
        return;
    };
    let payload = Payload::new(9);
    let sent = owner.fill_towards_the_server(payload);
    let mut adopt = owner.adopt_reporting(&["--json"]);
    let mut lines = BufReader::new(adopt.take_stdout()).lines();
    let mut state = || {
        let line = lines.next().expect("a report each second").expect("a line");
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        (line["state"].as_str().expect("a state").to_owned(), line)
    };
    assert_eq!(state().0, "settling");
    // The other direction does not wait.
    owner.server.send(payload, 0, 10_000);
    owner.client.expect(payload, 0, 10_000);
    // The patience with the owner is 5 seconds; the server may take longer.
    (0..6).for_each(|_| assert_eq!(state().0, "settling"));
    owner.server.expect(payload, 0, sent);
    until("the sockets are spliced", || state().0 == "adopted");
    owner.client.send(payload, sent, 1_000_000);
    owner.server.expect(payload, sent, 1_000_000);
    let (_, line) = state();
    assert_eq!(line["directions"][1]["bytes"], 10_000, "{line}");
    assert!(
        line["directions"][0]["bytes"].as_u64() > Some(1_000_000),
        "{line}"
    );
    adopt.terminate();
    assert!(owner.has_its_sockets());
    owner.expect_both_ways();
}

#[test]
fn the_report_in_words_has_a_line_each_second_and_one_at_the_end() {
    const FORTH: u64 = 300_000;
    const BACK: u64 = 20_000;
    let Some(owner) = Owner::socat() else {
        return;
    };
    let [first, second] = owner.numbers();
    let mut adopt = owner.adopt_reporting(&[]);
    let mut lines = BufReader::new(adopt.take_stdout()).lines();
    let payload = Payload::new(11);
    owner.client.send(payload, 0, FORTH);
    owner.server.expect(payload, 0, FORTH);
    owner.server.send(payload, 0, BACK);
    owner.client.expect(payload, 0, BACK);
    let pid = owner.process.id();
    let (one, other) = (format!("{pid}:{first}"), format!("{pid}:{second}"));
    let moved = format!("{one} to {other}: {FORTH} bytes  {other} to {one}: {BACK} bytes");
    let is_now = |line: &str, state: &str| {
        let (seconds, rest) = line.split_once(" s  ").expect("the time");
        assert!(seconds.trim().parse::<f64>().is_ok(), "{line}");
        rest.starts_with(&format!("{state:<11}  ")) && rest.ends_with(&moved)
    };
    let mut next = || lines.next().map(|line| line.expect("a line"));
    until("the report has all", || {
        is_now(&next().expect("a report each second"), "adopted")
    });
    adopt.terminate();
    let last = std::iter::from_fn(next).last().expect("a last line");
    assert!(is_now(&last, "over"), "{last}");
    assert!(owner.has_its_sockets());
}

#[test]
fn the_end_of_a_stream_gives_the_sockets_back() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let mut adopt = owner.adopt();
    let payload = Payload::new(5);
    owner.client.send(payload, 0, 700_000);
    owner.client.end_stream();
    owner.server.expect(payload, 0, 700_000);
    assert!(adopt.wait_end().success());
    adopt.wait_logged("because of the end of the stream of");
    owner.server.expect_end();
    // The other direction lives on, in the hands of the owner.
    owner.server.send(payload, 0, 300_000);
    owner.client.expect(payload, 0, 300_000);
}

#[test]
fn a_reset_stays_a_reset() {
    let Some(mut owner) = Owner::socat() else {
        return;
    };
    let mut adopt = owner.adopt();
    owner.expect_both_ways();
    owner.client.reset();
    owner.server.expect_reset();
    assert!(adopt.wait_end().success());
    adopt.wait_logged("because of a failure of the connection of");
    let ended = owner
        .process
        .wait_at_most(crate::patience::PATIENCE)
        .expect("waited");
    assert!(ended.is_some(), "the owner has its dead sockets back");
}

#[test]
fn an_owner_that_is_killed_ends_its_connections() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let mut adopt = owner.adopt();
    let payload = Payload::new(6);
    owner.client.send(payload, 0, 200_000);
    owner.server.expect(payload, 0, 200_000);
    owner.process.signal(Signal::KILL).expect("killed");
    assert!(adopt.wait_end().success());
    // As the kernel ends the connections of any process.
    assert_eq!(
        owner.server.read_to_end(payload, 200_000),
        (0, End::OfStream)
    );
    assert_eq!(owner.client.read_to_end(payload, 0), (0, End::OfStream));
}

#[test]
fn a_second_signal_cuts_off_what_nobody_reads() {
    let Some(owner) = Owner::nginx_with(READS_FAR_AHEAD) else {
        return;
    };
    let payload = Payload::new(8);
    let sent = owner.fill_towards_the_server(payload);
    let mut adopt = owner.adopt();
    adopt.signal(Signal::TERM);
    thread::sleep(SAME_REQUEST);
    assert!(adopt.is_running());
    adopt.signal_until_it_ends(Signal::TERM);
    assert_eq!(adopt.wait_end().code(), Some(CUT_SHORT));
    let (received, end) = owner.server.read_to_end(payload, 0);
    assert!(received < sent);
    assert_eq!(end, End::Reset);
}
