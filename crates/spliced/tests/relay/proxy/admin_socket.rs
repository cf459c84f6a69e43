//! Which process `spliced status` and `spliced reload` reach.

use std::io::Write;
use std::path::PathBuf;

use netlab::{Need, available};
use rustix::process::Signal;
use serde_json::Value;

use super::Proxy;
use super::routes::{Site, connect, expect};
use crate::patience::{until, until_found};
use crate::relay::{Relay, command};

fn configuration(site: &Site) -> String {
    format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = \"{}\"\n",
        site.address()
    )
}

/// The same with a control socket at a path of its own.
fn with_control(site: &Site) -> String {
    format!(
        "[process]\ncontrol = \"control.sock\"\n{}",
        configuration(site)
    )
}

/// Where root's process is reached.
fn socket_of(proxy: &Proxy) -> PathBuf {
    PathBuf::from(format!("/run/spliced/{}.sock", proxy.relay.id()))
}

/// A second process of the same configuration.
fn second(proxy: &Proxy) -> Relay {
    let path = proxy.configuration.to_str().expect("UTF-8");
    Relay::spawn_silent(&mut command(&["run", "--config", path]))
}

/// Where the process that is reached listens.
fn listens_on(proxy: &Proxy) -> Option<Value> {
    Some(proxy.try_status()?["listeners"][0]["addresses"][0].take())
}

/// Each has a socket of its own.
#[test]
fn a_process_is_reached_beside_the_one_before_it_which_drains() {
    let site = Site::new();
    let mut proxy = Proxy::run(&configuration(&site));
    let mut client = connect(&proxy.address("l"));
    client.write_all(b"x").expect("sent");
    let mut server = site.accept();
    expect(&mut server, b"x");
    proxy.relay.signal(Signal::TERM);
    proxy.relay.wait_logged("no longer accepting");
    let mut second = second(&proxy);
    let states = || {
        let all = proxy.all();
        let states = all.iter().map(|status| {
            let process = &status["process"];
            let id = process["pid"].as_u64().expect("a number");
            (id, process["state"].as_str().expect("a state").to_owned())
        });
        states.collect::<std::collections::BTreeSet<_>>()
    };
    let draining = (proxy.relay.id().into(), "draining".to_owned());
    let running = (second.id().into(), "running".to_owned());
    let both = [draining, running.clone()].into();
    until("both are found", || states() == both);
    assert!(proxy.ask("reload").status.success());
    second.wait_logged("the configuration was reloaded");
    drop((client, server));
    until("the first one is gone", || {
        states() == [running.clone()].into()
    });
    until("the first one ends", || !proxy.relay.is_running());
    second.signal_until_it_ends(Signal::TERM);
    assert!(proxy.try_status().is_none());
}

#[test]
fn a_process_takes_the_socket_over_once_the_one_before_it_has_drained() {
    let site = Site::new();
    let mut proxy = Proxy::run(&with_control(&site));
    let first = listens_on(&proxy);
    let mut client = connect(&proxy.address("l"));
    client.write_all(b"x").expect("sent");
    let mut server = site.accept();
    expect(&mut server, b"x");
    proxy.relay.signal(Signal::TERM);
    proxy.relay.wait_logged("no longer accepting");
    let mut second = second(&proxy);
    let told = second.wait_logged("cannot reach this process yet");
    assert!(
        told.contains("another process has the control socket /"),
        "{told}"
    );
    assert_eq!(listens_on(&proxy), first);
    drop((client, server));
    until("the first one ends", || !proxy.relay.is_running());
    second.wait_logged("reach this process now");
    assert_ne!(listens_on(&proxy), first);
    assert!(proxy.ask("reload").status.success());
    second.wait_logged("the configuration was reloaded");
    assert_eq!(second.lines_logged("cannot reach this process"), 1);
    second.signal_until_it_ends(Signal::TERM);
    assert!(proxy.try_status().is_none());
}

/// The second one would keep it from the third for as long as it drains.
#[test]
fn a_process_that_drains_leaves_the_socket_to_one_that_serves() {
    let site = Site::new();
    let proxy = Proxy::run(&with_control(&site));
    let mut draining = second(&proxy);
    let listening = draining.wait_logged("listening on 127.0.0.1:");
    let (_, address) = listening.split_once("listening on ").expect("an address");
    let address = address.split([',', ' ']).next().expect("an address");
    draining.wait_logged("cannot reach this process yet");
    let mut client = connect(address);
    client.write_all(b"x").expect("sent");
    let mut server = site.accept();
    expect(&mut server, b"x");
    draining.signal(Signal::TERM);
    draining.wait_logged("no longer accepting");
    let serving = second(&proxy);
    serving.wait_logged("cannot reach this process yet");
    proxy.relay.signal(Signal::KILL);
    serving.wait_logged("reach this process now");
    assert!(proxy.ask("reload").status.success());
    serving.wait_logged("the configuration was reloaded");
    drop((client, server));
    until("it ends", || !draining.is_running());
    assert_eq!(draining.lines_logged("reach this process now"), 0);
    assert!(proxy.ask("reload").status.success());
}

#[test]
fn a_process_is_reached_once_the_one_before_it_is_killed() {
    let site = Site::new();
    let proxy = Proxy::run(&with_control(&site));
    let first = listens_on(&proxy);
    let second = second(&proxy);
    second.wait_logged("cannot reach this process yet");
    proxy.relay.signal(Signal::KILL);
    second.wait_logged("reach this process now");
    let found = until_found("it answers", || listens_on(&proxy));
    assert_ne!(Some(found), first);
}

#[test]
fn a_start_removes_the_sockets_of_killed_processes() {
    if !available(Need::Root) {
        return;
    }
    let site = Site::new();
    let mut killed = Proxy::run(&configuration(&site));
    let stopped = Proxy::run(&configuration(&site));
    let (of_killed, of_stopped) = (socket_of(&killed), socket_of(&stopped));
    assert!(of_killed.exists());
    killed.relay.signal(Signal::KILL);
    until("it is gone", || !killed.relay.is_running());
    stopped.relay.hold_still();
    let _other = Proxy::run(&configuration(&site));
    assert!(!of_killed.exists());
    assert!(of_stopped.exists());
    stopped.relay.go_on();
    stopped.status();
}

#[test]
fn a_process_that_is_stopped_is_not_waited_for() {
    let site = Site::new();
    let proxy = Proxy::run(&configuration(&site));
    proxy.relay.hold_still();
    let output = proxy.ask("status");
    proxy.relay.go_on();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("is stopped and cannot answer"), "{told}");
    proxy.status();
}
