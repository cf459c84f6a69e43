//! A configuration file as a plan.
//!
//! The file is parsed to a tree in which everything knows its place. [`value`] reads the tree with the
//! types of the plan. A mistake stops nothing: all of them are reported at once, each with its line.

mod backend;
mod bypass;
mod conflict;
mod coverage;
mod datagrams;
mod health;
mod kind;
mod listener;
mod notes;
mod prefix_file;
mod prefix_watch;
mod process;
mod removal;
mod route;
mod value;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use splice::{Address, EngineChoice, EngineName, Kind, SocketName};
use toml::de::DeTable;

use crate::config::notes::Notes;
pub(crate) use crate::config::notes::{Mistakes, Note};
pub(crate) use crate::config::prefix_watch::PrefixWatch;
use crate::config::removal::Removal;
use crate::config::route::Routes;
use crate::config::value::{Table, Value};
use crate::plan::{BackendPlan, Balance, DRAIN_TIMEOUT, ListenerPlan, MOST_SERVERS, Plan};
use crate::socket_address::SocketAddress;
use crate::text_file;

/// The longest configuration: it has room for all routes and servers, with 100 bytes each and as much for comments.
const MOST_MIB: u64 = 4;

/// The most listeners: each has a socket, and a process may have 1024 descriptors where nobody has allowed more
/// (`INR_OPEN_CUR` of linux/resource.h).
const MOST_LISTENERS: usize = 1000;

/// The most routes of all listeners. A client is held against one after the other.
const MOST_ROUTES: usize = 10_000;

/// What a configuration says.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) plan: Result<Plan, Mistakes>,
    /// What is allowed, but probably not meant.
    pub(crate) warnings: Vec<Note>,
}

/// Reads the configuration `path` and logs its warnings.
///
/// # Errors
/// Every mistake of the file.
pub(crate) fn read(path: &Path) -> Result<Plan, Mistakes> {
    let examined = examine(path);
    for warning in &examined.warnings {
        tracing::warn!("{warning}");
    }
    examined.plan
}

/// Reads the configuration `path`.
pub(crate) fn examine(path: &Path) -> Examined {
    match text_file::read(path, MOST_MIB) {
        Ok(text) => examine_text(path, &text),
        Err(error) => Examined {
            plan: Err(Mistakes(vec![Note {
                path: path.into(),
                line: 1,
                column: 1,
                sentence: format!(
                    "the configuration cannot be read ({error}); {}",
                    text_file::remedy(&error)
                ),
            }])),
            warnings: Vec::new(),
        },
    }
}

fn examine_text(path: &Path, text: &str) -> Examined {
    let (tree, errors) = DeTable::parse_recoverable(text);
    let syntax = errors.iter().map(|error| {
        let end = text.len()..text.len();
        let mut sentence = error.message().trim().replace('\n', "; ");
        if sentence.contains("leading zero") {
            sentence.push_str("; write a file's mode as a string, such as \"0660\"");
        }
        (
            error.span().unwrap_or(end),
            format!("this is not TOML: {sentence}"),
        )
    });
    let notes = Notes::new(path, text, syntax);
    let plan = plan(Table::new(
        tree.get_ref(),
        0..0,
        "the configuration",
        &notes,
    ));
    let (mistakes, warnings) = notes.finish();
    Examined {
        plan: match mistakes.is_empty() {
            true => Ok(plan),
            false => Err(Mistakes(mistakes)),
        },
        warnings,
    }
}

