//! A `[backend.NAME]` and what `[defaults]` says for all of them.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use splice::{Address, SocketName};

use crate::config::health;
use crate::config::removal::Removal;
use crate::config::value::{Table, Value};
use crate::plan::{
    BackendPlan, Balance, CONNECT_TIMEOUT, HashKey, NO_MACHINE, ProxyVersion, QueuePlan,
    ServerAddress, ServerPlan, Source, Traffic, lacks_source,
};
use crate::weight::WEIGHT_MOST;

/// The most connections that wait for a server, unless the configuration says otherwise.
const QUEUE: u32 = 1024;

/// The longest name of an interface, in bytes (`IFNAMSIZ`, without its zero).
const INTERFACE_NAME_MAX_BYTES: usize = 15;

/// What a backend and `[defaults]` take.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    method: Method,
    hash: HashKey,
    connect_timeout: Duration,
    send_proxy: Option<ProxyVersion>,
    max_connections_per_server: Option<u32>,
    queue: u32,
    /// `None`: as long as connecting may take.
    queue_timeout: Option<Duration>,
    slow_start: Option<Duration>,
    removal: Removal,
    resets_on_down: bool,
}

impl Settings {
    pub(super) fn new(drain_timeout: Duration) -> Self {
        Self {
            method: Method::RoundRobin,
            hash: HashKey::Client,
            connect_timeout: CONNECT_TIMEOUT,
            send_proxy: None,
            max_connections_per_server: None,
            queue: QUEUE,
            queue_timeout: None,
            slow_start: None,
            removal: Removal::new(drain_timeout),
            resets_on_down: false,
        }
    }

    pub(super) fn read(&mut self, table: &Table<'_>) {
        table.set("hash", &mut self.hash, |value| {
            value.choice(&[("client", HashKey::Client), ("sni", HashKey::ServerName)])
        });
        table.set("balance", &mut self.method, |value| {
            value.choice(&[
                ("round-robin", Method::RoundRobin),
                ("least-connections", Method::LeastConnections),
                ("consistent", Method::Consistent),
            ])
        });
        table.set("connect_timeout", &mut self.connect_timeout, Value::time);
        table.set_some("send_proxy", &mut self.send_proxy, |value| {
            value.choice(&[("v1", ProxyVersion::V1), ("v2", ProxyVersion::V2)])
        });
        table.set_some(
            "max_connections_per_server",
            &mut self.max_connections_per_server,
            |value| value.number(1..=u32::MAX),
        );
        table.set("queue", &mut self.queue, |value| {
            value.number(0..=1_000_000)
        });
        table.set_some("queue_timeout", &mut self.queue_timeout, Value::time);
        table.set_some("slow_start", &mut self.slow_start, Value::time);
        self.removal.read(table);
        table.set("on_down", &mut self.resets_on_down, |value| {
            value.choice(&[("keep", false), ("reset", true)])
        });
    }

    /// Notes what has no meaning for a backend. Of `[defaults]` it is for those that it has a meaning for.
    fn check(&self, table: &Table<'_>) {
        self.removal.check(table);
        if table.get("hash").is_some() && self.method != Method::Consistent {
            table.notes.mistake(
                &table.at("hash"),
                "hash needs balance = \"consistent\"; add it, or remove hash",
            );
        }
    }

    fn balance(&self) -> Balance {
        match self.method {
            Method::RoundRobin => Balance::RoundRobin,
            Method::LeastConnections => Balance::LeastConnections,
            Method::Consistent => Balance::Consistent(self.hash),
        }
    }
}

