//! What routers on the way to the target report by ICMP.
//!
//! ```text
//! client ── relay ── router ── 198.18.3.0/24 and 2001:2:0:3::/64
//!                    (the lab's server)
//! ```

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use netlab::{Lab, Namespace, Need, Scratch, available};
use rustix::io::Errno;
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
use rustix::process::Signal;

use super::{ask_until_received, bytes, inet, receive, socket};
use crate::log::Log;
use crate::patience::until;
use crate::random::Random;
use crate::relay::{BINARY, Relay};

/// The target's port.
const PORT: u16 = 7001;

/// The networks behind the router, each with the target's address.
const BEHIND: [(&str, IpAddr); 2] = [
    ("198.18.3.0/24", IpAddr::V4(Ipv4Addr::new(198, 18, 3, 1))),
    (
        "2001:2:0:3::/64",
        IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 3, 0, 0, 0, 1)),
    ),
];

/// A relay whose target is behind a router.
struct Routed {
    lab: Lab,
    network: &'static str,
    target: SocketAddr,
    relay: Relay,
    client: UdpSocket,
    log: Log,
    _scratch: Scratch,
}

impl Routed {
    /// For each version of IP. `way` is what the router does: arguments of `ip` for it, with the network at `NET`.
    fn each(way: &[&str], options: &[&str], test: impl Fn(Self)) {
        Self::each_of(&[BINARY], way, options, test);
    }

    /// The same with the relay's command line beginning with `program`.
    fn each_of(program: &[&str], way: &[&str], options: &[&str], test: impl Fn(Self)) {
        if !available(Need::Netns) {
            return;
        }
        for (network, target) in BEHIND {
            test(Self::new(
                program,
                way,
                options,
                network,
                SocketAddr::new(target, PORT),
            ));
        }
    }

