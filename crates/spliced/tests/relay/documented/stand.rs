//! Where the command lines run: a network namespace that has the addresses of the pages, and directories in the place of those of
//! the host.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;

use netlab::{Namespace, Scratch};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::patience::{PATIENCE, until};
use crate::relay::{BINARY, Relay, output};

/// On lo.
const ADDRESSES: [&str; 3] = ["10.0.0.7/32", "10.0.0.9/32", "192.0.2.1/32"];
const HOSTS: &str = "127.0.0.1 localhost\n10.0.0.7 backend db db.internal\n";
/// What answers there.
const SERVERS: [&str; 6] = [
    "10.0.0.7:80",
    "10.0.0.7:443",
    "10.0.0.7:5432",
    "127.0.0.1:80",
    "192.0.2.1:53",
    "unix:/run/postgresql/.s.PGSQL.5432",
];
/// What asks no process.
const ALONE: [&str; 6] = [
    "spliced doctor",
    "spliced matrix",
    "spliced trace",
    "jq ",
    "promtool ",
    "ip ",
];
const CONFIGURATION: &str = r#"
[[listener]]
name = "web"
address = "0.0.0.0:8080"
engine = "copy"

  [[listener.route]]
  backend = "web"

[backend.web]
servers = ["10.0.0.7:80"]

[[listener]]
name = "tls"
address = "0.0.0.0:8443"
engine = "copy"

  [[listener.route]]
  backend = "tls"

[backend.tls]
servers = ["10.0.0.7:443"]
"#;
/// Puts the directories in place, and becomes the command line.
const SCRIPT: &str = r#"mount --bind "$0/run" /run && mount --bind "$0/log" /var/log && mount --bind "$0/hosts" /etc/hosts &&
    cd "$0/work" && PATH="$0/bin:$PATH" && export PATH && eval "$1""#;

pub(super) struct Stand {
    namespace: Namespace,
    /// The addresses are other hosts there, which do not answer, and no port is in use.
    apart: Namespace,
    scratch: Scratch,
    _servers: Vec<Relay>,
}

/// A process that runs the configuration, and a client of it.
struct Running {
    relay: Relay,
    socket: String,
    client: Option<TcpStream>,
    id: String,
}

/// The line with one name for each control socket.
pub(super) fn general(line: &str) -> String {
    ["4711", "815"].iter().fold(line.to_owned(), |line, pid| {
        line.replace(&format!("/run/spliced/{pid}.sock"), "SOCKET")
    })
}

