//! A check that cannot be made is a refusal.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::process::Command;

use netlab::{Lab, Namespace, Need, Process, Scratch, available};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Proxy;
use super::routes::connect;
use super::shortage::{limit_descriptors, set_limit};
use super::slow_names::with_names;
use crate::forbidden_call::ForbiddenCall;
use crate::patience::until;
use crate::relay::{BINARY, Relay, output};
use crate::usage::failure;

/// Public, and of the namespace of the relay alone.
const OWN: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 8);

/// Succeeded, forbidden by the rules, and without an address (RFC 1928, 6).
const GRANTED: u8 = 0;
const GENERAL_FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const NETWORK_UNREACHABLE: u8 = 3;
const HOST_UNREACHABLE: u8 = 4;

/// A SOCKS proxy in a namespace whose own address listens on a port.
struct Stage {
    namespace: Namespace,
    proxy: Proxy,
    listener: TcpListener,
}

impl Stage {
    fn new(allow: &str) -> Self {
        let namespace = Namespace::new("guards").expect("a namespace");
        let stage = Self::in_namespace(namespace, allow);
        stage.add(OWN);
        stage
    }

    fn in_namespace(namespace: Namespace, allow: &str) -> Self {
        let mut command = namespace.command(BINARY);
        command.env_remove("SPLICED_LOG");
        Self::run(namespace, &format!("\"{allow}\""), &mut command)
    }

    /// By a command in the namespace.
    fn run(namespace: Namespace, allow: &str, command: &mut Command) -> Self {
        let listener = namespace.enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 90)));
        // Other engines open files in the background.
        let proxy = Proxy::start(
            &format!(
                "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n\
                 [[listener.route]]\nsocks = {{ allow = [{allow}] }}"
            ),
            command,
        );
        Self {
            namespace,
            proxy,
            listener: listener.expect("entered").expect("it listens"),
        }
    }

    fn add(&self, address: Ipv4Addr) {
        self.ip(&["addr", "add", &format!("{address}/32"), "dev", "lo"]);
    }

    fn ip(&self, words: &[&str]) {
        let mut ip = self.namespace.command("ip");
        assert!(output(ip.args(words)).status.success(), "{words:?}");
    }

    /// A client that has chosen no authentication.
    fn client(&self) -> TcpStream {
        let address = self.proxy.address("l");
        let client = self.namespace.enter(|| connect(&address));
        let mut client = client.expect("entered");
        client.write_all(b"\x05\x01\x00").expect("sent");
        client.read_exact(&mut [0; 2]).expect("a method");
        client
    }
}

/// The answer to a request for `address`.
fn ask(client: &mut TcpStream, address: impl Into<IpAddr>) -> u8 {
    request(client, address);
    reply(client)
}

fn request(client: &mut TcpStream, address: impl Into<IpAddr>) {
    let mut request = b"\x05\x01\x00".to_vec();
    match address.into() {
        IpAddr::V4(address) => request.extend([&[1], &address.octets()[..]].concat()),
        IpAddr::V6(address) => request.extend([&[4], &address.octets()[..]].concat()),
    }
    request.extend(90_u16.to_be_bytes());
    client.write_all(&request).expect("sent");
}

/// Whether its answer has come.
fn is_readable(client: &TcpStream) -> bool {
    let mut fds = [PollFd::new(client, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll") > 0
}

fn reply(client: &mut TcpStream) -> u8 {
    let mut reply = [0; 10];
    client.read_exact(&mut reply).expect("a reply");
    reply[1]
}

#[test]
fn without_descriptors_nobody_reaches_an_address_that_may_be_this_hosts() {
    if !available(Need::Netns) {
        return;
    }
    let stage = Stage::new("public:*");
    let mut clients = [stage.client(), stage.client()];
    limit_descriptors(&stage.proxy, 0);
    assert_eq!(ask(&mut clients[0], OWN), NOT_ALLOWED);
    set_limit(&stage.proxy, None);
    assert_eq!(ask(&mut clients[1], OWN), NOT_ALLOWED);
    stage.listener.set_nonblocking(true).expect("set");
    assert!(stage.listener.accept().is_err(), "nobody has come");
}

/// The address may come to this host while the connection waits for a descriptor.
#[test]
fn an_address_is_looked_at_again_after_a_wait() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("guards").expect("a namespace");
    let stage = Stage::in_namespace(namespace, "public:*");
    until("a connection waits for a descriptor", || {
        let mut client = stage.client();
        limit_descriptors(&stage.proxy, 0);
        request(&mut client, OWN);
        until("the request has been read", || {
            !stage.proxy.has_unread_bytes() || is_readable(&client)
        });
        stage.add(OWN);
        set_limit(&stage.proxy, None);
        match reply(&mut client) {
            NOT_ALLOWED => true,
            // It has found the descriptor of the admin thread, which gives it up for a moment now and then.
            NETWORK_UNREACHABLE | GENERAL_FAILURE => {
                stage.ip(&["addr", "del", &format!("{OWN}/32"), "dev", "lo"]);
                false
            }
            other => panic!("{other}"),
        }
    });
}

/// A SYN is sent again until the connect timeout, and goes to whoever has the address by then.
#[test]
fn an_address_is_looked_at_again_when_the_connection_is_made() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("guards").expect("a namespace");
    let stage = Stage::in_namespace(namespace, "public:*");
    // Packets to the address leave for nowhere.
    stage.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]);
    for device in ["near", "far"] {
        stage.ip(&["link", "set", device, "up"]);
    }
    stage.ip(&["addr", "add", "192.0.2.1/24", "dev", "near"]);
    stage.ip(&["route", "add", "default", "dev", "near"]);
    let nobody = ["lladdr", "02:00:00:00:00:01", "dev", "near"];
    stage.ip(&[&["neigh", "add", &OWN.to_string()], &nobody[..]].concat());
    let mut client = stage.client();
    request(&mut client, OWN);
    until("the SYN is sent", || {
        let mut ss = stage.namespace.command("ss");
        let sockets = output(ss.args(["-tnH", "state", "syn-sent"]));
        String::from_utf8_lossy(&sockets.stdout).contains(&format!("{OWN}:90"))
    });
    stage.add(OWN);
    assert_eq!(reply(&mut client), NOT_ALLOWED);
    let (mut reached, _) = stage.listener.accept().expect("it has come");
    assert!(reached.read(&mut [0]).is_err(), "a reset");
}

