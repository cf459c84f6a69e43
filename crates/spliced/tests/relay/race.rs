//! Names with several addresses, some of which do not answer.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Namespace, Need, Scratch, available};

use crate::datagrams;
use crate::patience::{PATIENCE, until};
use crate::peer::{Peer, exchange};
use crate::proxy::Proxy;
use crate::proxy::shortage::limit_descriptors;
use crate::relay::{BINARY, Relay};
use crate::server::{Server, ask};

/// Addresses to which every packet is lost.
const SILENT_V6: &str = "2001:2:0:5::9";
const SILENT_V6_TOO: &str = "2001:2:0:5::10";
const SILENT: [&str; 2] = ["198.18.5.9", "198.18.5.10"];

/// Addresses of the namespace.
const OWN_V6: &str = "2001:2:0:7::1";
const OWN: [&str; 2] = ["198.18.7.1", "198.18.7.2"];

const PORT: u16 = 8080;

/// After this the next address is tried.
const DELAY: Duration = Duration::from_millis(250);

/// Half of the connect timeout: the share of one of two addresses.
const SHARE: Duration = Duration::from_millis(2500);

struct Stage {
    namespace: Namespace,
    scratch: Scratch,
}

impl Stage {
    fn new() -> Option<Self> {
        if !available(Need::Netns) {
            return None;
        }
        let namespace = Namespace::new("race").expect("a namespace");
        let ip = |arguments: &str| {
            let mut command = Command::new("ip");
            command.args(["-n", namespace.name()]);
            let status = command.args(arguments.split(' ')).status();
            assert!(status.expect("it runs").success(), "ip {arguments}");
        };
        // What arrives at the other end is for nobody: it is lost.
        ip("link add silent type veth peer name nobody");
        ip("address add 198.18.5.1/24 dev silent");
        ip("address add 2001:2:0:5::1/64 dev silent nodad");
        ip("link set silent up");
        ip("link set nobody up");
        for silent in [SILENT[0], SILENT[1], SILENT_V6, SILENT_V6_TOO] {
            ip(&format!(
                "neighbour add {silent} lladdr 02:00:00:00:00:09 dev silent nud permanent"
            ));
        }
        for own in OWN {
            ip(&format!("address add {own}/32 dev lo"));
        }
        ip(&format!("address add {OWN_V6}/128 dev lo nodad"));
        let scratch = Scratch::new("race").expect("a directory");
        Some(Self { namespace, scratch })
    }

    fn server(&self, host: &str) -> Server {
        Server::in_namespace(&self.namespace, &format!("{host}:{PORT}"))
    }

    /// `spliced` for which `name.test` has these addresses.
    fn spliced(&self, addresses: &[&str]) -> Command {
        let lines: String = addresses
            .iter()
            .map(|address| format!("{address} name.test\n"))
            .collect();
        let hosts = self.scratch.write("hosts", &lines).expect("a file");
        let several = self.scratch.write("host.conf", "multi on\n");
        let script = r#"mount --bind "$0" /etc/hosts && mount --bind "$1" /etc/host.conf && shift && exec "$@""#;
        let mut command = self.namespace.command("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .args([hosts, several.expect("a file")])
            .arg(BINARY)
            .env_remove("SPLICED_LOG");
        command
    }

    fn relay(&self, addresses: &[&str]) -> Relay {
        let mut command = self.spliced(addresses);
        let target = format!("name.test:{PORT}");
        Relay::spawn(command.args(["relay", "127.0.0.1:0", &target]))
    }

    /// Has a client ask. Returns how many connections were begun for that beside its own, and how long it took.
    fn ask(&self, address: &str, number: u64) -> (u64, Duration) {
        let before = self.opened();
        let begin = Instant::now();
        self.enter(|| ask(&Peer::connect(address), number, 1000, 1000));
        let took = begin.elapsed();
        (self.opened() - before - 1, took)
    }

    /// How many connections have been begun in the namespace.
    fn opened(&self) -> u64 {
        let path = "/proc/thread-self/net/snmp";
        let text = self.enter(|| fs::read_to_string(path).expect("counters"));
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
        let [names, values] = [(); 2].map(|()| lines.next().expect("a line"));
        let mut pairs = names.split(' ').zip(values.split(' '));
        let found = pairs.find(|(name, _)| *name == "ActiveOpens");
        found.expect("a counter").1.parse().expect("a number")
    }

    /// How many connections in the namespace are being made (TCP_SYN_SENT).
    fn being_made(&self) -> usize {
        let of = |path: &str| {
            let text = fs::read_to_string(path).expect("sockets");
            let states = text
                .lines()
                .filter_map(|line| line.split_whitespace().nth(3));
            states.filter(|state| *state == "02").count()
        };
        self.enter(|| of("/proc/thread-self/net/tcp") + of("/proc/thread-self/net/tcp6"))
    }

    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.enter(work).expect("entered")
    }
}

