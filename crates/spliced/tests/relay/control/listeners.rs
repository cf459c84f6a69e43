//! Listeners that take no new clients for a while.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;

use netlab::{Lab, Namespace, Need, Scratch, available};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::servers::{Stage, join, of, quoted, talk};
use super::{answers, curl};
use crate::datagrams;
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay};
use crate::server::Server;

/// So many threads have a socket each.
const THREADS: usize = 4;

/// A configuration with a listener `l`, at an address whose ports no other test takes, and `more` lines of it.
fn listening(server: &Server, address: &str, more: &str) -> String {
    of(&[quoted(server)], "").replace("127.0.0.1:0\"", &format!("{address}\"\n{more}"))
}

impl Stage {
    /// What is answered to an order about a listener.
    fn order_listener(&self, listener: &str, what: &str) -> (String, Value) {
        let path = format!("http://x/v1/listeners/{listener}/{what}");
        curl(&self.socket, &["-X", "POST", &path])
    }

    fn drain(&self) -> Value {
        let (status, answer) = self.order_listener("l", "drain");
        assert_eq!(status, "200", "{answer}");
        assert_eq!(answer["state"], self.listener()["state"]);
        answer
    }

    fn undrain(&self) {
        let (status, answer) = self.order_listener("l", "undrain");
        assert_eq!((&*status, &answer["state"]), ("200", &json!("listening")));
        assert_eq!(answer["addresses"][0], self.address);
    }

    fn listener(&self) -> Value {
        self.proxy.of("listeners", "l")
    }

