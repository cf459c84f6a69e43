//! A `[[listener.route]]`: its conditions and what to do then.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use splice::{EngineChoice, EngineName, SocketName};
use splice_route::{
    Conditions, DestinationRule, NamePattern, Prefixes, Protocol, ServerName, TlsVersion, is_method,
};

use crate::config::conflict;
use crate::config::coverage::Coverage;
use crate::config::kind;
use crate::config::prefix_file::PrefixFiles;
use crate::config::value::{Table, Value, nearest};
use crate::config::{MOST_ROUTES, NO_RATE, is_tcp, socket_word, too_many, word_for};
use crate::plan::{
    Action, BackendPlan, Balance, HashKey, ListenerPlan, RoutePlan, Source, Traffic,
};
use crate::socket_address::SocketAddress;

/// The longest `starts_with`: further bytes are part of a message that has a matcher of its own.
const STARTS_WITH_MOST_BYTES: usize = 64;

/// Of clients of such a socket.
fn no_address_of_clients(of: &str) -> String {
    format!(
        "has source = \"client\", but clients of a {of} socket have no address; use another source"
    )
}

/// What routes refer to.
#[derive(Debug)]
pub(super) struct Routes<'a> {
    pub(super) backends: &'a [BackendPlan],
    /// The names of the backends that a route leads to.
    pub(super) used: RefCell<BTreeSet<String>>,
    /// How many there are so far.
    pub(super) count: Cell<usize>,
    pub(super) files: PrefixFiles,
}

/// Whose routes they are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of<'a> {
    Streams(&'a ListenerPlan),
    Messages(&'a ListenerPlan),
    /// A listener on this address.
    Datagrams(&'a SocketName),
}

impl Of<'_> {
    fn traffic(self) -> Traffic {
        match self {
            Self::Streams(_) => Traffic::Streams,
            Self::Messages(_) => Traffic::Messages,
            Self::Datagrams(_) => Traffic::Datagrams,
        }
    }

    /// What the socket is called, if its clients have nothing that consistent hashing could take. Those of VSOCK have the
    /// identifier of their machine.
    fn nothing_to_hash(self) -> Option<&'static str> {
        match self {
            Self::Streams(listener) | Self::Messages(listener) => {
                let is_unix = !is_tcp(&listener.address) && listener.address.vsock().is_none();
                (is_unix && !has_addresses(listener)).then(|| word_for(&listener.address))
            }
            Self::Datagrams(listen) => {
                matches!(listen, SocketName::UnixDatagram(_)).then_some("UNIX")
            }
        }
    }
}

/// Whether the clients of a listener have IP addresses: those of their sockets, or those in their PROXY headers.
fn has_addresses(listener: &ListenerPlan) -> bool {
    is_tcp(&listener.address) || listener.require_proxy_from.is_some()
}

