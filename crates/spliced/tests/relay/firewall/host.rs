//! A relay between a remote client and a remote server, and the packet filters of its host.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use netlab::{Lab, Namespace, Need, available};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use serde_json::Value;

use crate::patience::until_found;
use crate::peer::Peer;
use crate::relay::BINARY;
use crate::segment::hop::Hop;
use crate::server::Server;

/// These ports are free, since each test has its own namespaces.
pub(super) const PORT: u16 = 8080;
pub(super) const SERVER_PORT: u16 = 9090;
/// The client's first port, outside of the relay's own range (`ip_local_port_range`).
pub(super) const CLIENT_PORT: u16 = 2000;

pub(super) struct Host {
    pub(super) hop: Hop,
    server: Server,
    pub(super) lab: Lab,
    ips: Ips,
}

/// The namespaces of client, relay and server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ips {
    client: IpAddr,
    relay: IpAddr,
    server: IpAddr,
}

pub(super) const IPV4: Ips = Ips {
    client: IpAddr::V4(Lab::CLIENT_V4),
    relay: IpAddr::V4(Lab::RELAY_V4),
    server: IpAddr::V4(Lab::SERVER_V4),
};

pub(super) const IPV6: Ips = Ips {
    client: IpAddr::V6(Lab::CLIENT_V6),
    relay: IpAddr::V6(Lab::RELAY_V6),
    server: IpAddr::V6(Lab::SERVER_V6),
};

/// Both ends of a connection through the relay.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) near: Peer,
    pub(super) far: Peer,
}

/// Whether this machine can create hosts with packet filters.
pub(super) fn can_filter() -> bool {
    [Need::Netns, Need::Bpf, Need::Nft, Need::Iptables]
        .into_iter()
        .all(available)
}

