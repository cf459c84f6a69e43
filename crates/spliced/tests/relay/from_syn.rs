//! `--from-syn`: connections that never meet a socket of the relay.

use std::io::Write;
use std::net::SocketAddr;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Namespace, Need, Scratch, available};
use rustix::process::Signal;
use serde_json::Value;

use crate::metrics::reading::{Reading, wait_for};
use crate::patience::{until, until_found};
use crate::payload::Payload;
use crate::peer::{End, Peer};
use crate::relay::{BINARY, CUT_SHORT, Relay};
use crate::segment::hop::Hop;
use crate::server::Server;

const PORT: u16 = 8080;

struct Stage {
    hop: Hop,
    server: Server,
    lab: Lab,
}

impl Stage {
    fn new(options: &[&str]) -> Self {
        Self::under("", options)
    }

    /// On a host with these rules of nftables.
    fn under(rules: &str, options: &[&str]) -> Self {
        let lab = Lab::new().expect("a lab");
        if !rules.is_empty() {
            nft(lab.relay(), rules);
        }
        let server = Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
        let mut command = lab.relay().command(BINARY);
        command
            .args([
                "relay",
                &format!("{}:{PORT}", Lab::RELAY_V4),
                &server.address,
            ])
            .arg("--from-syn")
            .args(options);
        let hop = Hop::spawn(&mut command);
        Self { hop, server, lab }
    }

    fn connect(&self) -> (Peer, Peer) {
        let address = self.hop.address();
        let near = self.lab.client().enter(|| Peer::connect(address));
        (near.expect("entered"), self.server.accept())
    }

    fn entry(&self) -> Value {
        let entries = until_found("it is in the log", || {
            let entries = self.hop.entries();
            (!entries.is_empty()).then_some(entries)
        });
        entries[0].clone()
    }
}

fn nft(namespace: &Namespace, rules: &str) -> String {
    let mut command = namespace.command("nft");
    let mut child = command
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(rules.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{rules}");
    String::from_utf8(output.stdout).expect("text")
}

fn converse(near: &Peer, far: &Peer) {
    const BYTES: u64 = 300_000;
    for (from, to, payload) in [(near, far, Payload::new(1)), (far, near, Payload::new(2))] {
        thread::scope(|scope| {
            scope.spawn(|| {
                from.send(payload, 0, BYTES);
                from.end_stream();
            });
            assert_eq!(to.read_to_end(payload, 0), (BYTES, End::OfStream));
        });
    }
}

#[test]
fn they_are_counted_in_the_metrics() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let scratch = Scratch::new("metrics").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let stage = Stage::new(&["--control", socket]);
    wait_for(socket);
    let (near, far) = stage.connect();
    until("it is counted", || {
        let reading = Reading::at(socket);
        reading.sum("spliced_sessions_opened_total", &[]) == 1
            && reading.sum("spliced_listener_open_connections", &[]) == 1
            && reading.sum("spliced_server_open_connections", &[]) == 1
    });
    // While it lives, and each byte once.
    const LIVE: [u64; 2] = [70_001, 1_000_003];
    let moved = || {
        ["client_to_target", "target_to_client"].map(|direction| {
            let labels = [("direction", direction)];
            Reading::at(socket).sum("spliced_moved_bytes_total", &labels)
        })
    };
    let payloads = [Payload::new(3), Payload::new(4)];
    thread::scope(|scope| {
        scope.spawn(|| near.send(payloads[0], 0, LIVE[0]));
        scope.spawn(|| far.send(payloads[1], 0, LIVE[1]));
        scope.spawn(|| near.expect(payloads[1], 0, LIVE[1]));
        far.expect(payloads[0], 0, LIVE[0]);
    });
    until("what has passed is counted", || moved() == LIVE);
    converse(&near, &far);
    assert_eq!(stage.entry()["why_engine"], "from the SYN on");
    let labels = [
        ("backend", &*stage.server.address),
        ("engine", "segment"),
        ("outcome", "end_of_stream"),
    ];
    until("its end is counted", || {
        let reading = Reading::at(socket);
        reading.sum("spliced_sessions_ended_total", &labels) == 1
            && reading.sum("spliced_listener_open_connections", &[]) == 0
    });
    assert_eq!(moved(), LIVE.map(|live| live + 300_000));
    let labels = [labels[0]];
    let reading = Reading::at(socket);
    let all = reading.sum("spliced_moved_bytes_total", &labels);
    assert_eq!(all, moved().iter().sum::<u64>());
}