    fn new(
        program: &[&str],
        way: &[&str],
        options: &[&str],
        network: &'static str,
        target: SocketAddr,
    ) -> Self {
        let lab = Lab::new().expect("namespaces");
        let (at_relay, at_client, via): (IpAddr, IpAddr, IpAddr) = if target.is_ipv4() {
            (
                Lab::RELAY_V4.into(),
                Lab::CLIENT_V4.into(),
                Lab::SERVER_V4.into(),
            )
        } else {
            (
                Lab::RELAY_V6.into(),
                Lab::CLIENT_V6.into(),
                Lab::SERVER_V6.into(),
            )
        };
        for name in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            lab.server().set_sysctl(name, "1").expect("it forwards");
        }
        let via = via.to_string();
        ip(lab.relay(), &["route", "add", network, "via", &via]);
        for line in way {
            let line = line.replace("NET", network);
            ip(lab.server(), &line.split(' ').collect::<Vec<_>>());
        }
        let scratch = Scratch::new("icmp").expect("a directory");
        let log = Log::below(&scratch);
        let listen = format!("udp:{}", SocketAddr::new(at_relay, 0));
        let to = format!("udp:{target}");
        let mut inside = lab.relay().command(program[0]);
        inside
            .args(&program[1..])
            .args(["relay", &listen, &to, "--access-log", &log.path])
            .args(options)
            .env_remove("SPLICED_LOG");
        let relay = Relay::spawn(&mut inside);
        let client = lab.client().enter(|| {
            let client = socket(&SocketAddr::new(at_client, 0).to_string());
            client.connect(inet(&relay.address)).expect("it connects");
            client
        });
        Self {
            client: client.expect("entered"),
            lab,
            network,
            target,
            relay,
            log,
            _scratch: scratch,
        }
    }

    /// How many messages of a kind the relay's host has received, by its name in the tables of IPv4 and IPv6.
    fn heard(&self, names: [&str; 2]) -> u64 {
        let [of4, of6] = names;
        let read = |path: &str| {
            let text = self.lab.relay().enter(|| fs::read_to_string(path));
            text.expect("entered").expect(path)
        };
        if self.target.is_ipv4() {
            let text = read("/proc/thread-self/net/snmp");
            let mut lines = text.lines().filter_map(|line| line.strip_prefix("Icmp: "));
            let [names, values] = [(); 2].map(|()| lines.next().expect("a line"));
            let place = names.split(' ').position(|name| name == of4);
            let value = values.split(' ').nth(place.expect(of4));
            return value.expect(of4).parse().expect("a number");
        }
        let text = read("/proc/thread-self/net/snmp6");
        let mut lines = text.lines().map(str::split_whitespace);
        let mut line = lines
            .find_map(|mut line| (line.next() == Some(of6)).then_some(line))
            .expect(of6);
        line.next().expect(of6).parse().expect("a number")
    }

    /// Whether the client has an error of a datagram that was too big, which it loses by that.
    fn told_too_big(&self) -> bool {
        let error = self.client.take_error().expect("SO_ERROR");
        error.is_some_and(|error| error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()))
    }

    /// The path MTU that the client's kernel knows.
    fn client_mtu(&self) -> u32 {
        match self.target.is_ipv4() {
            true => ip_mtu(&self.client),
            false => ipv6_mtu(&self.client),
        }
        .expect("an MTU")
    }

    /// The target's address is now the router's own.
    fn target(&self) -> UdpSocket {
        let ip_address = self.target.ip();
        let bits = if self.target.is_ipv4() { 32 } else { 128 };
        let address = format!("{ip_address}/{bits}");
        let mut words = vec!["address", "add", &address, "dev", "lo"];
        if self.target.is_ipv6() {
            words.push("nodad");
        }
        ip(self.lab.server(), &words);
        // A worker of the kernel adds the route of an IPv6 address later (`addrconf_dad_work`). Until then the
        // router sends on what is for the target.
        until("the address has its route", || {
            let mut get = self.lab.server().command("ip");
            let get = get.args(["route", "get", &ip_address.to_string()]);
            get.output().expect("ip").stdout.starts_with(b"local ")
        });
        let target = self.target.to_string();
        let bound = self.lab.server().enter(|| socket(&target));
        bound.expect("entered")
    }
}

/// The narrow link behind the router.
const NARROW: [&str; 4] = [
    "link add narrow type veth peer name blind",
    "link set blind up",
    "link set narrow mtu 1280 up",
    "route add NET dev narrow",
];

fn ip(namespace: &Namespace, words: &[&str]) {
    let done = namespace.command("ip").args(words).output().expect("ip");
    assert!(done.status.success(), "ip {words:?}: {done:?}");
}

/// As by a packet filter on the way. For TCP it would be an error of connect(2), too.
#[test]
fn a_way_that_is_prohibited_ends_the_session() {
    Routed::each(&["route add prohibit NET"], &[], |routed| {
        let mut told = None;
        until("the session ends, and the client is told", || {
            if let Err(error) = routed.client.send(b"question") {
                told = Some(error);
            }
            told.is_some() && !routed.log.entries().is_empty()
        });
        let outcome = routed.log.entries()[0]["outcome"].to_string();
        let why = if routed.target.is_ipv4() {
            "No route to host"
        } else {
            "Permission denied"
        };
        assert!(
            outcome.contains(&format!("the target failed: {why}")),
            "{}: {outcome}",
            routed.network
        );
        let told = told.expect("an error").kind();
        // What the client's kernel makes of the same code.
        let expected = if routed.target.is_ipv4() {
            ErrorKind::HostUnreachable
        } else {
            ErrorKind::PermissionDenied
        };
        assert_eq!(told, expected);
    });
}

