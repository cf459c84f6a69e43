//! Rows of the table in docs/proxy.md about resets: those before the server's first byte, which a client may have
//! caused, and those after it.

use std::io::{Read, Write};

use super::evidence::{before, is_served, is_up, send, server_of, wait_counted, wait_over};
use super::fickle::Fickle;
use crate::patience::until;

/// Each connection is made, and clears nothing of what follows it.
#[test]
fn a_server_that_resets_everything_is_taken_out_with_and_without_checks() {
    for health in ["", "health = { tcp = true }"] {
        let (bad, good) = (Fickle::new(), Fickle::new());
        let proxy = before(&[&bad, &good], health);
        let address = proxy.address("l");
        bad.set(|it| &it.resets_all);
        until("it is out", || {
            is_served(&address, 2, "good");
            !is_up(&proxy, 0)
        });
        for _ in 0..4 {
            assert!(is_served(&address, 2, "good"), "{health}");
        }
        assert!(is_up(&proxy, 1));
    }
}

/// Whether a reset comes while the relay connects or later is luck, and it is no refused connection.
#[test]
fn a_server_that_resets_at_once_is_out_for_its_resets() {
    let (bad, good) = (Fickle::new(), Fickle::new());
    let proxy = before(&[&bad, &good], "health = { tcp = true, every = \"300ms\" }");
    let address = proxy.address("l");
    bad.set(|it| &it.resets_at_once);
    until("it is out", || {
        is_served(&address, 2, "good");
        server_of(&proxy, 0)["state"] == "out"
    });
    let line = proxy.relay.wait_logged("is taken out");
    assert!(line.contains("it resets connections"), "{line}");
    assert_eq!(server_of(&proxy, 0)["failed_connections"], 0);
    // Checks of TCP pass, which says nothing about what comes afterwards.
    let accepted = bad.accepted();
    until("it is checked", || bad.accepted() > accepted + 3);
    assert_eq!(server_of(&proxy, 0)["failed_checks"], 0);
    assert_eq!(proxy.relay.lines_logged("is up again"), 0);
}

/// The server refuses what the client sends, and not the client.
#[test]
fn one_client_takes_no_server_out() {
    for health in ["", "health = { tcp = true }"] {
        let servers = [Fickle::new(), Fickle::new()];
        let proxy = before(&[&servers[0], &servers[1]], health);
        let address = proxy.address("l");
        for _ in 0..4 {
            // Each server resets enough in a row to be suspect.
            for _ in 0..6 {
                assert!(!is_served(&address, 2, "evil"));
            }
            for _ in 0..2 {
                assert!(is_served(&address, 2, "good"));
            }
        }
        for index in [0, 1] {
            wait_counted(&proxy, index, "early_resets", 10);
        }
        // The relay has found out that the servers do not reset connections by themselves.
        until("a probe has ended", || {
            servers.iter().all(|server| server.silent() > 0)
        });
        assert!([0, 1].iter().all(|index| is_up(&proxy, *index)), "{health}");
        assert_eq!(proxy.relay.lines_logged("is taken out"), 0);
    }
}

#[test]
fn no_client_takes_the_last_server_out() {
    let server = Fickle::new();
    let proxy = before(&[&server], "health = { tcp = true }");
    let address = proxy.address("l");
    for client in 2..20 {
        assert!(!is_served(&address, client, "evil"));
    }
    wait_counted(&proxy, 0, "early_resets", 18);
    assert!(is_up(&proxy, 0) && is_served(&address, 30, "good"));
    // Nor do resets that no client causes.
    server.set(|it| &it.resets_all);
    for client in 2..20 {
        assert!(!is_served(&address, client, "good"));
    }
    assert!(is_up(&proxy, 0));
}

#[test]
fn several_clients_that_others_answer_take_a_server_out() {
    let (bad, good) = (Fickle::new(), Fickle::new());
    let proxy = before(&[&bad, &good], "");
    let address = proxy.address("l");
    bad.set(|it| &it.resets_bytes);
    until("it is out", || {
        for client in 2..5 {
            is_served(&address, client, "good");
        }
        server_of(&proxy, 0)["state"] == "out"
    });
    assert!(server_of(&proxy, 0)["out_seconds"].as_u64() > Some(0));
    proxy
        .relay
        .wait_logged("is taken out for 10s: it resets connections of 3 clients");
    for client in 2..8 {
        assert!(is_served(&address, client, "good"));
    }
    // The last one stays, whatever it does.
    good.set(|it| &it.resets_bytes);
    until("it has reset many", || {
        for client in 2..8 {
            assert!(!is_served(&address, client, "good"));
        }
        server_of(&proxy, 1)["early_resets"].as_u64() >= Some(12)
    });
    assert!(is_up(&proxy, 0) || is_up(&proxy, 1));
}