#[test]
fn rules_that_route_by_port_are_seen() {
    if !available(Need::Netns) {
        return;
    }
    let stage = Stage::new("public:*");
    let routed: Ipv6Addr = "2a00:9::9".parse().expect("an address");
    stage.ip(&[
        "-6",
        "route",
        "add",
        "local",
        "2a00:9::/64",
        "dev",
        "lo",
        "table",
        "100",
    ]);
    assert_ne!(ask(&mut stage.client(), routed), NOT_ALLOWED);
    for rule in [
        &["ipproto", "tcp"][..],
        &["dport", "90"],
        &["ipproto", "tcp", "dport", "90"],
    ] {
        let rule = |verb| [&["-6", "rule", verb][..], rule, &["lookup", "100"]].concat();
        stage.ip(&rule("add"));
        assert_eq!(ask(&mut stage.client(), routed), NOT_ALLOWED);
        stage.ip(&rule("del"));
    }
    assert_ne!(ask(&mut stage.client(), routed), NOT_ALLOWED);
}

/// The thread that asks for names starts with the first one.
#[test]
fn without_a_descriptor_for_names_the_client_is_told_at_once() {
    if !available(Need::Netns) {
        return;
    }
    let stage = Stage::new("public:*");
    let request = [b"\x05\x01\x00\x03\x04name", &90_u16.to_be_bytes()[..]].concat();
    let why = "/etc/hosts cannot be read: Too many open files";
    until("no descriptor is left for names", || {
        let mut client = stage.client();
        limit_descriptors(&stage.proxy, 0);
        client.write_all(&request).expect("sent");
        assert_eq!(reply(&mut client), HOST_UNREACHABLE);
        set_limit(&stage.proxy, None);
        // If not, it has read the file with the descriptor of the admin thread, which gives it up for a moment now and then,
        // and keeps what it has read for a while.
        stage.proxy.relay.lines_logged(why) > 0
    });
}

/// One address of a name may come to this host while the connection waits; the other is allowed as before.
#[test]
fn an_address_that_is_denied_after_a_wait_is_passed_over() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("guards").expect("a namespace");
    let scratch = Scratch::new("guards").expect("a directory");
    let mut command = with_names(
        namespace.command("unshare"),
        &scratch,
        &format!("{OWN} both\n127.0.0.1 both\n"),
    );
    let stage = Stage::run(namespace, "\"public:*\", \"127.0.0.1:90\"", &mut command);
    let request = |client: &mut TcpStream| {
        let request = [b"\x05\x01\x00\x03\x04both", &90_u16.to_be_bytes()[..]].concat();
        client.write_all(&request).expect("sent");
    };
    let mut client = stage.client();
    // From now on the relay can look at names and routes without another descriptor.
    request(&mut client);
    assert_eq!(reply(&mut client), GRANTED);
    stage.listener.accept().expect("it has come");
    until("a connection waits for a descriptor", || {
        let mut client = stage.client();
        limit_descriptors(&stage.proxy, 0);
        request(&mut client);
        until("the request has been read", || {
            !stage.proxy.has_unread_bytes() || is_readable(&client)
        });
        // If not, it has found the descriptor of the admin thread, which gives it up for a moment now and then.
        let waits = !is_readable(&client);
        stage.add(OWN);
        set_limit(&stage.proxy, None);
        assert_eq!(reply(&mut client), GRANTED);
        let (_, from) = stage.listener.accept().expect("it has come");
        assert!(from.ip().to_canonical().is_loopback(), "{from}");
        if !waits {
            stage.ip(&["addr", "del", &format!("{OWN}/32"), "dev", "lo"]);
        }
        waits
    });
}

