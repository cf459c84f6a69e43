//! The sockets to servers: their source address, mark and interface, and the rate of a listener.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use netlab::{Lab, Namespace, Need, Scratch, available};
use serde_json::Value;

use super::Proxy;
use crate::log::Log;
use crate::patience::{PATIENCE, until, until_found};
use crate::payload::Payload;
use crate::peer::{Peer, exchange};
use crate::relay::{BINARY, output};
use crate::server::Server;

/// Enough for `auto` to promote a pair: it does so at 64 KiB.
const BYTES: u64 = 1 << 20;

/// A listener, its backend `b`, and a server that the backend leads to.
struct Site {
    server: Server,
    configuration: String,
    log: Log,
    _scratch: Scratch,
}

impl Site {
    /// The server listens on `server_ip`, the proxy on `proxy_ip`.
    fn new(lab: &Lab, [proxy_ip, server_ip]: [IpAddr; 2], listener: &str, backend: &str) -> Self {
        let server = SocketAddr::new(server_ip, 0).to_string();
        let server = Server::in_namespace(lab.server(), &server);
        let scratch = Scratch::new("source").expect("a directory");
        let log = Log::below(&scratch);
        let configuration = format!(
            r#"
[[listener]]
name = "all"
address = "{}"
access_log = "{}"
{listener}
[[listener.route]]
backend = "b"
[backend.b]
servers = ["{}"]
{backend}
"#,
            SocketAddr::new(proxy_ip, 0),
            log.path,
            server.address
        );
        Self {
            server,
            configuration,
            log,
            _scratch: scratch,
        }
    }

    fn v4(lab: &Lab, listener: &str, backend: &str) -> Self {
        let ips = [Lab::RELAY_V4, Lab::SERVER_V4].map(IpAddr::V4);
        Self::new(lab, ips, listener, backend)
    }

    fn run(&self, lab: &Lab) -> Proxy {
        Proxy::run_in(lab.relay(), &self.configuration)
    }

    /// A client, and its connection at the server.
    fn join(&self, lab: &Lab, proxy: &Proxy) -> (Peer, Peer) {
        let near = client(lab, proxy);
        near.write_number(1);
        let far = self.server.accept();
        assert_eq!(far.read_number(), 1);
        (near, far)
    }

    /// The entries of the access log, as soon as there are `count`.
    fn entries(&self, count: usize) -> Vec<Value> {
        until_found("the connections are in the log", || {
            let entries = self.log.entries();
            (entries.len() >= count).then_some(entries)
        })
    }

    /// The engine that one connection with enough bytes for `segment` ends with, and why.
    fn engine(&self, lab: &Lab, proxy: &Proxy) -> (Value, String) {
        let (near, far) = self.join(lab, proxy);
        converse(&near, &far, 2000);
        exchange(&near, &far, 2, BYTES, BYTES);
        let mut entry = self.entries(1).remove(0);
        let why = entry["why_engine"].as_str().expect("a reason").to_owned();
        (entry["engine"].take(), why)
    }
}

fn client(lab: &Lab, proxy: &Proxy) -> Peer {
    let address = proxy.address("all");
    let near = lab.client().enter(|| Peer::connect(&address));
    near.expect("entered")
}

/// As [`Peer::is_reset_by`], for the lab's client.
fn is_reset(lab: &Lab, proxy: &Proxy) {
    let address = proxy.address("all");
    let reset = || Peer::is_reset_by(&address);
    lab.client().enter(reset).expect("entered");
}

/// Sends numbers to and fro.
fn converse(near: &Peer, far: &Peer, numbers: u64) {
    for number in 0..numbers {
        near.write_number(number);
        assert_eq!(far.read_number(), number);
        far.write_number(number);
        assert_eq!(near.read_number(), number);
    }
}

fn run(namespace: &Namespace, line: &str) {
    let mut words = line.split_whitespace();
    let mut command: Command = namespace.command(words.next().expect("a program"));
    let output = output(command.args(words));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
}

/// What a command that ends by itself says to a configuration, and whether it succeeds.
fn ask(what: &str, lab: &Lab, configuration: &str) -> (bool, String) {
    let directory = Scratch::new("check").expect("a directory");
    let path = directory.path().join("proxy.toml");
    fs::write(&path, configuration).expect("written");
    let mut command = lab.relay().command(BINARY);
    let output = output(command.args([what, "--config"]).arg(&path));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).expect("UTF-8");
    (output.status.success(), said)
}

/// Runs the commands that `spliced check` wants, and expects that it wants no more.
pub(super) fn follow_advice(lab: &Lab, configuration: &str) {
    let (_, said) = ask("check", lab, configuration);
    let advice = said.split('\'').filter(|part| part.starts_with("ip "));
    let advice: Vec<_> = advice.collect();
    assert_eq!(advice.len(), 2, "{said}");
    for line in advice {
        run(lab.relay(), line);
    }
    let (is_good, said) = ask("check", lab, configuration);
    assert!(is_good && said.contains("and stay here"), "{said}");
    assert!(!said.contains("ip rule"), "{said}");
}