/// Clients that no server answers are as many as they like.
#[test]
fn clients_that_nobody_answers_take_no_server_out() {
    let servers = [Fickle::new(), Fickle::new(), Fickle::new()];
    let proxy = before(&[&servers[0], &servers[1], &servers[2]], "");
    let address = proxy.address("l");
    for client in 2..102 {
        assert!(!is_served(&address, client, "evil"));
    }
    for index in 0..3 {
        wait_counted(&proxy, index, "early_resets", 33);
        assert!(is_up(&proxy, index));
    }
    assert_eq!(proxy.relay.lines_logged("is taken out"), 0);
}

#[test]
fn half_of_the_servers_stay() {
    let servers: Vec<_> = (0..4).map(|_| Fickle::new()).collect();
    let all: Vec<_> = servers.iter().collect();
    let proxy = before(&all, "");
    let address = proxy.address("l");
    for server in &servers[..3] {
        server.set(|it| &it.resets_all);
    }
    let states = || -> Vec<_> { (0..4).map(|index| is_up(&proxy, index)).collect() };
    until("two are out", || {
        is_served(&address, 2, "good");
        states().iter().filter(|up| !**up).count() == 2
    });
    let count = || {
        let counts = (0..3).map(|index| server_of(&proxy, index)["early_resets"].as_u64());
        counts.map(|count| count.expect("a count")).sum::<u64>()
    };
    // The third one goes on to reset, and none goes before another one is back.
    let reset = count();
    until("it has reset more", || {
        is_served(&address, 2, "good");
        let states = states();
        assert!(states[3] && states.iter().filter(|up| **up).count() >= 2);
        count() > reset + 10
    });
}

#[test]
fn what_a_server_sends_clears_early_resets() {
    let servers = [Fickle::new(), Fickle::new()];
    let proxy = before(&[&servers[0], &servers[1]], "");
    let address = proxy.address("l");
    for round in 1..6 {
        // Two at each server, and the third would make it suspect.
        for _ in 0..4 {
            assert!(!is_served(&address, 2, "evil"));
        }
        wait_over(&proxy);
        for _ in 0..2 {
            assert!(is_served(&address, 2, "good"));
        }
        wait_over(&proxy);
        for index in [0, 1] {
            assert_eq!(server_of(&proxy, index)["early_resets"], 2 * round);
        }
    }
    // No probe has come.
    assert_eq!(servers.each_ref().map(Fickle::silent), [0, 0]);
}

#[test]
fn a_reset_after_the_first_byte_says_nothing() {
    let servers = [Fickle::new(), Fickle::new()];
    let proxy = before(&[&servers[0], &servers[1]], "");
    let address = proxy.address("l");
    for client in 2..22 {
        let mut stream = send(&address, client, "half");
        stream.read_exact(&mut [0; 2]).expect("an answer");
        stream.write_all(b"x").expect("sent");
        assert!(stream.read(&mut [0]).is_err(), "a reset");
    }
    wait_over(&proxy);
    for index in [0, 1] {
        assert_eq!(server_of(&proxy, index)["total"], 10);
        assert_eq!(server_of(&proxy, index)["failures"], 0);
    }
}

#[test]
fn a_reset_after_the_first_byte_clears_early_resets() {
    let servers = [Fickle::new(), Fickle::new()];
    let proxy = before(&[&servers[0], &servers[1]], "");
    let address = proxy.address("l");
    for round in 1..6 {
        // Two at each server, and the third would make it suspect.
        for _ in 0..4 {
            assert!(!is_served(&address, 2, "evil"));
        }
        wait_over(&proxy);
        for _ in 0..2 {
            let mut stream = send(&address, 2, "half");
            stream.read_exact(&mut [0; 2]).expect("an answer");
            stream.write_all(b"x").expect("sent");
            assert!(stream.read(&mut [0]).is_err(), "a reset");
        }
        wait_over(&proxy);
        for index in [0, 1] {
            assert_eq!(server_of(&proxy, index)["early_resets"], 2 * round);
        }
    }
    // No probe has come.
    assert_eq!(servers.each_ref().map(Fickle::silent), [0, 0]);
}

/// The server has closed its socket, and the client goes on.
#[test]
fn a_reset_after_an_end_in_order_counts() {
    let server = Fickle::new();
    let proxy = before(&[&server], "");
    let address = proxy.address("l");
    for count in 1..6 {
        let mut stream = send(&address, 2, "bye");
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
        stream.write_all(b"x").expect("sent");
        wait_counted(&proxy, 0, "early_resets", count);
    }
    wait_over(&proxy);
    assert_eq!(server_of(&proxy, 0)["failures"], 5);
}
