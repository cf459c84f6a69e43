//! What counts for and against a server: the rows of the table in docs/proxy.md, in its order.
//!
//! | row | test |
//! |---|---|
//! | a check passes | `passed_checks_bring_back_a_server_that_refused` |
//! | a check fails | `failed_checks_take_a_server_out_while_clients_come` |
//! | a connection is made | `a_connection_clears_failed_connections` |
//! | a connection is not made | `refused_connections_*`, `a_silent_server_is_out`, `a_unix_server_that_accepts_nobody_is_out` |
//! | another address takes the connection | `race::an_address_that_refuses_says_nothing_about_the_server` |
//! | a name without an address | `a_name_without_an_address_says_nothing_about_the_server` |
//! | with the client's address | `what_answers_to_clients_lose_is_not_the_servers_fault`, `a_server_that_refuses_this_host_too_is_out` |
//! | a shortage of this host | `shortage::*` |
//! | the client goes | `a_client_that_goes_says_nothing` |
//! | the server sends a byte | `early_resets::what_a_server_sends_clears_early_resets` |
//! | an early reset | `early_resets::*` |
//! | an early end in order | `an_end_in_order_says_nothing`, `early_resets::a_reset_after_an_end_in_order_counts` |
//! | a late reset | `early_resets::a_reset_after_the_first_byte_*` |

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use netlab::{Lab, Namespace, Need, Process, Scratch, available};
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};

use super::Proxy;
use super::backends::Place;
use super::fickle::{Fickle, Moods, reset};
use super::leaving::slow_listener;
use super::routes::connect;
use super::slow_names::with_names;
use crate::patience::{PATIENCE, until};
use crate::relay::command;
use crate::resolver::{NAME, SLOW, with_name_server};

/// A listener `l` before `servers`.
pub(super) fn before(servers: &[&Fickle], more: &str) -> Proxy {
    let addresses: Vec<_> = servers.iter().map(|server| server.quoted()).collect();
    let configuration = configuration(&addresses.join(", "), more);
    Proxy::start(&configuration, &mut command(&[]))
}

pub(super) fn configuration(servers: &str, more: &str) -> String {
    format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [{servers}]\n{more}\n"
    )
}

/// A connection of the client 127.0.0.`client` that has sent `text`.
pub(super) fn send(address: &str, client: u8, text: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, client), 0));
    socket.bind(&from.into()).expect("bound");
    let to: SocketAddr = address.parse().expect("an address");
    socket.connect(&to.into()).expect("connected");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // It may have been reset already.
    let _ = stream.write_all(text.as_bytes());
    stream
}

/// Whether the client 127.0.0.`client` is served, after its connection has ended.
pub(super) fn is_served(address: &str, client: u8, text: &str) -> bool {
    let mut answer = Vec::new();
    let _ = send(address, client, text).read_to_end(&mut answer);
    answer == b"ok"
}

pub(super) fn server_of(proxy: &Proxy, index: usize) -> Value {
    proxy.of("backends", "b")["servers"][index].take()
}

pub(super) fn is_up(proxy: &Proxy, index: usize) -> bool {
    server_of(proxy, index)["usable"] == true
}

/// Connections end, and are counted, some time after their clients.
pub(super) fn wait_counted(proxy: &Proxy, index: usize, count: &str, least: u64) {
    until(&format!("{least} {count}"), || {
        server_of(proxy, index)[count].as_u64() >= Some(least)
    });
}

/// Clients connect between any two checks.
#[test]
fn failed_checks_take_a_server_out_while_clients_come() {
    let (sick, well) = (Fickle::new(), Fickle::new());
    let proxy = before(
        &[&sick, &well],
        "health = { http = \"/health\", every = \"500ms\", fall = 3 }",
    );
    let address = proxy.address("l");
    sick.set(|it| &it.sick);
    until("it is down", || {
        for client in 2..6 {
            assert!(is_served(&address, client, "good"));
        }
        !is_up(&proxy, 0)
    });
    // The checks bring it back, and nothing else does.
    for client in 2..6 {
        assert!(is_served(&address, client, "good"));
    }
    assert!(!is_up(&proxy, 0) && is_up(&proxy, 1));
    sick.unset(|it| &it.sick);
    until("it is up", || is_up(&proxy, 0));
}

/// Nobody is connected any more, so everything has been counted.
pub(super) fn wait_over(proxy: &Proxy) {
    until("nobody is connected", || proxy.status()["connections"] == 0);
}

