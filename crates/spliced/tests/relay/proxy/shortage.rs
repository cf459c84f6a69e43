//! What this host lacks or forbids does not count against a server, and is told as what it is.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use netlab::{Namespace, Need, Process, Scratch, available};
use rustix::net::sockopt;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::Proxy;
use super::evidence::{before, configuration, is_served, server_of, wait_counted};
use super::fickle::Fickle;
use super::routes::connect;
use crate::patience::{PATIENCE, until};
use crate::relay::{BINARY, Relay, command, limit_with};

/// The local ports of the relay's namespace.
const PORTS: u16 = 20;

fn count(proxy: &Proxy, what: &str) -> Value {
    server_of(proxy, 0)[what].take()
}

/// Lets the process have no more descriptors than it has and `spare`.
pub(crate) fn limit_descriptors(proxy: &Proxy, spare: usize) {
    // It may still be on its way back from the client before, and would reserve a descriptor later.
    until("the admin thread waits", || {
        let waits = proxy
            .relay
            .of_threads("stat", |stat| stat.contains("(admin) S"));
        waits.contains(&true)
    });
    let id = proxy.relay.id();
    // An accepted socket has the name that the one that listens was bound to.
    until("its client is gone", || {
        let sockets = fs::read_to_string(format!("/proc/{id}/net/unix")).expect("sockets");
        let bound = format!("/{id}.sock.spliced-");
        let of_process = sockets.lines().filter(|line| line.contains(&bound));
        of_process.count() == 1
    });
    // It may have reserved a descriptor while that client had a lower one, until it looks after its file.
    let waited = || -> u64 {
        let count = |status: &str| {
            let is_admin = status.lines().any(|line| line == "Name:\tadmin");
            let mut lines = status.lines();
            let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let count = count.and_then(|count| count.trim().parse().ok());
            count.filter(|_| is_admin).unwrap_or(0)
        };
        proxy.relay.of_threads("status", count).into_iter().sum()
    };
    let before = waited();
    until("it waits anew", || waited() > before);
    let used: Vec<usize> = fs::read_dir(format!("/proc/{id}/fd"))
        .expect("its descriptors")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // The kernel compares the limit with numbers, and gives the lowest one that is free.
    let mut free = (0..).filter(|number| !used.contains(number));
    // One of them is reserved by the admin thread, which waits in accept(2) (`__sys_accept4_file`).
    let limit = free.nth(spare + 1).expect("numbers do not end");
    set_limit(proxy, Some(limit as u64));
}

/// Sets the soft limit; `None` sets it to the hard one, as the relay does.
pub(super) fn set_limit(proxy: &Proxy, limit: Option<u64>) {
    let pid = Pid::from_raw(proxy.relay.id() as i32);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limits = Rlimit {
        current: limit.or(maximum),
        maximum,
    };
    prlimit(pid, Resource::Nofile, limits).expect("prlimit");
}

#[test]
fn checks_without_descriptors_say_nothing_about_the_server() {
    let server = Fickle::new();
    let proxy = before(
        &[&server],
        "health = { http = \"/health\", every = \"300ms\", fall = 1000 }",
    );
    until("it is checked", || server.asked() > 0);
    // Those that were slow on a busy machine.
    let failed = || count(&proxy, "failed_checks").as_u64().expect("a count");
    let failed_before = failed();
    let told = || proxy.relay.lines_logged("cannot be connected to for now") > 0;
    until("it is told", || {
        // Again, since a check that ran meanwhile has left its descriptor to the next one.
        limit_descriptors(&proxy, 0);
        told()
    });
    let line = proxy.relay.wait_logged("cannot be connected to for now");
    assert!(line.contains("RLIMIT_NOFILE ("), "{line}");
    set_limit(&proxy, None);
    let asked = server.asked();
    until("it is checked again", || server.asked() > asked + 1);
    assert!(failed() <= failed_before + 1, "{}", failed());
    assert_eq!(proxy.relay.lines_logged("is down"), 0);
}

/// The client takes the last descriptor, and waits for one to its server until it may wait no longer.
#[test]
fn connections_without_descriptors_say_nothing_about_the_server() {
    let servers = [Fickle::new(), Fickle::new()];
    let list = servers.each_ref().map(Fickle::quoted).join(", ");
    let configuration = configuration(&list, "connect_timeout = \"200ms\"");
    // Other engines open files in the background.
    let configuration = configuration.replace("name = \"l\"", "name = \"l\"\nengine = \"copy\"");
    let proxy = Proxy::start(&configuration, &mut command(&[]));
    let address = proxy.address("l");
    limit_descriptors(&proxy, 1);
    let mut client = connect(&address);
    let error = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    let line = proxy.relay.wait_logged("cannot be connected to for now");
    assert!(line.contains("RLIMIT_NOFILE ("), "{line}");
    set_limit(&proxy, None);
    for index in [0, 1] {
        assert_eq!(server_of(&proxy, index)["failures"], 0);
    }
}