#[test]
fn a_silent_address_delays_the_first_client_only() {
    let Some(stage) = Stage::new() else {
        return;
    };
    let server = stage.server(OWN[0]).answering();
    let mut relay = stage.relay(&[SILENT_V6, OWN[0]]);
    let (opened, took) = stage.ask(&relay.address, 0);
    assert_eq!(opened, 2);
    assert!((DELAY..SHARE).contains(&took), "{took:?}");
    assert_eq!(stage.being_made(), 0, "the loser is closed");
    for number in 1..10 {
        assert_eq!(stage.ask(&relay.address, number).0, 1, "client {number}");
    }
    assert_eq!(server.finish(), (0..10).collect::<Vec<_>>());
    relay.terminate();
}

#[test]
fn an_address_that_refuses_delays_nobody() {
    let Some(stage) = Stage::new() else {
        return;
    };
    let server = stage.server(OWN[0]).answering();
    let mut relay = stage.relay(&[OWN_V6, OWN[0]]);
    let (opened, took) = stage.ask(&relay.address, 0);
    assert_eq!(opened, 2);
    assert!(took < DELAY, "{took:?}");
    assert_eq!(stage.ask(&relay.address, 1).0, 1);
    assert_eq!(server.finish(), [0, 1]);
    relay.terminate();
}

#[test]
fn an_address_that_dies_makes_room_for_another_one() {
    let Some(stage) = Stage::new() else {
        return;
    };
    let [first, second] = OWN.map(|own| stage.server(own));
    let mut relay = stage.relay(&[SILENT_V6, OWN[0], OWN[1]]);
    let client = stage.enter(|| Peer::connect(&relay.address));
    exchange(&client, &first.accept(), 0, 1000, 1000);
    drop((client, first));
    // Refused at once, then silent, then good.
    let second = second.answering();
    let (opened, took) = stage.ask(&relay.address, 1);
    assert_eq!(opened, 3);
    assert!(took < SHARE, "{took:?}");
    assert_eq!(stage.ask(&relay.address, 2).0, 1);
    assert_eq!(second.finish(), [1, 2]);
    relay.terminate();
}

/// More than there are numbers for sockets (`Connection::next_source`), and two are under way all the time.
#[test]
fn a_name_may_have_hundreds_of_addresses() {
    const REFUSING: u16 = 300;
    let Some(stage) = Stage::new() else {
        return;
    };
    let address = |index: u16| {
        let [high, low] = index.to_be_bytes();
        format!("127.9.{high}.{low}")
    };
    let refusing: Vec<_> = (1..=REFUSING).map(address).collect();
    let good = address(REFUSING + 1);
    let server = stage.server(&good).answering();
    let mut addresses = vec![SILENT_V6, SILENT_V6_TOO];
    addresses.extend(refusing.iter().map(String::as_str));
    addresses.push(&good);
    let mut relay = stage.relay(&addresses);
    let (_, took) = stage.ask(&relay.address, 0);
    assert!(took < SHARE, "{took:?}");
    assert_eq!(stage.ask(&relay.address, 1).0, 1);
    assert_eq!(server.finish(), [0, 1]);
    relay.terminate();
}

/// The client has the last descriptor but one.
#[test]
fn without_descriptors_a_silent_address_makes_room_for_the_next_one() {
    let Some(stage) = Stage::new() else {
        return;
    };
    let server = stage.server(OWN[0]).answering();
    // Other engines open files in the background.
    let configuration = configuration("connect_timeout = \"1s\"")
        .replace("name = \"l\"", "name = \"l\"\nengine = \"copy\"");
    let proxy = Proxy::start(&configuration, &mut stage.spliced(&[SILENT_V6, OWN[0]]));
    let address = proxy.address("l");
    limit_descriptors(&proxy, 2);
    let (opened, took) = stage.ask(&address, 0);
    assert_eq!(opened, 2);
    assert!(took >= DELAY, "{took:?}");
    assert_eq!(server.finish(), [0]);
    drop(proxy);
    // None of them answers, which is not known for sure.
    let silent = [SILENT_V6, SILENT[0], SILENT[1]];
    let proxy = Proxy::start(&configuration, &mut stage.spliced(&silent));
    let address = proxy.address("l");
    limit_descriptors(&proxy, 2);
    stage.enter(|| Peer::is_reset_by(&address));
    let line = proxy.relay.wait_logged("no target: ");
    assert!(line.contains("RLIMIT_NOFILE ("), "{line}");
    assert_eq!(proxy.of("backends", "b")["servers"][0]["failures"], 0);
}

