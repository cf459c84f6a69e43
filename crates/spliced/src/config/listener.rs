//! A `[[listener]]` and what `[defaults]` says for all of them.

use splice::{Address, EngineChoice, KeepAlive, KeepAliveTimes, SocketName, UserTimeout};
use splice_route::Prefix;

use crate::access_log_args::{AccessLogArgs, LogPlace};
use crate::config::kind;
use crate::config::removal::Removal;
use crate::config::route::{Of, Routes};
use crate::config::value::{Table, Value};
use crate::config::word_for;
use crate::file_access::{FileAccess, FileMode, group, user};
use crate::log_field::{Field, Fields};
use crate::peer_timeouts::PeerTimeouts;
use crate::plan::{
    CONNECT_TIMEOUT, ClientLimits, DECIDE_WITHIN, DRAIN_TIMEOUT, FIRST_BYTES_LIMIT, ListenerPlan,
    OnRemove, Traffic,
};

/// The largest limit of a first message. Every waiting client may send as much.
const LARGEST_FIRST_BYTES: u64 = 1 << 20;

/// The slowest and the fastest rate of a connection, in bytes per second. A lower one could not pass a
/// segment a second.
const RATES: std::ops::RangeInclusive<u64> = 1_500..=1_000_000_000_000;

/// A listener that says nothing.
pub(super) fn silent() -> ListenerPlan {
    ListenerPlan {
        busy_poll: None,
        name: String::new(),
        address: Address::Inet {
            host: String::new(),
            port: 0,
        },
        file_access: FileAccess::default(),
        engine: EngineChoice::Auto,
        bypass_firewall: false,
        from_syn: false,
        decide_within: DECIDE_WITHIN,
        first_bytes_limit: FIRST_BYTES_LIMIT,
        idle_timeout: None,
        half_close_timeout: None,
        peer_timeouts: PeerTimeouts::default(),
        splice_after: None,
        connect_timeout: CONNECT_TIMEOUT,
        max_connections: None,
        per_client: ClientLimits::NONE,
        rate: None,
        access_log: AccessLogArgs::default(),
        require_proxy_from: None,
        on_remove: OnRemove::Drain(DRAIN_TIMEOUT),
        routes: Vec::new(),
    }
}

/// Reads a listener that starts as `defaults` and `removal`. `None` if it has no address that could be used.
pub(super) fn read(
    table: &Table<'_>,
    defaults: &ListenerPlan,
    mut removal: Removal,
    routes: &Routes<'_>,
) -> Option<ListenerPlan> {
    let mut listener = defaults.clone();
    let address = table.get("address");
    if address.is_none() {
        table.notes.missing(
            &table.at,
            "the listener has no address; write address = \"0.0.0.0:443\"",
        );
    }
    let address = match address.and_then(|value| value.parse()) {
        Some(SocketName::Connected(address)) => Some(address),
        _ => None,
    };
    let name = table.get("name").and_then(|value| name(&value));
    listener.name = name.unwrap_or_else(|| {
        address
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default()
    });
    if let Some(protocol) = table.get("protocol") {
        kind::check_protocol(&protocol, address.as_ref());
    }
    settings(table, &mut listener);
    check_access_log(table, &listener.access_log);
    let traffic = address.as_ref().map_or(Traffic::Streams, Traffic::of);
    kind::refuse_on_connections(table, traffic);
    if traffic == Traffic::Messages {
        suit_messages(table, &mut listener);
    }
    let without_tcp = address.as_ref().filter(|address| !address.is_tcp());
    let without_tcp = without_tcp.filter(|_| traffic == Traffic::Streams);
    if let Some(address) = without_tcp {
        kind::refuse_without_tcp(table, word_for(address));
        if !wants_header(table) {
            kind::refuse_of_ip_clients(table, word_for(address));
        }
    }
    removal.read(table);
    removal.check(table);
    listener.on_remove = removal.plan();
    proxy_protocol(table, &mut listener);
    let of_listener = match table.get("route") {
        Some(value) => value.sections("listener.route", "a route"),
        None => Some(Vec::new()),
    };
    if of_listener.as_ref().is_some_and(Vec::is_empty) {
        table.notes.missing(
            &table.at,
            "the listener has no route and would reset every client; add a [[listener.route]]",
        );
    }
    if let Some(address) = &address {
        listener.address = address.clone();
        let name = SocketName::Connected(address.clone());
        suit_file_access(table, &mut listener.file_access, &name);
    }
    let of = match traffic {
        Traffic::Messages => Of::Messages(&listener),
        _ => Of::Streams(&listener),
    };
    listener.routes = routes.read(of_listener.unwrap_or_default(), of);
    if without_tcp.is_some() && !routes.may_lead_to_ip(&listener.routes) {
        kind::refuse_of_tcp_sockets(table);
    }
    address.map(|_| listener)
}