/// However many descriptors it has: it ends and says so, it says that it cannot check, or it checks its servers.
#[test]
fn a_shortage_at_the_start_loses_no_checks_in_silence() {
    let server = Fickle::new();
    let scratch = Scratch::new("shortage").expect("a directory");
    let health = "health = { http = \"/health\", every = \"300ms\" }";
    let text = configuration(&server.quoted(), health);
    let path = scratch
        .write("proxy.toml", &format!("threads = 1\n{text}"))
        .expect("written");
    let mut refused_for_checks = 0;
    for spare in 0.. {
        let limit = limit_with(spare);
        // util-linux; it becomes the program.
        let mut command = Process::command("prlimit");
        command
            .arg(format!("--nofile={limit}:{limit}"))
            .args([BINARY, "run", "--config"])
            .arg(&path)
            .env_remove("SPLICED_LOG");
        let mut relay = Relay::spawn_silent(&mut command);
        until("it listens or ends", || {
            relay.lines_logged("listening on ") > 0 || !relay.is_running()
        });
        if relay.is_running() {
            let lacks = || relay.lines_logged("cannot be connected to for now") > 0;
            until("it checks or lacks descriptors for it", || {
                server.asked() > 1 || lacks()
            });
            if server.asked() > 1 {
                break;
            }
            continue;
        }
        // 127 is the dynamic linker's, which opens libraries.
        let status = relay.wait_end().code();
        assert!(matches!(status, Some(1 | 2 | 127)), "{limit}: {status:?}");
        refused_for_checks += relay.lines_logged("of the control thread");
    }
    assert!(refused_for_checks > 0);
}

/// A probe that is due while descriptors are short is made later.
#[test]
fn a_server_that_resets_everything_is_out_after_a_shortage() {
    let servers = [Fickle::new(), Fickle::new()];
    let list = servers.each_ref().map(Fickle::quoted).join(", ");
    // Other engines open files in the background.
    let configuration =
        configuration(&list, "").replace("name = \"l\"", "name = \"l\"\nengine = \"copy\"");
    let proxy = Proxy::start(&configuration, &mut command(&[]));
    let address = proxy.address("l");
    servers[0].set(|it| &it.resets_all);
    // One client and its server.
    limit_descriptors(&proxy, 2);
    for _ in 0..12 {
        is_served(&address, 2, "good");
    }
    wait_counted(&proxy, 0, "early_resets", 3);
    set_limit(&proxy, None);
    until("it is out", || {
        is_served(&address, 2, "good");
        server_of(&proxy, 0)["state"] == "out"
    });
}

#[test]
fn checks_that_a_reload_brings_are_made_after_a_shortage() {
    let servers = [Fickle::new(), Fickle::new()];
    let proxy = before(&[&servers[0], &servers[1]], "");
    limit_descriptors(&proxy, 2);
    let list = servers.each_ref().map(Fickle::quoted).join(", ");
    let health = "health = { http = \"/health\", every = \"300ms\" }";
    let reloaded = proxy.reload(&configuration(&list, health));
    assert!(reloaded.status.success());
    set_limit(&proxy, None);
    until("they are checked", || {
        servers.iter().all(|server| server.asked() > 1)
    });
    servers[0].set(|it| &it.sick);
    until("it is down", || server_of(&proxy, 0)["usable"] == false);
}

/// The address is for documentation (RFC 5737).
#[test]
fn a_source_that_is_not_this_hosts_says_nothing_about_the_server() {
    let servers = [Fickle::new(), Fickle::new()];
    let proxy = before(
        &[&servers[0], &servers[1]],
        "source = \"192.0.2.77\"\nhealth = { tcp = true, every = \"50ms\" }",
    );
    let mut client = connect(&proxy.address("l"));
    assert!(client.read(&mut [0]).is_err(), "a reset");
    let line = proxy.relay.wait_logged("cannot be connected to for now");
    assert!(
        line.contains("'source' is not an address of this host"),
        "{line}"
    );
    // Once for each server, however often it is tried.
    for _ in 0..20 {
        let mut client = connect(&proxy.address("l"));
        assert!(client.read(&mut [0]).is_err(), "a reset");
    }
    assert!(proxy.relay.lines_logged("cannot be connected to for now") <= 2);
    for index in [0, 1] {
        assert_eq!(server_of(&proxy, index)["failures"], 0);
        assert_eq!(server_of(&proxy, index)["usable"], true);
    }
}

/// A client in the namespace, whose port is none of the relay's.
fn client(namespace: &Namespace, port: u16) -> TcpStream {
    let connected = namespace.enter(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
        socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, 80)).into())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        io::Result::Ok(TcpStream::from(socket))
    });
    connected.expect("entered").expect("connected")
}

#[test]
fn connections_and_checks_without_ports_say_nothing_about_the_server() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("ports").expect("a namespace");
    let range = format!("40000 {}", 40000 + PORTS - 1);
    namespace
        .set_sysctl("net.ipv4.ip_local_port_range", &range)
        .expect("a few ports");
    let servers = [90, 91].map(|port| {
        let listener = namespace.enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        Fickle::on(listener.expect("entered").expect("it listens"))
    });
    let configuration = configuration(
        "\"127.0.0.1:90\", \"127.0.0.1:91\"",
        "health = { tcp = true, every = \"300ms\" }",
    );
    let configuration = configuration.replace("127.0.0.1:0", "127.0.0.1:80");
    let proxy = Proxy::run_in(&namespace, &configuration);
    let mut ports = 20_000..;
    let mut next = || client(&namespace, ports.next().expect("a port"));
    // Those that are joined with a server hold all ports.
    let held: Vec<_> = (0..4 * PORTS).map(|_| next()).collect();
    let line = proxy.relay.wait_logged("cannot be connected to for now");
    assert!(line.contains("no free local address and port"), "{line}");
    // Checks cannot be made, time after time.
    let told = || proxy.relay.lines_logged("cannot be connected to for now");
    let before = told();
    until("it is told again", || told() > before + 2);
    for index in [0, 1] {
        assert!(server_of(&proxy, index)["usable"] == true);
        assert_eq!(server_of(&proxy, index)["failed_connections"], 0);
    }
    for client in held {
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("SO_LINGER");
    }
    until("all are gone", || proxy.status()["connections"] == 0);
    for _ in 0..PORTS {
        let mut client = next();
        client.write_all(b"good").expect("sent");
        let mut answer = [0; 2];
        client.read_exact(&mut answer).expect("an answer");
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("SO_LINGER");
    }
    drop(servers);
}
