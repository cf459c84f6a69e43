//! A new configuration under live connections.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use netlab::Scratch;
use rustix::process::Signal;

use super::Proxy;
use super::routes::{Site, connect, expect, expect_reset};
use crate::options::{PeerTimeouts, peer_timeouts, the_systems};
use crate::patience::until;
use crate::peer::Peer;
use crate::server::free_port;

fn listener(name: &str, address: &str, backend: &str) -> String {
    format!(
        "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\n[[listener.route]]\n\
         backend = \"{backend}\"\n"
    )
}

fn backend(name: &str, site: &Site, more: &str) -> String {
    format!(
        "[backend.{name}]\nservers = [\"{}\"]\n{more}\n",
        site.address()
    )
}

#[test]
fn connections_keep_their_server_and_new_ones_go_to_the_new_one() {
    let (old, new) = (Site::new(), Site::new());
    let of = |backend: &str| listener("l", "127.0.0.1:0", "b") + backend;
    let proxy = Proxy::run(&of(&backend("b", &old, "")));
    let address = proxy.address("l");
    let mut client = connect(&address);
    let mut server = old.accept();
    assert!(proxy.reload(&of(&backend("b", &new, ""))).status.success());
    // The socket has stayed, with its port.
    assert_eq!(proxy.address("l"), address);
    let mut later = connect(&address);
    later.write_all(b"later").expect("sent");
    expect(&mut new.accept(), b"later");
    client.write_all(b"still here").expect("sent");
    expect(&mut server, b"still here");
    server.write_all(b"yes").expect("sent");
    expect(&mut client, b"yes");
}

#[test]
fn a_broken_file_changes_nothing_and_says_why() {
    let site = Site::new();
    let good = listener("l", "127.0.0.1:0", "b") + &backend("b", &site, "");
    let proxy = Proxy::run(&good);
    let held = TcpListener::bind("127.0.0.1:0").expect("it listens");
    let busy = held.local_addr().expect("its address").to_string();
    for (broken, why) in [
        ("nonsense".to_owned(), "nonsense"),
        (good.replace("backend = \"b\"", "backend = \"c\""), "\"c\""),
        (good.clone() + &listener("m", &busy, "b"), "in use"),
    ] {
        let output = proxy.reload(&broken);
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("nothing has changed"), "{told}");
        assert!(told.contains(why) || broken == "nonsense", "{told}");
        let mut client = connect(&proxy.address("l"));
        client.write_all(b"x").expect("sent");
        expect(&mut site.accept(), b"x");
    }
    drop(held);
}

#[test]
fn a_removed_listener_drains_or_resets_as_configured() {
    for (on_remove, is_cut) in [("drain", false), ("reset", true)] {
        // Its own: a connection that finds out whether somebody listens may reach it.
        let site = Site::new();
        let kept = || listener("kept", "127.0.0.1:0", "b") + &backend("b", &site, "");
        let removed = listener("removed", "127.0.0.2:0", "b");
        let removed = removed.replace(
            "[[listener.route]]",
            &format!("on_remove = \"{on_remove}\"\n[[listener.route]]"),
        );
        let proxy = Proxy::run(&(removed + &kept()));
        let address = proxy.address("removed");
        let mut client = connect(&address);
        client.write_all(b"x").expect("sent");
        let mut server = site.accept();
        expect(&mut server, b"x");
        assert!(proxy.reload(&kept()).status.success());
        until("nobody listens", || TcpStream::connect(&address).is_err());
        if is_cut {
            expect_reset(&mut client);
        } else {
            server.write_all(b"still here").expect("sent");
            expect(&mut client, b"still here");
        }
    }
}

/// Its own `on_remove` keeps the `drain_timeout` of the process, which is not the built-in one.
#[test]
fn a_listener_that_drains_although_the_others_reset_has_the_drain_timeout_of_the_process() {
    const BUILT_IN: Duration = Duration::from_secs(30);
    let site = Site::new();
    let kept = || listener("kept", "127.0.0.1:0", "b") + &backend("b", &site, "");
    let process = "drain_timeout = \"300ms\"\n[defaults]\non_remove = \"reset\"\n";
    let removed = listener("removed", "127.0.0.2:0", "b").replace(
        "[[listener.route]]",
        "on_remove = \"drain\"\n[[listener.route]]",
    );
    let proxy = Proxy::run(&(process.to_owned() + &removed + &kept()));
    let mut client = connect(&proxy.address("removed"));
    client.write_all(b"x").expect("sent");
    let mut server = site.accept();
    expect(&mut server, b"x");
    let before = Instant::now();
    assert!(
        proxy
            .reload(&(process.to_owned() + &kept()))
            .status
            .success()
    );
    expect_reset(&mut client);
    let elapsed = before.elapsed();
    assert!(elapsed < BUILT_IN, "{elapsed:?}");
    assert!(elapsed >= Duration::from_millis(300), "{elapsed:?}");
}