/// Of one that lives on, of one that nobody has looked at between its first byte and its end, and of one whose server says
/// nothing.
#[test]
fn their_servers_are_timed() {
    const THINKS: Duration = Duration::from_millis(300);
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let scratch = Scratch::new("from-syn").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let stage = Stage::new(&["--control", socket]);
    wait_for(socket);
    let count = |metric: &str| {
        let name = format!("spliced_{metric}_duration_seconds_count");
        Reading::at(socket).sum(&name, &[])
    };
    let seconds = || Reading::at(socket).total("spliced_first_byte_duration_seconds_sum", &[]);

    let before = Instant::now();
    let (near, far) = stage.connect();
    until("the server's answer is timed", || count("connect") == 1);
    near.write_number(1);
    assert_eq!(far.read_number(), 1);
    thread::sleep(THINKS);
    // What the client sends is no answer.
    assert_eq!(count("first_byte"), 0);
    far.write_number(2);
    assert_eq!(near.read_number(), 2);
    let most = before.elapsed();
    until("its first byte is timed", || count("first_byte") == 1);
    let first = seconds();
    let is_true = |told: f64, most: Duration| {
        let rounding = Duration::from_micros(1);
        let told = Duration::from_secs_f64(told);
        assert!(
            THINKS <= told + rounding && told <= most + rounding,
            "{told:?} of {most:?}"
        );
    };
    is_true(first, most);
    // Only the first byte counts.
    far.write_number(3);
    assert_eq!(near.read_number(), 3);

    let before = Instant::now();
    let (short, far_of_short) = stage.connect();
    thread::sleep(THINKS);
    far_of_short.write_number(4);
    let most = before.elapsed();
    far_of_short.end_stream();
    assert_eq!(short.read_number(), 4);
    short.expect_end();
    short.end_stream();
    far_of_short.expect_end();
    let (silent, far_of_silent) = stage.connect();
    silent.write_number(5);
    assert_eq!(far_of_silent.read_number(), 5);
    silent.reset();
    let ended = || Reading::at(socket).sum("spliced_sessions_ended_total", &[]);
    until("both have ended", || ended() == 2);
    assert_eq!((count("connect"), count("first_byte")), (3, 2));
    is_true(seconds() - first, most);
    near.end_stream();
    far.expect_end();
    far.end_stream();
    near.expect_end();
    until("all have ended", || ended() == 3);
    assert_eq!((count("connect"), count("first_byte")), (3, 2));
}