#[test]
fn an_end_in_order_says_nothing() {
    let servers = [Fickle::new(), Fickle::new()];
    let proxy = before(&[&servers[0], &servers[1]], "");
    let address = proxy.address("l");
    for client in 2..22 {
        assert!(!is_served(&address, client, "bye"));
    }
    wait_over(&proxy);
    for index in [0, 1] {
        assert_eq!(server_of(&proxy, index)["total"], 10);
        assert_eq!(server_of(&proxy, index)["failures"], 0);
    }
}

#[test]
fn a_client_that_goes_says_nothing() {
    // The backlog is full, so the servers answer nobody.
    let silent = [0, 1].map(|_| slow_listener(0));
    let addresses = silent.each_ref().map(|listener| {
        let address = listener.local_addr().expect("its address");
        address.to_string()
    });
    let _in_the_backlogs = addresses.each_ref().map(|address| connect(address));
    let [first, second] = &addresses;
    let proxy = Proxy::run(&configuration(
        &format!("\"{first}\", \"{second}\""),
        "connect_timeout = \"10m\"",
    ));
    let address = proxy.address("l");
    for count in 1..11 {
        let client = connect(&address);
        until("it connects", || {
            let servers = [0, 1].map(|index| server_of(&proxy, index)["total"].as_u64());
            servers.iter().flatten().sum::<u64>() == count
        });
        reset(&client);
        drop(client);
        wait_over(&proxy);
    }
    for index in [0, 1] {
        assert_eq!(server_of(&proxy, index)["failures"], 0);
    }
}

#[test]
fn refused_connections_take_a_server_out_for_a_while() {
    let (refusing, good) = (Place::new(), Fickle::new());
    let servers = format!("\"{}\", {}", refusing.address(), good.quoted());
    let proxy = Proxy::run(&configuration(&servers, ""));
    let address = proxy.address("l");
    until("it is out", || {
        assert!(is_served(&address, 2, "good"));
        server_of(&proxy, 0)["state"] == "out"
    });
    assert_eq!(server_of(&proxy, 0)["failed_connections"], 3);
    proxy
        .relay
        .wait_logged("is taken out for 10s: connection refused");
    // The last one stays, although it refuses.
    let refusing = Place::new();
    let servers = format!("\"{}\"", refusing.address());
    let proxy = Proxy::run(&configuration(&servers, ""));
    let address = proxy.address("l");
    for client in 2..12 {
        assert!(!is_served(&address, client, "good"));
    }
    assert_eq!(server_of(&proxy, 0)["failed_connections"], 10);
    assert!(is_up(&proxy, 0));
}

/// It answers no SYN.
#[test]
fn a_silent_server_is_out() {
    let silent = slow_listener(0);
    let address = silent.local_addr().expect("its address").to_string();
    let _in_the_backlog = connect(&address);
    let good = Fickle::new();
    let servers = format!("\"{address}\", {}", good.quoted());
    let proxy = Proxy::run(&configuration(&servers, "connect_timeout = \"2s\""));
    let address = proxy.address("l");
    until("it is out", || {
        assert!(is_served(&address, 2, "good"));
        server_of(&proxy, 0)["state"] == "out"
    });
    assert_eq!(server_of(&proxy, 0)["failed_connections"], 3);
    assert_eq!(server_of(&proxy, 1)["failures"], 0);
}

/// A reload keeps it out, and the only other server refuses.
#[test]
fn a_server_that_is_out_is_used_if_no_other_is_left() {
    let (out, other, refusing) = (Fickle::new(), Fickle::new(), Place::new());
    let proxy = before(&[&out, &other], "");
    let address = proxy.address("l");
    out.set(|it| &it.resets_all);
    until("it is out", || {
        is_served(&address, 2, "good");
        server_of(&proxy, 0)["state"] == "out"
    });
    out.unset(|it| &it.resets_all);
    let servers = format!("{}, \"{}\"", out.quoted(), refusing.address());
    let reloaded = proxy.reload(&configuration(&servers, ""));
    assert!(reloaded.status.success());
    for client in 2..6 {
        assert!(is_served(&address, client, "good"));
    }
    assert_eq!(server_of(&proxy, 0)["state"], "out");
}

/// The ports of servers that come and go, in a namespace where nobody else takes them.
const PORTS: [u16; 2] = [90, 91];

