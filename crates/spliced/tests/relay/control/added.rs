//! Servers that orders add and remove until the next reload.

use std::thread;

use netlab::{Lab, Need, Process, Scratch, available};
use rustix::process::Signal;
use serde_json::Value;

use super::servers::{Stage, join, of, quoted, talk, with};
use super::{answers, curl};
use crate::datagrams;
use crate::patience::until;
use crate::peer::Peer;
use crate::proxy::slow_names::with_names;
use crate::relay::{BINARY, Relay};
use crate::resolver::{SLOW, with_name_server};
use crate::server::{Server, free_port};

const FROM_SYN: &str = "are translated from the SYN on";

impl Stage {
    /// The status and the answer of an order about a server of the backend `b`.
    fn order(&self, method: &str, server: &str) -> (String, Value) {
        let url = format!("http://x/v1/backends/b/servers/{server}");
        curl(&self.socket, &["--globoff", "-X", method, &url])
    }

    fn does(&self, method: &str, server: &str) -> Value {
        let (status, told) = self.order(method, server);
        assert_eq!(status, "200", "{method} {server}: {told}");
        told
    }

    fn adds(&self, server: &Server) -> Value {
        self.does("PUT", &server.address)
    }

    fn removes(&self, server: &Server) -> Value {
        self.does("DELETE", &server.address)
    }
}

/// The sessions of a server that is removed from a relay have the time that connections have at its end.
#[test]
fn the_server_of_a_relay_is_removed_within_its_drain_timeout() {
    let scratch = Scratch::new("removed").expect("a directory");
    let socket = scratch.path().join("sock");
    let path = socket.to_str().expect("UTF-8");
    let former = datagrams::socket("127.0.0.1:0");
    let target = datagrams::named(&former);
    let options = ["--control", path, "--drain-timeout", "1s"];
    let relay = Relay::between("udp:127.0.0.1:0", &target, &options);
    answers(&socket);
    let client = datagrams::client(&relay);
    datagrams::ask_until_received(&client, &former, b"question");
    let order = |method, server: &str| {
        let url = format!("http://x/v1/backends/{target}/servers/{server}");
        let (status, told) = curl(&socket, &["-X", method, &url]);
        assert_eq!(status, "200", "{method} {server}: {told}");
    };
    order("PUT", "udp:127.0.0.1:9");
    order("DELETE", &target);
    until("the session is cut", || {
        let _ = client.send(b"goes on");
        relay.lines_logged("was cut, 1s after it was removed: 1 session was ended") > 0
    });
}

#[test]
fn an_added_server_gets_clients_at_once_and_leaves_with_the_next_reload() {
    let servers = [(); 3].map(|()| Server::new());
    let configuration = of(&[quoted(&servers[0])], "");
    let stage = Stage::run(&configuration);
    assert_eq!(stage.server(&servers[0])["added"], false);
    let told = stage.adds(&servers[1]);
    assert_eq!(
        (&told["added"], &told["weight"], &told["state"]),
        (&true.into(), &1.into(), &"not checked".into())
    );
    let told = stage.does("PUT", &format!("{}?weight=0", servers[2].address));
    assert_eq!(told["state"], "weight 0");
    stage.wait_logged("was added with the weight 1 until the next reload, by user ");
    let table = String::from_utf8(stage.succeeds(&["backends"]).stdout).expect("text");
    let marked = table.matches("added until the next reload").count();
    assert_eq!(marked, 2, "{table}");
    // In turn.
    let joined = [(); 2].map(|()| Peer::connect(&stage.address));
    let far = [0, 1].map(|number: usize| servers[number].accept());
    stage.succeeds(&["drain", &servers[0].address]);
    let (near_added, far_added) = join(&stage.address, &servers[1]);
    let refused = stage.order("PUT", &servers[1].address);
    assert_eq!(refused.0, "422");
    assert_eq!(
        refused.1["error"],
        format!("backend b has a server {} already", servers[1].address)
    );
    stage.reloads(&configuration);
    let dropped = stage.wait_logged("was removed, since only an order has added it");
    assert!(dropped.ends_with("; 2 connections go on"), "{dropped}");
    assert_eq!(stage.state(&servers[1]), "draining: 2");
    assert_eq!(stage.server(&servers[2]), Value::Null);
    talk(&near_added, &far_added, 2);
    stage.succeeds(&["undrain", &servers[0].address]);
    for _ in 0..3 {
        drop(join(&stage.address, &servers[0]));
    }
    drop((near_added, far_added, joined, far));
    until("it is gone", || stage.server(&servers[1]).is_null());
}