/// A SYN goes to one address only, so it cannot be raced.
#[test]
fn after_an_address_that_does_not_answer_the_next_one_is_taken() {
    // A neighbour of the server, as near to the relay's address as that: so the order is that of the file (RFC 6724).
    const SILENT: &str = "198.18.2.3";
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let mut ip = lab.relay().command("ip");
    let neighbour = format!("neighbour add {SILENT} lladdr 02:00:00:00:00:09 dev to-server");
    let added = ip.args(neighbour.split(' ')).args(["nud", "permanent"]);
    assert!(added.status().expect("it runs").success());
    let server = Server::in_namespace(lab.server(), &format!("{}:{PORT}", Lab::SERVER_V4));
    let scratch = Scratch::new("addresses").expect("a directory");
    let names = format!("{SILENT} name.test\n{} name.test\n", Lab::SERVER_V4);
    let names = scratch.write("hosts", &names).expect("a file");
    let script = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
    let mut command = lab.relay().command("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(names)
        .args([BINARY, "relay", &format!("{}:{PORT}", Lab::RELAY_V4)])
        .args([&format!("name.test:{PORT}"), "--from-syn"])
        .args(["--connect-timeout", "500ms"]);
    let hop = Hop::spawn(&mut command);
    hop.relay.wait_logged("are translated from the SYN on");
    let connect = || lab.client().enter(|| Peer::try_connect(hop.address()));
    // The client may send its SYN again instead of seeing a reset.
    let near = until_found("another address is taken", || {
        connect().expect("entered").ok()
    });
    let far = server.accept();
    converse(&near, &far);
    drop((near, far));
    let late = "the target did not answer in time";
    let no_pair = format!("no pair: {late}");
    for (target, engine, why_engine, outcome) in [
        (SILENT.to_owned(), Value::Null, &*no_pair, late),
        (
            Lab::SERVER_V4.to_string(),
            "segment".into(),
            "from the SYN on",
            "end of stream",
        ),
    ] {
        let target = format!("{target}:{PORT}");
        let entry = until_found("it is in the log", || {
            let is_it = |entry: &Value| entry["target"] == target.as_str();
            hop.entries().into_iter().find(is_it)
        });
        assert_eq!(entry["outcome"], outcome, "{entry}");
        assert_eq!(entry["engine"], engine, "{entry}");
        assert_eq!(entry["why_engine"], why_engine, "{entry}");
    }
}

#[test]
fn a_connection_has_no_descriptor_and_is_logged() {
    const MORE: usize = 20;
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    for engine in ["auto", "segment"] {
        let stage = Stage::new(&["--engine", engine]);
        stage
            .hop
            .relay
            .wait_logged("are translated from the SYN on");
        let (near, far) = stage.connect();
        let before = stage.hop.relay.descriptor_infos().len();
        let more: Vec<_> = (0..MORE).map(|_| stage.connect()).collect();
        // The control thread may have started since, with a few of its own.
        let opened = stage.hop.relay.descriptor_infos().len() - before;
        assert!(opened < MORE, "{opened}");
        converse(&near, &far);
        let client = near.local_address();
        drop((near, far));
        let entry = stage.entry();
        drop(more);
        assert_eq!(entry["engine"], "segment", "{entry}");
        assert_eq!(entry["why_engine"], "from the SYN on", "{entry}");
        assert_eq!(entry["client_to_target_bytes"], 300_000, "{entry}");
        assert_eq!(entry["target_to_client_bytes"], 300_000, "{entry}");
        assert_eq!(entry["outcome"], "end of stream", "{entry}");
        assert_eq!(entry["client"], client.to_string(), "{entry}");
        assert_eq!(entry["listener"], stage.hop.address(), "{entry}");
        assert_eq!(entry["route"], 1, "{entry}");
        for name in ["backend", "server", "target"] {
            assert_eq!(entry[name], stage.server.address, "{name}: {entry}");
        }
    }
}

#[test]
fn after_a_signal_connections_end_and_a_second_signal_resets_those_that_do_not() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    for signals in [1, 2] {
        let mut stage = Stage::new(&[]);
        stage
            .hop
            .relay
            .wait_logged("are translated from the SYN on");
        let (near, far) = stage.connect();
        stage.hop.relay.signal(Signal::TERM);
        stage
            .hop
            .relay
            .wait_logged("no longer accepting; 1 connection");
        let address = stage.hop.address().to_owned();
        let refused = stage
            .lab
            .client()
            .enter(|| Peer::try_connect(&address).is_err());
        assert!(refused.expect("entered"));
        if signals == 1 {
            converse(&near, &far);
            drop((near, far));
            assert_eq!(stage.hop.relay.wait_end().code(), Some(0));
            assert_eq!(stage.entry()["outcome"], "end of stream");
            continue;
        }
        stage.hop.relay.signal_until_it_ends(Signal::TERM);
        for peer in [&near, &far] {
            assert_eq!(peer.read_to_end(Payload::new(0), 0), (0, End::Reset));
        }
        assert_eq!(stage.hop.relay.wait_end().code(), Some(CUT_SHORT));
        assert_eq!(stage.entry()["outcome"], "ended by the relay");
    }
}

#[test]
fn what_needs_a_socket_gets_one_and_the_log_says_why() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    for (options, why) in [
        (&["--max-connections", "9"][..], "limits on connections"),
        (&["--engine", "copy"], "the engine copy works on sockets"),
    ] {
        let stage = Stage::new(options);
        stage.hop.relay.wait_logged(why);
        let (near, far) = stage.connect();
        converse(&near, &far);
        drop((near, far));
        assert_ne!(stage.entry()["why_engine"], "from the SYN on");
    }
}

