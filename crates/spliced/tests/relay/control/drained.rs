//! Servers that get no new clients: where those go, and what becomes of the ones that are connected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use netlab::{Lab, Need, available};

use super::servers::{Stage, join, of, quoted, talk, with};
use crate::patience::until;
use crate::peer::{Over, Peer};
use crate::proxy::hostile::allow_descriptors;
use crate::relay::BINARY;
use crate::server::Server;

#[test]
fn a_server_drained_under_500_live_connections_ends_none_gets_no_more_and_is_told_empty() {
    const LIVE: u64 = 500;
    const THREADS: usize = 4;
    allow_descriptors(4 * LIVE);
    let (first, second) = (Server::new(), Server::new());
    // So all begin at the first one.
    let servers = [quoted(&first), with(&second, "weight = 0")];
    let stage = Stage::run(&of(&servers, ""));
    assert_eq!(stage.state(&second), "weight 0: 0");
    assert_eq!(
        stage.server(&second)["why"],
        "weight 0 in the configuration"
    );
    let live: Vec<_> = (0..LIVE).map(|_| join(&stage.address, &first)).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        for part in live.chunks(live.len().div_ceil(THREADS)) {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut number = 2;
                while !is_over.load(Ordering::Acquire) {
                    for (near, far) in part {
                        talk(near, far, number);
                    }
                    number += 1;
                }
            });
        }
        assert_eq!(
            stage.says(&["weigh", &second.address, "3"]),
            stage.line(&second, "not checked, 0 connections, weight 3")
        );
        assert_eq!(stage.server(&second)["weight"], 3);
        assert_eq!(
            stage.says(&["drain", &first.address]),
            stage.line(&first, "draining, 500 connections, weight 1")
        );
        assert_eq!(stage.state(&first), "draining: 500");
        for _ in 0..LIVE / 5 {
            drop(join(&stage.address, &second));
        }
        assert_eq!(stage.server(&first)["total"], LIVE);
        let told = stage.fails(&["drain", &first.address, "--wait", "--timeout", "10ms"]);
        assert!(
            told.contains("still has 500 connections after 10ms"),
            "{told}"
        );
        drop(over);
    });
    assert_eq!(stage.lines_logged("is empty"), 0);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| stage.says(&["drain", &first.address, "--wait"]));
        let mut live = live;
        live.truncate(1);
        until("one is left", || stage.server(&first)["connections"] == 1);
        until("it is drained again", || {
            stage.lines_logged("/drain was asked for by") == 3
        });
        assert!(!waiting.is_finished());
        drop(live);
        let said = waiting.join().expect("it returns");
        let empty = stage.line(&first, "drained, 0 connections, weight 1");
        assert!(
            said.ends_with(&empty) && said.lines().count() == 2,
            "{said}"
        );
    });
    let logged = stage.wait_logged("is empty, ");
    assert!(
        logged.contains(&format!("server {} is empty", first.address))
            && logged.ends_with("after it was drained"),
        "{logged}"
    );
    assert_eq!(stage.state(&first), "drained: 0");
    assert_eq!(stage.count("without_server"), 0);
    stage.succeeds(&["undrain", &first.address]);
    assert_eq!(stage.state(&first), "not checked: 0");
    assert_eq!(
        stage.says(&["weigh", &second.address, "0"]),
        stage.line(&second, "weight 0, 0 connections")
    );
    drop(join(&stage.address, &first));
}

#[test]
fn a_server_that_the_end_of_the_process_cuts_is_not_told_empty() {
    let server = Server::new();
    let configuration =
        of(&[quoted(&server)], "").replace("[process]", "drain_timeout = \"1s\"\n[process]");
    let mut stage = Stage::run(&configuration);
    let (near, _far) = join(&stage.address, &server);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| stage.fails(&["drain", &server.address, "--wait"]));
        stage.wait_logged("gets no new clients");
        stage.proxy.relay.signal(rustix::process::Signal::TERM);
        near.expect_reset();
        waiting.join().expect("it returns");
    });
    stage.wait_logged("is not empty: the process ends and cuts 1 connection");
    assert_eq!(stage.proxy.relay.wait_end().code(), Some(3));
    assert_eq!(stage.lines_logged("is empty"), 0);
}