/// Not even each second client has a descriptor for its server.
#[test]
fn clients_that_share_too_few_descriptors_do_not_starve_each_other() {
    const CLIENTS: u64 = 20;
    let Some(stage) = Stage::new() else {
        return;
    };
    let configuration = configuration("connect_timeout = \"10s\"")
        .replace("name = \"l\"", "name = \"l\"\nengine = \"copy\"");
    for addresses in [
        &[SILENT_V6, OWN[0]][..],
        &[SILENT_V6, SILENT_V6_TOO, OWN[0]],
    ] {
        let server = stage.server(OWN[0]).answering();
        let proxy = Proxy::start(&configuration, &mut stage.spliced(addresses));
        let address = proxy.address("l");
        limit_descriptors(&proxy, CLIENTS as usize * 3 / 2 - 1);
        stage.enter(|| {
            thread::scope(|scope| {
                for number in 0..CLIENTS {
                    let address = &address;
                    scope.spawn(move || ask(&Peer::connect(address), number, 1000, 1000));
                }
            });
        });
        let mut served = server.finish();
        served.sort_unstable();
        assert_eq!(served, (0..CLIENTS).collect::<Vec<_>>(), "{addresses:?}");
        assert_eq!(proxy.of("backends", "b")["servers"][0]["failures"], 0);
    }
}

/// Both addresses answer late: only once the client's relay tries both.
#[test]
fn the_loser_gets_no_byte() {
    let Some(stage) = Stage::new() else {
        return;
    };
    let hosts = [format!("[{OWN_V6}]"), OWN[0].to_owned()];
    let servers = hosts.map(|host| {
        stage.enter(|| {
            let server = Server::with_backlog(&format!("{host}:{PORT}"), 0);
            // Its backlog is full from now on.
            let first = Peer::connect(&server.address);
            (server, first)
        })
    });
    let configuration = configuration("send_proxy = \"v1\"");
    let proxy = Proxy::start(&configuration, &mut stage.spliced(&[OWN_V6, OWN[0]]));
    let address = proxy.address("l");
    let mut client = stage.enter(|| TcpStream::connect(&address).expect("connected"));
    client.write_all(b"once").expect("sent");
    until("both are tried", || stage.being_made() == 2);
    // A client has one place, however many addresses are tried.
    assert_eq!(proxy.of("backends", "b")["servers"][0]["connections"], 1);
    let accepted = servers.map(|(server, first)| {
        let second = server.accept();
        (server, first, second)
    });
    // The SYN that is sent again first is that to the first address.
    let winner = accepted[0].0.accept();
    let header = winner.read_line();
    assert!(header.starts_with("PROXY TCP4 "), "{header}");
    until("the loser is closed", || stage.being_made() == 0);
    assert!(!accepted[1].0.is_called_within(4 * DELAY));
    let server = proxy.of("backends", "b")["servers"][0].take();
    assert_eq!(
        (&server["connections"], &server["total"]),
        (&1.into(), &1.into())
    );
}

fn configuration(backend: &str) -> String {
    format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [\"name.test:{PORT}\"]\n{backend}\n"
    )
}

#[test]
fn a_check_tries_addresses_as_clients_do() {
    const CHECKS: u64 = 3;
    let Some(stage) = Stage::new() else {
        return;
    };
    let server = stage.server(OWN[0]);
    let configuration =
        configuration("health = { tcp = true, every = \"1s\", timeout = \"1s\", fall = 1 }");
    let proxy = Proxy::start(&configuration, &mut stage.spliced(&[SILENT_V6, OWN[0]]));
    drop(server.accept());
    let before = stage.opened();
    for _ in 0..CHECKS {
        drop(server.accept());
    }
    // One more may be under way; the silent address is tried no more.
    let opened = stage.opened() - before;
    assert!(opened <= CHECKS + 1, "{opened}");
    let server = proxy.of("backends", "b")["servers"][0].take();
    assert_eq!(server["failed_checks"], 0, "{server}");
}

