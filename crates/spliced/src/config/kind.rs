//! The keys of listeners and routes that only streams have, and those that only datagrams have. Messages have what comes
//! with connections.

use splice::Address;

use crate::config::value::{Table, Value};
use crate::plan::Traffic;

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

/// What streams have and messages have not.
const NOT_OF_MESSAGES: &[(&str, &str)] = &[
    ("from_syn", ""),
    ("bypass_firewall", ""),
    ("protocol", ""),
    ("decide_within", ""),
    ("first_bytes_limit", ""),
    ("keepalive", ""),
    ("user_timeout", "end connections with idle_timeout"),
    ("splice_after", ""),
    ("connect_timeout", "write it for the backend"),
    (
        "max_connections_per_client",
        "limit connections with max_connections",
    ),
    ("new_connections_per_client", ""),
    ("client_prefix", ""),
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

/// Notes what has no meaning for a listener of connections that has this `traffic`.
pub(super) fn refuse_on_connections(table: &Table<'_>, traffic: Traffic) {
    refuse(table, OF_DATAGRAMS, "datagrams", traffic.word());
    if traffic == Traffic::Messages {
        refuse(table, NOT_OF_MESSAGES, "streams", traffic.word());
    }
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
pub(super) fn suit_datagrams(table: &Table<'_>) {
    suit_conditions(
        table,
        STREAM_CONDITIONS,
        "a route of datagrams can look at client only",
    );
}

/// Notes conditions of a route: messages are passed on unread, and their clients have no address.
pub(super) fn suit_messages(table: &Table<'_>) {
    const RULE: &str = "a route of messages has no conditions";
    suit_conditions(table, STREAM_CONDITIONS, RULE);
    suit_conditions(table, &["client"], RULE);
}

fn suit_conditions(table: &Table<'_>, keys: &[&'static str], rule: &str) {
    for key in keys {
        if table.get(key).is_some() {
            table
                .notes
                .mistake(&table.at(key), format!("{key} is for streams; {rule}"));
        }
    }
    table.does_not_take(keys);
}
