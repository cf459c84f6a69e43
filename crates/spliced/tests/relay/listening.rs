//! The addresses on which the relay listens, and those that it refuses.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};

use netlab::{Namespace, Need, Process, Scratch, available};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::patience::until;
use crate::peer::{Peer, exchange};
use crate::proxy::Proxy;
use crate::relay::{BINARY, IDLE_WATCHED, Relay, command};
use crate::server::{Server, ask, free_port};
use crate::usage::failure;

const SOME_BYTES: u64 = 100_000;

/// Checks that a connection through `address` reaches `server` without loss.
fn works(address: &str, server: &Server, number: u64) {
    let near = Peer::connect(address);
    let far = server.accept();
    exchange(&near, &far, number, SOME_BYTES, SOME_BYTES);
}

#[test]
fn a_privileged_port_names_the_missing_capability() {
    if !available(Need::Netns) {
        return;
    }
    // In a namespace, since some containers make every port unprivileged.
    let namespace = Namespace::new("port").expect("a namespace");
    let without_right = |listen: &str| {
        let mut command = namespace.command("setpriv");
        command
            .args(["--bounding-set=-net_bind_service", "--"])
            .args([BINARY, "relay", listen, "127.0.0.1:1"])
            .env_remove("SPLICED_LOG");
        failure(&mut command, 1)
    };
    for listen in [":1", "0.0.0.0:1", "[::]:1"] {
        let sentence = without_right(listen);
        for part in [
            listen,
            "port 1 is privileged",
            "above 1023",
            "CAP_NET_BIND_SERVICE",
        ] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

#[test]
fn a_port_in_use_is_left_to_its_owner() {
    let server = Server::new();
    for threads in ["1", "4"] {
        let mut second = command(&[
            "relay",
            &server.address,
            "127.0.0.1:1",
            "--threads",
            threads,
        ]);
        let sentence = failure(&mut second, 1);
        for part in [&server.address, "in use", "choose another"] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

#[test]
fn a_second_relay_of_the_same_user_does_not_share_the_port() {
    for listen in ["127.0.0.1:0", ":0", "[::1]:0"] {
        let server = Server::new();
        let relay = Relay::between(listen, &server.address, &["--threads", "4"]);
        let taken = relay.address.replace("[::]", "");
        for threads in ["1", "4"] {
            let mut second = command(&["relay", &taken, "127.0.0.1:1", "--threads", threads]);
            let sentence = failure(&mut second, 1);
            assert!(sentence.contains("in use"), "{sentence}");
        }
        // If the second relay had a socket on this port, it would have taken some of these connections.
        let reached = relay.address.replace("[::]", "[::1]");
        for number in 0..16 {
            works(&reached, &server, number);
        }
    }
}

#[test]
fn a_stale_socket_file_is_replaced_and_removed_at_the_end() {
    let scratch = Scratch::new("stale").expect("a directory");
    let path = scratch.path().join("socket");
    drop(UnixListener::bind(&path).expect("bind"));
    assert!(path.exists(), "a dropped listener leaves its file");
    let address = format!("unix:{}", path.display());
    let server = Server::new();
    for threads in ["1", "3"] {
        let mut relay = Relay::between(&address, &server.address, &["--threads", threads]);
        assert_eq!(relay.address, address);
        works(&address, &server, 1);
        relay.terminate();
        assert!(!path.exists(), "its file is left behind");
    }
}

/// The next one takes the path as soon as the listener is closed. Its file may get the number of the former one: only
/// connections over the UNIX listener would keep that (`unix_accept`).
#[test]
fn a_process_that_has_drained_leaves_the_socket_of_the_next_one() {
    let scratch = Scratch::new("next").expect("a directory");
    let path = scratch.path().join("socket");
    let address = format!("unix:{}", path.display());
    let server = Server::new();
    let listener = |name: &str, address: &str| {
        format!(
            "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\n[[listener.route]]\nbackend = \"b\"\n"
        )
    };
    let mut first = Proxy::run(&format!(
        "{}{}[backend.b]\nservers = \"{}\"\n",
        listener("tcp", "127.0.0.1:0"),
        listener("unix", &address),
        server.address
    ));
    let near = Peer::connect(&first.address("tcp"));
    let far = server.accept();
    first.relay.signal(Signal::TERM);
    first.relay.wait_logged("no longer accepting");
    let _second = Relay::between(&address, &server.address, &[]);
    drop((near, far));
    until("the first one ends", || !first.relay.is_running());
    works(&address, &server, 1);
}

/// Whoever can open a directory can keep its lock.
#[test]
fn a_locked_directory_is_waited_for_once_and_named() {
    let scratch = Scratch::new("locked").expect("a directory");
    let directory = File::open(scratch.path()).expect("opened");
    flock(&directory, FlockOperation::NonBlockingLockExclusive).expect("free");
    let listeners: String = (0..3)
        .map(|number| scratch.path().join(format!("socket-{number}")))
        .map(|path| {
            format!(
                "[[listener]]\naddress = \"unix:{}\"\n[[listener.route]]\nbackend = \"b\"\n",
                path.display()
            )
        })
        .collect();
    let proxy = Proxy::run(&format!(
        "{listeners}[backend.b]\nservers = \"127.0.0.1:1\"\n"
    ));
    let words = format!("another process keeps {} locked", scratch.path().display());
    proxy.relay.wait_logged(&words);
    assert_eq!(proxy.relay.lines_logged(&words), 1);
    for number in 0..3 {
        let path = scratch.path().join(format!("socket-{number}"));
        UnixStream::connect(path).expect("it listens");
    }
}

#[test]
fn a_socket_file_in_use_is_refused_and_stays_in_use() {
    let scratch = Scratch::new("live").expect("a directory");
    let address = format!("unix:{}/socket", scratch.path().display());
    let server = Server::new();
    let relay = Relay::between(&address, &server.address, &[]);
    let sentence = failure(&mut command(&["relay", &address, "127.0.0.1:1"]), 1);
    for part in [&address, "in use", "choose another"] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
    // To test whether somebody listens, the second relay has connected to the first one, which relayed the
    // connection.
    server.accept().expect_end();
    works(&relay.address, &server, 2);
}

#[test]
fn a_file_that_is_not_a_socket_is_refused_and_untouched() {
    let scratch = Scratch::new("file").expect("a directory");
    let path = scratch.write("notes", "mine\n").expect("a file");
    let address = format!("unix:{}", path.display());
    let sentence = failure(&mut command(&["relay", &address, "127.0.0.1:1"]), 1);
    for part in [&address, "not a socket", "remove it or choose another"] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
    assert_eq!(fs::read_to_string(&path).expect("the file"), "mine\n");
}

#[test]
fn a_socket_file_that_has_been_replaced_is_not_removed() {
    let scratch = Scratch::new("other").expect("a directory");
    let path = scratch.path().join("socket");
    let mut relay = Relay::between(&format!("unix:{}", path.display()), "127.0.0.1:1", &[]);
    fs::remove_file(&path).expect("its file");
    let _other = UnixListener::bind(&path).expect("bind");
    relay.terminate();
    let kind = path
        .symlink_metadata()
        .expect("the other's file")
        .file_type();
    assert!(kind.is_socket());
}

#[test]
fn a_missing_directory_is_reported() {
    let scratch = Scratch::new("nowhere").expect("a directory");
    let address = format!("unix:{}/nowhere/socket", scratch.path().display());
    let sentence = failure(&mut command(&["relay", &address, "127.0.0.1:1"]), 1);
    for part in [
        &address,
        "directory does not exist",
        "make it or choose another",
    ] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
}

#[test]
fn an_address_of_another_host_is_reported() {
    // A range for documentation (RFC 5737).
    let address = "203.0.113.1:0";
    let sentence = failure(&mut command(&["relay", address, "127.0.0.1:1"]), 1);
    for part in [address, "not an address of this host", "choose one that is"] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
}

#[test]
fn an_abstract_name_is_listened_on_and_connected_to() {
    let name = |role: &str| format!("unix:@spliced-test-{role}-{}", std::process::id());
    let server = Server::on(&name("target"));
    let relay = Relay::between(&name("listen"), &server.address, &[]);
    assert_eq!(relay.address, name("listen"));
    works(&relay.address, &server, 3);
    let sentence = failure(&mut command(&["relay", &relay.address, "127.0.0.1:1"]), 1);
    assert!(sentence.contains("in use"), "{sentence}");
}

#[test]
fn a_port_alone_listens_on_both_families() {
    for threads in ["1", "3"] {
        let server = Server::new();
        let relay = Relay::between(":0", &server.address, &["--threads", threads]);
        for number in 0..8 {
            works(&format!("127.0.0.1:{}", relay.port()), &server, number);
            works(&format!("[::1]:{}", relay.port()), &server, number);
        }
    }
}

#[test]
fn a_low_limit_on_descriptors_leaves_no_socket_file() {
    let scratch = Scratch::new("few").expect("a directory");
    let address = format!("unix:{}/socket", scratch.path().display());
    let starts_with = |limit: usize| {
        let mut command = Process::command("sh");
        command
            .args([
                "-c",
                &format!("ulimit -n {limit}; exec \"$@\""),
                "sh",
                BINARY,
            ])
            .args(["relay", &address, "127.0.0.1:1", "--mode", "0600"])
            .env_remove("SPLICED_LOG");
        let mut relay = Relay::spawn_silent(&mut command);
        until("it listens or ends", || {
            !relay.is_running() || relay.lines_logged("listening on") > 0
        });
        let has_started = relay.is_running();
        if has_started {
            relay.terminate();
        } else {
            relay.wait_end();
            let is_refused = relay.lines_logged("cannot listen on") > 0;
            assert!(!is_refused || relay.lines_logged("raise the limit") > 0);
        }
        let left = fs::read_dir(scratch.path()).expect("the directory").count();
        assert_eq!(left, 0, "with {limit} descriptors");
        has_started
    };
    let least = (5..100).find(|limit| starts_with(*limit));
    assert!(least.is_some_and(|least| least > 5), "{least:?}");
}

#[test]
fn a_relay_that_cannot_start_leaves_no_socket_file() {
    let scratch = Scratch::new("undone").expect("a directory");
    let address = format!("unix:{}/socket", scratch.path().display());
    let log = scratch.path().join("nowhere/log").display().to_string();
    failure(
        &mut command(&["relay", &address, "127.0.0.1:1", "--access-log", &log]),
        1,
    );
    let left = fs::read_dir(scratch.path()).expect("the directory").count();
    assert_eq!(left, 0);
}

#[test]
fn a_restarted_relay_gets_its_port_at_once() {
    let server = Server::new().answering();
    let address = format!("127.0.0.1:{}", free_port());
    let mut relay = Relay::between(&address, &server.address, &[]);
    for number in 0..4 {
        // The relay closes first and last in turn, so that one connection leaves it in TIME_WAIT.
        ask(&Peer::connect(&address), number, 10, 10);
    }
    relay.terminate();
    let relay = Relay::between(&address, &server.address, &[]);
    ask(&Peer::connect(&relay.address), 4, 10, 10);
    until("it has closed", || {
        relay.watched().iter().all(|count| *count <= IDLE_WATCHED)
    });
    assert_eq!(server.finish(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_name_listens_on_those_addresses_that_this_host_has() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("v4").expect("a namespace");
    namespace
        .set_sysctl("net.ipv6.conf.lo.disable_ipv6", "1")
        .expect("no IPv6");
    let mut command = namespace.command(BINARY);
    command
        .args(["relay", "localhost:0", "127.0.0.1:1"])
        .env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut command);
    assert!(relay.address.starts_with("127.0.0.1:"), "{}", relay.address);
}

/// The hosts file of many machines has only one of the two addresses.
#[test]
fn localhost_listens_on_both_families_with_one_port() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("localhost").expect("a directory");
    let hosts = scratch.write("hosts", "127.0.0.1 localhost\n");
    let hosts = hosts.expect("a file");
    let namespace = Namespace::new("localhost").expect("a namespace");
    let served = namespace.enter(|| {
        let server = Server::new();
        let script = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
        let mut command = Process::command("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .arg(&hosts)
            .args([BINARY, "relay", "localhost:0", &server.address])
            .env_remove("SPLICED_LOG");
        let relay = Relay::spawn(&mut command);
        relay.wait_logged("listening on [::1]:");
        let with_port = format!(":{}, relaying", relay.port());
        until("both are told", || relay.lines_logged(&with_port) == 2);
        for host in ["127.0.0.1", "[::1]"] {
            works(&format!("{host}:{}", relay.port()), &server, 0);
        }
    });
    served.expect("entered");
}