impl Routes<'_> {
    /// Reads the routes of a listener.
    pub(super) fn read(&self, tables: Vec<Table<'_>>, of: Of<'_>) -> Vec<RoutePlan> {
        let before = self.count.get();
        self.count.set(before + tables.len());
        if self.count.get() > MOST_ROUTES {
            if let Some(table) = tables.get(MOST_ROUTES.saturating_sub(before))
                && before <= MOST_ROUTES
            {
                let sentence = too_many(MOST_ROUTES, "routes");
                table.notes.mistake(&table.at, sentence);
            }
            return Vec::new();
        }
        // Each with its line.
        let mut earlier: Vec<(usize, Coverage)> = Vec::new();
        let mut routes = Vec::new();
        for table in tables {
            let before = table.notes.count();
            let conditions = self.conditions(&table);
            // Otherwise what is left of the conditions says nothing.
            let is_sound = table.notes.count() == before;
            match of {
                Of::Streams(listener) if is_sound => {
                    conflict::find(&table, &conditions, listener);
                }
                Of::Streams(_) => {}
                Of::Messages(_) => kind::suit_messages(&table),
                Of::Datagrams(listen) => kind::suit_datagrams(&table, listen),
            }
            if let Of::Streams(listener) = of
                && !has_addresses(listener)
            {
                kind::suit_without_addresses(&table, word_for(&listener.address));
            }
            let action = self.action(&table, of);
            let coverage = Coverage::of(&conditions);
            let covering = earlier.iter().find(|(_, other)| other.covers(&coverage));
            if let Some((line, _)) = covering
                && is_sound
            {
                table.notes.missing(
                    &table.at,
                    format!(
                        "no connection reaches this route, since the route of line {line} takes all of \
                         its connections; move it up, or remove it"
                    ),
                );
            }
            if is_sound {
                earlier.push((table.notes.line(&table.at), coverage));
            }
            routes.extend(action.map(|action| RoutePlan { conditions, action }));
            match of {
                Of::Streams(_) => {}
                Of::Messages(_) => table.does_not_take(&["socks", "connect"]),
                Of::Datagrams(_) => table.does_not_take(&["reset", "socks", "connect"]),
            }
            table.finish();
        }
        routes
    }

    /// Whether connections or datagrams by these routes may go to a server of TCP or UDP, or it is not known.
    pub(super) fn may_lead_to_ip(&self, routes: &[RoutePlan]) -> bool {
        let is_of_ip = |name: &String| {
            let mut backends = self.backends.iter();
            let backend = backends.find(|backend| backend.name == *name);
            backend.is_none_or(|backend| !backend.is_without_ip())
        };
        let leads_there = |route: &RoutePlan| match &route.action {
            Action::Backend { name, fallback } => {
                is_of_ip(name) || fallback.as_ref().is_some_and(is_of_ip)
            }
            Action::Requested(_) => true,
            Action::Echo | Action::Reset => false,
        };
        // One with a mistake is left out.
        routes.is_empty() || routes.iter().any(leads_there)
    }

    fn conditions(&self, table: &Table<'_>) -> Conditions {
        let mut found = Conditions::default();
        table.set_some("client", &mut found.clients, |value| self.prefixes(value));
        table.set_some("local_address", &mut found.local_addresses, |value| {
            value.each(Value::parse)
        });
        table.set_some("local_port", &mut found.local_ports, |value| {
            value.each(|value| value.number(1..=u16::MAX))
        });
        table.set("silent", &mut found.silent, Value::only_true);
        table.set_some("sni", &mut found.sni, |value| value.each(server_name));
        table.set_some("alpn", &mut found.alpn, |value| value.each(alpn));
        table.set_some("tls_version", &mut found.tls_versions, |value| {
            value.each(|value| {
                value.choice(&[
                    ("1.0", TlsVersion::Tls10),
                    ("1.1", TlsVersion::Tls11),
                    ("1.2", TlsVersion::Tls12),
                    ("1.3", TlsVersion::Tls13),
                ])
            })
        });
        table.set_some("http_host", &mut found.http_hosts, |value| {
            value.each(Value::parse::<NamePattern>)
        });
        table.set_some("http_method", &mut found.http_methods, |value| {
            methods(value)
        });
        table.set_some("http_path", &mut found.http_paths, |value| value.each(path));
        if table.get("http_path").is_some() {
            table.notes.warn(
                &table.at("http_path"),
                "http_path sees only the first request of a connection and the path as the client \
                 writes it; use it to route, never to control access",
            );
        }
        table.set_some("protocol", &mut found.protocol, |value| {
            value.choice(&[
                ("tls", Protocol::Tls),
                ("http1", Protocol::Http1),
                ("http2", Protocol::Http2),
                ("postgres", Protocol::Postgres),
                ("ssh", Protocol::Ssh),
                ("rdp", Protocol::Rdp),
                ("socks", Protocol::Socks),
            ])
        });
        table.set_some("starts_with", &mut found.starts_with, |value| {
            value.each(|value| bytes(value, STARTS_WITH_MOST_BYTES))
        });
        let asks = [("socks", Protocol::Socks), ("connect", Protocol::Connect)];
        for (key, protocol) in asks {
            if table.get(key).is_none() {
                continue;
            }
            if table.get("protocol").is_some() {
                table.notes.mistake(
                    &table.at("protocol"),
                    format!("{key} is a protocol already; remove protocol"),
                );
            }
            found.protocol = Some(protocol);
        }
        found
    }

    fn prefixes(&self, value: &Value<'_>) -> Option<Prefixes> {
        let mut prefixes = Prefixes::default();
        for value in value.list()? {
            let Some(text) = value.text() else {
                continue;
            };
            match text.strip_prefix("file:") {
                Some(path) => prefixes.files.extend(self.files.get(path, &value)),
                None => prefixes.fixed.extend(value.parse::<splice_route::Prefix>()),
            }
        }
        Some(prefixes)
    }

    /// The action, of which there has to be one.
    fn action(&self, table: &Table<'_>, of: Of<'_>) -> Option<Action> {
        let keys = ["backend", "reset", "socks", "connect"];
        let given: Vec<_> = keys
            .into_iter()
            .filter_map(|key| Some((key, table.get(key)?)))
            .collect();
        let fallback = table.get("fallback");
        if let Some(fallback) = &fallback
            && !given.iter().any(|(key, _)| *key == "backend")
        {
            fallback.refuse::<()>("needs a backend; add it, or remove fallback");
        }
        let (key, value) = match given.as_slice() {
            [one] => one,
            [] => {
                let remedy = match of {
                    Of::Streams(_) | Of::Messages(_) => "add backend = \"NAME\" or reset = true",
                    Of::Datagrams(_) => "add backend = \"NAME\"",
                };
                table.notes.missing(
                    &table.at,
                    format!("the route does not say what to do; {remedy}"),
                );
                return None;
            }
            [(first, _), (second, _), ..] => {
                table.notes.mistake(
                    &table.at(second),
                    format!("a route does one thing; keep {first} or {second}"),
                );
                return None;
            }
        };
        match *key {
            "backend" => {
                let name = self.backend(value, of);
                let fallback = match &fallback {
                    Some(value) => Some(self.backend(value, of)?),
                    None => None,
                };
                if let (Some(name), Some(other)) = (&name, &fallback)
                    && name == other
                {
                    table.notes.mistake(
                        &table.at("fallback"),
                        "fallback is the backend itself; name another one, or remove fallback",
                    );
                }
                Some(Action::Backend {
                    name: name?,
                    fallback,
                })
            }
            "reset" if matches!(of, Of::Datagrams(_)) => value.refuse(
                "is for streams; a datagram that no route takes is dropped, so remove this route",
            ),
            "reset" => value.only_true().map(|_| Action::Reset),
            _ => destinations(value).map(Action::Requested),
        }
    }

    /// The name of a backend, which has to suit the listener.
    fn backend(&self, value: &Value<'_>, of: Of<'_>) -> Option<String> {
        let name = value.text()?;
        let Some(backend) = self.backends.iter().find(|backend| backend.name == name) else {
            let names = self.backends.iter().map(|backend| backend.name.as_str());
            let remedy = match nearest(name, names) {
                Some(near) => format!("write {near:?}"),
                None => format!("add [backend.{name}]"),
            };
            value
                .notes
                .missing(&value.at, format!("there is no backend {name:?}; {remedy}"));
            return None;
        };
        self.used.borrow_mut().insert(name.into());
        if backend.balance == Balance::Consistent(HashKey::Client)
            && backend.servers.len() > 1
            && let Some(word) = of.nothing_to_hash()
        {
            value.notes.warn(
                &value.at,
                format!(
                    "{name:?} has balance = \"consistent\", but nothing tells clients of a {word} socket apart, so its \
                     servers take turns for them; write \"round-robin\", or give them a backend of their own"
                ),
            );
        }
        let listener = match of {
            // A mistake of its own.
            _ if backend.servers.is_empty() => return Some(name.into()),
            _ if backend.traffic() != of.traffic() => {
                let [theirs, ours] = [backend.traffic(), of.traffic()].map(Traffic::word);
                let remedy = match of {
                    Of::Streams(_) => "name a backend of streams",
                    Of::Messages(_) => {
                        "name a backend whose servers are seqpacket:/path or vsock-seqpacket:CID:PORT"
                    }
                    Of::Datagrams(_) => {
                        "name a backend whose servers are udp:HOST:PORT or unixgram:/path"
                    }
                };
                return value.refuse(format!(
                    "{name:?} has servers of {theirs}, and this listener has {ours}, which cannot be joined; \
                     {remedy}"
                ));
            }
            Of::Datagrams(listen) => {
                if backend.source == Source::Client && !matches!(listen, SocketName::Udp(_)) {
                    let why = no_address_of_clients("UNIX");
                    value.refuse::<()>(format!("{name:?} {why}"));
                }
                return Some(name.into());
            }
            Of::Messages(_) => return Some(name.into()),
            Of::Streams(listener) => listener,
        };
        let others = backend.servers.iter().filter_map(|server| {
            let address = server.address.fixed()?;
            (!is_tcp(address)).then(|| SocketAddress::kind_for(address))
        });
        let others: BTreeMap<&str, splice::Kind> =
            others.map(|kind| (socket_word(kind), kind)).collect();
        for (word, kind) in others {
            if let EngineChoice::Only(engine) = listener.engine
                && let Err(error) = engine.can_take(kind)
            {
                value.refuse::<()>(format!("{name:?} has a {word} socket: {error}"));
            }
            if listener.rate.is_some() {
                value
                    .notes
                    .warn(&value.at, format!("servers on {word} sockets {NO_RATE}"));
            }
        }
        if backend.source == Source::Client && !is_tcp(&listener.address) {
            let of = socket_word(SocketAddress::kind_for(&listener.address));
            let why = no_address_of_clients(of);
            value.refuse::<()>(format!("{name:?} {why}"));
        }
        if listener.engine == EngineChoice::Only(EngineName::Segment) {
            let option = match backend {
                BackendPlan { mark: Some(_), .. } => Some("mark"),
                BackendPlan {
                    interface: Some(_), ..
                } => Some("interface"),
                _ => None,
            };
            if let Some(option) = option {
                value.refuse::<()>(format!(
                    "{name:?} has {option}, which engine segment cannot keep to: its segments do not pass \
                     the socket; remove {option}, or choose another engine"
                ));
            }
        }
        Some(name.into())
    }
}