#[test]
fn an_order_that_leaves_a_backend_no_server_warns_of_it() {
    let servers = [Server::new(), Server::new()];
    let stage = Stage::run(&of(&servers.each_ref().map(quoted), ""));
    let warned = |arguments: &[&str]| {
        let output = stage.succeeds(arguments);
        String::from_utf8(output.stderr).expect("text")
    };
    assert_eq!(warned(&["drain", &servers[0].address]), "");
    let told = warned(&["weigh", &servers[1].address, "0"]);
    let why =
        "backend b: new clients get no server: of 2 servers, 1 is drained and 1 has the weight 0";
    assert!(told.contains(why) && told.lines().count() == 1, "{told}");
    assert_eq!(warned(&["undrain", &servers[0].address]), "");
}

#[test]
fn every_way_to_choose_a_server_passes_over_those_that_get_no_clients() {
    for balance in ["round-robin", "least-connections", "consistent"] {
        let servers = [(); 4].map(|()| Server::new());
        let configuration = of(
            &[
                quoted(&servers[0]),
                with(&servers[1], "disabled = true"),
                with(&servers[2], "weight = 0"),
                with(&servers[3], "backup = true"),
            ],
            &format!("balance = \"{balance}\""),
        );
        let stage = Stage::run(&configuration);
        assert_eq!(stage.state(&servers[1]), "disabled: 0");
        assert_eq!(
            stage.server(&servers[1])["why"],
            "disabled in the configuration"
        );
        let _live: Vec<_> = (0..9).map(|_| join(&stage.address, &servers[0])).collect();
        // The same client goes elsewhere.
        stage.succeeds(&["drain", &servers[0].address]);
        let _live: Vec<_> = (0..3).map(|_| join(&stage.address, &servers[3])).collect();
        stage.succeeds(&["undrain", &servers[1].address]);
        let _live: Vec<_> = (0..3).map(|_| join(&stage.address, &servers[1])).collect();
        stage.succeeds(&["drain", &servers[1].address]);
        stage.succeeds(&["drain", &servers[3].address, "--backend", "b"]);
        Peer::is_reset_by(&stage.address);
        let logged = stage.wait_logged("no target: ");
        assert!(
            logged.contains("of 4 servers, 3 are drained and 1 has the weight 0"),
            "{logged}"
        );
        assert_eq!(stage.count("without_server"), 1);
    }
}

#[test]
fn clients_that_wait_for_a_server_go_elsewhere_when_it_is_drained() {
    let servers = [Server::new(), Server::new()];
    let configuration = of(
        &[quoted(&servers[0]), with(&servers[1], "backup = true")],
        "max_connections_per_server = 1\nqueue_timeout = \"1h\"",
    );
    let stage = Stage::run(&configuration);
    let (near, far) = join(&stage.address, &servers[0]);
    let waiting: Vec<_> = (0..2).map(|_| Peer::connect(&stage.address)).collect();
    until("they wait", || stage.queued() == 2);
    stage.succeeds(&["drain", &servers[0].address]);
    let served = servers[1].accept();
    until("one waits", || stage.queued() == 1);
    // Nobody is left, so that waiting is of no use.
    stage.succeeds(&["drain", &servers[1].address]);
    until("nobody waits", || stage.queued() == 0);
    stage.wait_logged("all 2 servers are drained");
    assert_eq!(stage.count("queue_timeout"), 0);
    talk(&near, &far, 2);
    drop((waiting, served));
}