/// A reload that removes something and changes the time for it at once.
#[test]
fn what_is_removed_ends_by_the_time_before_and_a_server_by_the_new_one() {
    let (site, other) = (Site::new(), Site::new());
    let kept = |name: &str, server: &Site| {
        listener("kept", "127.0.0.1:0", name) + &backend(name, server, "")
    };
    let with_listener = listener("removed", "127.0.0.2:0", "b") + &kept("b", &site);
    for (came_to, first, second, counts) in [
        ("removed", &with_listener, kept("b", &site), "before"),
        ("kept", &kept("b", &site), kept("c", &other), "before"),
        ("kept", &kept("b", &site), kept("b", &other), "new"),
    ] {
        for (before, new) in [("0s", "10m"), ("10m", "0s")] {
            let within = |time: &str, rest: &str| format!("drain_timeout = \"{time}\"\n{rest}");
            let proxy = Proxy::run(&within(before, first));
            let mut client = connect(&proxy.address(came_to));
            client.write_all(b"x").expect("sent");
            let mut server = site.accept();
            expect(&mut server, b"x");
            assert!(proxy.reload(&within(new, &second)).status.success());
            let counting = if counts == "new" { new } else { before };
            if counting == "0s" {
                expect_reset(&mut client);
            } else {
                server.write_all(b"still here").expect("sent");
                expect(&mut client, b"still here");
            }
        }
    }
}

#[test]
fn a_removed_server_drains_or_resets_as_configured() {
    let (old, new) = (Site::new(), Site::new());
    let of = |backend: &str| listener("l", "127.0.0.1:0", "b") + backend;
    for (on_remove, is_cut) in [
        ("on_remove = \"drain\"", false),
        ("on_remove = \"reset\"", true),
        ("on_remove = \"drain\"\ndrain_timeout = \"100ms\"", true),
    ] {
        let proxy = Proxy::run(&of(&backend("b", &old, on_remove)));
        let mut client = connect(&proxy.address("l"));
        client.write_all(b"x").expect("sent");
        let mut server = old.accept();
        expect(&mut server, b"x");
        assert!(
            proxy
                .reload(&of(&backend("b", &new, on_remove)))
                .status
                .success()
        );
        if is_cut {
            expect_reset(&mut client);
            let _ = server.read(&mut [0]);
        } else {
            server.write_all(b"still here").expect("sent");
            expect(&mut client, b"still here");
        }
    }
}

/// Without keep-alive its times mean nothing.
fn effective(socket: impl AsFd) -> PeerTimeouts {
    match peer_timeouts(socket) {
        (false, _, _, _, user_timeout) => (false, Duration::ZERO, Duration::ZERO, 0, user_timeout),
        with_keepalive => with_keepalive,
    }
}

/// Those of both sockets of the only connection.
fn only_connection(proxy: &Proxy) -> PeerTimeouts {
    let sockets = proxy.relay.connected_sockets(2);
    let [client, server] = [&sockets[0], &sockets[1]].map(effective);
    assert_eq!(client, server);
    client
}