#[test]
fn the_server_sees_the_client_and_segment_takes_the_pair() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    for ips in [
        [Lab::RELAY_V4.into(), Lab::SERVER_V4.into()],
        [IpAddr::V6(Lab::RELAY_V6), Lab::SERVER_V6.into()],
    ] {
        if ips[0].is_ipv6() && !lab.has_ipv6() {
            continue;
        }
        for (round, engine) in ["auto", "segment"].into_iter().enumerate() {
            let listener = format!("engine = \"{engine}\"");
            let site = Site::new(&lab, ips, &listener, "source = \"client\"");
            if round == 0 {
                follow_advice(&lab, &site.configuration);
            }
            let proxy = site.run(&lab);
            // A connection may end before the change-over.
            let mut ended = 0;
            until("segment takes a pair", || {
                let (near, far) = site.join(&lab, &proxy);
                let seen: SocketAddr = far.peer_address().parse().expect("an address");
                let own: SocketAddr = near.local_address().parse().expect("an address");
                assert_eq!(seen.ip(), own.ip());
                converse(&near, &far, 500 << ended);
                exchange(&near, &far, 2, BYTES, BYTES);
                drop((near, far));
                ended += 1;
                let entries = site.entries(ended);
                assert_ne!(entries[ended - 1]["outcome"], "refused by the engine");
                entries[ended - 1]["engine"] == "segment"
            });
        }
    }
}

#[test]
fn without_the_rules_the_client_is_reset_and_the_log_says_why() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let site = Site::v4(&lab, "", "source = \"client\"\nconnect_timeout = \"300ms\"");
    let proxy = site.run(&lab);
    let begun = Instant::now();
    is_reset(&lab, &proxy);
    assert!(begun.elapsed() < PATIENCE);
    let line = proxy.relay.wait_logged("was reset");
    assert!(line.contains("spliced check"), "{line}");
    let why = site.entries(1)[0]["outcome"].to_string();
    assert!(why.contains("spliced check"), "{why}");
}

#[test]
fn a_fixed_source_is_used_and_those_of_a_pool_take_turns() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let others = ["198.18.2.8", "198.18.2.9"];
    for other in others {
        let line = format!("ip address add {other}/24 dev {}", Lab::TO_SERVER);
        run(lab.relay(), &line);
    }
    for (source, expected) in [
        (format!("{:?}", others[1]), [others[1]; 4]),
        (
            format!("{others:?}"),
            [others[0], others[1], others[0], others[1]],
        ),
    ] {
        let site = Site::v4(&lab, "", &format!("source = {source}"));
        let proxy = site.run(&lab);
        let seen = [(); 4].map(|()| {
            let (_near, far) = site.join(&lab, &proxy);
            let seen: SocketAddr = far.peer_address().parse().expect("an address");
            seen.ip().to_string()
        });
        assert_eq!(seen, expected, "{source}");
    }
}

/// Connections to a backend with `option` never go to `segment`, and cannot be asked to.
fn excludes_segment(lab: &Lab, option: &str) {
    let site = Site::v4(lab, "", option);
    let (is_good, said) = ask("check", lab, &site.configuration);
    assert!(
        is_good && said.contains("not segment to backend b"),
        "{said}"
    );
    assert!(!said.contains("there is no interface"), "{said}");
    let proxy = site.run(lab);
    let (engine, why) = site.engine(lab, &proxy);
    // A pair that was offered to it and refused would have its reason.
    let is_left_out = why.ends_with("; segment is not tried: its server needs a mark or a device");
    assert!(engine != "segment" && is_left_out, "{why}");
    drop(proxy);
    let site = Site::v4(lab, "engine = \"segment\"", option);
    let name = option.split(' ').next().expect("its name");
    let refusal = format!("\"b\" has {name}, which engine segment cannot keep to");
    for what in ["check", "run"] {
        let (is_good, said) = ask(what, lab, &site.configuration);
        assert!(!is_good && said.contains(&refusal), "{what}: {said}");
    }
}

#[test]
fn a_mark_routes_the_connection_and_keeps_it_from_segment() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    // Without the mark there is no way to the server.
    let (ip, device) = (Lab::SERVER_V4, Lab::TO_SERVER);
    for line in [
        format!("ip route add {ip}/32 dev {device} table 77"),
        format!("ip rule add to {ip} fwmark 77 lookup 77 priority 10"),
        format!("ip rule add to {ip} prohibit priority 11"),
    ] {
        run(lab.relay(), &line);
    }
    excludes_segment(&lab, "mark = 77");
    let site = Site::v4(&lab, "", "mark = 78\nconnect_timeout = \"300ms\"");
    let proxy = site.run(&lab);
    is_reset(&lab, &proxy);
}

#[test]
fn an_interface_is_bound_and_keeps_the_connection_from_segment() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    excludes_segment(&lab, &format!("interface = {:?}", Lab::TO_SERVER));
    let wrong = format!("interface = {:?}\nconnect_timeout = \"300ms\"", "lo");
    let site = Site::v4(&lab, "", &wrong);
    let proxy = site.run(&lab);
    is_reset(&lab, &proxy);
}

#[test]
fn a_rate_holds_in_each_direction_and_keeps_the_pair_from_segment() {
    if !available(Need::Root) {
        return;
    }
    /// Bytes per second.
    const RATE: u64 = 2 << 20;
    let lab = Lab::new().expect("a lab");
    let site = Site::v4(&lab, "rate = \"2MiB\"", "");
    let proxy = site.run(&lab);
    // The other direction stays idle, so the time is that of one alone.
    for to_client in [false, true] {
        let (near, far) = site.join(&lab, &proxy);
        let (from, to) = match to_client {
            false => (near, far),
            true => (far, near),
        };
        converse(&from, &to, 500);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                from.send(Payload::new(1), 0, BYTES);
                from.end_stream();
            });
            to.expect(Payload::new(1), 0, BYTES);
        });
        let least = Duration::from_millis(1000 * BYTES / RATE / 2);
        assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    }
    for entry in site.entries(2) {
        let why = entry["why_engine"].as_str().expect("a reason");
        let is_left_out = why.ends_with("; segment is not tried: its sockets keep its rate");
        assert!(entry["engine"] != "segment" && is_left_out, "{entry}");
    }
}