#[test]
fn a_drain_survives_reloads_that_keep_the_server_or_bring_it_back() {
    let servers = [Server::new(), Server::new()];
    let both = of(&[quoted(&servers[0]), quoted(&servers[1])], "");
    let without = of(&[quoted(&servers[1])], "");
    let stage = Stage::run(&of(&[quoted(&servers[0])], ""));
    let (near, far) = join(&stage.address, &servers[0]);
    stage.succeeds(&["drain", &servers[0].address]);
    let wait = ["drain", &servers[0].address, "--wait"];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| stage.succeeds(&wait));
        for _ in 0..3 {
            stage.reloads(&both);
            assert_eq!(stage.state(&servers[0]), "draining: 1");
            drop(join(&stage.address, &servers[1]));
            stage.reloads(&without);
            assert_eq!(stage.state(&servers[0]), "draining: 1");
            let server = stage.server(&servers[0]);
            assert_eq!(server["why"], "it was removed from the configuration");
            assert_eq!(
                (&server["drained"], &server["removed"]),
                (&true.into(), &true.into())
            );
            // The backend goes, too.
            let other = without.replace("\"b\"", "\"c\"");
            stage.reloads(&other.replace("backend.b", "backend.c"));
            assert_eq!(stage.state(&servers[0]), "draining: 1");
        }
        stage.reloads(&both);
        assert_eq!(stage.server(&servers[0])["removed"], false);
        talk(&near, &far, 2);
        assert!(!waiting.is_finished(), "it has a connection");
        drop((near, far));
        waiting.join().expect("it returns");
    });
    stage.wait_logged("is empty, ");
    assert_eq!(stage.state(&servers[0]), "drained: 0");
    drop(join(&stage.address, &servers[1]));
}

#[test]
fn a_server_that_comes_back_is_not_cut_and_one_that_does_not_is() {
    let servers = [Server::new(), Server::new()];
    let both = |time: &str| {
        let lines = format!("on_remove = \"drain\"\ndrain_timeout = \"{time}\"");
        of(&[quoted(&servers[0]), quoted(&servers[1])], &lines)
    };
    let without = |time: &str| both(time).replace(&format!("{}, ", quoted(&servers[0])), "");
    let stage = Stage::run(&of(&[quoted(&servers[0])], ""));
    let (near, far) = join(&stage.address, &servers[0]);
    stage.reloads(&without("1h"));
    stage.reloads(&both("1h"));
    let logged = stage.wait_logged("is back");
    assert!(
        logged.ends_with("is back; 1 connection goes on"),
        "{logged}"
    );
    stage.reloads(&without("1s"));
    stage.wait_logged("was cut, 1s after it was removed: 1 connection was reset");
    near.expect_reset();
    far.expect_reset();
    // Another one in its place, whose clients nobody cuts.
    stage.reloads(&both("1s"));
    stage.succeeds(&["drain", &servers[1].address]);
    let (near, far) = join(&stage.address, &servers[0]);
    talk(&near, &far, 2);
}

#[test]
fn the_configuration_drains_a_server_and_orders_stand_until_it_changes() {
    let servers = [Server::new(), Server::new()];
    let disabled = |is_disabled: bool, weight: u32| {
        let more = format!("disabled = {is_disabled}, weight = {weight}");
        of(&[with(&servers[0], &more), quoted(&servers[1])], "")
    };
    let stage = Stage::run(&disabled(false, 1));
    let _live = join(&stage.address, &servers[0]);
    stage.reloads(&disabled(true, 1));
    assert_eq!(stage.state(&servers[0]), "draining: 1");
    stage.wait_logged("gets no new clients: disabled in the configuration; 1 connection goes on");
    stage.succeeds(&["undrain", &servers[0].address]);
    stage.succeeds(&["weigh", &servers[0].address, "7"]);
    stage.reloads(&disabled(true, 1));
    assert_eq!(stage.state(&servers[0]), "not checked: 1");
    assert_eq!(stage.server(&servers[0])["weight"], 7);
    stage.reloads(&disabled(false, 2));
    assert_eq!(stage.server(&servers[0])["weight"], 2);
    stage.wait_logged("has the weight 2 instead of 7, as the configuration has it");
    stage.reloads(&disabled(true, 2));
    assert_eq!(stage.state(&servers[0]), "draining: 1");
    stage.reloads(&disabled(false, 2));
    assert_eq!(stage.state(&servers[0]), "not checked: 1");
    stage.wait_logged("gets clients again, by the configuration");
    // An operator's order is not the configuration's.
    stage.succeeds(&["drain", &servers[0].address]);
    stage.reloads(&disabled(true, 2));
    stage.reloads(&disabled(false, 2));
    assert_eq!(stage.state(&servers[0]), "draining: 1");
}

