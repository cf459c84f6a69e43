//! Orders about servers, over HTTP and by the commands; `drained.rs` has what becomes of the clients.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use netlab::{Need, Process, Scratch, available};
use serde_json::Value;

use super::sessions::{Several, USERS};
use super::{answers, curl};
use crate::datagrams;
use crate::patience::until;
use crate::peer::Peer;
use crate::proxy::Proxy;
use crate::proxy::slow_names::with_names;
use crate::relay::{Relay, command, output};
use crate::resolver::{SLOW, with_name_server};
use crate::server::{Server, free_port};
use crate::usage::failure;

/// A backend `b` of these servers, and lines that it has, too.
pub(super) fn of(servers: &[String], lines: &str) -> String {
    format!(
        "[process]\ncontrol = \"control\"\n\
         [[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [{}]\n{lines}\n",
        servers.join(", ")
    )
}

pub(super) fn quoted(server: &Server) -> String {
    format!("\"{}\"", server.address)
}

/// A server of a configuration with more than its address.
pub(super) fn with(server: &Server, more: &str) -> String {
    format!("{{ address = \"{}\", {more} }}", server.address)
}

/// A proxy that is asked by its own socket: other tests stop processes, which a search waits for.
pub(super) struct Stage {
    pub(super) proxy: Proxy,
    pub(super) socket: PathBuf,
    pub(super) address: String,
}

impl Stage {
    pub(super) fn run(configuration: &str) -> Self {
        Self::start(configuration, &mut command(&[]))
    }

    pub(super) fn start(configuration: &str, spliced: &mut Command) -> Self {
        let proxy = Proxy::start(configuration, spliced);
        let (address, socket) = (proxy.address("l"), proxy.beside("control"));
        Self {
            proxy,
            socket,
            address,
        }
    }

    pub(super) fn ask(&self, arguments: &[&str]) -> Output {
        output(command(arguments).arg("--control").arg(&self.socket))
    }

    pub(super) fn succeeds(&self, arguments: &[&str]) -> Output {
        let output = self.ask(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output
    }

    /// What a command that succeeds prints.
    pub(super) fn says(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.succeeds(arguments).stdout).expect("text")
    }

    /// What an order about `server` of backend `b` prints.
    pub(super) fn line(&self, server: &Server, what: &str) -> String {
        let process = self.proxy.relay.id();
        format!(
            "process {process}, backend b, server {}: {what}\n",
            server.address
        )
    }