/// Rules see the connections that they are for, and what nobody may bypass goes through sockets.
#[test]
fn a_rule_still_counts() {
    if ![Need::Root, Need::Bpf, Need::Nft]
        .into_iter()
        .all(available)
    {
        return;
    }
    let rules = format!(
        "table ip t {{
            counter hits {{ }}
            chain c {{
                type filter hook input priority 0;
                tcp dport {PORT} ct state new counter name hits accept
            }}
        }}
        "
    );
    let stage = Stage::under(&rules, &[]);
    stage
        .hop
        .relay
        .wait_logged("begin with sockets: packet filters");
    let (near, far) = stage.connect();
    converse(&near, &far);
    drop((near, far));
    let counted = nft(stage.lab.relay(), "list counter ip t hits\n");
    assert!(counted.contains("packets 1"), "{counted}");
}

#[test]
fn rules_that_come_later_reset_connections_that_they_would_stop() {
    if ![Need::Root, Need::Bpf, Need::Nft]
        .into_iter()
        .all(available)
    {
        return;
    }
    let stage = Stage::new(&[]);
    stage
        .hop
        .relay
        .wait_logged("are translated from the SYN on");
    let (near, far) = stage.connect();
    nft(
        stage.lab.relay(),
        &format!(
            "table ip t {{
                chain c {{
                    type filter hook input priority 0;
                    ip saddr {} tcp dport {PORT} drop
                }}
            }}
            ",
            Lab::CLIENT_V4
        ),
    );
    stage
        .hop
        .relay
        .wait_logged("begin with sockets: packet filters");
    for peer in [&near, &far] {
        assert_eq!(peer.read_to_end(Payload::new(0), 0), (0, End::Reset));
    }
    assert_eq!(stage.entry()["outcome"], "stopped by packet filters");
    nft(stage.lab.relay(), "flush ruleset\n");
    until("connections are translated again", || {
        let address: SocketAddr = stage.hop.address().parse().expect("an address");
        let near = stage
            .lab
            .client()
            .enter(|| Peer::connect(&address.to_string()));
        let near = near.expect("entered");
        let far = stage.server.accept();
        drop((near, far));
        let entries = stage.hop.entries();
        entries[1..]
            .iter()
            .any(|entry| entry["why_engine"] == "from the SYN on")
    });
}

/// What a configuration says of its only listener.
fn configuration(server: &str, from_syn: bool) -> String {
    format!(
        "[[listener]]\naddress = \"{}:{PORT}\"\nfrom_syn = {from_syn}\n\
         [[listener.route]]\nbackend = \"web\"\n\
         [backend.web]\nservers = \"{server}\"\n",
        Lab::RELAY_V4
    )
}

#[test]
fn connections_survive_reloads() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let server = || Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
    let (first, second) = (server(), server());
    let scratch = Scratch::new("from-syn").expect("a directory");
    let write = |server: &Server, from_syn| {
        let text = configuration(&server.address, from_syn);
        scratch.write("spliced.toml", &text).expect("written");
    };
    write(&first, true);
    let mut command = lab.relay().command(BINARY);
    command
        .args(["run", "--config"])
        .arg(scratch.path().join("spliced.toml"))
        .env_remove("SPLICED_LOG");
    let mut relay = Relay::spawn(&mut command);
    let address = relay.address.clone();
    let connect = |server: &Server| {
        let near = lab.client().enter(|| Peer::connect(&address));
        (near.expect("entered"), server.accept())
    };
    let from_syn = |server: &Server| {
        let address = &server.address;
        format!("to {address} are translated from the SYN on")
    };
    relay.wait_logged(&from_syn(&first));
    let of_first = connect(&first);

    write(&second, true);
    relay.signal(Signal::HUP);
    relay.wait_logged(&from_syn(&second));
    let of_second = connect(&second);

    write(&second, false);
    relay.signal(Signal::HUP);
    relay.wait_logged("begin with sockets: forwarding has ended");
    let of_socket = connect(&second);
    for (near, far) in [&of_first, &of_second, &of_socket] {
        converse(near, far);
    }
    drop((of_first, of_second, of_socket));

    // Ports of former connections are in order again.
    write(&second, true);
    relay.signal(Signal::HUP);
    relay.wait_logged(&from_syn(&second));
    for _ in 0..3 {
        let (near, far) = connect(&second);
        converse(&near, &far);
    }
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait_end().code(), Some(0));
}

