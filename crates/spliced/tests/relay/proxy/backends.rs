//! Which server of a backend a connection reaches.

use std::io::Write;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

use super::Proxy;
use super::routes::{Site, connect, expect, tls_hello};
use crate::patience::until;
use crate::peer::Peer;

fn one_route(backend: &str) -> String {
    format!(
        "[[listener]]\nname = \"all\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\n{backend}"
    )
}

/// An address that nobody listens on, kept from others as long as this lives.
pub(super) struct Place(Socket);

impl Place {
    pub(super) fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&any.into()).expect("bound");
        Self(socket)
    }

    pub(super) fn address(&self) -> String {
        let address = self.0.local_addr().expect("its address");
        address.as_socket().expect("an IP address").to_string()
    }
}

#[test]
fn a_refused_connection_is_tried_on_the_next_server_with_the_same_first_bytes() {
    let (places, site) = ([Place::new(), Place::new()], Site::new());
    let proxy = Proxy::run(&format!(
        r#"
[[listener]]
name = "all"
address = "127.0.0.1:0"
[[listener.route]]
starts_with = "hello"
backend = "b"
[backend.b]
servers = ["{}", "{}", "{}"]
"#,
        places[0].address(),
        places[1].address(),
        site.address()
    ));
    for _ in 0..4 {
        let mut client = connect(&proxy.address("all"));
        client.write_all(b"hello, world").expect("sent");
        let mut server = site.accept();
        expect(&mut server, b"hello, world");
    }
    assert_eq!(proxy.count("all", "joined"), 4);
}

#[test]
fn servers_take_turns_by_their_weights() {
    let sites = [Site::new(), Site::new()];
    let proxy = Proxy::run(&one_route(&format!(
        "servers = [{{ address = \"{}\", weight = 2 }}, \"{}\"]",
        sites[0].address(),
        sites[1].address()
    )));
    let _clients: Vec<_> = (0..9).map(|_| connect(&proxy.address("all"))).collect();
    until("all are joined", || proxy.count("all", "joined") == 9);
    let backend = proxy.of("backends", "b");
    assert_eq!(backend["servers"][0]["connections"], 6);
    assert_eq!(backend["servers"][1]["connections"], 3);
}

#[test]
fn the_server_with_the_fewest_connections_is_next() {
    let sites = [Site::new(), Site::new()];
    let proxy = Proxy::run(&one_route(&format!(
        "balance = \"least-connections\"\nservers = [\"{}\", \"{}\"]",
        sites[0].address(),
        sites[1].address()
    )));
    let connections =
        |server: usize| proxy.of("backends", "b")["servers"][server]["connections"].as_u64();
    let mut clients: Vec<_> = (0..4).map(|_| connect(&proxy.address("all"))).collect();
    until("both have two", || {
        [0, 1].map(&connections) == [Some(2), Some(2)]
    });
    // All of the first server end.
    let mut of_first: Vec<_> = (0..2).map(|_| sites[0].accept()).collect();
    of_first.clear();
    until("the first has none", || {
        clients.retain(|client| {
            client.set_nonblocking(true).expect("non-blocking");
            !matches!(client.peek(&mut [0]), Ok(0))
        });
        connections(0) == Some(0)
    });
    clients.extend((0..2).map(|_| connect(&proxy.address("all"))));
    until("the first has two again", || {
        [0, 1].map(&connections) == [Some(2), Some(2)]
    });
}

#[test]
fn one_client_stays_on_its_server() {
    let sites: Vec<_> = (0..5).map(|_| Site::new()).collect();
    let servers: Vec<_> = sites
        .iter()
        .map(|site| format!("\"{}\"", site.address()))
        .collect();
    let proxy = Proxy::run(&one_route(&format!(
        "balance = \"consistent\"\nservers = [{}]",
        servers.join(", ")
    )));
    let _clients: Vec<_> = (0..10).map(|_| connect(&proxy.address("all"))).collect();
    until("all are joined", || proxy.count("all", "joined") == 10);
    let backend = proxy.of("backends", "b");
    let counts = backend["servers"].as_array().expect("servers").iter();
    let counts: Vec<_> = counts
        .map(|server| server["connections"].as_u64())
        .collect();
    assert!(counts.contains(&Some(10)), "{counts:?}");
}