/// A namespace, the server there that answers, and a proxy before it and before one that refuses.
fn beside_one_that_refuses(more: &str) -> (Namespace, Fickle, Proxy) {
    let namespace = Namespace::new("refuses").expect("a namespace");
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, PORTS[1]));
    let listener = namespace.enter(listen).expect("entered");
    let good = Fickle::on(listener.expect("it listens"));
    let servers = PORTS.map(|port| format!("\"127.0.0.1:{port}\"")).join(", ");
    let proxy = Proxy::run_in(&namespace, &configuration(&servers, more));
    (namespace, good, proxy)
}

#[test]
fn a_connection_clears_failed_connections() {
    if !available(Need::Netns) {
        return;
    }
    let (namespace, _good, proxy) = beside_one_that_refuses("");
    let address = proxy.address("l");
    let ask = || {
        let ask = || is_served(&address, 2, "good");
        namespace.enter(ask).expect("entered")
    };
    let failed = || server_of(&proxy, 0)["failed_connections"].as_u64();
    let refuse_until = |count| {
        until("it has refused", || {
            assert!(ask());
            failed() == Some(count)
        });
    };
    for round in 1..4 {
        refuse_until(2 * round);
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, PORTS[0]));
        let listener = namespace.enter(listen).expect("entered");
        let listener = listener.expect("it listens");
        let serving = thread::spawn(move || {
            let (client, _) = listener.accept().expect("a connection");
            // It refuses again before the client asks again.
            drop(listener);
            Moods::default().serve(client);
        });
        until("it has served one", || {
            assert!(ask());
            serving.is_finished()
        });
    }
    assert!(is_up(&proxy, 0));
    assert_eq!(proxy.relay.lines_logged("is taken out"), 0);
}

#[test]
fn passed_checks_bring_back_a_server_that_refused() {
    if !available(Need::Netns) {
        return;
    }
    // It takes long until the checks themselves find it down.
    let (namespace, _good, proxy) =
        beside_one_that_refuses("health = { tcp = true, every = \"300ms\", fall = 1000 }");
    let address = proxy.address("l");
    let ask = || is_served(&address, 2, "good");
    // A thousand failed connections in a row are made of clients only.
    until("it is out", || {
        for _ in 0..50 {
            assert!(namespace.enter(ask).expect("entered"));
        }
        server_of(&proxy, 0)["state"] == "out"
    });
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, PORTS[0]));
    let listener = namespace.enter(listen).expect("entered");
    let _server = Fickle::on(listener.expect("it listens"));
    let left = || server_of(&proxy, 0)["out_seconds"].as_u64();
    let before = left();
    until("it is up", || is_up(&proxy, 0));
    assert!(before > Some(1), "its time was over anyway");
    proxy.relay.wait_logged("is up again");
}

/// Its accept queue is full, which passes at a healthy server. Its clients go to another one in time.
#[test]
fn a_unix_server_that_accepts_nobody_is_out() {
    for (health, state, why) in [
        ("", "out", "its backlog stays full"),
        (
            "health = { tcp = true, every = \"300ms\" }",
            "down",
            "does not answer within 300ms",
        ),
    ] {
        let directory = Scratch::new("unix").expect("a directory");
        let path = directory.path().join("server");
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        let address = SockAddr::unix(&path).expect("a path");
        listener.bind(&address).expect("bound");
        listener.listen(0).expect("it listens");
        let _in_the_queue = UnixStream::connect(&path).expect("connected");
        let good = Fickle::new();
        let servers = format!("\"unix:{}\", {}", path.display(), good.quoted());
        let more = format!("connect_timeout = \"2s\"\n{health}");
        let proxy = Proxy::run(&configuration(&servers, &more));
        let address = proxy.address("l");
        until("it is out", || {
            assert!(is_served(&address, 2, "good"));
            server_of(&proxy, 0)["state"] == state
        });
        proxy.relay.wait_logged(why);
        assert_eq!(proxy.relay.lines_logged("does not count against"), 0);
    }
}

