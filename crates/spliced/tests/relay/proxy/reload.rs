//! A new configuration under live connections.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use super::Proxy;
use super::routes::{Site, connect, expect, expect_reset};
use crate::patience::until;

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
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("it listens");
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
    let site = Site::new();
    let kept = || listener("kept", "127.0.0.1:0", "b") + &backend("b", &site, "");
    for (on_remove, is_cut) in [("drain", false), ("reset", true)] {
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
