//! A program that relays between two connections of ours.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use netlab::{Process, Scratch};
use rustix::net::getpeername;

use crate::patience::until_found;
use crate::payload::Payload;
use crate::peer::Peer;
use crate::programs::installed;
use crate::relay::{Relay, command};
use crate::server::{Server, free_port};

/// nginx then holds more than a socket's buffer that is nearly full has room for.
pub(super) const READS_FAR_AHEAD: &str = "proxy_buffer_size 8m;";

/// A program that relays between a client and a server of ours.
pub(super) struct Owner {
    pub(super) process: Process,
    pub(super) client: Peer,
    pub(super) server: Peer,
    _scratch: Scratch,
}

impl Owner {
    pub(super) fn socat() -> Option<Self> {
        Self::socat_by(&[])
    }

    /// socat, executed by another program with arguments.
    pub(super) fn socat_by(other: &[&str]) -> Option<Self> {
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

    pub(super) fn nginx() -> Option<Self> {
        Self::nginx_with("")
    }

    /// nginx with another directive for its server.
    pub(super) fn nginx_with(directive: &str) -> Option<Self> {
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
    pub(super) fn haproxy() -> Option<Self> {
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

    /// A relay of 20 lines: two threads, each of which blocks in recv(2) and send(2).
    pub(super) fn python() -> Option<Self> {
        let python = installed("python3", "python3")?;
        Some(Self::start(|listen, target, _| {
            let mut command = Process::command(&python);
            command.args([
                "-c",
                include_str!("plain_relay.py"),
                &listen.to_string(),
                target,
            ]);
            command
        }))
    }

    pub(super) fn start(command: impl FnOnce(u16, &str, &Scratch) -> Command) -> Self {
        Self::start_with(Stdio::null(), command)
    }

    pub(super) fn start_with(
        input: Stdio,
        command: impl FnOnce(u16, &str, &Scratch) -> Command,
    ) -> Self {
        let scratch = Scratch::new("adopt").expect("a directory");
        let server = Server::new();
        let port = free_port();
        let mut command = command(port, &server.address, &scratch);
        let process = Process::spawn(command.stdin(input)).expect("it starts");
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
    pub(super) fn numbers(&self) -> [u32; 2] {
        [&self.client, &self.server].map(|peer| until_found("the socket", || self.number_to(peer)))
    }

    pub(super) fn number_to(&self, peer: &Peer) -> Option<u32> {
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
    pub(super) fn adopting(&self) -> Command {
        adopting([&self.process, &self.process], self.numbers())
    }

    pub(super) fn adopt(&self) -> Relay {
        adopt_by(|| {
            let mut command = self.adopting();
            command.stdout(Stdio::null());
            command
        })
    }

    /// Adopts both sockets with options, and a report that can be read.
    pub(super) fn adopt_reporting(&self, options: &[&str]) -> Relay {
        adopt_by(|| {
            let mut command = self.adopting();
            command.args(options).stdout(Stdio::piped());
            command
        })
    }

    /// Whether the program itself has the two connections.
    pub(super) fn has_its_sockets(&self) -> bool {
        [&self.client, &self.server]
            .iter()
            .all(|peer| self.number_to(peer).is_some())
    }

    pub(super) fn expect_both_ways(&self) {
        both_ways(&self.client, &self.server, 7, 100_000);
    }

    /// Sends to the server until all buffers on the way are full, those of the program included. Returns how many bytes.
    pub(super) fn fill_towards_the_server(&self, payload: Payload) -> u64 {
        let mut sent = 0;
        netlab::until_at_rest(Duration::from_millis(300), || {
            sent += self.client.send_what_fits(payload, sent);
            sent
        })
    }
}

/// Sends bytes each way, and ends no stream.
pub(super) fn both_ways(near: &Peer, far: &Peer, salt: u64, bytes: u64) {
    let payload = Payload::new(salt);
    for (from, to) in [(near, far), (far, near)] {
        thread::scope(|scope| {
            scope.spawn(|| from.send(payload, 0, bytes));
            to.expect(payload, 0, bytes);
        });
    }
}

/// A command that adopts one socket of each process.
pub(super) fn adopting(processes: [&Process; 2], numbers: [u32; 2]) -> Command {
    let [one, other] = processes.map(|process| process.id().to_string());
    let [first, second] = numbers.map(|number| number.to_string());
    command(&[
        "adopt", "--pid", &one, "--fd", &first, "--pid", &other, "--fd", &second,
    ])
}

/// What spliced says on a machine so busy that it cannot stop the owner for a short time.
pub(super) const IS_LATE: [&str; 2] = [" ms are the most", "does not stop within"];

/// Adopts by a command, again if the machine is too busy.
pub(super) fn adopt_by(command: impl Fn() -> Command) -> Relay {
    until_found("the sockets are adopted", || {
        let adopt = Relay::spawn_silent(&mut command());
        let [late, stuck] = IS_LATE;
        let line = adopt.wait_logged_any(&["adopted ", late, stuck]);
        line.contains("adopted ").then_some(adopt)
    })
}