/// Listening sockets keep what they pass on, and clients in a backlog have got that before the reload.
#[test]
fn new_connections_get_the_peer_timeouts_of_a_reload() {
    let site = Site::new();
    let systems = the_systems();
    let of = |more: &str| {
        let limited = format!("engine = \"copy\"\nmax_connections = 1\n{more}[[listener.route]]");
        let listener = listener("l", "127.0.0.1:0", "b").replace("[[listener.route]]", &limited);
        "threads = 1\n".to_owned() + &listener + &backend("b", &site, "")
    };
    let [thirty, ten] = [30, 10].map(Duration::from_secs);
    let set =
        "keepalive = { idle = \"30s\", interval = \"10s\", probes = 3 }\nuser_timeout = \"20s\"\n";
    let proxy = Proxy::run(&of(""));
    let address = proxy.address("l");
    let reload = |more: &str| assert!(proxy.reload(&of(more)).status.success());
    let mut open = (connect(&address), site.accept());
    assert_eq!(only_connection(&proxy), systems);
    for (more, expected) in [
        (set, (true, thirty, ten, 3, 20_000)),
        (
            "keepalive = \"30s\"\n",
            (true, thirty, systems.2, systems.3, 0),
        ),
        ("", systems),
        (set, (true, thirty, ten, 3, 20_000)),
        (
            "keepalive = false\n",
            (false, Duration::ZERO, Duration::ZERO, 0, 0),
        ),
        ("", systems),
    ] {
        // It waits in the backlog, with the former values.
        let waiting = connect(&address);
        let before = only_connection(&proxy);
        reload(more);
        assert_eq!(only_connection(&proxy), before);
        drop(open);
        open = (waiting, site.accept());
        assert_eq!(only_connection(&proxy), expected, "{more}");
        // Later ones inherit them.
        for socket in proxy.relay.listening_sockets() {
            assert_eq!(effective(socket), expected, "{more}");
        }
    }
}

#[test]
fn new_connections_get_the_half_close_timeout_of_a_reload() {
    let site = Site::new();
    let of = |more: &str| {
        let route = format!("{more}[[listener.route]]");
        let listener = listener("l", "127.0.0.1:0", "b").replace("[[listener.route]]", &route);
        listener + &backend("b", &site, "")
    };
    let proxy = Proxy::run(&of(""));
    let address = proxy.address("l");
    let half_closed = || {
        let client = connect(&address);
        client.shutdown(Shutdown::Write).expect("shut down");
        let mut server = site.accept();
        assert_eq!(server.read(&mut [0]).expect("the end"), 0);
        (client, server)
    };
    let (mut before, mut its_server) = half_closed();
    let with_timeout = of("half_close_timeout = \"200ms\"\n");
    assert!(proxy.reload(&with_timeout).status.success());
    let (mut client, _server) = half_closed();
    expect_reset(&mut client);
    its_server.write_all(b"still here").expect("sent");
    expect(&mut before, b"still here");
}

#[test]
fn sighup_reloads_and_added_listeners_serve() {
    let site = Site::new();
    let one = listener("one", "127.0.0.1:0", "b") + &backend("b", &site, "");
    let proxy = Proxy::run(&one);
    let two = listener("two", "127.0.0.2:0", "b") + &one;
    fs::write(&proxy.configuration, &two).expect("written");
    proxy.relay.signal(Signal::HUP);
    proxy.relay.wait_logged("the configuration was reloaded");
    let mut client = connect(&proxy.address("two"));
    client.write_all(b"x").expect("sent");
    expect(&mut site.accept(), b"x");
}

