//! `spliced run` with listeners and servers of VSOCK, through its loopback (`vsock_loopback`, Linux 5.6 on).

use netlab::Scratch;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use serde_json::Value;

use crate::log::Log;
use crate::patience::{PATIENCE, until_found};
use crate::payload::Payload;
use crate::peer::{Peer, exchange};
use crate::proxy::Proxy;
use crate::relay::Relay;
use crate::seqpacket::{accepted, at, connected, message, server_at};
use crate::server::Server;

/// TCP in, VSOCK to the proxy, which passes over a server that is gone, and reads the first bytes.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn vsock_listeners_route_and_pass_over_a_server_that_is_gone() {
    const BYTES: u64 = 1_000_000;
    let scratch = Scratch::new("vsock-proxy").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new();
    let proxy = Proxy::run(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"vsock::70710\"\naccess_log = {:?}\n[[listener.route]]\nsni = \"example.org\"\n\
         reset = true\n[[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = [\"vsock:1:70711\", {:?}]\n",
        log.path, server.address
    ));
    let outer = Relay::to("vsock:1:70710", &[]);
    let client = Peer::connect(&outer.address);
    // The route needs a byte.
    client.send(Payload::new(9), 0, 1000);
    let far = server.accept();
    far.expect(Payload::new(9), 0, 1000);
    exchange(&client, &far, 1, BYTES, BYTES);
    let entry = until_found("it is logged", || log.entries().into_iter().next());
    let address = entry["client"].as_str().expect("an address");
    assert!(address.starts_with("vsock:"), "{entry}");
    for (field, value) in [
        ("route", 2.into()),
        ("server", Value::from(server.address.as_str())),
        ("engine", "copy".into()),
        (
            "why_engine",
            "no other engine takes its kind of socket".into(),
        ),
        ("outcome", "end of stream".into()),
    ] {
        assert_eq!(entry[field], value, "{field} of {entry}");
    }
    let gone = &proxy.of("backends", "b")["servers"][0];
    let last = gone["last_error"].to_string();
    assert!(last.contains("refused"), "{gone}");
}

/// Messages in, over VSOCK to the proxy, and to the server that is there.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn vsock_listeners_keep_messages_apart() {
    let scratch = Scratch::new("vsock-proxy").expect("a directory");
    let server = server_at(&scratch, "one");
    let servers = ["vsock-seqpacket:1:70713".to_owned(), at(&scratch, "one")];
    let proxy = Proxy::run(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"vsock-seqpacket::70712\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = {servers:?}\n"
    ));
    let _outer = Relay::between(&at(&scratch, "relay"), "vsock-seqpacket:1:70712", &[]);
    let client = connected(&scratch);
    let far = accepted(&server);
    for size in [1, 4096, 65_536] {
        let text = Payload::new(1).bytes(size);
        for (from, to) in [(&client, &far), (&far, &client)] {
            send(from, &text, SendFlags::empty()).expect("it is sent");
            assert!(message(to) == text, "{size} bytes differ");
        }
    }
    let session = &proxy.sessions()[0];
    assert_eq!(session["client_to_target_messages"], 3);
    drop(client);
    assert!(message(&far).is_empty());
}

/// The kernel sends the part of a message that its peer has room for, and then reports that it has sent none.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn no_part_of_a_message_passes_for_a_whole_one() {
    const COUNT: usize = 40;
    const BYTES: usize = 90_001;
    let scratch = Scratch::new("vsock-torn").expect("a directory");
    let log = Log::below(&scratch);
    let server = server_at(&scratch, "target");
    let _inner = Relay::between("vsock-seqpacket::70714", &at(&scratch, "target"), &[]);
    let _outer = Relay::between(
        &at(&scratch, "relay"),
        "vsock-seqpacket:1:70714",
        &["--access-log", &log.path],
    );
    let client = connected(&scratch);
    sockopt::set_socket_timeout(&client, sockopt::Timeout::Send, Some(PATIENCE)).expect("a limit");
    let text = |number: usize| Payload::new(number as u64).bytes(BYTES);
    // Nobody reads.
    let failed =
        (0..COUNT).find(|number| send(&client, &text(*number), SendFlags::NOSIGNAL).is_err());
    assert!(failed.is_some(), "there is room for all of them");
    let entry = until_found("it is logged", || log.entries().into_iter().next());
    let outcome = entry["outcome"].to_string();
    assert!(outcome.contains("Message too long"), "{entry}");
    let far = accepted(&server);
    let mut buffer = vec![0; 2 * BYTES];
    let mut whole = 0;
    while let Ok((_, length @ 1..)) = recv(&far, &mut buffer[..], RecvFlags::empty()) {
        assert!(
            buffer[..length] == text(whole),
            "message {whole} differs: {length} bytes"
        );
        whole += 1;
    }
    assert!((1..COUNT).contains(&whole), "{whole} messages");
}
