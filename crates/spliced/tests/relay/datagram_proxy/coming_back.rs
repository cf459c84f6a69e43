//! Listeners that a reload takes away, and what it leaves as it was.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use netlab::Scratch;

use super::{ask, client, configuration, got, post, servers};
use crate::datagrams::header::{received_ttl, reporting};
use crate::datagrams::{Over, socket};
use crate::log::Log;
use crate::patience::{PATIENCE, until, until_found};
use crate::proxy::Proxy;
use crate::server::free_port;

/// Keeps the session of `client` from being quiet while `act` runs.
fn talking<T>(client: &UdpSocket, act: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                client.send(b"still here").expect("it is sent");
                thread::sleep(Duration::from_millis(20));
            }
        });
        let _over = Over(&is_over);
        act()
    })
}

/// From where the next datagrams have come that `server` gets, which are as many as it takes to be sure that none is old.
fn sources(server: &UdpSocket) -> BTreeSet<SocketAddr> {
    while got(server).is_some() {}
    let next = || until_found("another one arrives", || got(server)).1;
    (0..5).map(|_| next()).collect()
}

/// The second in which a session may be quiet begins when the listener leaves.
#[test]
fn sessions_that_have_been_quiet_for_long_are_there_when_the_listener_comes_back() {
    let [only] = servers();
    let proxy = Proxy::run(&configuration(&[&only], "", ""));
    let client = client(&proxy);
    let before = ask(&client, &[&only]);
    until("it has been quiet for over a second", || {
        proxy.sessions()[0]["idle_ms"].as_f64() > Some(1100.0)
    });
    post(&proxy, "/v1/listeners/l/drain");
    post(&proxy, "/v1/listeners/l/undrain");
    assert_eq!(ask(&client, &[&only]), before);
}

#[test]
fn a_listener_that_comes_back_has_its_sessions() {
    for threads in [1, 3] {
        let scratch = Scratch::new("coming-back").expect("a directory");
        let log = Log::below(&scratch);
        let [only] = servers();
        let access_log = format!("access_log = {:?}", log.path);
        let text = configuration(&[&only], &access_log, "");
        let text = format!("threads = {threads}\n{text}");
        let without = text.replace("udp:127.0.0.1:0", "udp:127.0.0.2:0");
        let proxy = Proxy::run(&text);
        let address = proxy.address("l");
        let (one, other) = (client(&proxy), client(&proxy));
        let (_, session) = ask(&one, &[&only]);
        talking(&one, || {
            assert!(proxy.reload(&without).status.success());
            other.send(b"late").expect("it is sent");
            proxy
                .relay
                .wait_logged("the listener takes no more clients");
            // One that fails changes nothing, although this listener would come back.
            let taken = socket("127.0.0.1:0");
            let more = format!(
                "[[listener]]\naddress = \"udp:{}\"\n[[listener.route]]\nbackend = \"b\"\n",
                taken.local_addr().expect("its address")
            );
            let broken = text.replace("[backend.b]", &format!("{more}[backend.b]"));
            assert!(!proxy.reload(&broken).status.success());
            assert_eq!(sources(&only), BTreeSet::from([session]));
            other.send(b"late").expect("it is sent");
            assert_eq!(sources(&only), BTreeSet::from([session]));

            assert!(proxy.reload(&text).status.success());
            assert_eq!(sources(&only), BTreeSet::from([session]));
            assert_eq!(proxy.address("l"), address);
            assert_eq!(proxy.of("listeners", "l")["state"], "listening");
        });
        while got(&only).is_some() {}
        ask(&other, &[&only]);
        // What another configuration says applies to it.
        let limited = text.replace("[[listener.route]]", "max_sessions = 1\n[[listener.route]]");
        assert!(proxy.reload(&limited).status.success());
        until("one is left", || {
            proxy.of("listeners", "l")["connections"] == 1
        });
        until("the other one has ended", || log.entries().len() == 1);
    }
}

/// The kernel spreads clients over the sockets that there are.
#[test]
fn every_thread_of_a_removed_listener_serves_until_the_last_session_is_quiet() {
    let scratch = Scratch::new("spread").expect("a directory");
    let log = Log::below(&scratch);
    let [only] = servers();
    let access_log = format!("access_log = {:?}", log.path);
    let text = configuration(&[&only], &access_log, "");
    let text = format!("threads = 4\n{text}");
    let proxy = Proxy::run(&text);
    // With few clients some threads have none.
    let clients = [(); 2].map(|()| client(&proxy));
    let [first, second] = clients.each_ref().map(|client| ask(client, &[&only]).1);
    talking(&clients[0], || {
        talking(&clients[1], || {
            let without = text.replace("udp:127.0.0.1:0", "udp:127.0.0.2:0");
            assert!(proxy.reload(&without).status.success());
            let both = BTreeSet::from([first, second]);
            until("both are served", || sources(&only) == both);
        });
    });
    until("both have ended", || log.entries().len() == 2);
    for entry in log.entries() {
        let outcome = "quiet, and its listener takes no more clients";
        assert_eq!(entry["outcome"], outcome);
    }
    let line = "listener l: 2 sessions, 0 of them displaced; to the target ";
    // The process looks at former listeners when something happens.
    until("its sum is logged", || {
        proxy.status();
        proxy.relay.lines_logged(line) > 0
    });
}