#[test]
fn a_server_that_the_configuration_has_by_the_next_reload_is_no_longer_marked() {
    let servers = [Server::new(), Server::new()];
    let stage = Stage::run(&of(&[quoted(&servers[0])], ""));
    stage.adds(&servers[1]);
    stage.succeeds(&["drain", &servers[0].address]);
    let (near, far) = join(&stage.address, &servers[1]);
    let more = with(&servers[1], "weight = 7");
    stage.reloads(&of(&[quoted(&servers[0]), more], ""));
    let told = stage.server(&servers[1]);
    assert_eq!(
        (&told["added"], &told["weight"], &told["total"]),
        (&false.into(), &7.into(), &1.into())
    );
    assert_eq!(stage.lines_logged("was removed"), 0);
    talk(&near, &far, 2);
}

#[test]
fn a_removed_server_keeps_its_connections_and_a_reload_brings_it_back() {
    let servers = [Server::new(), Server::new()];
    let configuration = of(&[quoted(&servers[0]), with(&servers[1], "weight = 5")], "");
    let stage = Stage::run(&configuration);
    stage.succeeds(&["drain", &servers[0].address]);
    let (near, far) = join(&stage.address, &servers[1]);
    stage.succeeds(&["undrain", &servers[0].address]);
    let told = stage.removes(&servers[1]);
    assert_eq!(
        (&told["state"], &told["removed"]),
        (&"draining".into(), &true.into())
    );
    let why = told["why"].as_str().expect("a reason");
    assert!(
        why.starts_with("removed until the next reload by user "),
        "{why}"
    );
    let logged = stage.wait_logged("was removed until the next reload, by user ");
    assert!(logged.ends_with("; 1 connection goes on"), "{logged}");
    for _ in 0..3 {
        drop(join(&stage.address, &servers[0]));
    }
    // The same server, with a weight of the order.
    let told = stage.adds(&servers[1]);
    assert_eq!(
        (&told["added"], &told["connections"], &told["weight"]),
        (&false.into(), &1.into(), &1.into())
    );
    stage.removes(&servers[1]);
    stage.removes(&servers[1]);
    let (status, told) = stage.order("DELETE", &servers[0].address);
    assert_eq!(status, "422");
    let why = told["error"].as_str().expect("a sentence");
    assert!(
        why.contains("is the only server of backend b, which needs one"),
        "{why}"
    );
    stage.reloads(&configuration);
    let told = stage.server(&servers[1]);
    assert_eq!(
        (&told["removed"], &told["weight"], &told["connections"]),
        (&false.into(), &5.into(), &1.into())
    );
    talk(&near, &far, 2);
    drop((near, far));
    until("it is empty", || {
        stage.server(&servers[1])["connections"] == 0
    });
    // Nobody has it any more.
    stage.removes(&servers[1]);
    assert_eq!(stage.server(&servers[1]), Value::Null);
    stage.reloads(&configuration);
    stage.wait_logged("is back, as the configuration has it");
    stage.succeeds(&["drain", &servers[0].address]);
    drop(join(&stage.address, &servers[1]));
}

#[test]
fn the_connections_of_a_removed_server_end_as_on_remove_says() {
    let servers = [Server::new(), Server::new()];
    let stage = Stage::run(&of(&[quoted(&servers[0])], "on_remove = \"reset\""));
    let (near, far) = join(&stage.address, &servers[0]);
    stage.adds(&servers[1]);
    stage.removes(&servers[0]);
    near.expect_reset();
    far.expect_reset();
    drop(join(&stage.address, &servers[1]));
}