/// A reload takes away what they have: a listener, or a server. Others with sockets have the same end.
#[test]
fn what_a_reload_removes_is_cut_when_its_time_is_over() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    for from_syn in [true, false] {
        let lab = Lab::new().expect("a lab");
        let server = || Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
        let (first, second) = (server(), server());
        let scratch = Scratch::new("from-syn").expect("a directory");
        let log = scratch.path().join("access.log");
        let write = |name: &str, server: &Server| {
            let text = configuration(&server.address, from_syn)
                .replacen("[[listener]]", "[[listener]]\nname = \"@\"", 1)
                .replace('@', name);
            let before = format!(
                "drain_timeout = \"300ms\"\n[defaults]\naccess_log = \"{}\"\n",
                log.display()
            );
            scratch
                .write("spliced.toml", &format!("{before}{text}"))
                .expect("written");
        };
        write("one", &first);
        let mut command = lab.relay().command(BINARY);
        command
            .args(["run", "--config"])
            .arg(scratch.path().join("spliced.toml"))
            .env_remove("SPLICED_LOG");
        let mut relay = Relay::spawn(&mut command);
        let address = relay.address.clone();
        let connect = |server: &Server| {
            let near = lab.client().enter(|| Peer::connect(&address));
            let (near, far) = (near.expect("entered"), server.accept());
            near.write_number(1);
            assert_eq!(far.read_number(), 1);
            (near, far)
        };
        let leads_to = |server: &Server| {
            if from_syn {
                let address = &server.address;
                relay.wait_logged(&format!("to {address} are translated from the SYN on"));
            }
        };
        leads_to(&first);
        let of_server = connect(&first);
        write("one", &second);
        relay.signal(Signal::HUP);
        leads_to(&second);
        of_server.0.expect_reset();
        of_server.1.expect_reset();

        let of_listener = connect(&second);
        let text = configuration(&second.address, false)
            .replace(&format!(":{PORT}"), &format!(":{}", PORT + 1));
        let text = format!(
            "drain_timeout = \"300ms\"\n[defaults]\naccess_log = \"{}\"\n{text}",
            log.display()
        );
        scratch.write("spliced.toml", &text).expect("written");
        relay.signal(Signal::HUP);
        of_listener.0.expect_reset();
        of_listener.1.expect_reset();
        relay.wait_logged("reset 1 connection: listener one was removed");
        relay.signal(Signal::TERM);
        // Nothing was cut short by the end of the process.
        assert_eq!(relay.wait_end().code(), Some(0));
        let logged = std::fs::read_to_string(&log).expect("a log");
        for why in ["its server was removed", "its listener was removed"] {
            let outcome = format!("\"outcome\":\"{why}\"");
            assert_eq!(logged.matches(&outcome).count(), 1, "{from_syn}: {logged}");
        }
    }
}

/// Of a dual-stack listener, clients of the server's family.
#[test]
fn a_dual_stack_listener_forwards() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    for (server, relay) in [
        (Lab::SERVER_V4.to_string(), Lab::RELAY_V4.to_string()),
        (
            format!("[{}]", Lab::SERVER_V6),
            format!("[{}]", Lab::RELAY_V6),
        ),
    ] {
        let server = Server::in_namespace(lab.server(), &format!("{server}:0"));
        let mut command = lab.relay().command(BINARY);
        command.args(["relay", &format!(":{PORT}"), &server.address, "--from-syn"]);
        let hop = Hop::spawn(&mut command);
        hop.relay.wait_logged(&format!(
            "to {} are translated from the SYN on",
            server.address
        ));
        let near = lab
            .client()
            .enter(|| Peer::connect(&format!("{relay}:{PORT}")));
        let (near, far) = (near.expect("entered"), server.accept());
        converse(&near, &far);
    }
}

