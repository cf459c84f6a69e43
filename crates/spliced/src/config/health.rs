//! What checks whether a server works: `health` of a backend.

use std::time::Duration;

use crate::config::route::bytes;
use crate::config::value::{Table, Value};
use crate::plan::{Check, HealthPlan};

/// The defaults of HAProxy (`inter`, `rise`, `fall`).
const EVERY: Duration = Duration::from_secs(2);
const RISE: u16 = 2;
const FALL: u16 = 3;

/// The longest `send` and `expect`, in bytes: a packet has room for it.
const EXCHANGE_MOST_BYTES: usize = 1024;

/// Checks of servers of streams.
pub(super) fn of_streams(value: &Value<'_>) -> Option<HealthPlan> {
    let table = value.table("health")?;
    let check = check(&table);
    plan(table, check)
}

/// Checks of servers of messages.
pub(super) fn of_messages(value: &Value<'_>) -> Option<HealthPlan> {
    const OF_STREAMS: [&str; 6] = ["tls", "http", "host", "status", "send", "expect"];
    let table = value.table("health")?;
    let refused = refuse(
        &table,
        &OF_STREAMS,
        "a server of messages is checked with tcp = true, which connects to it",
    );
    let check = match refused {
        true => None,
        false => check(&table),
    };
    plan(table, check)
}

/// Notes keys that are for streams. Returns whether there is one.
fn refuse(table: &Table<'_>, keys: &[&'static str], instead: &str) -> bool {
    let before = table.notes.count();
    for key in keys {
        if table.get(key).is_some() {
            table
                .notes
                .mistake(&table.at(key), format!("{key} is for streams; {instead}"));
        }
    }
    table.notes.count() > before
}

/// Checks of servers of datagrams.
pub(super) fn of_datagrams(value: &Value<'_>) -> Option<HealthPlan> {
    const OF_STREAMS: [&str; 5] = ["tcp", "tls", "http", "host", "status"];
    let table = value.table("health")?;
    refuse(
        &table,
        &OF_STREAMS,
        "a server of datagrams is checked with send and expect",
    );
    let (send, expect) = (table.get("send"), table.get("expect"));
    if send.is_none() {
        table.notes.missing(
            &table.at,
            "a check of datagrams needs send, which a good server answers; add it",
        );
    }
    let read = |value: Value<'_>| bytes(&value, EXCHANGE_MOST_BYTES);
    let expect = expect.map_or(Some(None), |value| read(value).map(Some));
    let check = match (send.and_then(read), expect) {
        (Some(send), Some(expect)) => Some(Check::Datagram { send, expect }),
        _ => None,
    };
    plan(table, check)
}

/// When checks are made, and what they come to.
fn plan(table: Table<'_>, check: Option<Check>) -> Option<HealthPlan> {
    let every = table.get("every").map_or(Some(EVERY), |value| value.time());
    let timeout = table
        .get("timeout")
        .map_or(Some(None), |value| value.time().map(Some));
    if let (Some(every), Some(Some(timeout))) = (every, timeout)
        && timeout > every
    {
        table.notes.mistake(
            &table.at("timeout"),
            "timeout is longer than every, so that checks would overlap; make it shorter",
        );
    }
    let (mut rise, mut fall) = (RISE, FALL);
    table.set("rise", &mut rise, |value| value.number(1..=1000));
    table.set("fall", &mut fall, |value| value.number(1..=1000));
    table.finish();
    let every = every?;
    Some(HealthPlan {
        check: check?,
        every,
        timeout: timeout?.unwrap_or(every),
        rise,
        fall,
    })
}

/// `send` and `expect`, if there is either: `Some(None)` is a mistake.
fn exchange(table: &Table<'_>, is_tcp: bool) -> Option<Option<Check>> {
    let (send, expect) = (table.get("send"), table.get("expect"));
    let given = match (&send, &expect) {
        (None, None) => return None,
        (Some(_), _) => "send",
        (None, Some(_)) => "expect",
    };
    if !is_tcp {
        table.notes.mistake(
            &table.at(given),
            format!(
                "{given} needs tcp = true; write it in place of tls or http, or remove {given}"
            ),
        );
        return Some(None);
    }
    let read = |value: &Value<'_>| bytes(value, EXCHANGE_MOST_BYTES);
    let send = send.map_or(Some(Vec::new()), |value| read(&value));
    let Some(expect) = expect else {
        table.notes.missing(
            &table.at("send"),
            "send needs expect, which is what a good server answers; add it, or remove send",
        );
        return Some(None);
    };
    let expect = read(&expect);
    Some(send.and_then(|send| expect.map(|expect| Check::Exchange { send, expect })))
}

fn check(table: &Table<'_>) -> Option<Check> {
    let (tcp, tls, http) = (table.get("tcp"), table.get("tls"), table.get("http"));
    let host = table.get("host");
    let status = table.get("status");
    if http.is_none() {
        for key in ["host", "status"] {
            if table.get(key).is_some() {
                table.notes.mistake(
                    &table.at(key),
                    format!("{key} needs http = \"/path\"; add it, or remove {key}"),
                );
            }
        }
    }
    let exchange = exchange(table, tls.is_none() && http.is_none());
    match (tcp, tls, http) {
        (None, None, None) if exchange.is_some() => exchange?,
        (Some(tcp), None, None) => {
            let is_tcp = tcp.only_true();
            match exchange {
                Some(exchange) => is_tcp.and(exchange),
                None => is_tcp.map(|_| Check::Tcp),
            }
        }
        (None, Some(tls), None) if tls.is_flag() => {
            tls.only_true().map(|_| Check::Tls { server_name: None })
        }
        (None, Some(tls), None) => {
            let name: splice_route::NamePattern = tls.parse()?;
            let name = name.to_string();
            if name.starts_with('*') {
                return tls.refuse(format!(
                    "{name:?} is what checks ask for, so it cannot have a star; write a whole name"
                ));
            }
            Some(Check::Tls {
                server_name: Some(name),
            })
        }
        (None, None, Some(http)) => {
            let path = http.text()?;
            let plain = |byte: u8| byte.is_ascii_graphic();
            if !path.starts_with('/') || !path.bytes().all(plain) {
                return http.refuse(format!(
                    "{path:?} is not a path; write one such as /health, without spaces"
                ));
            }
            let host = match host {
                None => None,
                Some(host) => {
                    let text = host.text()?;
                    if !text.bytes().all(plain) {
                        return host.refuse("has characters that no host has; remove them");
                    }
                    Some(text.to_owned())
                }
            };
            Some(Check::Http {
                path: path.into(),
                host,
                status: status.and_then(|status| status.number(100..=599)),
            })
        }
        (None, None, None) => {
            table.notes.missing(
                &table.at,
                "health does not say what to check; add tcp = true, tls = true or http = \"/path\"",
            );
            None
        }
        _ => {
            table.notes.mistake(
                &table.at,
                "health checks one thing; keep one of tcp, tls and http",
            );
            None
        }
    }
}
