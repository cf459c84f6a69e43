//! The keys of listeners and routes that only streams have, and those that only datagrams have.

use splice::Address;

use crate::config::value::{Table, Value};

/// Prefixes of sockets that a configuration does not take.
const OF_RELAY: [&str; 3] = ["seqpacket:", "vsock:", "vsock-seqpacket:"];

/// What only streams have, and what datagrams have in its place.
const OF_STREAMS: &[(&str, &str)] = &[
    ("engine", ""),
    ("from_syn", ""),
    ("bypass_firewall", ""),
    (
        "protocol",
        "remove it, since the address says what the socket is",
    ),
    ("decide_within", ""),
    ("first_bytes_limit", ""),
    ("half_close_timeout", "end sessions with idle_timeout"),
    ("keepalive", ""),
    ("user_timeout", "end sessions with idle_timeout"),
    ("splice_after", ""),
    ("connect_timeout", ""),
    ("max_connections", "limit sessions with max_sessions"),
    (
        "max_connections_per_client",
        "limit sessions with max_sessions_per_client",
    ),
    ("new_connections_per_client", ""),
    ("rate", ""),
    ("proxy_protocol", ""),
    ("trusted", ""),
];

/// What only datagrams have, and what streams have in its place.
const OF_DATAGRAMS: &[(&str, &str)] = &[
    ("max_sessions", "limit connections with max_connections"),
    (
        "max_sessions_per_client",
        "limit connections with max_connections_per_client",
    ),
    ("replies", ""),
    ("ttl", ""),
    ("dont_fragment", ""),
];

/// Conditions of routes that look at what a client of a stream has sent, or at its connection.
const STREAM_CONDITIONS: &[&str] = &[
    "local_address",
    "local_port",
    "silent",
    "sni",
    "alpn",
    "tls_version",
    "http_host",
    "http_method",
    "http_path",
    "protocol",
    "starts_with",
    "socks",
    "connect",
];

/// The address of a stream.
pub(super) fn stream(value: &Value<'_>) -> Option<Address> {
    let text = value.text()?;
    if OF_RELAY.iter().any(|kind| text.starts_with(kind)) {
        return value.refuse(format!(
            "{text:?} cannot be used: a configuration has TCP, UNIX streams and datagrams; write HOST:PORT, unix:/path, \
             udp:HOST:PORT or unixgram:/path, or use 'spliced relay'"
        ));
    }
    value.parse()
}

/// Notes a protocol that is not the one of the address.
pub(super) fn check_protocol(protocol: &Value<'_>, address: Option<&Address>) {
    if protocol.is_udp() {
        let address = match address {
            Some(address @ Address::Inet { .. }) => address.to_string(),
            _ => "HOST:PORT".into(),
        };
        protocol.refuse::<()>(format!(
            "cannot be \"udp\"; write address = \"udp:{address}\", and remove protocol"
        ));
        return;
    }
    protocol.choice(&[("tcp", ())]);
}

/// Notes what has a meaning for streams only.
pub(super) fn refuse_on_datagrams(table: &Table<'_>) {
    refuse(table, OF_STREAMS, "streams", "datagrams");
}

/// Notes what has a meaning for datagrams only.
pub(super) fn refuse_on_streams(table: &Table<'_>) {
    refuse(table, OF_DATAGRAMS, "datagrams", "streams");
}

fn refuse(table: &Table<'_>, keys: &[(&'static str, &str)], of: &str, others: &str) {
    for (key, instead) in keys {
        if table.get(key).is_none() {
            continue;
        }
        let remedy = match *instead {
            "" => "remove it".to_owned(),
            instead => instead.to_owned(),
        };
        table.notes.mistake(
            &table.at(key),
            format!("{key} is for {of}, and this listener has {others}; {remedy}"),
        );
    }
    let keys: Vec<_> = keys.iter().map(|(key, _)| *key).collect();
    table.does_not_take(&keys);
}

/// Notes conditions of a route that no datagram could be held against.
pub(super) fn suit_conditions(table: &Table<'_>) {
    for key in STREAM_CONDITIONS {
        if table.get(key).is_some() {
            table.notes.mistake(
                &table.at(key),
                format!("{key} is for streams; a route of datagrams can look at client only"),
            );
        }
    }
    table.does_not_take(STREAM_CONDITIONS);
}