/// Whether clients say by a PROXY header who they are. What is wrong with the key is noted elsewhere.
fn wants_header(table: &Table<'_>) -> bool {
    let value = table.get("proxy_protocol").filter(Value::is_text);
    value.and_then(|value| value.text()) == Some("require")
}

/// Leaves of `[defaults]` what has a meaning for messages.
fn suit_messages(table: &Table<'_>, listener: &mut ListenerPlan) {
    let engine = match table.get("engine") {
        Some(_) => listener.engine,
        None => EngineChoice::Auto,
    };
    *listener = ListenerPlan {
        engine,
        name: std::mem::take(&mut listener.name),
        file_access: listener.file_access,
        idle_timeout: listener.idle_timeout,
        half_close_timeout: listener.half_close_timeout,
        max_connections: listener.max_connections,
        access_log: listener.access_log.clone(),
        ..silent()
    };
}

/// Notes fields of an access log that there is not.
pub(super) fn check_access_log(table: &Table<'_>, log: &AccessLogArgs) {
    if let Err(sentence) = log.check() {
        let keys = ["access_log_fields", "access_log_start"];
        let given = keys.into_iter().find(|key| table.get(key).is_some());
        let at = given.map_or_else(|| table.at.clone(), |key| table.at(key));
        table.notes.mistake(&at, sentence);
    }
}

/// What a listener and `[defaults]` take, but for what happens on removal.
pub(super) fn settings(table: &Table<'_>, listener: &mut ListenerPlan) {
    table.set("engine", &mut listener.engine, Value::parse);
    table.set("from_syn", &mut listener.from_syn, Value::flag);
    table.set(
        "bypass_firewall",
        &mut listener.bypass_firewall,
        Value::flag,
    );
    file_access(table, &mut listener.file_access);
    table.set("decide_within", &mut listener.decide_within, Value::time);
    table.set(
        "first_bytes_limit",
        &mut listener.first_bytes_limit,
        |value| {
            let bytes = value.size(1..=LARGEST_FIRST_BYTES)?;
            usize::try_from(bytes).ok()
        },
    );
    table.set_some("idle_timeout", &mut listener.idle_timeout, Value::time);
    table.set_some(
        "half_close_timeout",
        &mut listener.half_close_timeout,
        Value::time,
    );
    let of_peers = &mut listener.peer_timeouts;
    table.set("keepalive", &mut of_peers.keepalive, keepalive);
    table.set("user_timeout", &mut of_peers.user_timeout, |value| {
        value.accepted(UserTimeout::new(value.time_or_zero()?))
    });
    table.set_some(
        "splice_after",
        &mut listener.splice_after,
        Value::time_or_zero,
    );
    table.set(
        "connect_timeout",
        &mut listener.connect_timeout,
        Value::time,
    );
    let many = 1..=u32::MAX;
    table.set_some("max_connections", &mut listener.max_connections, |value| {
        value.number(many.clone())
    });
    let limits = &mut listener.per_client;
    table.set_some(
        "max_connections_per_client",
        &mut limits.max_connections,
        |value| value.number(many.clone()),
    );
    table.set_some(
        "new_connections_per_client",
        &mut limits.new_per_second,
        |value| value.number(many.clone()),
    );
    client_prefix(table, limits);
    table.set_some("rate", &mut listener.rate, |value| value.size(RATES));
    access_log(table, &mut listener.access_log);
}

/// Who may connect to a socket file.
pub(super) fn file_access(table: &Table<'_>, access: &mut FileAccess) {
    table.set_some("mode", &mut access.mode, mode);
    table.set_some("owner", &mut access.owner, |value| number_of(value, user));
    table.set_some("group", &mut access.group, |value| number_of(value, group));
}

/// How many bits of an address make one client.
pub(super) fn client_prefix(table: &Table<'_>, limits: &mut ClientLimits) {
    if let Some(prefix) = table
        .get("client_prefix")
        .and_then(|value| value.table("client_prefix"))
    {
        prefix.set("ipv4", &mut limits.ipv4_bits, |value| value.number(1..=32));
        prefix.set("ipv6", &mut limits.ipv6_bits, |value| value.number(1..=128));
        prefix.finish();
    }
}

pub(super) fn access_log(table: &Table<'_>, log: &mut AccessLogArgs) {
    table.set_some("access_log", &mut log.place, log_place);
    table.set_some("access_log_fields", &mut log.fields, log_fields);
    table.set("access_log_start", &mut log.starts, Value::flag);
}

