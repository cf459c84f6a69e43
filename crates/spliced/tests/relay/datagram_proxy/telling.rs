//! What a process with listeners of datagrams says of itself.

use netlab::{Process, Scratch};

use super::{ask, client, configuration, name, servers};
use crate::proxy::Proxy;
use crate::relay::{BINARY, Relay, output};

#[test]
fn the_sums_of_each_listener_are_logged_at_the_end() {
    let [only] = servers();
    let mut proxy = Proxy::run(&configuration(&[&only], "", ""));
    ask(&client(&proxy), &[&only]);
    ask(&client(&proxy), &[&only]);
    proxy.relay.terminate();
    proxy.relay.wait_logged(
        "listener l: 2 sessions, 0 of them displaced; to the target 2 datagrams, dropped 0",
    );
}

#[test]
fn the_status_counts_sessions_as_copied() {
    let [only] = servers();
    let proxy = Proxy::run(&configuration(&[&only], "", ""));
    let clients = [client(&proxy), client(&proxy)];
    for client in &clients {
        ask(client, &[&only]);
    }
    assert_eq!(proxy.status()["engines"]["copy"], 2);
}

#[test]
fn too_few_descriptors_for_the_sessions_are_told() {
    const TOLD: &str =
        "all sessions that may be open at once need 201 descriptors, and RLIMIT_NOFILE allows 200";
    let [only] = servers();
    let with_few = || {
        let mut command = Process::command("prlimit");
        command
            .args(["--nofile=200:200", BINARY])
            .env_remove("SPLICED_LOG");
        command
    };
    let text = configuration(&[&only], "max_sessions = 101", "");
    let proxy = Proxy::start(&text, &mut with_few());
    proxy.relay.wait_logged(TOLD);
    let scratch = Scratch::new("few").expect("a directory");
    let path = scratch.write("c.toml", &text).expect("written");
    let checked = output(with_few().args(["check", "--config"]).arg(path));
    let told = String::from_utf8_lossy(&checked.stderr);
    assert!(told.contains(&format!("c.toml: warning: {TOLD}")), "{told}");
    let mut relay = with_few();
    relay.args([
        "relay",
        "udp:127.0.0.1:0",
        &name(&only),
        "--max-sessions",
        "101",
    ]);
    Relay::spawn_silent(&mut relay).wait_logged(TOLD);
}