/// The kernel does not report to a socket what may pass by itself (`icmp_err_convert`): a session outlives a change
/// of routes, and its server sees no new port.
#[test]
fn a_router_without_a_way_leaves_the_session_as_it_is() {
    const UNREACHABLE: [&str; 2] = ["InDestUnreachs", "Icmp6InDestUnreachs"];
    Routed::each(&["route add unreachable NET"], &[], |routed| {
        until("the router reports it", || {
            routed.client.send(b"lost").expect("it is sent");
            routed.heard(UNREACHABLE) > 0
        });
        let target = routed.target();
        let session = ask_until_received(&routed.client, &target, b"question");
        target.send_to(b"answer", session).expect("it is answered");
        assert_eq!(receive(&routed.client).0, b"answer");
        assert!(
            routed.log.entries().is_empty(),
            "{:?}",
            routed.log.entries()
        );
    });
}

/// The datagram is lost, and the next ones are as short as the way takes: the kernel sends fragments.
#[test]
fn a_datagram_that_is_too_big_for_a_router_is_counted_and_the_session_goes_on() {
    const TOO_BIG: [&str; 2] = ["InDestUnreachs", "Icmp6InPktTooBigs"];
    const BYTES: usize = 1400;
    Routed::each(&NARROW, &[], |mut routed| {
        let message = bytes(&mut Random::of_run(9), BYTES);
        routed.client.send(&message).expect("it is sent");
        until("the router reports it", || routed.heard(TOO_BIG) > 0);
        until("the client is told", || routed.told_too_big());
        let target = routed.target();
        routed.client.send(&message).expect("it is sent");
        assert!(receive(&target).0 == message, "{}", routed.network);
        assert!(
            routed.log.entries().is_empty(),
            "{:?}",
            routed.log.entries()
        );
        routed.relay.signal(Signal::TERM);
        assert_eq!(routed.relay.wait_end().code(), Some(0));
        let entry = &routed.log.entries()[0];
        assert_eq!(entry["client_to_target_datagrams"], 2, "{entry}");
        assert_eq!(entry["client_to_target_dropped"], 1, "{entry}");
    });
}

/// Nothing leaves in fragments then: the client has to send less, and is told how much with the datagram quoted.
#[test]
fn a_client_whose_datagrams_must_not_be_split_is_told_the_path_mtu() {
    const BYTES: usize = 1400;
    const MTU: u32 = 1280;
    Routed::each(&NARROW, &["--dont-fragment", "yes"], |routed| {
        let message = bytes(&mut Random::of_run(10), BYTES);
        assert_eq!(routed.client_mtu(), 1500);
        // What a router reports, and then what the kernel of the relay knows of itself.
        for _ in 0..2 {
            routed.client.send(&message).expect("it is sent");
            until("the client is told", || routed.told_too_big());
            assert_eq!(routed.client_mtu(), MTU);
        }
        let target = routed.target();
        let most = if routed.target.is_ipv4() { 1252 } else { 1232 };
        // The target's address is now nearer, and the relay may know the path as it was.
        routed.client.send(&message[..most]).expect("it is sent");
        assert!(receive(&target).0 == message[..most]);
        assert!(routed.log.entries().is_empty());
        routed.relay.wait_logged(&format!(
            "the path to udp:{} takes {most} bytes; the client was told",
            routed.target
        ));
    });
}

/// Without the capability the datagrams are counted, and the log says what the path takes.
#[test]
fn without_a_raw_socket_the_log_says_what_the_path_takes() {
    const BYTES: usize = 1400;
    let without = ["setpriv", "--bounding-set=-net_raw", "--", BINARY];
    Routed::each_of(&without, &NARROW, &[], |mut routed| {
        let message = bytes(&mut Random::of_run(11), BYTES);
        routed.client.send(&message).expect("it is sent");
        routed
            .relay
            .wait_logged("the client cannot be told by ICMP without CAP_NET_RAW");
        routed.relay.signal(Signal::TERM);
        assert_eq!(routed.relay.wait_end().code(), Some(0));
        assert!(!routed.told_too_big());
        assert_eq!(routed.log.entries()[0]["client_to_target_dropped"], 1);
    });
}