/// The plan, which counts only if nothing was noted.
fn plan(table: Table<'_>) -> Plan {
    let notes = table.notes;
    let mut threads = None;
    table.set_some("threads", &mut threads, |value| value.number(1..=1024));
    let mut drain_timeout = DRAIN_TIMEOUT;
    table.set("drain_timeout", &mut drain_timeout, Value::time_or_zero);
    let control = process::read(&table);
    let mut of_listeners = listener::silent();
    let mut removal = Removal::new(drain_timeout);
    let mut of_backends = backend::Settings::new(drain_timeout);
    let mut default_hash = None;
    if let Some(defaults) = table
        .get("defaults")
        .and_then(|value| value.section("defaults", "[defaults]"))
    {
        listener::settings(&defaults, &mut of_listeners);
        removal.read(&defaults);
        of_backends.read(&defaults);
        default_hash = defaults.get("hash").map(|_| defaults.at("hash"));
        defaults.finish();
    }
    let (backends, places): (Vec<_>, Vec<_>) = backends(&table, &of_backends).into_iter().unzip();
    let routes = Routes {
        backends: &backends,
        used: Default::default(),
        count: Default::default(),
        files: Default::default(),
    };
    let tables = match table.get("listener") {
        Some(value) => value.sections("listener", "a listener"),
        None => Some(Vec::new()),
    };
    let tables = tables.and_then(|tables| at_most(tables, MOST_LISTENERS, "listeners"));
    let bypasses = bypass::read_all(&table);
    if tables.as_ref().is_some_and(Vec::is_empty) && bypasses.as_ref().is_some_and(Vec::is_empty) {
        notes.missing(
            &(0..0),
            "there is no listener and no bypass; add a [[listener]]",
        );
    }
    let (mut listeners, mut datagram_listeners) = (Vec::new(), Vec::new());
    let mut known = Vec::new();
    for table in tables.unwrap_or_default() {
        let line = notes.line(&table.at);
        if datagrams::is_of_datagrams(&table) {
            if let Some(listener) = datagrams::read(&table, &of_listeners, removal, &routes) {
                compare(&table, line, &listener.name, &listener.listen, &mut known);
                datagram_listeners.push(Arc::new(listener));
            }
            table.finish();
            continue;
        }
        if let Some(listener) = listener::read(&table, &of_listeners, removal, &routes) {
            let address = SocketName::Connected(listener.address.clone());
            compare(&table, line, &listener.name, &address, &mut known);
            suit_engine(&table, &listener);
            if listener.rate.is_some() && !is_tcp(&listener.address) {
                notes.warn(
                    &table.at("address"),
                    format!(
                        "clients of a {} socket {NO_RATE}",
                        word_for(&listener.address)
                    ),
                );
            }
            listeners.push(Arc::new(listener));
        }
        table.finish();
    }
    let used = routes.used.into_inner();
    table.finish();
    // A route with a mistake may be the one.
    for (backend, at) in backends.iter().zip(places) {
        if notes.count() == 0 && !used.contains(&backend.name) {
            let name = &backend.name;
            notes.warn(
                &at,
                format!("no route leads to backend {name:?}; remove it, or add a route"),
            );
        }
    }
    let hashes = |backend: &BackendPlan| matches!(backend.balance, Balance::Consistent(_));
    if let Some(at) = default_hash
        && notes.count() == 0
        && !backends.iter().any(hashes)
    {
        notes.warn(
            &at,
            "no backend has balance = \"consistent\", so hash means nothing; add it, or remove hash",
        );
    }
    Plan {
        threads,
        drain_timeout,
        control,
        listeners,
        datagram_listeners,
        backends: backends.into_iter().map(Arc::new).collect(),
        bypasses: bypasses.unwrap_or_default(),
    }
}

/// The backends, each with its place.
fn backends(table: &Table<'_>, defaults: &backend::Settings) -> Vec<(BackendPlan, Range<usize>)> {
    let given = table.get("backend");
    let Some(all) = given.and_then(|value| value.section("backend.NAME", "backend")) else {
        return Vec::new();
    };
    let mut backends = Vec::new();
    let mut servers = 0;
    for (name, at, value) in all.all() {
        if !listener::is_name(name) {
            let names = listener::NAMES;
            table
                .notes
                .mistake(&at, format!("the name {name:?} cannot be used: {names}"));
        }
        let section = value.section(&format!("backend.{name}"), "a backend");
        let backend = backend::read(section.as_ref(), name, defaults);
        let fitted = servers <= MOST_SERVERS;
        servers += backend.servers.len();
        if fitted && servers > MOST_SERVERS {
            let sentence = too_many(MOST_SERVERS, "servers");
            table.notes.mistake(&at, sentence);
        }
        backends.push((backend, at));
        if let Some(table) = section {
            table.finish();
        }
    }
    backends
}

/// Those of `tables` that are read: none if they are too many.
fn at_most<'a>(tables: Vec<Table<'a>>, most: usize, what: &str) -> Option<Vec<Table<'a>>> {
    let Some(first) = tables.get(most) else {
        return Some(tables);
    };
    first.notes.mistake(&first.at, too_many(most, what));
    None
}

/// What is said where the first of those stands that are too many.
fn too_many(most: usize, what: &str) -> String {
    format!(
        "a configuration has at most {most} {what}, and here are more; divide them among several relays"
    )
}

/// A listener that was read: its line, its name and its address.
type Known = (usize, String, SocketName);

/// Notes that a listener has the name or the address of an earlier one.
fn compare(
    table: &Table<'_>,
    line: usize,
    name: &str,
    address: &SocketName,
    earlier: &mut Vec<Known>,
) {
    for (line, other_name, other) in earlier.iter() {
        if other_name == name && table.get("name").is_some() {
            table.notes.mistake(
                &table.at("name"),
                format!("the listener of line {line} has this name, too; choose another one"),
            );
        }
        // Port 0 is another port each time, but a reload knows such listeners by their names.
        let is_one = other == address && other_name == name;
        let is_taken = match (other, address) {
            (SocketName::Connected(one), SocketName::Connected(other))
            | (SocketName::Udp(one), SocketName::Udp(other))
            | (SocketName::UnixDatagram(one), SocketName::UnixDatagram(other)) => {
                is_same(one, other)
            }
            _ => false,
        };
        if is_one || is_taken {
            table.notes.mistake(
                &table.at("address"),
                format!("the listener of line {line} has this address, too; choose another one"),
            );
        }
    }
    earlier.push((line, name.into(), address.clone()));
}

fn is_tcp(address: &Address) -> bool {
    address.is_tcp()
}