#[test]
fn an_address_that_another_listener_of_the_process_has_is_told() {
    let [only] = servers();
    let text = configuration(&[&only], "", "");
    let at = |address: String| text.replace("127.0.0.1:0", &address);
    let [port, elsewhere] = [(); 2].map(|()| free_port());
    let every = at(format!(":{port}"));
    let proxy = Proxy::run(&at(format!("127.0.0.1:{port}")));
    let why_not = || {
        let refused = proxy.reload(&every);
        assert!(!refused.status.success());
        String::from_utf8(refused.stderr).expect("text")
    };
    let said = why_not();
    let why = "listener l of this process holds it until this change is made";
    assert!(said.contains(why), "{said}");
    let client = client(&proxy);
    ask(&client, &[&only]);
    talking(&client, || {
        let without = at(format!("127.0.0.1:{elsewhere}"));
        assert!(proxy.reload(&without).status.success());
        let said = why_not();
        let why =
            "listener l of this process was removed and holds it until its sessions have ended";
        assert!(said.contains(why), "{said}");
    });
    until("it is free", || proxy.reload(&every).status.success());
}

#[test]
fn another_time_to_live_applies_to_both_directions_at_once() {
    let [only] = servers();
    let only = reporting(only);
    let text = |ttl: &str| configuration(&[&only], &format!("ttl = {ttl}"), "");
    let proxy = Proxy::run(&text("9"));
    let client = reporting(client(&proxy));
    let (_, session) = ask(&client, &[&only]);
    for socket in [&client, &only] {
        socket.set_nonblocking(false).expect("blocking");
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        socket.set_ttl(40).expect("IP_TTL");
    }
    let host = {
        let fresh = socket("127.0.0.1:0");
        fresh.ttl().expect("IP_TTL") as i32
    };
    for (ttl, expected) in [
        ("21", 21),
        ("\"keep\"", 39),
        ("\"host\"", host),
        ("\"keep\"", 39),
        ("7", 7),
    ] {
        assert!(proxy.reload(&text(ttl)).status.success());
        let both = || {
            client.send(b"question").expect("it is sent");
            let to_target = received_ttl(&only);
            only.send_to(b"answer", session).expect("it is sent");
            [to_target, received_ttl(&client)]
        };
        // The threads are told, and may not have looked.
        until("it applies", || both() == [expected; 2]);
    }
}

#[test]
fn an_undrained_unix_listener_keeps_its_sessions() {
    let scratch = Scratch::new("undrained").expect("a directory");
    let at = |name: &str| scratch.path().join(name);
    let [only] = servers();
    let listener = format!("unixgram:{}", at("listener").display());
    let text = configuration(&[&only], "", "").replace("udp:127.0.0.1:0", &listener);
    let proxy = Proxy::run(&text);
    let connected = |name: &str| {
        let client = UnixDatagram::bind(at(name)).expect("it is bound");
        client.connect(at("listener")).expect("it connects");
        client.set_read_timeout(Some(PATIENCE)).expect("a limit");
        client
    };
    let old = connected("old");
    let ask = |client: &UnixDatagram| {
        client.send(b"question").expect("it is sent");
        let (_, session) = until_found("it arrives", || got(&only));
        only.send_to(b"answer", session).expect("it is sent");
        let mut answer = [0; 64];
        let length = client.recv(&mut answer).expect("an answer");
        assert_eq!(&answer[..length], b"answer");
        session
    };
    let session = ask(&old);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                old.send(b"still here").expect("it is sent");
                thread::sleep(Duration::from_millis(20));
            }
        });
        let _over = Over(&is_over);
        post(&proxy, "/v1/listeners/l/drain");
        assert!(!at("listener").exists());
        post(&proxy, "/v1/listeners/l/undrain");
        assert_eq!(sources(&only), BTreeSet::from([session]));
    });
    while got(&only).is_some() {}
    let new = connected("new");
    assert_ne!(ask(&new), session);
    assert_eq!(proxy.of("listeners", "l")["state"], "listening");
}

#[test]
fn an_undrained_listener_of_several_threads_keeps_its_sessions() {
    let [only] = servers();
    let text = configuration(&[&only], "", "");
    let proxy = Proxy::run(&format!("threads = 4\n{text}"));
    let [one, other] = [client(&proxy), client(&proxy)];
    let (_, session) = ask(&one, &[&only]);
    talking(&one, || {
        post(&proxy, "/v1/listeners/l/drain");
        other.send(b"late").expect("it is sent");
        proxy
            .relay
            .wait_logged("the listener takes no more clients");
        post(&proxy, "/v1/listeners/l/undrain");
        assert_eq!(sources(&only), BTreeSet::from([session]));
    });
    while got(&only).is_some() {}
    ask(&other, &[&only]);
}
