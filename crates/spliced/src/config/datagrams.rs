//! A `[[listener]]` of datagrams.

use std::num::NonZeroU8;

use splice::SocketName;

use crate::config::kind;
use crate::config::listener;
use crate::config::removal::Removal;
use crate::config::route::{Of, Routes};
use crate::config::value::{Table, Value};
use crate::ip_header::{DontFragment, TimeToLive};
use crate::plan::{DatagramListenerPlan, DatagramTerms, ListenerPlan};

/// Whether an address is written as one of datagrams.
pub(super) fn is_of_datagrams(table: &Table<'_>) -> bool {
    let value = table.get("address").filter(Value::is_text);
    let text = value.and_then(|value| value.text());
    text.is_some_and(|text| text.starts_with("udp:") || text.starts_with("unixgram:"))
}

/// Reads a listener of datagrams, which has the access log, the access to the socket file and the removal of `[defaults]`.
/// `None` if it has no address that could be used.
pub(super) fn read(
    table: &Table<'_>,
    defaults: &ListenerPlan,
    mut removal: Removal,
    routes: &Routes<'_>,
) -> Option<DatagramListenerPlan> {
    let listen: Option<SocketName> = table.get("address").and_then(|value| value.parse());
    let name = table.get("name").and_then(|value| listener::name(&value));
    let mut file_access = defaults.file_access;
    listener::file_access(table, &mut file_access);
    let terms = terms(table);
    let mut access_log = defaults.access_log.clone();
    listener::access_log(table, &mut access_log);
    listener::check_access_log(table, &access_log);
    kind::refuse_on_datagrams(table);
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
    listener::suit_file_access(table, &mut file_access, &listen);
    let of_listener = of_listener.unwrap_or_default();
    let of_routes = routes.read(of_listener, Of::Datagrams(&listen));
    if let SocketName::UnixDatagram(_) = listen {
        kind::refuse_of_udp_clients(table);
        if !routes.may_lead_to_ip(&of_routes) {
            kind::refuse_of_udp_sockets(table);
        }
    }
    Some(DatagramListenerPlan {
        name: name.unwrap_or_else(|| listen.to_string()),
        listen,
        file_access,
        terms,
        access_log,
        on_remove: removal.plan(),
        routes: of_routes,
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