impl Stand {
    pub(super) fn new() -> Self {
        let namespace = Namespace::new("documented").expect("a namespace");
        for address in ADDRESSES {
            let mut add = namespace.command("ip");
            add.args(["address", "add", address, "dev", "lo"]);
            assert!(output(&mut add).status.success());
        }
        let apart = Namespace::new("apart").expect("a namespace");
        for arguments in [
            "link add near type veth peer name far",
            "link set near up",
            "link set far up",
            "address add 198.51.100.1/24 dev near",
            "route add default dev near",
        ] {
            let mut ip = apart.command("ip");
            assert!(
                output(ip.args(arguments.split(' '))).status.success(),
                "{arguments}"
            );
        }
        let scratch = Scratch::new("documented").expect("a directory");
        let path = scratch.path();
        for directory in ["run", "run/postgresql", "log", "work", "bin"] {
            fs::create_dir_all(path.join(directory)).expect("a directory");
        }
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, path.join(name)).expect("a link");
        };
        link(BINARY, "bin/spliced");
        link(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"),
            "work/examples",
        );
        link("/var/log/spliced.log", "work/access.log");
        fs::write(path.join("hosts"), HOSTS).expect("written");
        fs::write(path.join("work/proxy.toml"), CONFIGURATION).expect("written");
        let mut stand = Self {
            namespace,
            apart,
            scratch,
            _servers: Vec::new(),
        };
        let server =
            |address: &&str| stand.spawn(&format!("exec spliced echo {address} --engine copy"));
        stand._servers = SERVERS.iter().map(server).collect();
        // An access log with a connection of each.
        let log = "--access-log /var/log/spliced.log --engine copy";
        for server in ["10.0.0.7:443", "10.0.0.7:80"] {
            let line = format!("spliced relay :8080 {server} {log}");
            stand.serves(&line).expect("it serves");
        }
        stand
    }

    fn namespace_of(&self, line: &str) -> &Namespace {
        let is_apart = ["spliced relay udp::53 ", "spliced relay :5432 "];
        match is_apart.iter().any(|words| line.contains(words)) {
            true => &self.apart,
            false => &self.namespace,
        }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = self.namespace_of(line).command("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT])
            .arg(self.scratch.path())
            .arg(line)
            .env_remove("SPLICED_LOG");
        command
    }

    /// Starts what serves, and waits until it does.
    fn spawn(&self, line: &str) -> Relay {
        let mut relay = Relay::spawn_silent(&mut self.command(line));
        until("it listens or ends", || {
            relay.lines_logged("listening on ") > 0 || !relay.is_running()
        });
        relay
    }

    /// A client's byte that comes back.
    fn is_answered(&self, line: &str, listen: &str) -> Result<(), String> {
        fn echoes(mut stream: impl Read + Write) -> std::io::Result<()> {
            let mut byte = [0];
            stream.write_all(b"x")?;
            stream.read_exact(&mut byte)
        }
        let answered = match listen.strip_prefix("unix:") {
            Some(path) => {
                let path = path.strip_prefix("/run/").expect("below /run");
                let path = self.scratch.path().join("run").join(path);
                UnixStream::connect(path).and_then(|stream| {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    echoes(stream)
                })
            }
            None => {
                let listen = match listen.strip_prefix(':') {
                    Some(port) => format!("127.0.0.1:{port}"),
                    None => listen.to_owned(),
                };
                let client = || {
                    let stream = TcpStream::connect(listen)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    echoes(stream)
                };
                self.namespace_of(line).enter(client).expect("entered")
            }
        };
        answered.map_err(|error| format!("its client: {error}"))
    }

    /// Runs a line that serves until a signal comes.
    pub(super) fn serves(&self, line: &str) -> Result<(), String> {
        let old = line
            .contains("$OLD")
            .then(|| self.spawn("exec spliced run --config proxy.toml"));
        let before = old
            .as_ref()
            .map_or(String::new(), |old| format!("OLD={}; ", old.id()));
        let last = line.rfind("spliced ").expect("it runs spliced");
        let line = format!("{before}{}exec {}", &line[..last], &line[last..]);
        let mut relay = self.spawn(&line);
        if !relay.is_running() {
            return Err(relay.logged().join("\n    "));
        }
        let mut words = line[line.rfind("spliced ").expect("above")..]
            .split_whitespace()
            .skip(1);
        let command = words.next().expect("a subcommand");
        let address = words.find(|word| word.contains(':') || word.starts_with('\''));
        let listen = match command {
            "run" => Some(":8080"),
            // A client of a mesh gets no frame of its own; one of datagrams is in the tests of datagrams.
            "mesh" => None,
            _ => address.map(|address| address.trim_matches('\'')),
        };
        let is_stream =
            |listen: &&str| !listen.starts_with("udp:") && !listen.starts_with("unixgram:");
        if let Some(listen) = listen.filter(is_stream) {
            self.is_answered(&line, listen)
                .map_err(|why| format!("{why}\n    {}", relay.logged().join("\n    ")))?;
        }
        relay.terminate();
        Ok(())
    }

    /// Runs a line that ends by itself beside a process that runs the configuration. It says `words`.
    pub(super) fn says(&self, line: &str, words: &str) -> Result<(), String> {
        // It would wait for the client.
        let has_client = !line.contains("drain");
        let is_by_id = line.contains("spliced kill 4711") || line.contains("/v1/sessions/17");
        let mut running = (!ALONE.iter().any(|begin| line.starts_with(begin)))
            .then(|| self.running(has_client, is_by_id));
        let mut line = general(line);
        if let Some(Running { socket, id, .. }) = &running {
            line = line
                .replace("SOCKET", socket)
                .replace("spliced kill 4711", &format!("spliced kill {id}"))
                .replace("/v1/sessions/17", &format!("/v1/sessions/{id}"));
        }
        if line.contains("--request DELETE") && line.contains("10.0.0.9:80") {
            // The one that the line before has added.
            let add = line.replace("DELETE", "PUT");
            output(&mut self.command(&add));
        }
        let done = output(&mut self.command(&line));
        if line.starts_with("ip ") {
            // Another page may have the same line.
            output(&mut self.command(&line.replacen(" add ", " del ", 1)));
        }
        let said = String::from_utf8_lossy(&done.stdout).into_owned()
            + &String::from_utf8_lossy(&done.stderr);
        if !done.status.success() || !said.contains(words) || said.contains("\"error\":") {
            return Err(format!("{}: {said:?} lacks {words:?}", done.status));
        }
        let ends = line.contains(" kill ") || line.contains("DELETE http://spliced/v1/sessions");
        let client = running.as_mut().and_then(|it| it.client.as_mut());
        if let Some(client) = client.filter(|_| ends) {
            let error = client.read_exact(&mut [0]).expect_err("it is over");
            if error.kind() != std::io::ErrorKind::ConnectionReset {
                return Err(format!("its client: {error}"));
            }
        }
        if let Some(Running {
            mut relay, client, ..
        }) = running
        {
            // Otherwise the process waits for it.
            drop(client);
            relay.terminate();
        }
        Ok(())
    }

    fn running(&self, has_client: bool, is_by_id: bool) -> Running {
        let relay = self.spawn("exec spliced run --config proxy.toml --metrics 127.0.0.1:9500");
        let socket = format!("/run/spliced/{}.sock", relay.id());
        relay.wait_logged("control socket at ");
        let client = has_client.then(|| self.namespace.enter(client).expect("entered"));
        let mut id = String::new();
        if is_by_id {
            let ask = format!("spliced sessions --json --control {socket}");
            let told = output(&mut self.command(&ask)).stdout;
            let told: Value = serde_json::from_slice(&told).expect("JSON");
            id = told["sessions"][0]["id"].to_string();
        }
        Running {
            relay,
            socket,
            client,
            id,
        }
    }
}

/// A client that the pages name, and that has its answer.
fn client() -> TcpStream {
    let parse = |address: &str| -> SocketAddr { address.parse().expect("an address") };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&parse("192.0.2.1:0").into()).expect("bound");
    socket
        .connect(&parse("10.0.0.7:8080").into())
        .expect("connected");
    let mut client = TcpStream::from(socket);
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    client.write_all(b"x").expect("written");
    client.read_exact(&mut [0]).expect("an answer");
    client
}