/// Whatever makes a change impossible, and however late it is noticed: nothing of the change is left.
#[test]
fn a_change_that_fails_leaves_nothing_behind() {
    let (site, other) = (Site::new(), Site::new());
    let scratch = Scratch::new("fails").expect("a directory");
    let directory = scratch.path().display();
    let of = |backend: &str| listener("l", "127.0.0.1:0", "b") + backend;
    let good = of(&backend("b", &site, ""));
    let proxy = Proxy::run(&good);
    assert!(proxy.reload(&good).status.success());
    let held = TcpListener::bind("127.0.0.1:0").expect("it listens");
    let busy = held.local_addr().expect("its address").to_string();
    // Each begins with changes that work: another server, a new listener, a socket file, a log.
    let changed = of(&backend("b", &other, ""))
        .replace(
            "[backend.b]",
            "[backend.c]\nservers = [\"127.0.0.1:9\"]\n[backend.b]",
        )
        .replace(
            "name = \"l\"",
            &format!("name = \"l\"\naccess_log = \"{directory}/log\""),
        )
        + &listener("m", "127.0.0.2:0", "c")
        + &listener("n", &format!("unix:{directory}/socket"), "c");
    let too_long = "x".repeat(200);
    let own = proxy.address("l");
    // The process tells of the attempt.
    let status =
        || ["connections", "listeners", "backends"].map(|part| proxy.status()[part].take());
    let before = (
        status(),
        proxy.relay.descriptors(),
        proxy.relay.threads().len(),
    );
    for (what, why) in [
        (changed.clone() + &listener("z", &busy, "c"), "in use"),
        (
            changed.clone() + &listener("z", &format!("unix:{directory}/none/socket"), "c"),
            "directory",
        ),
        (
            changed.replace("servers = [", &format!("servers = [\"unix:/{too_long}\", ")),
            "socket",
        ),
        (changed.replace("/log\"", "/none/log\""), "the access log"),
        // A server that is this process itself, noticed when its address is known.
        (
            changed.clone()
                + &listener("z", &format!("unix:{directory}/z"), "d")
                + &format!("[backend.d]\nservers = [\"unix:{directory}/z\"]\n"),
            "itself",
        ),
        (
            changed.replace(&format!("\"{}\"", other.address()), &format!("\"{own}\"")),
            "itself",
        ),
    ] {
        let output = proxy.reload(&what);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{what}");
        assert!(told.contains(why), "{why}: {told}");
        until("it is as before", || {
            (
                status(),
                proxy.relay.descriptors(),
                proxy.relay.threads().len(),
            ) == before
        });
        let sockets = fs::read_dir(scratch.path()).expect("a directory").flatten();
        let sockets: Vec<_> = sockets.map(|entry| entry.file_name()).collect();
        assert!(sockets.iter().all(|name| name == "log"), "{sockets:?}");
    }
    // Neither does the failed change reach new clients, nor is a server left out that it would have hidden.
    let mut client = connect(&own);
    client.write_all(b"x").expect("sent");
    expect(&mut site.accept(), b"x");
    assert!(proxy.reload(&changed).status.success());
    let mut client = connect(&own);
    client.write_all(b"x").expect("sent");
    expect(&mut other.accept(), b"x");
}

/// Two listeners, one of which is the only server of both.
#[test]
fn a_server_that_is_another_listener_of_its_route_is_left_out() {
    let port = free_port();
    let site = Site::new();
    let of = |servers: &str| {
        listener("a", "127.0.0.1:0", "b")
            + &listener("z", &format!("127.0.0.1:{port}"), "b")
            + &format!("[backend.b]\nservers = [{servers}]\n")
    };
    let site_alone = format!("\"{}\"", site.address());
    let proxy = Proxy::run(&of(&site_alone));
    let output = proxy.reload(&of(&format!("\"127.0.0.1:{port}\"")));
    assert!(!output.status.success());
    // Beside another one it is left out, but only as long as the listener is there.
    let both = format!("\"127.0.0.1:{port}\", {site_alone}");
    assert!(proxy.reload(&of(&both)).status.success());
    for _ in 0..4 {
        let mut client = connect(&proxy.address("a"));
        client.write_all(b"x").expect("sent");
        expect(&mut site.accept(), b"x");
    }
    assert_eq!(proxy.count("z", "accepted"), 0);
    let alone = listener("a", "127.0.0.1:0", "b") + &format!("[backend.b]\nservers = [{both}]\n");
    assert!(proxy.reload(&alone).status.success());
    let mut newly = None;
    until("the address is free", || {
        newly = TcpListener::bind(("127.0.0.1", port)).ok();
        newly.is_some()
    });
    let newly = newly.expect("found above");
    newly.set_nonblocking(true).expect("non-blocking");
    let mut clients = Vec::new();
    until("it is a server like any other", || {
        clients.push(connect(&proxy.address("a")));
        newly.accept().is_ok()
    });
}

#[test]
fn an_address_that_goes_only_now_is_named() {
    let port = free_port();
    let site = Site::new();
    let of = |host: &str| listener("l", &format!("{host}:{port}"), "b") + &backend("b", &site, "");
    let proxy = Proxy::run(&of("0.0.0.0").replace("\"l\"", "\"wide\""));
    let output = proxy.reload(&of("127.0.0.1"));
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("listener wide of this process holds it"),
        "{told}"
    );
    let mut client = connect(&format!("127.0.0.1:{port}"));
    client.write_all(b"x").expect("sent");
    expect(&mut site.accept(), b"x");
}