/// Reads the backend `name`, whose settings start as `defaults`. `None` is a table that cannot be read.
pub(super) fn read(table: Option<&Table<'_>>, name: &str, defaults: &Settings) -> BackendPlan {
    let mut settings = defaults.clone();
    if let Some(table) = table {
        settings.read(table);
        settings.check(table);
    }
    let mut backend = BackendPlan {
        name: name.into(),
        balance: settings.balance(),
        servers: Vec::new(),
        health: None,
        connect_timeout: settings.connect_timeout,
        send_proxy: settings.send_proxy,
        source: Source::Host,
        mark: None,
        interface: None,
        max_connections_per_server: settings.max_connections_per_server,
        queue: QueuePlan {
            most: settings.queue,
            wait: settings.queue_timeout.unwrap_or(settings.connect_timeout),
        },
        slow_start: settings.slow_start,
        on_remove: settings.removal.plan(),
        resets_on_down: settings.resets_on_down,
    };
    let Some(table) = table else {
        return backend;
    };
    if table.get("servers").is_none() {
        table.notes.missing(
            &table.at,
            format!("backend {name:?} has no servers; write servers = [\"HOST:PORT\"]"),
        );
    }
    if let Some(value) = table.get("servers") {
        servers(&value, &mut backend.servers);
    }
    if backend.traffic() != Traffic::Messages && backend.is_without_ip() {
        for key in ["source", "mark", "interface"] {
            if table.get(key).is_some() {
                table.notes.mistake(
                    &table.at(key),
                    format!(
                        "{key} is for IP, and the servers of this backend have UNIX or VSOCK sockets; remove it"
                    ),
                );
            }
        }
    }
    match backend.traffic() {
        Traffic::Streams => table.set_some("health", &mut backend.health, health::of_streams),
        Traffic::Messages => {
            suit(table, &mut backend, &NOT_OF_MESSAGES);
            table.set_some("health", &mut backend.health, health::of_messages);
        }
        Traffic::Datagrams => {
            suit(table, &mut backend, &NOT_OF_DATAGRAMS);
            table.set_some("health", &mut backend.health, health::of_datagrams);
        }
    }
    if backend.resets_on_down && table.get("health").is_none() && table.get("on_down").is_some() {
        table.notes.mistake(
            &table.at("on_down"),
            "on_down needs health, since only checks find a server down; add it, or remove on_down",
        );
    }
    table.set("source", &mut backend.source, source);
    if let Source::Addresses(sources) = &backend.source
        && !sources.is_empty()
    {
        suit_family(table, sources, &backend.servers);
    }
    table.set_some("mark", &mut backend.mark, |value| {
        value.number(1..=u32::MAX)
    });
    table.set_some("interface", &mut backend.interface, interface);
    backend
}

/// What `balance` says, without the key of `hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    RoundRobin,
    LeastConnections,
    Consistent,
}

fn servers(value: &Value<'_>, servers: &mut Vec<ServerPlan>) {
    let mut addresses = HashSet::new();
    for value in value.list().unwrap_or_default() {
        let Some(server) = server(&value) else {
            continue;
        };
        if let Some(first) = servers.first()
            && first.address.traffic() != server.address.traffic()
        {
            value.refuse::<()>(format!(
                "has {} beside {}, but a backend has streams, messages or datagrams; give each a backend of its own",
                server.address, first.address
            ));
            continue;
        }
        if !addresses.insert(server.address.clone()) {
            value.refuse::<()>("has this server twice; write it once, with a weight");
        }
        servers.push(server);
    }
}

/// What servers of messages have not, and why.
const NOT_OF_MESSAGES: [(&str, &str); 4] = [
    ("send_proxy", "a PROXY header would be a message"),
    ("source", "sockets with messages have no IP address"),
    ("mark", "sockets with messages send no packets"),
    ("interface", "sockets with messages send no packets"),
];

/// What servers of datagrams have not, and why.
const NOT_OF_DATAGRAMS: [(&str, &str); 4] = [
    ("send_proxy", "a datagram has no PROXY header"),
    ("connect_timeout", "datagrams have no connections"),
    ("queue", "a datagram does not wait for a server"),
    ("queue_timeout", "a datagram does not wait for a server"),
];

/// Notes what has no meaning for servers that have no streams. What `[defaults]` says is for others.
fn suit(table: &Table<'_>, backend: &mut BackendPlan, keys: &[(&'static str, &str)]) {
    for (key, why) in keys {
        if table.get(key).is_some() {
            table.notes.mistake(
                &table.at(key),
                format!("{key} is for streams: {why}; remove it"),
            );
        }
    }
    backend.send_proxy = None;
    if backend.balance == Balance::Consistent(HashKey::ServerName) {
        if table.get("hash").is_some() {
            table.notes.mistake(
                &table.at("hash"),
                "hash = \"sni\" is for streams; write \"client\"",
            );
        }
        backend.balance = Balance::Consistent(HashKey::Client);
    }
}