    /// Nobody listens.
    fn refuses(&self) {
        for _ in 0..THREADS {
            let error = Peer::try_connect(&self.address).expect_err("nobody listens");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    }

    /// Whichever thread gets a client.
    fn serves(&self, server: &Server) {
        (0..2 * THREADS).for_each(|_| drop(join(&self.address, server)));
    }
}

#[test]
fn a_drained_listener_refuses_new_clients_keeps_those_that_it_has_and_listens_again() {
    let server = Server::new();
    let scratch = Scratch::new("control").expect("a directory");
    let other = format!("unix:{}/other", scratch.path().display());
    let more =
        format!("[[listener]]\naddress = \"{other}\"\n[[listener.route]]\nbackend = \"b\"\n");
    let threads = format!("threads = {THREADS}\n");
    let configuration = threads.clone() + &listening(&server, "127.0.4.1:0", "") + &more;
    let configuration = configuration.replace("[process]", "[process]\ncontrol_read = \"read\"");
    let stage = Stage::run(&configuration);
    let (near, far) = join(&stage.address, &server);
    let begin = stage.listener();
    assert_eq!(begin["state"], "listening");
    let drained = stage.drain();
    assert_eq!(
        (&drained["state"], &drained["connections"]),
        (&json!("draining"), &json!(1))
    );
    assert!(
        drained["since"].as_str() > begin["since"].as_str(),
        "{drained}"
    );
    assert_eq!(drained["addresses"], begin["addresses"]);
    let user = rustix::process::geteuid();
    stage.wait_logged(&format!(
        "POST /v1/listeners/l/drain was asked for by user {user} (process "
    ));
    stage.wait_logged(&format!(
        "listener l takes no new clients: drained by user {user} (process "
    ));
    stage.wait_logged("; 1 connection goes on");
    stage.refuses();
    talk(&near, &far, 2);
    // Once more is nothing new, and neither is a reload.
    assert_eq!(stage.drain()["since"], drained["since"]);
    stage.reloads(&configuration);
    assert_eq!(stage.listener()["since"], drained["since"]);
    stage.refuses();
    talk(&near, &far, 3);
    // The other one has clients as before, and orders by its name.
    drop(join(&other, &server));
    let name = other.replace('/', "%2F");
    for what in ["drain", "undrain"] {
        let (status, answer) = stage.order_listener(&name, what);
        assert_eq!((&*status, &answer["name"]), ("200", &json!(other)));
    }
    drop(join(&other, &server));
    assert_eq!(stage.lines_logged("listener l is empty"), 0);
    drop((near, far));
    let logged = stage.wait_logged("listener l is empty, ");
    assert!(logged.ends_with(" after it was drained"), "{logged}");
    let empty = stage.listener();
    assert_eq!(empty["state"], "drained");
    assert!(
        empty["since"].as_str() > drained["since"].as_str(),
        "{empty}"
    );
    // Somebody else has the address by now.
    let thief = TcpListener::bind(&stage.address).expect("it is free");
    let (status, answer) = stage.order_listener("l", "undrain");
    let sentence = answer["error"].as_str().expect("a sentence");
    assert_eq!(status, "422");
    assert!(
        sentence.starts_with("listener l stays drained: ") && sentence.contains("in use"),
        "{sentence}"
    );
    assert_eq!(stage.listener()["since"], empty["since"]);
    let in_its_place = listening(&server, &stage.address, "").replace("\"l\"", "\"m\"");
    stage.proxy.write(&(threads.clone() + &in_its_place));
    let told = stage.fails(&["reload"]);
    assert!(
        told.contains("in use") && !told.contains("of this process"),
        "{told}"
    );
    drop(thief);
    stage.undrain();
    stage.wait_logged(&format!(
        "listener l takes clients again: undrained by user {user} (process "
    ));
    stage.undrain();
    stage.serves(&server);
    // Connections from before have the port, too.
    let (near, far) = join(&stage.address, &server);
    assert_eq!(stage.drain()["state"], "draining");
    stage.undrain();
    stage.serves(&server);
    talk(&near, &far, 2);
    drop((near, far));
    // The next time it is as the first time.
    until("all have left", || stage.listener()["connections"] == 0);
    assert_eq!(stage.lines_logged("listener l is empty"), 1);
    assert_eq!(stage.drain()["state"], "drained");
    until("it is told", || {
        stage.lines_logged("listener l is empty") == 2
    });
    stage.refuses();
    // A removed listener is forgotten.
    let without = threads + &listening(&server, "127.0.4.1:0", "").replace("\"l\"", "\"m\"");
    stage.reloads(&without);
    stage.reloads(&configuration);
    assert_eq!(stage.listener()["state"], "listening");
    drop(join(&stage.proxy.address("l"), &server));
    let read = stage.proxy.beside("read");
    for (socket, method, name, status, why) in [
        (
            &stage.socket,
            "POST",
            "x",
            "404",
            "there is no listener x; the listeners are ",
        ),
        (&stage.socket, "GET", "l", "405", "ask with POST"),
        (&read, "POST", "l", "403", "for reading only"),
    ] {
        for what in ["drain", "undrain"] {
            let path = format!("http://x/v1/listeners/{name}/{what}");
            let (found, answer) = curl(socket, &["-X", method, &path]);
            let sentence = answer["error"].as_str().expect("a sentence");
            assert_eq!(found, status, "{sentence}");
            assert!(sentence.contains(why), "{sentence}");
        }
    }
}

#[test]
fn clients_that_wait_to_be_accepted_are_served_by_a_drained_listener() {
    let server = Server::new();
    let stage = Stage::run(&listening(&server, "127.0.4.3:0", "max_connections = 1\n"));
    let live = join(&stage.address, &server);
    let waiting: Vec<_> = (0..3).map(|_| Peer::connect(&stage.address)).collect();
    assert_eq!(stage.listener()["connections"], 1);
    assert_eq!(stage.drain()["connections"], 4);
    stage.refuses();
    let served: Vec<_> = waiting.iter().map(|_| server.accept()).collect();
    // In whichever order they came.
    waiting.iter().for_each(|near| near.write_number(7));
    served
        .iter()
        .for_each(|far| assert_eq!(far.read_number(), 7));
    talk(&live.0, &live.1, 2);
}

#[test]
fn a_drained_unix_listener_has_no_file_and_gets_it_back_with_the_access_of_now() {
    let scratch = Scratch::new("control").expect("a directory");
    let path = scratch.path().join("socket");
    let server = Server::new();
    let with_mode = |mode: &str| {
        let address = format!("unix:{}", path.display());
        listening(&server, &address, &format!("mode = \"{mode}\"\n"))
    };
    let mode = || fs::metadata(&path).expect("a file").mode() & 0o777;
    let stage = Stage::run(&with_mode("0600"));
    assert_eq!(mode(), 0o600);
    let (near, far) = join(&stage.address, &server);
    assert_eq!(stage.drain()["state"], "draining");
    assert!(!path.exists());
    talk(&near, &far, 2);
    stage.reloads(&with_mode("0660"));
    assert!(!path.exists());
    stage.undrain();
    assert_eq!(mode(), 0o660);
    stage.serves(&server);
    talk(&near, &far, 3);
}

#[test]
fn every_address_of_a_name_is_drained_and_listened_on_again() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("drain").expect("a namespace");
    let server = Server::in_namespace(&namespace, "127.0.0.1:0");
    let stage = Stage::start(
        &listening(&server, "localhost:7000", ""),
        namespace.command(BINARY).env_remove("SPLICED_LOG"),
    );
    let addresses = stage.listener()["addresses"].take();
    assert_eq!(addresses, json!(["127.0.0.1:7000", "[::1]:7000"]));
    let are_served = || {
        let connect = || ["127.0.0.1:7000", "[::1]:7000"].map(|one| Peer::try_connect(one).is_ok());
        namespace.enter(connect).expect("entered")
    };
    assert_eq!(are_served(), [true, true]);
    assert_eq!(stage.drain()["addresses"], addresses);
    assert_eq!(are_served(), [false, false]);
    stage.undrain();
    assert_eq!(stage.listener()["addresses"], addresses);
    assert_eq!(are_served(), [true, true]);
}