fn server_name(value: &Value<'_>) -> Option<ServerName> {
    match value.text()? {
        "none" => Some(ServerName::None),
        _ => value.parse().map(ServerName::Matching),
    }
}

fn alpn(value: &Value<'_>) -> Option<Vec<u8>> {
    let text = value.text()?;
    // RFC 7301, section 3.1.
    if text.len() > 255 {
        return value.refuse("is too long; the name of a protocol has at most 255 bytes");
    }
    Some(text.into())
}

/// Warns of a method that is not in capitals, unless it is listed in capitals, too: then somebody knows that they
/// are two (RFC 9110, section 9.1).
fn methods(value: &Value<'_>) -> Option<Vec<String>> {
    let mut read = Vec::new();
    let methods = value.each(|value| {
        let method = method(value)?;
        read.push((value.clone(), method.clone()));
        Some(method)
    })?;
    for (value, method) in read {
        let capitals = method.to_ascii_uppercase();
        if !methods.contains(&capitals) {
            value.notes.warn(
                &value.at,
                format!(
                    "http_method {method:?} does not match {capitals}; methods are case-sensitive, and nearly all \
                     are in capital letters"
                ),
            );
        }
    }
    Some(methods)
}

fn method(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if is_method(text.as_bytes()) {
        return Some(text.into());
    }
    value.refuse(format!(
        "{text:?} is not a method; use letters, digits and !#$%&'*+-.^_`|~, such as GET or M-SEARCH"
    ))
}

