//! A host in a namespace, and its peers in another one.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;

use netlab::Namespace;

use crate::fixture::{Backend, Expectation, Fixture, Loader};

#[derive(Debug)]
pub(crate) struct Host {
    /// The namespace with the rules.
    pub(crate) namespace: Namespace,
    /// The namespace of the peers.
    pub(crate) peers: Namespace,
}

/// Makes conntrack track connections before a fixture is loaded. Otherwise a rule that tests the state would
/// see them as new.
const FOLLOW: &str = "table inet follow {
    chain input { type filter hook input priority 0; ct state new accept; }
}";

impl Host {
    /// A host with the devices and addresses of the expectations.
    pub(crate) fn new(fixture: &Fixture) -> Self {
        let host = Self {
            namespace: Namespace::new("host").expect("a namespace"),
            peers: Namespace::new("peers").expect("a namespace"),
        };
        for namespace in [&host.namespace, &host.peers] {
            // Without duplicate address detection. A machine without IPv6 does not have this setting.
            let _ = namespace.set_sysctl("net.ipv6.conf.default.accept_dad", "0");
        }
        let outside = || fixture.expectations.iter().filter(|e| !e.is_on_loopback());
        let devices: BTreeSet<_> = outside().map(|e| e.device.clone()).collect();
        let peers = host.peers.name();
        let links: String = devices
            .iter()
            .map(|d| {
                format!("link add {d} type veth peer name {d} netns {peers}\nlink set {d} up\n")
            })
            .collect();
        let addresses = |of: fn(&Expectation) -> SocketAddr| -> String {
            let set: BTreeSet<_> = outside().map(|e| (&e.device, of(e).ip())).collect();
            set.into_iter()
                .map(|(device, ip)| match ip {
                    IpAddr::V4(ip) => format!("address add {ip}/24 dev {device}\n"),
                    IpAddr::V6(ip) => format!("address add {ip}/64 dev {device} nodad\n"),
                })
                .collect()
        };
        let up: String = devices
            .iter()
            .map(|d| format!("link set {d} up\n"))
            .collect();
        run(
            &host.namespace,
            "ip",
            &["-batch", "-"],
            &(links + &addresses(|e| e.local)),
        );
        run(
            &host.peers,
            "ip",
            &["-batch", "-"],
            &(up + &addresses(|e| e.peer)),
        );
        host
    }

    /// Makes conntrack track connections until [`unfollow`](Self::unfollow).
    pub(crate) fn follow(&self) {
        self.load(Loader::Nft, FOLLOW, Backend::Nft);
    }

    /// Undoes [`follow`](Self::follow). Conntrack continues only if other rules need it.
    pub(crate) fn unfollow(&self) {
        self.load(Loader::Nft, "delete table inet follow", Backend::Nft);
    }

    pub(crate) fn load_all(&self, fixture: &Fixture, backend: Backend) {
        for (loader, text) in &fixture.sections {
            self.load(*loader, text, backend);
        }
    }

    fn load(&self, loader: Loader, text: &str, backend: Backend) {
        let (program, arguments): (_, &[&str]) = match (loader, backend) {
            (Loader::Nft, _) => ("nft", &["-f", "-"]),
            (Loader::Ipset, _) => ("ipset", &["restore"]),
            (Loader::Iptables, Backend::Nft) => ("iptables-nft-restore", &[]),
            (Loader::Ip6tables, Backend::Nft) => ("ip6tables-nft-restore", &[]),
            // All namespaces of a machine share one lock.
            (Loader::Iptables, Backend::Legacy) => ("iptables-legacy-restore", &["--wait"]),
            (Loader::Ip6tables, Backend::Legacy) => ("ip6tables-legacy-restore", &["--wait"]),
        };
        run(&self.namespace, program, arguments, text);
    }

    /// The output of a program on the host.
    pub(crate) fn output(&self, program: &str, arguments: &[&str]) -> String {
        run(&self.namespace, program, arguments, "")
    }
}

fn run(namespace: &Namespace, name: &str, arguments: &[&str], input: &str) -> String {
    let path = netlab::program(name).unwrap_or_else(|| panic!("there is no {name}"));
    let mut child = namespace
        .command(path.to_str().expect("a path in UTF-8"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
    let mut stdin = child.stdin.take().expect("its input");
    // If the program ends early, its standard error says why.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("its output");
    assert!(
        output.status.success(),
        "{name} {arguments:?} failed: {}\n{input}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