#[test]
fn a_relay_to_one_target_gets_another_one_and_cuts_the_first() {
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let path = socket.to_str().expect("UTF-8");
    let servers = [Server::new(), Server::new()];
    let options = [
        "--control",
        path,
        "--drain-timeout",
        "100ms",
        "--engine",
        "copy",
    ];
    let relay = Relay::to(&servers[0].address, &options);
    answers(&socket);
    let near = Peer::connect(&relay.address);
    let far = servers[0].accept();
    let target = &servers[0].address;
    for (method, server) in [("PUT", &servers[1]), ("DELETE", &servers[0])] {
        let url = format!("http://x/v1/backends/{target}/servers/{}", server.address);
        let (status, told) = curl(&socket, &["-X", method, &url]);
        assert_eq!(status, "200", "{told}");
    }
    near.expect_reset();
    far.expect_reset();
    relay.wait_logged(" was cut, ");
    let near = Peer::connect(&relay.address);
    drop((near, servers[1].accept()));
    assert_eq!(relay.lines_logged("ERROR"), 0);
}

#[test]
fn an_added_server_is_checked_as_the_others_and_starts_slowly() {
    let server = Server::new();
    let stage = Stage::run(&of(
        &[quoted(&server)],
        "slow_start = \"1h\"\n[backend.b.health]\ntcp = true\nevery = \"50ms\"",
    ));
    let down = format!("127.0.0.1:{}", free_port());
    stage.does("PUT", &down);
    until("it is down", || stage.does("GET", &down)["state"] == "down");
    stage.does("DELETE", &down);
    let added = Server::new();
    stage.adds(&added);
    let before = stage.count("joined");
    let _clients: Vec<_> = (0..20).map(|_| Peer::connect(&stage.address)).collect();
    until("all are joined", || stage.count("joined") == before + 20);
    // Its share of one in a hundred is due at most once among so few.
    let count = stage.server(&added)["connections"].as_u64();
    assert!(count.is_some_and(|count| count <= 1), "{count:?}");
}

#[test]
fn what_cannot_be_a_server_is_refused_in_a_sentence() {
    let server = Server::new();
    let other = "[[listener]]\nname = \"m\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"s\"\n\
                 [backend.s]\nservers = \"srv:_x._tcp.host.invalid\"\nconnect_timeout = \"10ms\"\n";
    let stage = Stage::run(&(of(&[quoted(&server)], "source = \"127.0.0.1\"") + other));
    let long = format!("{}:1", "x".repeat(300));
    let own = stage.address.clone();
    for (name, status, why) in [
        (&*own, "422", "is this process itself"),
        ("localhost", "422", "the port is missing"),
        ("127.0.0.1:0", "422", "nobody listens on port 0"),
        (&*long, "422", "more than 300 bytes"),
        ("srv:_x._tcp.host", "422", "only the configuration names"),
        ("unix:%2Frun%2Fx", "422", "has no server by UNIX sockets"),
        ("[::1]:1", "422", "source of backend b has no IPv6 address"),
        ("unix:%2Fx%0Ay", "422", "control characters"),
        ("127.0.0.1:1?weight=257", "400", "?weight=N"),
        ("127.0.0.1:1?x=1", "400", "?weight=N"),
    ] {
        let (found, told) = stage.order("PUT", name);
        let sentence = told["error"].as_str().expect("a sentence");
        assert_eq!(found, status, "{name}: {sentence}");
        assert!(sentence.contains(why), "{name}: {sentence}");
    }
    let (status, _) = stage.order("DELETE", "127.0.0.1:1");
    assert_eq!(status, "404");
    for (method, backend, status, why) in [
        ("PUT", "s", "422", "the servers that SRV records name"),
        ("PUT", "nope", "404", "there is no backend nope"),
    ] {
        let url = format!("http://x/v1/backends/{backend}/servers/127.0.0.1:1");
        let (found, told) = curl(&stage.socket, &["-X", method, &url]);
        let sentence = told["error"].as_str().expect("a sentence");
        assert_eq!(found, status, "{sentence}");
        assert!(sentence.contains(why), "{sentence}");
    }
    let servers = stage.backends()[0]["servers"].take();
    assert_eq!(servers.as_array().map(Vec::len), Some(1), "{servers}");
}

