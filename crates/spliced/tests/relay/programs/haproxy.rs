//! HAProxy as the next hop.

use netlab::{Need, Process, Scratch, available};

use super::{ENGINES, installed, wait_listening};
use crate::patience::until;
use crate::peer::{Peer, exchange};
use crate::relay::Relay;
use crate::server::{Server, ask};

#[test]
fn a_chain_with_haproxy_carries_every_byte() {
    const BYTES: u64 = 16 << 20;
    if !available(Need::Haproxy) {
        return;
    }
    let Some(haproxy) = installed("haproxy", "haproxy") else {
        return;
    };
    let scratch = Scratch::new("haproxy").expect("a directory");
    let server = Server::new();
    let socket = scratch.path().join("socket").display().to_string();
    let configuration = format!(
        "global
             maxconn 400
         defaults
             mode tcp
             timeout connect 30s
             timeout client 60s
             timeout server 60s
         listen middle
             bind unix@{socket}
             server next {}
",
        server.address
    );
    let path = scratch
        .write("haproxy.cfg", &configuration)
        .expect("a file");
    let mut command = Process::command(&haproxy);
    command.arg("-q").arg("-db").arg("-f").arg(path);
    let _haproxy = Process::spawn(&mut command).expect("haproxy");
    let target = format!("unix:{socket}");
    wait_listening(&target);
    // The check that HAProxy listens was a connection, too.
    server.accept().expect_end();
    for engine in ENGINES {
        let first = Relay::to(&target, &["--engine", engine]);
        let before = first.descriptors();
        let client = Peer::connect(&first.address);
        let far = server.accept();
        exchange(&client, &far, 60, BYTES, BYTES / 2);
        drop((client, far));
        first.wait_descriptors(before);
    }
    let server = server.answering();
    let relay = Relay::to(&target, &[]);
    let before = relay.descriptors();
    let clients: Vec<_> = (0..100).map(|_| Peer::connect(&relay.address)).collect();
    for (client, number) in clients.iter().zip(0..) {
        ask(client, number, 5000, 5000);
    }
    drop(clients);
    until("all have left", || relay.descriptors() == before);
    assert_eq!(server.finish(), (0..100).collect::<Vec<_>>());
}
