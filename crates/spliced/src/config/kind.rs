//! The keys of listeners and routes that only streams have, and those that only datagrams have. Messages have what comes
//! with connections.

use splice::{Address, SocketName};

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

/// What only connections have that are TCP on both sides.
const OF_TCP: &[(&str, &str)] = &[
    ("from_syn", ""),
    ("bypass_firewall", ""),
    ("splice_after", ""),
];

/// What sets timeouts of TCP, on whichever side it is.
const OF_TCP_SOCKETS: &[(&str, &str)] = &[("keepalive", ""), ("user_timeout", "")];

/// What tells clients of streams from one another by their IP addresses.
const OF_IP_CLIENTS: &[(&str, &str)] = &[
    (
        "max_connections_per_client",
        "limit connections with max_connections",
    ),
    ("new_connections_per_client", ""),
    ("client_prefix", ""),
];

/// The same of datagrams.
const OF_UDP_CLIENTS: &[(&str, &str)] = &[
    (
        "max_sessions_per_client",
        "limit sessions with max_sessions",
    ),
    ("client_prefix", ""),
];

/// What UDP has on whichever side it is.
const OF_UDP_SOCKETS: &[(&str, &str)] = &[("ttl", ""), ("dont_fragment", "")];

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

/// Conditions of routes that look at the addresses of IP.
const IP_CONDITIONS: &[&str] = &["client", "local_address", "local_port"];

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

/// Notes what has no meaning where clients come over sockets of this kind, which are not TCP.
pub(super) fn refuse_without_tcp(table: &Table<'_>, word: &str) {
    let why = format!("is for TCP, and clients of this listener come over a {word} socket");
    refuse_because(table, OF_TCP, &why);
}

/// Notes what would be TCP's where neither clients nor servers have it.
pub(super) fn refuse_of_tcp_sockets(table: &Table<'_>) {
    let why = "is for TCP, which neither clients nor servers of this listener use";
    refuse_because(table, OF_TCP_SOCKETS, why);
}

/// The same for UDP.
pub(super) fn refuse_of_udp_sockets(table: &Table<'_>) {
    let why = "is for UDP, which neither clients nor servers of this listener use";
    refuse_because(table, OF_UDP_SOCKETS, why);
}

/// Notes what tells clients of datagrams by their IP addresses, where they are UNIX sockets.
pub(super) fn refuse_of_udp_clients(table: &Table<'_>) {
    refuse_because(table, OF_UDP_CLIENTS, &no_ip_addresses("UNIX"));
}

/// Notes what tells clients by their IP addresses, where they come over sockets of this kind, which have none.
pub(super) fn refuse_of_ip_clients(table: &Table<'_>, word: &str) {
    refuse_because(table, OF_IP_CLIENTS, &no_ip_addresses(word));
}

fn no_ip_addresses(word: &str) -> String {
    format!("tells clients by their IP addresses, which those of a {word} socket do not have")
}

fn refuse(table: &Table<'_>, keys: &[(&'static str, &str)], of: &str, others: &str) {
    let why = format!("is for {of}, and this listener has {others}");
    refuse_because(table, keys, &why);
}

fn refuse_because(table: &Table<'_>, keys: &[(&'static str, &str)], why: &str) {
    for (key, instead) in keys {
        if table.get(key).is_none() {
            continue;
        }
        let remedy = match *instead {
            "" => "remove it",
            instead => instead,
        };
        table
            .notes
            .mistake(&table.at(key), format!("{key} {why}; {remedy}"));
    }
    let keys: Vec<_> = keys.iter().map(|(key, _)| *key).collect();
    table.does_not_take(&keys);
}

/// Notes conditions of a route that no datagram of a listener at this address could be held against.
pub(super) fn suit_datagrams(table: &Table<'_>, listen: &SocketName) {
    suit_conditions(
        table,
        STREAM_CONDITIONS,
        "a route of datagrams can look at client only",
    );
    if let SocketName::UnixDatagram(_) = listen {
        suit_without_addresses(table, "UNIX");
    }
}

/// Notes conditions of a route: messages are passed on unread, and their clients have no address.
pub(super) fn suit_messages(table: &Table<'_>) {
    const RULE: &str = "a route of messages has no conditions";
    suit_conditions(table, STREAM_CONDITIONS, RULE);
    suit_conditions(table, &["client"], RULE);
}

/// Notes conditions of a route that look at addresses, which connections over sockets of this kind do not have.
pub(super) fn suit_without_addresses(table: &Table<'_>, word: &str) {
    let why = format!("looks at IP addresses, which {word} sockets do not have; remove it");
    refuse_conditions(table, IP_CONDITIONS, &why);
}

fn suit_conditions(table: &Table<'_>, keys: &[&'static str], rule: &str) {
    refuse_conditions(table, keys, &format!("is for streams; {rule}"));
}

fn refuse_conditions(table: &Table<'_>, keys: &[&'static str], why: &str) {
    for key in keys {
        if table.get(key).is_some() {
            table.notes.mistake(&table.at(key), format!("{key} {why}"));
        }
    }
    table.does_not_take(keys);
}