/// Its clients are connected, though nobody has accepted them.
#[test]
fn the_backlog_of_a_removed_listener_is_served() {
    const WAITING: usize = 5;
    let site = Site::new();
    let kept = listener("kept", "127.0.0.1:0", "b") + &backend("b", &site, "");
    let socket = Scratch::new("backlog").expect("a directory");
    let path = socket.path().join("socket");
    let full = |address: &str| {
        listener("full", address, "b").replace(
            "[[listener.route]]",
            "max_connections = 1\n[[listener.route]]",
        ) + &kept
    };
    for address in ["127.0.0.2:0", &format!("unix:{}", path.display())] {
        let mut proxy = Proxy::run(&full(address));
        let address = proxy.address("full");
        let _first = Peer::connect(&address);
        let _served = site.accept();
        let mut clients: Vec<_> = (0..WAITING).map(|_| Peer::connect(&address)).collect();
        assert!(proxy.reload(&kept).status.success());
        let servers: Vec<_> = (0..WAITING).map(|_| site.accept()).collect();
        until("nobody listens", || Peer::try_connect(&address).is_err());
        assert!(!path.exists());
        for client in &mut clients {
            client.write_text("x");
        }
        for mut server in servers {
            expect(&mut server, b"x");
        }
        drop((_first, _served, clients));
        proxy.relay.terminate();
    }
}

/// Those who were accepted before the change go where they would have gone, however late they decide.
#[test]
fn a_client_that_hesitates_is_not_disturbed() {
    let (old, new) = (Site::new(), Site::new());
    let of = |name: &str, site: &Site| {
        listener("l", "127.0.0.1:0", name)
            .replace("backend =", "starts_with = \"hello\"\nbackend =")
            .replace(
                "[[listener.route]]",
                "decide_within = \"60s\"\n[[listener.route]]",
            )
            + &backend(name, site, "")
    };
    let proxy = Proxy::run(&of("before", &old));
    let mut client = connect(&proxy.address("l"));
    client.write_all(b"he").expect("sent");
    until("it is accepted", || proxy.count("l", "accepted") == 1);
    assert!(proxy.reload(&of("after", &new)).status.success());
    client.write_all(b"llo").expect("sent");
    expect(&mut old.accept(), b"hello");
}

/// Cut by the configuration, not by the end of the process.
#[test]
fn connections_that_the_configuration_cuts_do_not_count_as_cut_short() {
    let (site, other) = (Site::new(), Site::new());
    let kept = |site: &Site| {
        listener("kept", "127.0.0.1:0", "b") + &backend("b", site, "on_remove = \"reset\"")
    };
    let gone = listener("gone", "127.0.0.2:0", "b").replace(
        "[[listener.route]]",
        "on_remove = \"reset\"\n[[listener.route]]",
    );
    let mut proxy = Proxy::run(&(gone + &kept(&site)));
    let mut clients: Vec<_> = ["gone", "kept"]
        .map(|name| connect(&proxy.address(name)))
        .into();
    let _servers = [site.accept(), site.accept()];
    until("both are joined", || {
        proxy.count("kept", "joined") + proxy.count("gone", "joined") == 2
    });
    assert!(proxy.reload(&kept(&other)).status.success());
    clients.iter_mut().for_each(expect_reset);
    proxy.relay.terminate();
    // That of the listener, unless the end of its server has come first.
    let told = proxy.relay.lines_logged("reset 1 connection");
    let removed = "reset 1 connection: listener gone was removed";
    assert_eq!(proxy.relay.lines_logged(removed), told);
    assert_eq!(proxy.relay.lines_logged("reset 2 connections"), 0);
}

#[test]
fn an_engine_changes_for_new_clients_and_threads_do_not() {
    let site = Site::new();
    let scratch = Scratch::new("engines").expect("a directory");
    let log = scratch.path().join("log");
    let of = |engine: &str, threads: u32| {
        format!("threads = {threads}\n")
            + &listener("l", "127.0.0.1:0", "b").replace(
                "[[listener.route]]",
                &format!(
                    "engine = \"{engine}\"\naccess_log = \"{}\"\n[[listener.route]]",
                    log.display()
                ),
            )
            + &backend("b", &site, "")
    };
    let proxy = Proxy::run(&of("copy", 1));
    let address = proxy.address("l");
    let begin = || {
        let mut client = connect(&address);
        client.write_all(b"x").expect("sent");
        let mut server = site.accept();
        expect(&mut server, b"x");
        (client, server)
    };
    let of_copy = begin();
    assert!(proxy.reload(&of("pipe", 2)).status.success());
    proxy.relay.wait_logged("keeps its 1 threads");
    let of_pipe = begin();
    let engines = || -> Vec<String> {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let entries = text.lines().map(|line| {
            let entry: serde_json::Value = serde_json::from_str(line).expect("JSON");
            entry["engine"].as_str().expect("an engine").into()
        });
        entries.collect()
    };
    drop(of_copy);
    until("it has ended", || engines() == ["copy"]);
    drop(of_pipe);
    until("it has ended", || engines() == ["copy", "pipe"]);
}

