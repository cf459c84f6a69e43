//! What a relay of datagrams refuses: one sentence each.

use super::client;
use crate::relay::{Relay, command};
use crate::usage::failure;

#[test]
fn what_cannot_be_joined_is_refused_in_one_sentence() {
    for (arguments, parts) in [
        (
            &["udp:127.0.0.1:0", "127.0.0.1:1"][..],
            &["udp:127.0.0.1:0", "cannot be joined", "same kind"][..],
        ),
        (&["127.0.0.1:0", "unixgram:/x"], &["cannot be joined"]),
        (&["udp:", "udp::1"], &["<LISTEN>", "write udp:HOST:PORT"]),
        (&["udp::1", "udp:1.2.3.4:x"], &["<TARGET>", "not a number"]),
        (&["unixgram:", "udp::1"], &["write unixgram:/path"]),
        (
            &["udp::0", "udp::1", "--engine", "pipe"],
            &["--engine pipe", "leave --engine out"],
        ),
        (
            &["udp::0", "udp::1", "--max-connections", "3"],
            &["--max-connections", "--max-sessions"],
        ),
        (
            &["udp::0", "udp::1", "--bypass-firewall"],
            &["--bypass-firewall"],
        ),
        (
            &["udp::0", "udp::1", "--keepalive", "30s"],
            &["--keepalive is for TCP"],
        ),
        (
            &["udp::0", "udp::1", "--user-timeout", "30s"],
            &["--user-timeout is for TCP"],
        ),
        (
            &["udp::0", "udp::1", "--half-close-timeout", "30s"],
            &["--half-close-timeout is for connections"],
        ),
        (
            &["udp::0", "udp::1", "--connect-timeout", "5s"],
            &["--connect-timeout is for connections"],
        ),
        (
            &["unixgram:@x", "udp::1", "--threads", "2"],
            &["--threads is for UDP"],
        ),
        (
            &["unixgram:@x", "udp::1", "--max-sessions-per-client", "2"],
            &["--max-sessions-per-client tells clients by their IP addresses"],
        ),
        (
            &["unixgram:@x", "unixgram:@y", "--ttl", "9"],
            &["--ttl is for UDP"],
        ),
        (
            &["unixgram:@x", "unixgram:@y", "--dont-fragment", "no"],
            &["--dont-fragment is for UDP"],
        ),
        (
            &["udp::0", "udp::1", "--max-sessions", "0"],
            &["--max-sessions"],
        ),
        (
            &["udp::0", "udp::1", "--ttl", "0"],
            &["--ttl", "host, keep or a number from 1 to 255"],
        ),
        (&["udp::0", "udp::1", "--dont-fragment", "x"], &["auto"]),
        (
            &["udp::0", "udp:127.0.0.1:0"],
            &["the target udp:127.0.0.1:0", "nobody listens on port 0"],
        ),
        (&[":0", ":1", "--replies", "1"], &["--replies"]),
        (&[":0", ":1", "--ttl", "9"], &["--ttl"]),
        (
            &[":0", ":1", "--dont-fragment", "yes"],
            &["--dont-fragment"],
        ),
        (
            &[":0", ":1", "--max-sessions-per-client", "3"],
            &["--max-sessions-per-client"],
        ),
        (
            &[":0", ":1", "--max-sessions", "3"],
            &["--max-sessions", "--max-connections"],
        ),
    ] {
        let arguments = [&["relay"], arguments].concat();
        let sentence = failure(&mut command(&arguments), 2);
        for part in parts {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
    // Other commands take streams only.
    let sentence = failure(&mut command(&["echo", "udp:127.0.0.1:0"]), 2);
    assert!(sentence.contains("a stream socket is needed"), "{sentence}");
}

#[test]
fn a_link_local_address_needs_its_interface() {
    let arguments = ["relay", "udp:[fe80::1]:7", "udp:127.0.0.1:9"];
    let sentence = failure(&mut command(&arguments), 1);
    let why = "the link-local address fe80::1 needs its interface; write [fe80::1%INTERFACE]";
    assert!(sentence.contains(why), "{sentence}");
    let target = "udp:[fe80::1]:9";
    let relay = Relay::between("udp:127.0.0.1:0", target, &[]);
    client(&relay).send(b"lost").expect("it is sent");
    relay.wait_logged(why);
}