#[test]
fn an_address_that_refuses_says_nothing_about_the_server() {
    let Some(stage) = Stage::new() else {
        return;
    };
    let server = stage.server(OWN[0]);
    // Nobody listens at the first address.
    let proxy = Proxy::start(&configuration(""), &mut stage.spliced(&[OWN[1], OWN[0]]));
    let address = proxy.address("l");
    let before = stage.opened();
    let client = stage.enter(|| TcpStream::connect(&address).expect("connected"));
    drop(server.accept());
    drop(client);
    // The client's, and one to each address.
    assert_eq!(stage.opened() - before, 3);
    let server = proxy.of("backends", "b")["servers"][0].take();
    assert_eq!(server["total"], 1, "{server}");
    assert_eq!(server["failures"], 0, "{server}");
}

/// Asks a SOCKS proxy for `name.test`, and a server for an answer.
fn socks(stage: &Stage, address: &str, server: &Server) -> (u64, Duration) {
    let before = stage.opened();
    let begin = Instant::now();
    let mut client = stage.enter(|| TcpStream::connect(address).expect("connected"));
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.write_all(b"\x05\x01\x00").expect("sent");
    client.read_exact(&mut [0; 2]).expect("a method");
    let request = [
        &b"\x05\x01\x00\x03\x09name.test"[..],
        &PORT.to_be_bytes(),
        b"first",
    ];
    client.write_all(&request.concat()).expect("sent");
    let mut reply = [0; 4];
    client.read_exact(&mut reply).expect("a reply");
    let took = begin.elapsed();
    assert_eq!(reply[1], 0, "granted");
    let far = server.accept();
    drop(client);
    drop(far);
    (stage.opened() - before - 1, took)
}

#[test]
fn names_of_clients_are_raced_too() {
    let Some(stage) = Stage::new() else {
        return;
    };
    // A range does not allow addresses of this host.
    let allow = [SILENT[0], SILENT[1], OWN[0], OWN[1], &format!("[{OWN_V6}]")];
    let allow = allow.map(|address| format!("\"{address}:*\"")).join(", ");
    let configuration = format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n\
         [[listener.route]]\nsocks = {{ allow = [{allow}] }}"
    );
    for (addresses, good, opens) in [
        (&[SILENT[0], OWN_V6][..], OWN_V6, 2),
        (&[SILENT[0], SILENT[1], OWN[1], OWN[0]], OWN[0], 4),
    ] {
        let host = match good.contains(':') {
            true => format!("[{good}]"),
            false => good.to_owned(),
        };
        let server = stage.server(&host);
        let proxy = Proxy::start(&configuration, &mut stage.spliced(addresses));
        let address = proxy.address("l");
        let (opened, took) = socks(&stage, &address, &server);
        assert_eq!(opened, opens, "{addresses:?}");
        assert!((DELAY..SHARE).contains(&took), "{addresses:?}: {took:?}");
        let (opened, _) = socks(&stage, &address, &server);
        assert_eq!(opened, 1, "{addresses:?}");
    }
}

/// Also where the error says nothing of the server, such as a prohibition by a firewall.
#[test]
fn a_session_of_datagrams_takes_the_next_address_after_one_that_failed() {
    for rejects in [None, Some("admin-prohibited")] {
        let Some(stage) = Stage::new() else {
            return;
        };
        if let Some(code) = rejects {
            let mut nft = stage.namespace.command("nft");
            let rules = format!(
                "add table ip6 t; add chain ip6 t c {{ type filter hook output priority 0; }}; \
                 add rule ip6 t c udp dport {PORT} reject with icmpv6 type {code}"
            );
            assert!(nft.arg(rules).status().expect("nft runs").success());
        }
        let at = format!("{}:{PORT}", OWN[0]);
        let server = stage.enter(|| datagrams::socket(&at));
        let mut command = stage.spliced(&[OWN_V6, OWN[0]]);
        let target = format!("udp:name.test:{PORT}");
        let relay = Relay::spawn(command.args(["relay", "udp:127.0.0.1:0", &target]));
        let client = stage.enter(|| datagrams::client(&relay));
        datagrams::ask_until_received(&client, &server, b"question");
    }
}