/// Notes a server that none of `sources` can be the source of connections to.
fn suit_family(table: &Table<'_>, sources: &[IpAddr], servers: &[ServerPlan]) {
    for server in servers {
        if let Some(address) = server.address.fixed()
            && let Some((ip, family)) = lacks_source(sources, address)
        {
            table.notes.mistake(
                &table.at("source"),
                format!("source has no {family} address for server {ip}; add one"),
            );
        }
    }
}

fn server(value: &Value<'_>) -> Option<ServerPlan> {
    if value.is_text() {
        return Some(ServerPlan {
            address: server_address(value)?,
            weight: 1,
            backup: false,
            disabled: false,
        });
    }
    if !value.is_table() {
        return value.wrong_type("write \"HOST:PORT\", or a table with address");
    }
    let table = value.table("a server")?;
    let address = table.get("address");
    if address.is_none() {
        table.notes.missing(
            &table.at,
            "the server has no address; write address = \"HOST:PORT\"",
        );
    }
    let (mut weight, mut backup, mut disabled) = (1, false, false);
    table.set("weight", &mut weight, |value| value.number(0..=WEIGHT_MOST));
    table.set("backup", &mut backup, Value::flag);
    table.set("disabled", &mut disabled, Value::flag);
    table.finish();
    Some(ServerPlan {
        address: server_address(&address?)?,
        weight,
        backup,
        disabled,
    })
}

/// Connections that are neither of TCP nor UNIX streams.
const OTHER_CONNECTIONS: [&str; 3] = ["seqpacket:", "vsock:", "vsock-seqpacket:"];

fn server_address(value: &Value<'_>) -> Option<ServerAddress> {
    let text = value.text()?;
    if text.starts_with("udp:") || text.starts_with("unixgram:") {
        return match value.parse()? {
            SocketName::Udp(Address::Inet { port: 0, .. }) => nobody_listens(value, text),
            name => Some(ServerAddress::Datagrams(name)),
        };
    }
    if OTHER_CONNECTIONS.iter().any(|kind| text.starts_with(kind)) {
        let SocketName::Connected(address) = value.parse()? else {
            return None;
        };
        return match address.names_no_peer() {
            true => value.refuse(format!("{text:?} cannot be used: {NO_MACHINE}")),
            false => Some(ServerAddress::Address(address)),
        };
    }
    let Some(name) = text.strip_prefix("srv:") else {
        return match value.parse()? {
            Address::Inet { port: 0, .. } => nobody_listens(value, text),
            address => Some(ServerAddress::Address(address)),
        };
    };
    let mut labels = name.split('.');
    let service =
        |label: Option<&str>| label.is_some_and(|label| label.len() > 1 && label.starts_with('_'));
    let is_srv = service(labels.next()) && service(labels.next()) && labels.next().is_some();
    if !is_srv || name.parse::<splice_route::NamePattern>().is_err() {
        return value.refuse(format!(
            "{text:?} cannot be used: it is not the name of SRV records; write srv:_imap._tcp.example.org"
        ));
    }
    Some(ServerAddress::Srv(name.into()))
}

fn nobody_listens<T>(value: &Value<'_>, text: &str) -> Option<T> {
    value.refuse(format!(
        "{text:?} cannot be used: nobody listens on port 0; write the port of the server"
    ))
}

fn source(value: &Value<'_>) -> Option<Source> {
    let single = value.is_text().then(|| value.text()).flatten();
    match single {
        Some("client") => return Some(Source::Client),
        Some("host") => return Some(Source::Host),
        _ => {}
    }
    let addresses = value.each(|value| {
        let text = value.text()?;
        match text.parse::<IpAddr>() {
            Ok(address) if address.is_unspecified() || address.is_multicast() => {
                value.refuse(format!(
                    "{text:?} cannot be used: it is no address of a host; write one of this host's"
                ))
            }
            Ok(address) => Some(address),
            Err(_) => value.refuse(format!(
                "{text:?} cannot be used: write \"client\", \"host\" or addresses of this host"
            )),
        }
    })?;
    Some(Source::Addresses(addresses))
}

fn interface(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if text.len() > INTERFACE_NAME_MAX_BYTES || !text.bytes().all(plain) {
        return value.refuse(format!(
            "{text:?} is not the name of an interface; write one of 1 to 15 characters, such as eth0"
        ));
    }
    Some(text.into())
}