/// The main thread waits for a name, and so would the one that answers.
#[test]
fn servers_are_added_and_removed_while_names_are_waited_for_and_the_reload_wins() {
    with_name_server(|names, scratch| {
        let servers = [(); 3].map(|()| Server::new());
        let mut command = with_names(Process::command("unshare"), scratch, "");
        let both = [quoted(&servers[0]), quoted(&servers[1])];
        let stage = Stage::start(&of(&both, ""), &mut command);
        let named = format!("{SLOW}-added.test:1");
        let told = stage.does("PUT", &named);
        assert_eq!(told["state"], "unresolved");
        until("it is asked for", || names.slow_names() == 1);
        let slow = format!("\"{SLOW}.test:1\"");
        let [first, second] = both.clone();
        let third = quoted(&servers[2]);
        let lines = "connect_timeout = \"5s\"";
        stage.proxy.write(&of(&[first, second, third, slow], lines));
        stage.proxy.relay.signal(Signal::HUP);
        until("it waits for the name", || names.slow_names() == 2);
        stage.removes(&servers[0]);
        stage.adds(&servers[2]);
        assert_eq!(stage.lines_logged("was reloaded"), 0);
        stage.wait_logged("was reloaded");
        assert_eq!(stage.server(&servers[0])["removed"], false);
        let told = stage.server(&servers[2]);
        assert_eq!(told["added"], false);
        let all = stage.backends()[0]["servers"].take();
        assert_eq!(all.as_array().map(Vec::len), Some(4), "{all}");
        for server in &servers {
            let others = servers.iter().filter(|it| it.address != server.address);
            let others: Vec<_> = others.collect();
            thread::scope(|scope| {
                for other in &others {
                    scope.spawn(|| stage.succeeds(&["drain", &other.address]));
                }
            });
            drop(join(&stage.address, server));
            for other in others {
                stage.succeeds(&["undrain", &other.address]);
            }
        }
    });
}

/// With two servers, connections begin with sockets, and with one, they go to that one.
#[test]
fn connections_from_the_syn_on_follow_the_servers_of_their_backend() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let servers =
        [(); 2].map(|()| Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4)));
    let configuration = of(&[quoted(&servers[0])], "").replace(
        "127.0.0.1:0\"\nengine = \"copy\"",
        &format!("{}:8080\"\nfrom_syn = true", Lab::RELAY_V4),
    );
    let stage = Stage::start(
        &configuration,
        lab.relay().command(BINARY).env_remove("SPLICED_LOG"),
    );
    stage.wait_logged(FROM_SYN);
    let join = |server: &Server| {
        let joined = lab.client().enter(|| join(&stage.address, server));
        joined.expect("entered")
    };
    let (near, far) = join(&servers[0]);
    until("it counts", || {
        stage.server(&servers[0])["connections"] == 1
    });
    stage.adds(&servers[1]);
    // The next ones go to either in turn, so one of two to each.
    let clients = lab
        .client()
        .enter(|| [(); 2].map(|()| Peer::connect(&stage.address)));
    let with_sockets = (clients, servers.each_ref().map(Server::accept));
    assert_eq!(stage.server(&servers[1])["connections"], 1);
    stage.removes(&servers[0]);
    until("connections are translated again", || {
        stage.lines_logged(FROM_SYN) == 2
    });
    let (new_near, new_far) = join(&servers[1]);
    until("it counts", || {
        stage.server(&servers[1])["connections"] == 2
    });
    talk(&new_near, &new_far, 2);
    // Those of the server that was removed go on.
    talk(&near, &far, 2);
    assert_eq!(stage.state(&servers[0]), "draining: 2");
    stage.reloads(&configuration);
    drop(join(&servers[0]));
    talk(&near, &far, 3);
    drop(with_sockets);
}