/// Nobody could reset them, or ask their ends for a sign of life.
#[test]
fn without_the_right_to_reset_them_connections_begin_with_sockets() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let server = Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
    let mut command = lab.relay().command("setpriv");
    let rights = "-net_raw,-sys_admin";
    command
        .args(["--bounding-set", rights, "--inh-caps", rights, BINARY])
        .args([
            "relay",
            &format!("{}:{PORT}", Lab::RELAY_V4),
            &server.address,
        ])
        .args(["--from-syn", "--idle-timeout", "300ms"]);
    let hop = Hop::spawn(&mut command);
    hop.relay.wait_logged("begin with sockets: connections from the SYN on need a raw socket to be reset by, and so CAP_NET_RAW");
    let near = lab.client().enter(|| Peer::connect(hop.address()));
    let (near, far) = (near.expect("entered"), server.accept());
    near.expect_reset();
    far.expect_reset();
}

/// The same words as with sockets.
#[test]
fn a_server_that_refuses_is_told() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let scratch = Scratch::new("from-syn").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let lab = Lab::new().expect("a lab");
    let server = format!("{}:{PORT}", Lab::SERVER_V4);
    let mut command = lab.relay().command(BINARY);
    command.args(["relay", &format!("{}:{PORT}", Lab::RELAY_V4), &server]);
    command.args(["--from-syn", "--control", socket]);
    let hop = Hop::spawn(&mut command);
    wait_for(socket);
    hop.relay.wait_logged("are translated from the SYN on");
    let refused = lab
        .client()
        .enter(|| std::net::TcpStream::connect(hop.address()));
    assert!(refused.expect("entered").is_err());
    hop.relay
        .wait_logged(&format!(" to {server} was reset: refused by target"));
    let entries = until_found("it is in the log", || {
        let entries = hop.entries();
        (!entries.is_empty()).then_some(entries)
    });
    let entry = &entries[0];
    assert_eq!(entry["engine"], Value::Null, "{entry}");
    assert_eq!(entry["why_engine"], "no pair: refused by target", "{entry}");
    let labels = [("engine", "none"), ("outcome", "no_server")];
    assert_eq!(
        Reading::at(socket).sum("spliced_sessions_ended_total", &labels),
        1
    );
    let mut backends = std::process::Command::new(BINARY);
    let backends = backends.args(["backends", "--control", socket]).output();
    let backends = String::from_utf8(backends.expect("it runs").stdout).expect("text");
    assert!(backends.contains("refused by target"), "{backends}");
}

#[test]
fn a_second_relay_to_the_same_server_uses_sockets() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let stage = Stage::new(&[]);
    stage
        .hop
        .relay
        .wait_logged("are translated from the SYN on");
    let mut command = stage.lab.relay().command(BINARY);
    command.args([
        "relay",
        &format!("{}:0", Lab::RELAY_V4),
        &stage.server.address,
        "--from-syn",
    ]);
    let other = Hop::spawn(&mut command);
    other.relay.wait_logged("another process forwards to");
    let near = stage.lab.client().enter(|| Peer::connect(other.address()));
    let (near, far) = (near.expect("entered"), stage.server.accept());
    converse(&near, &far);
    let (near, far) = stage.connect();
    converse(&near, &far);
    drop((near, far));
    assert_eq!(stage.entry()["why_engine"], "from the SYN on");
}

#[test]
fn a_connection_that_stays_half_closed_is_reset() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let stage = Stage::new(&["--half-close-timeout", "300ms"]);
    stage
        .hop
        .relay
        .wait_logged("are translated from the SYN on");
    let (near, far) = stage.connect();
    near.end_stream();
    assert_eq!(far.read_to_end(Payload::new(0), 0), (0, End::OfStream));
    near.expect_reset();
    let entry = stage.entry();
    assert_eq!(entry["outcome"], "half-closed for too long", "{entry}");
    assert_eq!(entry["why_engine"], "from the SYN on", "{entry}");
}

/// The relay has no socket that could ask.
#[test]
fn a_vanished_server_is_found_by_the_keepalive_that_is_asked_for() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let stage = Stage::new(&["--keepalive", "1s,1s,1"]);
    stage
        .hop
        .relay
        .wait_logged("are translated from the SYN on");
    let (near, _far) = stage.connect();
    let mut down = stage.lab.server().command("ip");
    let down = down.args(["link", "set", Lab::TO_RELAY, "down"]).status();
    assert!(down.expect("it runs").success());
    near.expect_reset();
    let entry = stage.entry();
    assert_eq!(entry["outcome"], "an end gave no sign of life", "{entry}");
}
