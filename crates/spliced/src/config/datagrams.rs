//! A `[[listener]]` of datagrams.

use std::num::NonZeroU8;

use splice::SocketName;

use crate::access_log_args::AccessLogArgs;
use crate::config::listener;
use crate::config::removal::Removal;
use crate::config::route::{Of, Routes};
use crate::config::value::{Table, Value};
use crate::ip_header::{DontFragment, TimeToLive};
use crate::plan::{DatagramListenerPlan, DatagramTerms};

/// What only streams have, and what datagrams have in its place.
const OF_STREAMS: &[(&str, &str)] = &[
    ("engine", ""),
    ("from_syn", ""),
    ("bypass_firewall", ""),
    ("mode", ""),
    ("owner", ""),
    ("group", ""),
    ("protocol", ""),
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

/// Whether an address is written as one of datagrams.
pub(super) fn is_of_datagrams(table: &Table<'_>) -> bool {
    let value = table.get("address").filter(Value::is_text);
    let text = value.and_then(|value| value.text());
    text.is_some_and(|text| text.starts_with("udp:") || text.starts_with("unixgram:"))
}

/// Reads a listener of datagrams, which has the access log and the removal of `[defaults]`. `None` if it has no
/// address that could be used.
pub(super) fn read(
    table: &Table<'_>,
    access_log: &AccessLogArgs,
    mut removal: Removal,
    routes: &Routes<'_>,
) -> Option<DatagramListenerPlan> {
    let listen: Option<SocketName> = table.get("address").and_then(|value| value.parse());
    let name = table.get("name").and_then(|value| listener::name(&value));
    let terms = terms(table);
    let mut access_log = access_log.clone();
    listener::access_log(table, &mut access_log);
    listener::check_access_log(table, &access_log);
    refuse(table, OF_STREAMS, "streams", "datagrams");
    removal.read(table);
    removal.check(table);
    let of_listener = match table.get("route") {
        Some(value) => value.sections("listener.route", "a route"),
        None => Some(Vec::new()),
    };
    if of_listener.as_ref().is_some_and(Vec::is_empty) {
        table.notes.missing(
            &table.at,
            "the listener has no route and would drop every datagram; add a [[listener.route]]",
        );
    }
    let listen = listen?;
    let routes = routes.read(of_listener.unwrap_or_default(), Of::Datagrams(&listen));
    Some(DatagramListenerPlan {
        name: name.unwrap_or_else(|| listen.to_string()),
        listen,
        terms,
        access_log,
        on_remove: removal.plan(),
        routes,
    })
}

fn terms(table: &Table<'_>) -> DatagramTerms {
    let mut terms = DatagramTerms::default();
    table.set("idle_timeout", &mut terms.idle_timeout, Value::time);
    table.set("max_sessions", &mut terms.max_sessions, |value| {
        let most: u32 = value.number(1..=u32::MAX)?;
        usize::try_from(most).ok()
    });
    let limits = &mut terms.per_client;
    table.set_some(
        "max_sessions_per_client",
        &mut limits.max_connections,
        |value| value.number(1..=u32::MAX),
    );
    listener::client_prefix(table, limits);
    table.set_some("replies", &mut terms.replies, |value| {
        value.number(0..=u32::MAX)
    });
    table.set("ttl", &mut terms.ttl, |value| match value.is_text() {
        true => value.parse(),
        false => NonZeroU8::new(value.number(1..=u8::MAX)?).map(TimeToLive::Fixed),
    });
    table.set("dont_fragment", &mut terms.dont_fragment, |value| {
        value.choice(&[
            ("auto", DontFragment::Auto),
            ("yes", DontFragment::Yes),
            ("no", DontFragment::No),
        ])
    });
    terms
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
}