/// All connections for one name go to one server, and other names go to others.
#[test]
fn one_server_name_stays_on_its_server() {
    const NAMES: usize = 24;
    let sites: Vec<_> = (0..3).map(|_| Site::new()).collect();
    let servers: Vec<_> = sites
        .iter()
        .map(|site| format!("\"{}\"", site.address()))
        .collect();
    let proxy = Proxy::run(&format!(
        "[[listener]]\nname = \"all\"\naddress = \"127.0.0.1:0\"\n\
         [[listener.route]]\nsni = \"*.example.org\"\nbackend = \"b\"\n\
         [backend.b]\nbalance = \"consistent\"\nhash = \"sni\"\nservers = [{}]",
        servers.join(", ")
    ));
    let connections = || -> Vec<_> {
        let backend = proxy.of("backends", "b");
        let servers = backend["servers"].as_array().expect("servers").iter();
        servers
            .map(|server| server["connections"].as_u64().expect("a count"))
            .collect()
    };
    let mut clients = Vec::new();
    let mut connected_to = |name: &str| {
        let before = connections();
        let mut client = connect(&proxy.address("all"));
        client.write_all(&tls_hello(name, &[])).expect("sent");
        clients.push(client);
        until("it is at a server", || connections() != before);
        let after = connections();
        (0..after.len()).find(|server| after[*server] > before[*server])
    };
    let names: Vec<_> = (0..NAMES).map(|n| format!("{n}.example.org")).collect();
    let first: Vec<_> = names.iter().map(|name| connected_to(name)).collect();
    let again: Vec<_> = names.iter().map(|name| connected_to(name)).collect();
    assert_eq!(again, first);
    // By chance all names have one server in one of ten to the eleventh runs.
    assert!(first.iter().any(|server| *server != first[0]), "{first:?}");
}

/// A backup serves when no other server is up, and no longer than that.
#[test]
fn checks_take_a_server_out_and_bring_it_back() {
    let backup = Site::new();
    let server = Place::new();
    let place = server.address();
    let proxy = Proxy::run(&one_route(&format!(
        "servers = [\"{place}\", {{ address = \"{}\", backup = true }}]\n\
         health = {{ tcp = true, every = \"50ms\", rise = 2, fall = 3 }}",
        backup.address()
    )));
    let is_up = || proxy.of("backends", "b")["servers"][0]["usable"].as_bool();
    until("it is down", || is_up() == Some(false));
    proxy
        .relay
        .wait_logged(&format!("server {place} is down: connection refused"));
    let mut client = connect(&proxy.address("all"));
    client.write_all(b"x").expect("sent");
    // The checks connect, too.
    until("the client is there", || {
        let mut first = [0];
        let connection = backup.accept();
        connection.set_nonblocking(false).expect("blocking");
        matches!(connection.peek(&mut first), Ok(1)) && first == *b"x"
    });
    // Nobody accepts the checks, so a short backlog would soon be full and the server down again.
    server.0.listen(4096).expect("it listens now");
    until("it is up", || is_up() == Some(true));
    proxy.relay.wait_logged("is up again");
    let _client = connect(&proxy.address("all"));
    until("it is used", || {
        proxy.of("backends", "b")["servers"][0]["connections"] == 1
    });
    drop(server);
}

#[test]
fn without_a_server_the_client_is_reset_or_goes_to_the_fallback() {
    let (place, fallback) = (Place::new(), Site::new());
    let configuration = |route: &str| {
        format!(
            r#"
[[listener]]
name = "all"
address = "127.0.0.1:0"
[[listener.route]]
backend = "b"
{route}
[backend.b]
servers = ["{}"]
[backend.other]
servers = ["{}"]
"#,
            place.address(),
            fallback.address()
        )
    };
    let proxy = Proxy::run(&configuration(""));
    Peer::is_reset_by(&proxy.address("all"));
    assert_eq!(proxy.count("all", "without_server"), 1);
    let proxy = Proxy::run(&configuration("fallback = \"other\""));
    let mut client = connect(&proxy.address("all"));
    client.write_all(b"x").expect("sent");
    expect(&mut fallback.accept(), b"x");
}

#[test]
fn over_a_servers_limit_clients_queue_and_over_the_queues_they_are_reset() {
    let site = Site::new();
    let proxy = Proxy::run(&one_route(&format!(
        "servers = [\"{}\"]\nmax_connections_per_server = 1\nqueue = 1\nqueue_timeout = \"60s\"",
        site.address()
    )));
    let first = connect(&proxy.address("all"));
    let first_server = site.accept();
    let mut second = connect(&proxy.address("all"));
    until("one waits", || proxy.of("backends", "b")["queued"] == 1);
    Peer::is_reset_by(&proxy.address("all"));
    assert_eq!(proxy.count("all", "queue_full"), 1);
    drop((first, first_server));
    second.write_all(b"x").expect("sent");
    expect(&mut site.accept(), b"x");
    let proxy = Proxy::run(&one_route(&format!(
        "servers = [\"{}\"]\nmax_connections_per_server = 1\nqueue_timeout = \"50ms\"",
        site.address()
    )));
    let _first = connect(&proxy.address("all"));
    let _server = site.accept();
    Peer::is_reset_by(&proxy.address("all"));
    assert_eq!(proxy.count("all", "queue_timeout"), 1);
}