/// Runs a program in this thread's namespace with `input` on standard input. Returns its output.
pub(super) fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(netlab::program(program).expect("it is installed"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{program} {arguments:?}: {input}");
    String::from_utf8(output.stdout).expect("text")
}

impl Host {
    /// A relay with these options on a host without rules.
    pub(super) fn with(options: &[&str]) -> Self {
        Self::prepared(IPV4, |_| {}, options)
    }

    /// The same on a host that has these nftables rules from the start.
    pub(super) fn under(rules: &str, options: &[&str]) -> Self {
        Self::prepared(IPV4, |lab| load(lab, rules), options)
    }

    /// The same after `prepare`.
    pub(super) fn prepared(ips: Ips, prepare: impl FnOnce(&Lab), options: &[&str]) -> Self {
        Self::by(ips, prepare, |namespace| namespace.command(BINARY), options)
    }

    /// The same with a command to which the arguments of `spliced` are added.
    pub(super) fn by(
        ips: Ips,
        prepare: impl FnOnce(&Lab),
        command: impl FnOnce(&Namespace) -> Command,
        options: &[&str],
    ) -> Self {
        let lab = Lab::new().expect("a lab");
        prepare(&lab);
        let server = SocketAddr::from((ips.server, SERVER_PORT)).to_string();
        let server = Server::in_namespace(lab.server(), &server);
        let listen = SocketAddr::from((ips.relay, PORT)).to_string();
        let mut command = command(lab.relay());
        command
            .args(["relay", &listen, &server.address])
            // Pairs are promoted in the order in which they were accepted.
            .args(["--threads", "1"])
            .args(options);
        let hop = Hop::spawn(&mut command);
        Self {
            hop,
            server,
            lab,
            ips,
        }
    }

    /// Loads further nftables rules.
    pub(super) fn nft(&self, rules: &str) {
        load(&self.lab, rules);
    }

    /// The handle of the only rule that contains these words.
    pub(super) fn handle(&self, words: &str) -> String {
        let list = || run("nft", &["-a", "-n", "list", "ruleset"], "");
        let rules = self.lab.relay().enter(list).expect("entered");
        let mut lines = rules.lines().filter(|line| line.contains(words));
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("no {words} in {rules}"));
        assert_eq!(lines.next(), None, "{rules}");
        line.rsplit_once("# handle ").expect("a handle").1.into()
    }

    /// Connects a client from this port; moves no bytes.
    pub(super) fn connect(&self, port: u16) -> Pair {
        let near = self.client(port);
        let far = self.server.accept();
        Pair { near, far }
    }

    /// As [`connect`](Self::connect), but the server does not accept the connection.
    pub(super) fn client(&self, port: u16) -> Peer {
        let from = SocketAddr::from((self.ips.client, port));
        let to = SocketAddr::from((self.ips.relay, PORT));
        let connected = || {
            let kind = SocketType::STREAM;
            let family = match from {
                SocketAddr::V4(_) => AddressFamily::INET,
                SocketAddr::V6(_) => AddressFamily::INET6,
            };
            let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
            bind(&socket, &from).expect("bind");
            connect(&socket, &to).expect("connect");
            sockopt::set_tcp_nodelay(&socket, true).expect("TCP_NODELAY");
            Peer::new(socket)
        };
        self.lab.client().enter(connected).expect("entered")
    }

    /// The relay resets a client from this port.
    pub(super) fn is_reset(&self, port: u16) {
        // A reset that came before `connect` returns would be its error.
        self.hop.relay.hold_still();
        let near = self.client(port);
        self.hop.relay.go_on();
        near.expect_reset();
    }

    /// Sends bytes over all pairs until each is spliced.
    pub(super) fn splice(&self, pairs: &[&Pair]) {
        until_found("the pairs are spliced", || {
            pairs.iter().for_each(|pair| pair.round());
            self.hop.are_spliced(pairs.len()).then_some(())
        });
        pairs.iter().for_each(|pair| pair.round());
    }

    /// Adds a spliced pair to these.
    pub(super) fn spliced(&self, port: u16, beside: &[&Pair]) -> Pair {
        let pair = self.connect(port);
        self.splice(&[beside, &[&pair]].concat());
        pair
    }

    /// Waits for the access log's entry of the connection from this port.
    pub(super) fn entry(&self, port: u16) -> Value {
        let client = SocketAddr::from((self.ips.client, port)).to_string();
        until_found("the connection is in the access log", || {
            let entries = self.hop.entries().into_iter();
            entries.into_iter().find(|entry| entry["client"] == *client)
        })
    }

    /// The text of a field of this entry.
    pub(super) fn logged(&self, port: u16, field: &str) -> String {
        let entry = self.entry(port);
        entry[field].as_str().expect("text").into()
    }

    /// The CPU time of the thread that watches the filters, in nanoseconds.
    pub(super) fn watching_ns(&self) -> u64 {
        let id = self.hop.relay.id();
        self.hop
            .relay
            .threads()
            .iter()
            .map(|thread| format!("/proc/{id}/task/{thread}"))
            .filter(|task| {
                let name = fs::read_to_string(format!("{task}/comm"));
                name.is_ok_and(|name| name.trim() == "firewall")
            })
            .filter_map(|task| fs::read_to_string(format!("{task}/schedstat")).ok())
            .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}

/// Runs one of the programs of iptables on the relay's host.
pub(crate) fn iptables(lab: &Lab, program: &str, arguments: &str) {
    let arguments: Vec<_> = arguments.split(' ').collect();
    let run = || run(program, &arguments, "");
    lab.relay().enter(run).expect("entered");
}

pub(crate) fn load(lab: &Lab, rules: &str) {
    let load = || run("nft", &["-f", "-"], rules);
    lab.relay().enter(load).expect("entered");
}

impl Pair {
    /// Sends a number in each direction.
    pub(super) fn round(&self) {
        for (from, to) in [(&self.near, &self.far), (&self.far, &self.near)] {
            from.write_number(7);
            assert_eq!(to.read_number(), 7);
        }
    }

    /// Ends both streams.
    pub(super) fn end(self) {
        for end in [&self.near, &self.far] {
            end.end_stream();
        }
        for end in [&self.near, &self.far] {
            end.expect_end();
        }
    }
}