/// A connection that waits in the queue takes what is left.
#[test]
fn when_a_server_goes_down_the_queue_goes_to_its_backup() {
    let (first, backup) = (Fickle::new(), Fickle::new());
    let servers = format!(
        "{}, {{ address = {}, backup = true }}",
        first.quoted(),
        backup.quoted()
    );
    let proxy = Proxy::run(&configuration(
        &servers,
        "max_connections_per_server = 1\nqueue_timeout = \"10m\"\n\
         health = { http = \"/health\", every = \"300ms\" }",
    ));
    let address = proxy.address("l");
    let mut held = send(&address, 2, "stay");
    held.read_exact(&mut [0; 4]).expect("an echo");
    let mut waiting = send(&address, 3, "good");
    until("it waits", || proxy.of("backends", "b")["queued"] == 1);
    first.set(|it| &it.sick);
    let mut answer = Vec::new();
    waiting.read_to_end(&mut answer).expect("an answer");
    assert_eq!(answer, b"ok");
    assert!(!is_up(&proxy, 0));
}

/// Neither a name server that is silent nor one that has no record of the name: checks cannot be made for as long as
/// those of the other server pass.
#[test]
fn a_name_without_an_address_says_nothing_about_the_server() {
    with_name_server(|names, scratch| {
        names.answer_with(None);
        for name in [&format!("{SLOW}.test"), NAME] {
            let known = Fickle::new();
            let configuration = configuration(
                &format!("\"{name}:80\", {}", known.quoted()),
                "connect_timeout = \"300ms\"\non_down = \"reset\"\n\
                 health = { http = \"/health\", every = \"300ms\", fall = 1 }",
            );
            let unshare = Process::command("unshare");
            let proxy = Proxy::start(&configuration, &mut with_names(unshare, scratch, ""));
            let line = format!(
                "server {name}:80 cannot be connected to for now: its name does not resolve; this does not count"
            );
            proxy.relay.wait_logged(&line);
            let asked = known.asked();
            until("the other one is checked", || known.asked() > asked + 5);
            assert_eq!(server_of(&proxy, 0)["failures"], 0);
            assert!(is_up(&proxy, 0));
            // Clients go where an address is known.
            assert!(is_served(&proxy.address("l"), 2, "good"));
            assert_eq!(proxy.relay.lines_logged(&line), 1);
        }
    });
}

/// The server answers to the client's address, and no rule brings the answers back to the proxy.
#[test]
fn what_answers_to_clients_lose_is_not_the_servers_fault() {
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let servers = PORTS.map(|port| {
        let listener = lab
            .server()
            .enter(|| TcpListener::bind((Lab::SERVER_V4, port)));
        Fickle::on(listener.expect("entered").expect("it listens"))
    });
    let list = servers.each_ref().map(Fickle::quoted).join(", ");
    let configuration = configuration(&list, "source = \"client\"\nconnect_timeout = \"600ms\"");
    let listen = format!("{}:0", Lab::RELAY_V4);
    let proxy = Proxy::run_in(lab.relay(), &configuration.replace("127.0.0.1:0", &listen));
    let address = proxy.address("l");
    for _ in 0..5 {
        let client = lab.client().enter(|| connect(&address));
        let mut client = client.expect("entered");
        assert!(client.read(&mut [0]).is_err(), "a reset");
    }
    for index in [0, 1] {
        wait_counted(&proxy, index, "failed_connections", 4);
    }
    until("the relay has tried", || {
        servers.iter().all(|server| server.silent() > 0)
    });
    assert!(is_up(&proxy, 0) && is_up(&proxy, 1));
    assert_eq!(proxy.relay.lines_logged("is taken out"), 0);
}

/// As before, but one of them is not there.
#[test]
fn a_server_that_refuses_this_host_too_is_out() {
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let listen = || TcpListener::bind((Lab::SERVER_V4, PORTS[1]));
    let listener = lab.server().enter(listen).expect("entered");
    let _there = Fickle::on(listener.expect("it listens"));
    let list = PORTS
        .map(|port| format!("\"{}:{port}\"", Lab::SERVER_V4))
        .join(", ");
    let configuration = configuration(&list, "source = \"client\"\nconnect_timeout = \"600ms\"");
    let listen = format!("{}:0", Lab::RELAY_V4);
    let proxy = Proxy::run_in(lab.relay(), &configuration.replace("127.0.0.1:0", &listen));
    let address = proxy.address("l");
    until("it is out", || {
        let client = lab.client().enter(|| connect(&address));
        let mut client = client.expect("entered");
        assert!(client.read(&mut [0]).is_err(), "a reset");
        server_of(&proxy, 0)["state"] == "out"
    });
    proxy
        .relay
        .wait_logged("is taken out for 10s: connection refused");
    assert!(is_up(&proxy, 1));
}