/// A log that the configuration has no more still gets the lines of connections that began with it.
#[test]
fn a_former_access_log_gets_the_last_lines() {
    let site = Site::new();
    let scratch = Scratch::new("former").expect("a directory");
    let log = scratch.path().join("log");
    let plain = listener("l", "127.0.0.1:0", "b") + &backend("b", &site, "");
    let line = format!("access_log = \"{}\"\n[[listener.route]]", log.display());
    let mut proxy = Proxy::run(&plain.replace("[[listener.route]]", &line));
    let client = connect(&proxy.address("l"));
    let server = site.accept();
    until("it is joined", || proxy.count("l", "joined") == 1);
    assert!(proxy.reload(&plain).status.success());
    drop((client, server));
    until("it has ended", || proxy.status()["connections"] == 0);
    proxy.relay.terminate();
    let text = fs::read_to_string(&log).expect("a log");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn reloads_at_once_all_succeed_and_none_while_the_process_ends() {
    let site = Site::new();
    let text = listener("l", "127.0.0.1:0", "b") + &backend("b", &site, "");
    let mut proxy = Proxy::run(&text);
    thread::scope(|scope| {
        let asked: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| proxy.ask("reload")))
            .collect();
        for output in asked {
            assert!(output.join().expect("no panic").status.success());
        }
    });
    let reloads = |proxy: &Proxy| proxy.relay.lines_logged("the configuration was reloaded");
    until("each has its line", || reloads(&proxy) == 8);
    let client = connect(&proxy.address("l"));
    let server = site.accept();
    until("it is joined", || proxy.count("l", "joined") == 1);
    proxy.relay.signal(Signal::TERM);
    proxy.relay.wait_logged("no longer accepting");
    let output = proxy.ask("reload");
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("nothing has changed: the process is ending"),
        "{told}"
    );
    drop((client, server));
    assert_eq!(proxy.relay.wait_end().code(), Some(0));
    assert_eq!(reloads(&proxy), 8);
    let output = proxy.ask("reload");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("no process that this user may ask runs"),
        "{told}"
    );
}

#[test]
fn a_removed_server_leaves_no_resolver_behind() {
    let site = Site::new();
    let of = |servers: &str| {
        listener("l", "127.0.0.1:0", "b")
            + &format!("[backend.b]\nconnect_timeout = \"100ms\"\nservers = [{servers}]\n")
    };
    let alone = format!("\"{}\"", site.address());
    let with_name = format!("{alone}, \"no-such-host.invalid:9\"");
    let proxy = Proxy::run(&of(&alone));
    let resolvers = || proxy.relay.threads().len() - proxy.relay.threads_but(&["resolver"]).len();
    assert!(proxy.reload(&of(&with_name)).status.success());
    // A thread has the name of the one that has started it until it runs.
    until("its thread runs", || resolvers() == 1);
    // By default its connections would have half a minute to drain, but there are none.
    assert!(proxy.reload(&of(&alone)).status.success());
    until("its thread has ended", || resolvers() == 0);
}

/// Each with a port of its own, which stays with its name.
#[test]
fn listeners_on_ports_that_the_kernel_picks_are_told_apart_by_name() {
    let site = Site::new();
    let of = |names: &[&str]| -> String {
        let listeners = names.iter().map(|name| listener(name, "127.0.0.1:0", "b"));
        listeners.collect::<String>() + &backend("b", &site, "")
    };
    let proxy = Proxy::run(&of(&["one", "two"]));
    let addresses = ["one", "two"].map(|name| proxy.address(name));
    assert_ne!(addresses[0], addresses[1]);
    assert!(proxy.reload(&of(&["two", "three"])).status.success());
    assert_eq!(proxy.address("two"), addresses[1]);
    until("one is gone", || TcpStream::connect(&addresses[0]).is_err());
    let unnamed = of(&["one"]).replace("name = \"one\"\n", "");
    let twice = unnamed.clone() + &unnamed[..unnamed.find("[backend").expect("a backend")];
    let output = proxy.reload(&twice);
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("has this address, too"), "{told}");
}