#[test]
fn an_own_address_that_a_rule_names_alone_is_reached() {
    if !available(Need::Netns) {
        return;
    }
    let stage = Stage::new("8.8.8.8:90");
    let mut client = stage.client();
    assert_eq!(ask(&mut client, OWN), GRANTED);
    stage.listener.accept().expect("it has come");
    // The same for a range that is routed here, whose addresses no device has.
    let stage = Stage::new("public:*");
    let routed = Ipv4Addr::new(9, 9, 9, 9);
    stage.ip(&["route", "add", "local", "9.9.9.0/24", "dev", "lo"]);
    assert_eq!(ask(&mut stage.client(), routed), NOT_ALLOWED);
    stage
        .namespace
        .set_sysctl("net.ipv4.ip_nonlocal_bind", "1")
        .expect("a sysctl");
    assert_eq!(ask(&mut stage.client(), routed), NOT_ALLOWED);
}

/// A trusted sender on another host names an address of this one as its client.
#[test]
fn without_descriptors_no_header_names_an_address_that_may_be_this_hosts() {
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let mut command = lab.relay().command(BINARY);
    let proxy = Proxy::start(
        &format!(
            "[[listener]]\nname = \"l\"\naddress = \"{0}:0\"\nengine = \"copy\"\n\
             proxy_protocol = \"require\"\ntrusted = [\"{1}\"]\n\
             [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = [\"127.0.0.1:9\"]",
            Lab::RELAY_V4,
            Lab::CLIENT_V4,
        ),
        command.env_remove("SPLICED_LOG"),
    );
    let address = proxy.address("l");
    let mut clients = [0; 2].map(|_| lab.client().enter(|| connect(&address)).expect("entered"));
    until("both are accepted", || proxy.status()["connections"] == 2);
    limit_descriptors(&proxy, 0);
    let header = format!("PROXY TCP4 {0} {0} 1 2\r\n", Lab::RELAY_V4);
    for client in &mut clients {
        client.write_all(header.as_bytes()).expect("sent");
        assert!(client.read(&mut [0]).is_err(), "a reset");
        let why = "names an address of this host as the client";
        proxy.relay.wait_logged(why);
        set_limit(&proxy, None);
    }
}

/// As a filter of a service manager has it (`RestrictAddressFamilies=`).
#[test]
fn without_netlink_nobody_reaches_an_address_that_may_be_this_hosts() {
    nobody_reaches_an_address_that_may_be_this_hosts(ForbiddenCall::NETLINK);
}

/// As a security module does it, with an error that means something else in an answer.
#[test]
fn a_question_for_a_route_that_is_not_sent_is_no_answer() {
    nobody_reaches_an_address_that_may_be_this_hosts(ForbiddenCall::ROUTE_QUESTION);
}

fn nobody_reaches_an_address_that_may_be_this_hosts(forbidden: ForbiddenCall) {
    let Some(mut command) = forbidden.spliced(Process::command("perl")) else {
        return;
    };
    let proxy = Proxy::start(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n\
         [[listener.route]]\nsocks = { allow = [\"public:*\", \"127.0.0.1:90\"] }",
        &mut command,
    );
    let ask = |address| {
        let mut client = connect(&proxy.address("l"));
        client.write_all(b"\x05\x01\x00").expect("sent");
        client.read_exact(&mut [0; 2]).expect("a method");
        ask(&mut client, address)
    };
    assert_eq!(ask(OWN), NOT_ALLOWED);
    // What a rule names alone needs no answer.
    assert_ne!(ask(Ipv4Addr::LOCALHOST), NOT_ALLOWED);
}

#[test]
fn whoever_is_not_known_gets_no_answer() {
    let Some(mut command) = ForbiddenCall::PEER_CREDENTIALS.spliced(Process::command("perl"))
    else {
        return;
    };
    let scratch = Scratch::new("guards").expect("a directory");
    let text = "[[listener]]\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n\
                [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = \"127.0.0.1:9\"\n";
    let path = scratch.write("c.toml", text).expect("written");
    let path = path.to_str().expect("a path");
    command.args(["run", "--config", path]);
    let _relay = Relay::spawn(&mut command);
    for verb in ["status", "reload"] {
        let said = failure(&mut crate::relay::command(&[verb, "--config", path]), 1);
        let why = "which user asks the process of user 0 cannot be found out";
        assert!(said.contains(why), "{said}");
    }
}