fn log_place(value: &Value<'_>) -> Option<LogPlace> {
    let text = value.text()?;
    match LogPlace::parse(text.into()) {
        Ok(place) => Some(match value.notes.path().parent() {
            Some(directory) => place.below(directory),
            None => place,
        }),
        Err(why) => value.refuse(format!("{text:?} cannot be used: {why}")),
    }
}

fn log_fields(value: &Value<'_>) -> Option<Fields> {
    let list = value.each(|value| value.choice(&Field::ALL))?;
    Fields::of(list).map_or_else(
        |field| value.refuse(format!("has \"{field}\" twice; leave one out")),
        Some,
    )
}

fn mode(value: &Value<'_>) -> Option<FileMode> {
    match value.is_text() {
        true => value.parse(),
        // TOML would write 0o660, and takes 660 for another number.
        false => value.wrong_type("write it in octal and in quotes, such as \"0660\""),
    }
}

/// The number of a user or group, or what it is for a name.
pub(super) fn number_of(
    value: &Value<'_>,
    look_up: fn(&str) -> Result<u32, String>,
) -> Option<u32> {
    if !value.is_text() {
        return value.number(0..=u32::MAX - 1);
    }
    let text = value.text()?;
    look_up(text).map_or_else(
        |error| value.refuse(format!("{text:?} cannot be used: {error}")),
        Some,
    )
}

/// Notes mode, owner or group of a listener without a socket file. Those of `[defaults]` are for others.
pub(super) fn suit_file_access(table: &Table<'_>, access: &mut FileAccess, address: &SocketName) {
    let Err(sentence) = access.suit(address) else {
        return;
    };
    *access = FileAccess::default();
    let given = ["mode", "owner", "group"];
    if let Some(key) = given.into_iter().find(|key| table.get(key).is_some()) {
        table.notes.mistake(&table.at(key), sentence);
    }
}

/// A time, `{ idle, interval, probes }`, or whether at all.
fn keepalive(value: &Value<'_>) -> Option<KeepAlive> {
    if value.is_flag() {
        return Some(match value.flag()? {
            true => KeepAlive::On(KeepAliveTimes::SYSTEM),
            false => KeepAlive::Off,
        });
    }
    if value.is_text() {
        return match value.text()? {
            "off" => Some(KeepAlive::Off),
            _ => {
                let idle = Some(value.time_or_zero()?);
                value.accepted(KeepAliveTimes::new(idle, None, None))
            }
            .map(KeepAlive::On),
        };
    }
    if !value.is_table() {
        return value.wrong_type("write a time in quotes, \"off\", or { idle = \"30s\" }");
    }
    let table = value.table("keepalive")?;
    let mut times = [None, None];
    for (key, time) in ["idle", "interval"].into_iter().zip(&mut times) {
        table.set_some(key, time, |value| {
            let time = value.time_or_zero()?;
            // By itself, so that a mistake is shown where it is.
            let alone = match key {
                "idle" => KeepAliveTimes::new(Some(time), None, None),
                _ => KeepAliveTimes::new(None, Some(time), None),
            };
            value.accepted(alone).map(|_| time)
        });
    }
    let mut probes = None;
    table.set_some("probes", &mut probes, |value| value.number(1..=127));
    table.finish();
    let [idle, interval] = times;
    value
        .accepted(KeepAliveTimes::new(idle, interval, probes))
        .map(KeepAlive::On)
}

fn proxy_protocol(table: &Table<'_>, listener: &mut ListenerPlan) {
    let required = table
        .get("proxy_protocol")
        .and_then(|value| value.choice(&[("off", false), ("require", true)]));
    let trusted = table.get("trusted");
    let prefixes = trusted
        .as_ref()
        .and_then(|value| value.each(|value| value.parse::<Prefix>()));
    match (required, trusted.is_some()) {
        (Some(true), true) => listener.require_proxy_from = prefixes,
        (Some(true), false) => table.notes.missing(
            &table.at("proxy_protocol"),
            "nobody is trusted to send PROXY headers; add trusted with the prefixes of the proxies",
        ),
        (_, true) => table.notes.mistake(
            &table.at("trusted"),
            "trusted needs proxy_protocol = \"require\"; add it, or remove trusted",
        ),
        (_, false) => {}
    }
}

/// The name of a listener or a backend, which logs and metrics show.
pub(super) fn name(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    is_name(text)
        .then(|| text.to_owned())
        .or_else(|| value.refuse(format!("{text:?} cannot be used: {NAMES}")))
}

pub(super) const NAMES: &str = "a name has 1 to 64 letters, digits, hyphens, underscores and dots";

pub(super) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(allowed)
}