#[test]
fn connections_from_the_syn_on_outlive_the_drain_of_their_listener() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let server = Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
    let address = format!("{}:8080", Lab::RELAY_V4);
    let configuration =
        listening(&server, &address, "from_syn = true\n").replace("engine = \"copy\"\n", "");
    let stage = Stage::start(
        &configuration,
        lab.relay().command(BINARY).env_remove("SPLICED_LOG"),
    );
    let join = || {
        let join = || join(&stage.address, &server);
        lab.client().enter(join).expect("entered")
    };
    let refuses = || lab.client().enter(|| stage.refuses()).expect("entered");
    let count = |count: u64| until("they count", || stage.listener()["connections"] == count);
    let from_syn = "are translated from the SYN on";
    stage.wait_logged(from_syn);
    let first = join();
    count(1);
    assert_eq!(stage.drain()["state"], "draining");
    refuses();
    // A reload does not begin it again.
    stage.reloads(&configuration);
    refuses();
    talk(&first.0, &first.1, 2);
    assert_eq!(stage.lines_logged(from_syn), 1);
    stage.undrain();
    until("they are translated again", || {
        stage.lines_logged(from_syn) == 2
    });
    let second = join();
    count(2);
    talk(&first.0, &first.1, 3);
    talk(&second.0, &second.1, 2);
    stage.drain();
    drop(first);
    count(1);
    assert_eq!(stage.lines_logged("is empty"), 0);
    drop(second);
    stage.wait_logged("listener l is empty, ");
    refuses();
    // Nor does a reload that asks for it.
    stage.reloads(&configuration.replace("from_syn = true\n", ""));
    stage.reloads(&configuration);
    refuses();
    assert_eq!(stage.lines_logged(from_syn), 2);
    stage.undrain();
    until("they are translated again", || {
        stage.lines_logged(from_syn) == 3
    });
    let third = join();
    count(1);
    talk(&third.0, &third.1, 2);
}

#[test]
fn a_process_that_ends_does_not_listen_again() {
    let server = Server::new();
    let stage = Stage::run(&listening(&server, "127.0.4.4:0", ""));
    let live = join(&stage.address, &server);
    stage.proxy.relay.signal(Signal::TERM);
    stage.wait_logged("no longer accepting");
    assert_eq!(stage.listener()["state"], "draining");
    for what in ["drain", "undrain"] {
        let (status, answer) = stage.order_listener("l", what);
        assert_eq!(
            (&*status, &answer["error"]),
            ("503", &json!("the process is ending"))
        );
    }
    stage.refuses();
    talk(&live.0, &live.1, 2);
}

#[test]
fn the_end_of_the_process_is_no_end_of_a_drain_that_was_over() {
    let server = Server::new();
    let mut stage = Stage::run(&listening(&server, "127.0.4.5:0", ""));
    stage.drain();
    stage.wait_logged("listener l is empty, ");
    stage.undrain();
    let live = join(&stage.address, &server);
    stage.proxy.relay.signal(Signal::TERM);
    stage.wait_logged("no longer accepting");
    drop(live);
    stage.proxy.relay.wait_end();
    assert_eq!(stage.lines_logged("is empty"), 1);
}

#[test]
fn a_relay_of_datagrams_is_drained() {
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let path = socket.to_str().expect("UTF-8");
    let target = datagrams::socket("127.0.0.1:0");
    let target_name = datagrams::named(&target);
    let relay = Relay::between("udp:127.0.0.1:0", &target_name, &["--control", path]);
    answers(&socket);
    let (known, new) = (datagrams::client(&relay), datagrams::client(&relay));
    known.send(b"before").expect("it is sent");
    assert_eq!(datagrams::receive(&target).0, b"before");
    let (_, answer) = curl(&socket, &["http://x/v1/listeners"]);
    assert_eq!(answer["listeners"][0]["state"], "listening");
    let order = |order| {
        let path = format!("http://x/v1/listeners/udp:127.0.0.1:0/{order}");
        let (status, answer) = curl(&socket, &["-X", "POST", &path]);
        assert_eq!(status, "200", "{answer}");
    };
    order("drain");
    until("new clients are refused", || {
        // Without a session, the threads end.
        known.send(b"still here").expect("it is sent");
        new.send(b"too late").expect("it is sent");
        relay.lines_logged("the listener takes no more clients") > 0
    });
    order("undrain");
    datagrams::ask_until_received(&new, &target, b"after");
}