fn path(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some(text.into());
    }
    value.refuse(format!(
        "{text:?} is not a path as requests have it; begin with / and write %20 for a space"
    ))
}

/// `text`, or `hex:16 03`, of at most `longest` bytes.
pub(super) fn bytes(value: &Value<'_>, longest: usize) -> Option<Vec<u8>> {
    let text = value.text()?;
    let bytes = match text.strip_prefix("hex:") {
        None => Some(text.as_bytes().to_vec()),
        Some(digits) => hex(digits).filter(|bytes| !bytes.is_empty()),
    };
    match bytes {
        Some(bytes) if bytes.len() <= longest => Some(bytes),
        Some(_) => value.refuse(format!("is too long; write at most {longest} bytes")),
        None => value.refuse(format!(
            "{text:?} cannot be used: write two hexadecimal digits for each byte, such as hex:1603"
        )),
    }
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<_> = digits
        .bytes()
        .filter(|byte| *byte != b' ')
        .map(|byte| char::from(byte).to_digit(16))
        .collect::<Option<_>>()?;
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high << 4 | low).ok(),
        _ => None,
    });
    pairs.collect()
}

/// `{ allow = [...] }`.
fn destinations(value: &Value<'_>) -> Option<Vec<DestinationRule>> {
    let table = value.table("socks and connect")?;
    let allow = table.get("allow");
    if allow.is_none() {
        table.notes.missing(
            &table.at,
            "no destination is allowed; add allow = [\"*.example.org:443\"]",
        );
    }
    table.finish();
    allow?.each(Value::parse)
}
