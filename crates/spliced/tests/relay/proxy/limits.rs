//! Limits of listeners and clients.

use std::io::Write;
use std::net::TcpStream;

use super::Proxy;
use super::routes::{Site, connect, expect};
use crate::patience::until;
use crate::peer::Peer;

fn limited(limits: &str, site: &Site) -> Proxy {
    Proxy::run(&format!(
        r#"
[[listener]]
name = "all"
address = "127.0.0.1:0"
{limits}
[[listener.route]]
backend = "b"
[backend.b]
servers = ["{}"]
"#,
        site.address()
    ))
}

#[test]
fn a_client_over_its_connections_is_reset_and_counted() {
    let site = Site::new();
    let proxy = limited("max_connections_per_client = 2", &site);
    let address = proxy.address("all");
    let clients: Vec<_> = (0..2).map(|_| connect(&address)).collect();
    until("both are joined", || proxy.count("all", "joined") == 2);
    Peer::is_reset_by(&address);
    assert_eq!(proxy.count("all", "client_connections"), 1);
    proxy.relay.wait_logged("max_connections_per_client");
    drop(clients);
    drop((site.accept(), site.accept()));
    until("a place is free", || {
        proxy.of("listeners", "all")["connections"] == 0
    });
    let mut client = connect(&address);
    client.write_all(b"x").expect("sent");
    expect(&mut site.accept(), b"x");
}

#[test]
fn a_client_over_its_rate_is_reset_and_counted() {
    let site = Site::new();
    let proxy = limited("new_connections_per_client = 3", &site);
    let address = proxy.address("all");
    let _clients: Vec<_> = (0..20).map(|_| connect(&address)).collect();
    until("the others are counted", || {
        let refused = proxy.count("all", "client_rate");
        refused > 0 && refused + proxy.count("all", "joined") == 20
    });
    proxy.relay.wait_logged("new_connections_per_client");
}

#[test]
fn over_the_limit_of_a_listener_clients_wait_in_the_backlog() {
    let site = Site::new();
    let proxy = limited("max_connections = 1", &site);
    let address = proxy.address("all");
    let first = connect(&address);
    let first_server = site.accept();
    let mut second = TcpStream::connect(&address).expect("in the backlog");
    second.write_all(b"second").expect("sent");
    proxy.relay.wait_logged("(max-connections) is reached");
    drop((first, first_server));
    expect(&mut site.accept(), b"second");
}