#[test]
fn a_server_that_gets_clients_again_starts_slowly() {
    for (go, come) in [
        (&["drain"][..], &["undrain"][..]),
        (
            &["weigh", "--backend=b", "0"],
            &["weigh", "--backend=b", "1"],
        ),
    ] {
        let servers = [Server::new(), Server::new()];
        let configuration = of(
            &[quoted(&servers[0]), quoted(&servers[1])],
            "slow_start = \"1h\"",
        );
        let stage = Stage::run(&configuration);
        for arguments in [go, come] {
            let (verb, rest) = arguments.split_first().expect("a verb");
            stage.succeeds(&[&[*verb, &*servers[0].address], rest].concat());
        }
        let _clients: Vec<_> = (0..20).map(|_| Peer::connect(&stage.address)).collect();
        until("all are joined", || stage.count("joined") == 20);
        // Its share of one in a hundred is due at most once among so few.
        let count = stage.server(&servers[0])["connections"].as_u64();
        assert!(count.is_some_and(|count| count <= 1), "{count:?}");
    }
}

/// Connections that are translated from their SYN on have no socket of the relay.
#[test]
fn a_drained_server_gets_no_connections_from_the_syn_on_and_those_that_it_has_count() {
    if ![Need::Root, Need::Bpf].into_iter().all(available) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let server = Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
    let configuration = |more: &str| {
        of(&[with(&server, more)], "").replace(
            "127.0.0.1:0\"\nengine = \"copy\"",
            &format!("{}:8080\"\nfrom_syn = true", Lab::RELAY_V4),
        )
    };
    let stage = Stage::start(
        &configuration("weight = 0"),
        lab.relay().command(BINARY).env_remove("SPLICED_LOG"),
    );
    let is_reset = || {
        let reset = || Peer::is_reset_by(&stage.address);
        lab.client().enter(reset).expect("entered");
    };
    let join = || {
        lab.client()
            .enter(|| join(&stage.address, &server))
            .expect("entered")
    };
    let from_syn = "are translated from the SYN on";
    is_reset();
    stage.wait_logged("its server has the weight 0");
    stage.succeeds(&["weigh", &server.address, "1"]);
    stage.wait_logged(from_syn);
    let (near, far) = join();
    until("it counts", || stage.server(&server)["connections"] == 1);
    stage.succeeds(&["drain", &server.address]);
    assert_eq!(stage.state(&server), "draining: 1");
    is_reset();
    talk(&near, &far, 2);
    // Neither a reload nor the time changes that.
    stage.reloads(&configuration("weight = 1"));
    assert_eq!(stage.state(&server), "draining: 1");
    is_reset();
    assert_eq!(stage.server(&server)["total"], 1);
    assert_eq!(stage.lines_logged(from_syn), 1);
    let told = stage.fails(&["drain", &server.address, "--wait", "--timeout", "10ms"]);
    assert!(told.contains("still has 1 connection after"), "{told}");
    drop((near, far));
    stage.succeeds(&["drain", &server.address, "--wait"]);
    stage.wait_logged("is empty, ");
    stage.succeeds(&["undrain", &server.address]);
    until("connections are translated again", || {
        stage.lines_logged(from_syn) == 2
    });
    let (near, far) = join();
    until("it counts", || stage.server(&server)["connections"] == 1);
    talk(&near, &far, 3);
}