/// What a socket of this kind is called.
fn socket_word(kind: Kind) -> &'static str {
    match kind {
        kind if kind.is_tcp() => "TCP",
        kind if kind.is_vsock() => "VSOCK",
        _ => "UNIX",
    }
}

fn word_for(address: &Address) -> &'static str {
    socket_word(SocketAddress::kind_for(address))
}

/// Only TCP paces what it sends (`SO_MAX_PACING_RATE`).
const NO_RATE: &str =
    "get their bytes at any rate, since only TCP keeps to one; use TCP, or remove rate";

/// Whether sockets on both addresses would take one another's clients.
fn is_same(one: &Address, other: &Address) -> bool {
    let (
        Address::Inet { host, port },
        Address::Inet {
            host: with,
            port: same,
        },
    ) = (one, other)
    else {
        return one == other;
    };
    // The first is dual-stack.
    let every = |host: &str| ["", "::", "0.0.0.0"].contains(&host);
    let overlap = host == with
        || every(host) && every(with) && [host, with].iter().any(|host| *host != "0.0.0.0");
    *port != 0 && port == same && overlap
}

/// Notes an engine that cannot do what the listener asks for.
fn suit_engine(table: &Table<'_>, listener: &ListenerPlan) {
    let EngineChoice::Only(engine) = listener.engine else {
        return;
    };
    let at = match table.get("engine") {
        Some(value) => value.at,
        None => table.at.clone(),
    };
    if engine == EngineName::Segment && listener.rate.is_some() {
        table.notes.mistake(
            &at,
            "engine segment cannot keep to a rate, which is the sockets' business: its segments do not pass \
             them; remove rate, or choose another engine",
        );
    }
    if !is_tcp(&listener.address)
        && let Err(error) = engine.can_take(SocketAddress::kind_for(&listener.address))
    {
        table.notes.mistake(&at, error.to_string());
    }
}

#[cfg(test)]
mod precedence;
#[cfg(test)]
mod reached;
#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use splice_route::{Conditions, ServerName};

    use super::examine_text;
    use crate::plan::{
        Action, Balance, Check, OnRemove, Plan, ProxyVersion, ServerAddress, ServerPlan,
    };

    fn plan(text: &str) -> Plan {
        let examined = examine_text(Path::new("spliced.toml"), text);
        assert_eq!(examined.warnings, Vec::new());
        match examined.plan {
            Ok(plan) => plan,
            Err(mistakes) => panic!("{mistakes}"),
        }
    }

    fn server(address: &str, weight: u16) -> ServerPlan {
        ServerPlan {
            address: ServerAddress::Address(address.parse().expect("an address")),
            weight,
            disabled: false,
            backup: false,
        }
    }

    #[test]
    fn a_plain_configuration_says_what_it_seems_to() {
        let plan = plan(include_str!("../../tests/relay/config/valid/plain.toml"));
        assert_eq!(plan.threads, None);
        assert_eq!(plan.drain_timeout, Duration::from_secs(30));
        let [listener] = plan.listeners.as_slice() else {
            panic!("{plan:?}");
        };
        assert_eq!(listener.name, "tls");
        assert_eq!(listener.address.to_string(), "0.0.0.0:443");
        assert_eq!(listener.decide_within, Duration::from_secs(3));
        let name = |text: &str| ServerName::Matching(text.parse().expect("a name"));
        let expected = [
            Conditions {
                sni: Some(vec![name("example.org"), name("*.example.org")]),
                ..Conditions::default()
            },
            Conditions {
                alpn: Some(vec![b"h2".to_vec()]),
                ..Conditions::default()
            },
            Conditions {
                http_hosts: Some(vec!["example.net".parse().expect("a name")]),
                ..Conditions::default()
            },
            Conditions {
                silent: true,
                ..Conditions::default()
            },
        ];
        assert_eq!(listener.routes.len(), expected.len());
        for (route, conditions) in listener.routes.iter().zip(&expected) {
            assert_eq!(&route.conditions, conditions);
            let name = if conditions.silent { "ssh" } else { "web" };
            let action = Action::Backend {
                name: name.into(),
                fallback: None,
            };
            assert_eq!(route.action, action);
        }
        let [web, ssh] = plan.backends.as_slice() else {
            panic!("{plan:?}");
        };
        assert_eq!((web.name.as_str(), ssh.name.as_str()), ("web", "ssh"));
        assert_eq!(web.balance, Balance::LeastConnections);
        assert_eq!(
            web.servers,
            [server("10.0.0.7:443", 1), server("10.0.0.8:443", 2)]
        );
        assert_eq!(web.send_proxy, Some(ProxyVersion::V2));
        let health = web.health.as_ref().expect("checks");
        assert_eq!(health.check, Check::Tcp);
        assert_eq!((health.rise, health.fall), (2, 3));
        assert_eq!(health.every, Duration::from_secs(2));
        assert_eq!(ssh.servers, [server("10.0.0.9:22", 1)]);
        assert_eq!(ssh.health, None);
        assert_eq!(ssh.on_remove, OnRemove::Drain(Duration::from_secs(30)));
    }
}