    pub(super) fn fails(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    pub(super) fn reloads(&self, configuration: &str) {
        self.proxy.write(configuration);
        self.succeeds(&["reload"]);
    }

    pub(super) fn backends(&self) -> Vec<Value> {
        let told = self.succeeds(&["backends", "--json"]).stdout;
        let mut told: Value = serde_json::from_slice(&told).expect("JSON");
        let backends = told["backends"].as_array_mut().map(std::mem::take);
        backends.expect("a list")
    }

    /// What `spliced backends` says of a server.
    pub(super) fn server(&self, server: &Server) -> Value {
        let servers = self.backends().into_iter().flat_map(|mut backend| {
            let servers = backend["servers"].as_array_mut().map(std::mem::take);
            servers.expect("a list")
        });
        let mut servers = servers.filter(|found| found["server"] == server.address.as_str());
        servers.next().unwrap_or(Value::Null)
    }

    /// Its state and its connections.
    pub(super) fn state(&self, server: &Server) -> String {
        let server = self.server(server);
        let state = server["state"].as_str().unwrap_or_default();
        format!("{state}: {}", server["connections"])
    }

    pub(super) fn queued(&self) -> Value {
        self.backends()[0]["queued"].take()
    }

    pub(super) fn count(&self, count: &str) -> u64 {
        let told = self.succeeds(&["status", "--json"]).stdout;
        let told: Value = serde_json::from_slice(&told).expect("JSON");
        let counts = &told[0]["listeners"][0]["counts"];
        counts[count].as_u64().expect("a count")
    }

    pub(super) fn wait_logged(&self, words: &str) -> String {
        self.proxy.relay.wait_logged(words)
    }

    pub(super) fn lines_logged(&self, words: &str) -> usize {
        self.proxy.relay.lines_logged(words)
    }
}

/// A client, and what it has at `server`.
pub(super) fn join(address: &str, server: &Server) -> (Peer, Peer) {
    let near = Peer::connect(address);
    let far = server.accept();
    talk(&near, &far, 1);
    (near, far)
}

pub(super) fn talk(near: &Peer, far: &Peer, number: u64) {
    near.write_number(number);
    assert_eq!(far.read_number(), number);
    far.write_number(!number);
    assert_eq!(near.read_number(), !number);
}

#[test]
fn curl_gives_orders_about_servers_with_any_name() {
    let servers = [Server::on("[::1]:0"), Server::new()];
    let stage = Stage::run(
        &of(&[quoted(&servers[0]), quoted(&servers[1])], "")
            .replace("backend = \"b\"", "backend = \"b.-_\"")
            .replace("[backend.b]", "[backend.\"b.-_\"]"),
    );
    let socket = &stage.socket;
    let backend = "http://x/v1/backends/b%2E-%5f/servers";
    let ask = |method: &str, rest: &str| {
        let url = format!("{backend}/{rest}");
        curl(socket, &["--globoff", "-X", method, &url])
    };
    for name in [
        servers[0].address.clone(),
        servers[0].address.replace(':', "%3A").replace('[', "%5B"),
        servers[1].address.clone(),
    ] {
        let (status, told) = ask("POST", &format!("{name}/drain"));
        assert_eq!((&*status, &told["state"]), ("200", &"drained".into()));
        let user = rustix::process::geteuid().as_raw();
        let why = told["why"].as_str().expect("a reason");
        assert!(
            why.starts_with(&format!("drained by user {user} (process ")),
            "{why}"
        );
        let (_, told) = ask("GET", &name);
        assert_eq!(told["state"], "drained");
        let (status, told) = ask("POST", &format!("{name}/undrain"));
        assert_eq!((&*status, &told["state"]), ("200", &"not checked".into()));
        let (status, told) = ask("PUT", &format!("{name}/weight?weight=0"));
        assert_eq!((&*status, &told["state"]), ("200", &"weight 0".into()));
        let (_, told) = ask("PUT", &format!("{name}/weight?weight=256"));
        assert_eq!(told["weight"], 256);
    }
    for line in [
        "POST /v1/backends/b%2E-%5f/servers/[::1]:",
        "gets no new clients: drained by user ",
        "gets clients again, by user ",
        "has the weight 256 instead of 0, by user ",
    ] {
        stage.wait_logged(line);
    }
    let name = &servers[1].address;
    let both = format!("the servers are {}, {name}", servers[0].address);
    for (method, rest, status, why) in [
        ("POST", "10.9.8.7:6/drain", "404", &*both),
        (
            "GET",
            "x",
            "404",
            "backend b.-_ has no server x; the servers are",
        ),
        (
            "POST",
            "x%0A/drain",
            "404",
            "has no server x\\n; the servers",
        ),
        ("PUT", &format!("{name}/weight"), "400", "from 0 to 256"),
        (
            "PUT",
            &format!("{name}/weight?weight=257"),
            "400",
            "?weight=N",
        ),
        (
            "PUT",
            &format!("{name}/weight?weight=1&x=2"),
            "400",
            "?weight=N",
        ),
        ("GET", &format!("{name}/drain"), "405", "ask with POST"),
        ("POST", "/drain", "404", "there is no such path"),
        ("POST", "%FF/drain", "404", "there is no such path"),
    ] {
        let (found, told) = ask(method, rest);
        let sentence = told["error"].as_str().expect("a sentence");
        assert_eq!(found, status, "{method} {rest}: {sentence}");
        assert!(sentence.contains(why), "{method} {rest}: {sentence}");
    }
    let nowhere = "http://x/v1/backends/nope/servers/x/drain";
    let (status, told) = curl(socket, &["-X", "POST", nowhere]);
    assert_eq!(status, "404");
    assert_eq!(
        told["error"],
        "there is no backend nope; the only backend is b.-_"
    );
}

#[test]
fn a_socket_for_reading_takes_no_orders_about_servers() {
    let scratch = Scratch::new("control").expect("a directory");
    let [socket, read] = ["sock", "read"].map(|name| scratch.path().join(name));
    let [path, for_reading] = [&socket, &read].map(|path| path.to_str().expect("UTF-8"));
    let options = ["--control", path, "--control-read", for_reading];
    let server = Server::new();
    let relay = Relay::to(&server.address, &options);
    answers(&socket);
    answers(&read);
    let url = format!("http://x/v1/backends/{0}/servers/{0}", server.address);
    for (method, what) in [
        ("POST", "drain"),
        ("POST", "undrain"),
        ("PUT", "weight?weight=0"),
    ] {
        let (status, told) = curl(&read, &["-X", method, &format!("{url}/{what}")]);
        assert_eq!(status, "403", "{told}");
    }
    let refused = relay.wait_logged(" was refused: the socket is for reading only");
    assert!(refused.contains("/drain of user "), "{refused}");
    let (_, told) = curl(&read, &[&url]);
    assert_eq!(told["state"], "not checked");
    // A relay to one target is drained, too.
    let drained = output(&mut command(&["drain", &server.address, "--control", path]));
    assert!(drained.status.success(), "{drained:?}");
    Peer::is_reset_by(&relay.address);
    relay.wait_logged("no target: its server is drained");
}

/// Its main thread waits for a name.
#[test]
fn an_order_does_not_wait_for_a_reload() {
    with_name_server(|names, scratch| {
        let server = Server::new();
        let mut command = with_names(Process::command("unshare"), scratch, "");
        let configuration = of(&[quoted(&server)], "");
        let stage = Stage::start(&configuration, &mut command);
        let (near, far) = join(&stage.address, &server);
        let slow = of(
            &[quoted(&server), format!("\"{SLOW}.test:1\"")],
            "connect_timeout = \"10m\"",
        );
        stage.proxy.write(&slow);
        stage.proxy.relay.signal(rustix::process::Signal::HUP);
        until("it waits for the name", || names.slow_names() > 0);
        // They wait for the reload, and keep nobody from what does not.
        let waiting: Vec<_> = (0..8).map(|_| asks_for_status(&stage.socket)).collect();
        stage.succeeds(&["drain", &server.address]);
        assert_eq!(stage.state(&server), "draining: 1");
        talk(&near, &far, 2);
        drop((near, far));
        stage.succeeds(&["drain", &server.address, "--wait"]);
        assert_eq!(stage.lines_logged("was reloaded"), 0);
        drop(waiting);
    });
}

fn asks_for_status(socket: &Path) -> UnixStream {
    let mut client = UnixStream::connect(socket).expect("a client");
    let request = "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n";
    client.write_all(request.as_bytes()).expect("it is sent");
    client
}

#[test]
fn a_process_that_drains_is_marked_where_its_sessions_and_servers_are_shown() {
    let server = Server::new();
    let stage = Stage::run(&of(&[quoted(&server)], ""));
    let (near, far) = join(&stage.address, &server);
    let process = stage.proxy.relay.id();
    assert!(stage.says(&["backends"]).starts_with("BACKEND"));
    stage.proxy.relay.signal(rustix::process::Signal::TERM);
    stage.wait_logged("no longer accepting");
    let marked = format!("draining {process}  ");
    for command in ["backends", "sessions"] {
        let table = stage.says(&[command]);
        let lines: Vec<_> = table.lines().collect();
        assert!(
            matches!(lines[..], [head, row] if head.contains("PROCESS  ") && row.starts_with(&marked)),
            "{table}"
        );
        let told: Value = serde_json::from_str(&stage.says(&[command, "--json"])).expect("JSON");
        let one = &told[command][0];
        assert_eq!(
            (&one["process"], &one["process_draining"]),
            (&process.into(), &true.into())
        );
    }
    talk(&near, &far, 2);
}

#[test]
fn commands_name_what_they_do_not_find_and_refuse_to_choose() {
    let servers = [Server::new(), Server::new()];
    // Nobody has such a name, which is as long as names may be.
    let long = format!("{}.invalid:1", ["x".repeat(60).as_str(); 4].join("."));
    let other = format!(
        "[[listener]]\nname = \"m\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"other\"\n\
         [backend.other]\nservers = [{}, \"{long}\"]\nconnect_timeout = \"100ms\"\n",
        quoted(&servers[0])
    );
    let stage = Stage::run(&(of(&[quoted(&servers[0]), quoted(&servers[1])], "") + &other));
    let told = stage.fails(&["drain", "10.9.8.7:6"]);
    assert!(
        told.contains("there is no server 10.9.8.7:6; there are ")
            && told.contains(&servers[1].address),
        "{told}"
    );
    let told = stage.fails(&["weigh", "10.9.8.7:6", "1", "--backend", "nope"]);
    assert!(
        told.contains("of a backend nope, nor another one there"),
        "{told}"
    );
    let told = stage.fails(&["undrain", &servers[0].address]);
    assert!(told.contains("choose with --backend"), "{told}");
    stage.succeeds(&["drain", &servers[0].address, "--backend", "b"]);
    stage.succeeds(&["drain", &servers[0].address, "--backend", "other"]);
    stage.succeeds(&["drain", &long]);
    let table = String::from_utf8(stage.succeeds(&["backends"]).stdout).expect("text");
    let mut lines = table.lines();
    assert!(
        lines
            .next()
            .is_some_and(|head| head.starts_with("BACKEND  ")),
        "{table}"
    );
    assert_eq!(lines.clone().count(), 4);
    assert!(lines.all(|line| line.chars().count() < 250), "{table}");
    let told = failure(&mut command(&["drain", "x", "--timeout", "1s"]), 2);
    assert!(told.contains("--wait"), "{told}");
    let told = failure(&mut command(&["weigh", "x", "257"]), 2);
    assert!(told.contains("257"), "{told}");
}

#[test]
fn of_several_processes_the_only_one_that_has_the_server_is_ordered() {
    if !available(Need::Root) {
        return;
    }
    let several = Several::start(USERS[2]);
    let [first, second] = [0, 1].map(|number: usize| &*several.servers[number].address);
    let drained = several.ask(&["drain", second, "--wait"]);
    assert!(drained.status.success(), "{drained:?}");
    several.relays[1].wait_logged("gets no new clients: drained by user 65529 (process ");
    let table = several.ask(&["backends"]);
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(table.starts_with("PROCESS  BACKEND"), "{table}");
    let row = |id: u32| {
        let row = table
            .lines()
            .find(|line| line.trim_start().starts_with(&id.to_string()));
        row.expect("a row").to_owned()
    };
    let [of_first, of_second] = [0, 1].map(|number: usize| row(several.relays[number].id()));
    assert!(
        of_first.contains(first) && of_first.contains("not checked"),
        "{table}"
    );
    assert!(
        of_second.contains(second) && of_second.contains("drained by"),
        "{table}"
    );
    let other = several.another(0);
    let refused = several.ask(&["drain", first]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    for part in [
        format!("process {} ({})", several.relays[0].id(), several.socket(0)),
        format!("process {} (", other.id()),
        format!("have a server {first} each; choose with --config or --control"),
    ] {
        assert!(said.contains(&part), "no {part:?} in {said:?}");
    }
    let chosen = several.ask(&["drain", first, "--control", &several.socket(0)]);
    assert!(chosen.status.success(), "{chosen:?}");
    Peer::is_reset_by(&several.relays[0].address);
    drop(join(&other.address, &several.servers[0]));
    // One that does not answer may have it.
    several.relays[1].hold_still();
    let refused = several.ask(&["undrain", first]);
    several.relays[1].go_on();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("it may have a server"), "{said}");
}

#[test]
fn a_relay_of_datagrams_takes_orders_about_its_target_and_says_why_it_fails() {
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let path = socket.to_str().expect("UTF-8");
    let target = format!("udp:127.0.0.1:{}", free_port());
    let options = ["--control", path];
    let relay = Relay::between("udp:127.0.0.1:0", &target, &options);
    answers(&socket);
    let client = datagrams::client(&relay);
    until("the target is said to refuse", || {
        // The error of an earlier datagram is that of the next call.
        let _ = client.send(b"question");
        let table = output(&mut command(&["backends", "--control", path]));
        let table = String::from_utf8(table.stdout).expect("text");
        table.contains(&target) && table.contains("Connection refused")
    });
    relay.wait_logged(&format!(
        "to {target} ended: the target failed: Connection refused"
    ));
    let ordered = |order| output(&mut command(&[order, &target, "--control", path]));
    let told = String::from_utf8(ordered("drain").stdout).expect("text");
    assert!(told.contains("drained, 0 connections"), "{told}");
    until("a datagram finds no server", || {
        let _ = client.send(b"question");
        relay.lines_logged("a client's datagram was dropped: ") > 0
    });
    let dropped = relay.wait_logged("a client's datagram was dropped: ");
    assert!(dropped.contains("drained"), "{dropped}");
    assert!(ordered("undrain").status.success());
    let server = datagrams::socket(target.trim_start_matches("udp:"));
    datagrams::ask_until_received(&client, &server, b"question");
}
